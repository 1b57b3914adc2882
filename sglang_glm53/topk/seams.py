"""Owns the selection's seams."""

from sglang_glm53.upstream import Hook, Seam, until

_TOPK = "sglang.srt.layers.attention.dsa.dsa_topk_backend"
_METADATA = "sglang.srt.layers.attention.dsa_backend.DSAMetadata"

SEAMS = until(
    "SGLang's own top-k gives the same selection on every run",
    Seam(
        f"{_TOPK}.DSATopKBackend.topk_transform",
        "method(self, logits, lengths, topk, topk_transform_method, attn_metadata, "
        "cu_seqlens_q_topk=..., topk_indices_offset=..., row_starts=..., batch_idx_list=..., "
        "force_unfused_topk=...)",
        "indexer_topk selects in GLM-5.3's layers",
        Hook("around", "sglang_glm53.topk.selection:topk_transform"),
    ),
    Seam(
        f"{_TOPK}.DSATopKBackend.is_sgl_kernel", "method(self)", "tells whether the user chose another kernel"
    ),
    Seam(f"{_TOPK}.TopkTransformMethod", "class(IntEnum)", "tells what the attention reads"),
    Seam("sglang.srt.environ.Envs.SGLANG_DSA_FUSE_TOPK", "field", "tells whether the attention reads slots"),
    Seam(f"{_METADATA}.real_page_table", "field", "the page table, which makes slots of positions"),
    Seam(f"{_METADATA}.page_size", "field", "the page size of the page table"),
    Seam(f"{_METADATA}.token_to_batch_idx", "field", "a prefill row's line of the page table"),
)
