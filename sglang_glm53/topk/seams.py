"""Owns the selection's seams."""

from sglang_glm53.upstream import Seam

_TOPK = "sglang.srt.layers.attention.dsa.dsa_topk_backend"
_METADATA = "sglang.srt.layers.attention.dsa_backend.DSAMetadata"

SEAMS = (
    Seam(
        f"{_TOPK}.DSATopKBackend.topk_transform",
        "method",
        "(self, logits, lengths, topk, topk_transform_method, attn_metadata, cu_seqlens_q_topk=..., "
        "topk_indices_offset=..., row_starts=..., batch_idx_list=..., force_unfused_topk=...)",
        "hooked: indexer_topk selects in GLM-5.3's layers",
    ),
    Seam(
        f"{_TOPK}.DSATopKBackend.is_sgl_kernel",
        "method",
        "(self)",
        "tells whether the user chose another kernel",
    ),
    Seam(f"{_TOPK}.TopkTransformMethod", "class", "(IntEnum)", "tells what the attention reads"),
    Seam("sglang.srt.environ.Envs.SGLANG_DSA_FUSE_TOPK", "field", None, "tells whether it reads slots"),
    Seam(f"{_METADATA}.real_page_table", "field", None, "makes slots of positions"),
    Seam(f"{_METADATA}.page_size", "field", None, "the page size of that table"),
    Seam(f"{_METADATA}.token_to_batch_idx", "field", None, "a prefill row's line of that table"),
)
