"""GLM-5.3's MTP draft model, and how its draft steps come by their selection.

SGLang does the sharing: draft-extend runs the MTP layer's indexer over every verified token, so each has its
index key, and the last one's selection is the seed that all draft steps take (IndexTopKShareState, SGLang
0.5.23, layers/attention/index_topk_share.py). Its draft model returns the hidden state after the final norm,
for the logits and for the next step alike (models/deepseek_nextn.py DeepseekModelNextN.forward). What is
added here is the check of the seed, and the counters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch
from sglang.srt.models import deepseek_nextn, deepseek_v2
from sglang.srt.models.glm4_moe import GlmMoeDsaForCausalLMNextN

from sglang_glm53.fusion import DRAFT_ARGMAX, Declined, Fusion
from sglang_glm53.model.attention import Glm53Attention
from sglang_glm53.model.model import LAYER_CLASSES, Glm53DecoderLayer, built_from
from sglang_glm53.speculative.draft_argmax import DraftLogitsProcessor
from sglang_glm53.weights import loading

# Draft steps by where their selection came from; counted in Python, so a replayed CUDA graph adds nothing.
steps: Counter[str] = Counter()


def checked_seed(seed: torch.Tensor | None, requests: int) -> torch.Tensor | None:
    """The selection that a draft step takes over; None when it must select for itself.

    seed: [rows, k] int32 or None, whose first `requests` rows belong to requests. A row that selects nothing
    is invalid, since a request has at least one verified token; then no row of the seed is used. Only the
    reference platform looks: on a GPU the host would wait for the device in each step, and a captured graph
    could not act on it. There a wrong seed costs the drafts of its step, which verification rejects.
    """
    if seed is None:
        steps["recomputed"] += 1
        return None
    if seed.device.type == "cpu" and bool((seed[:requests].amax(-1) < 0).any()):
        steps["invalid"] += 1
        return None
    steps["reused"] += 1
    return seed


class Glm53DraftAttention(Glm53Attention):
    """The MTP layer's attention: it checks the selection that a draft step takes over."""

    def forward_absorb_prepare(
        self,
        positions: torch.Tensor,
        hidden_states: torch.Tensor,
        forward_batch: Any,
        zero_allocator: Any,
        llama_4_scaling: torch.Tensor | None = None,
        prev_topk_indices: torch.Tensor | None = None,
    ) -> Any:
        """As Glm53Attention's. In a draft step prev_topk_indices is the seed or what the step before made."""
        if forward_batch.forward_mode.is_decode():
            # Only attention DP pads, and then the batch keeps its own size here.
            requests = forward_batch._original_batch_size or forward_batch.batch_size
            prev_topk_indices = checked_seed(prev_topk_indices, requests)
        return super().forward_absorb_prepare(
            positions, hidden_states, forward_batch, zero_allocator, llama_4_scaling, prev_topk_indices
        )


DRAFT_CLASSES = {**LAYER_CLASSES, "DeepseekV2AttentionMLA": Glm53DraftAttention}


class Glm53ForCausalLMNextN(GlmMoeDsaForCausalLMNextN):  # type: ignore[misc]
    """The MTP layer with GLM-5.3's layer classes.

    Source: SGLang 0.5.23, models/glm4_moe.py GlmMoeDsaForCausalLMNextN.
    """

    def __init__(self, config: Any, quant_config: Any = None, prefix: str = "") -> None:
        parts: dict[Any, dict[str, type]] = {
            deepseek_v2: DRAFT_CLASSES,
            deepseek_nextn: {
                "DeepseekV2DecoderLayer": Glm53DecoderLayer,
                "LogitsProcessor": DraftLogitsProcessor,
            },
        }
        with built_from(parts):
            super().__init__(config, quant_config, prefix)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Load the MTP layer's tensors, strictly (see weights/loading.py)."""
        loading.load_strictly(self, weights, super().load_weights, draft=True)


def _loaded(scheduler: Any) -> tuple[Any, Any] | Declined:
    """SGLang's draft worker and its model, one of ours; else why this process has none."""
    if scheduler.draft_worker is None:
        return Declined("--speculative-algorithm is not given")
    # The last pipeline stage alone has one.
    draft: Any = getattr(scheduler.draft_worker, "_draft_worker", None)
    model = draft and draft.draft_runner.model
    if not isinstance(model, Glm53ForCausalLMNextN):
        return Declined("this process holds no MTP layer")
    return draft, model


def fusion(scheduler: Any) -> Fusion:
    """The draft argmax's record in this process. scheduler: as describe()'s."""
    found = _loaded(scheduler)
    if isinstance(found, Declined):
        return Fusion(DRAFT_ARGMAX, "off", found.reason)
    record: Fusion = found[1].logits_processor.record
    return record


def describe(scheduler: Any) -> dict[str, Any]:
    """Speculative decoding in this process, in builtin types, read from the loaded draft worker.

    scheduler: SGLang's Scheduler after loading. tokens: those that verification gave, its own included;
    verified: the requests' verifies. draft_steps: by where their selection came from; those of a replayed
    graph are not counted. invalid is None where no seed is looked at.
    """
    found = _loaded(scheduler)
    if isinstance(found, Declined):
        return {"state": "off", "reason": found.reason}
    draft, model = found
    counts = scheduler.metrics_reporter
    looked_at = next(model.parameters()).device.type == "cpu"
    return {
        "state": "on",
        "reason": None,
        "model": f"{type(model).__module__}.{type(model).__qualname__}",
        "steps": draft.speculative_num_steps,
        "shared_selection": bool(draft.seed_dsa_topk_from_draft_extend),
        "draft_steps": {
            "reused": steps["reused"],
            "recomputed": steps["recomputed"],
            "invalid": steps["invalid"] if looked_at else None,
        },
        "tokens": counts.spec_total_num_accept_tokens + counts.spec_num_accept_tokens,
        "verified": counts.spec_total_num_forward_ct + counts.spec_num_forward_ct,
    }
