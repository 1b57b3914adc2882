"""Owns the greedy draft's argmax: a rank sends the (max, id) of its shard of the vocabulary, not its logits.

With topk 1 and without rejection sampling SGLang's draft worker reads nothing of the draft's logits but each
row's argmax: the probability beside it is a constant or goes unread, and verification takes zeros for the
draft's distribution. So each rank finds its shard's best, and one all-gather of 8 bytes a row and rank, an
FP32 and an int32, gives every rank the winner. The worker reduces what it is handed in four places of its
own, so it is handed rows as wide as the logits, 0 at the winner and LOW elsewhere: their argmax is the winner
and their softmax is 1 there. They are no more to write than the gathered logits were.

The winner is the argmax of the gathered logits after scaling and softcapping, which SGLang's own code does on
the shard: the lowest id among equals, -0 equal to 0, padding left out. NaN counts as minus infinity, and a
row without any larger number gives id 0.

Source: SGLang 0.5.23, layers/logits_processor.py LogitsProcessor._get_logits (the gather), deferred_argmax
(the same for DFlash's verification); speculative/eagle_worker_v2.py EagleDraftWorker.draft_forward,
_draft_extend_for_prefill, _draft_extend_for_decode (who reads the logits); speculative/eagle_utils.py
eagle_sample (verification).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from sglang.srt.environ import envs
from sglang.srt.layers.logits_processor import LogitsProcessor
from sglang.srt.runtime_context import get_parallel, get_spec

from sglang_glm53.fusion import DRAFT_ARGMAX, Declined, Fusion
from sglang_glm53.kernels import backend

NOT_GATHERED = "one rank has the whole vocabulary: nothing is gathered"
ALL_DP_RANKS = (
    "the vocabulary is split over the attention-DP ranks, of which an idle one would gather otherwise: "
    "--enable-dp-lm-head"
)
SAMPLED = "--speculative-use-rejection-sampling reads the draft's distribution"
TOKEN_MAP = "--speculative-token-map numbers the draft's tokens anew"
LOGPROBS = "the draft's logprobs are asked for"
LOW = -1e30  # finite: a softmax over blocks divides by zero in a block of infinities


def _record(processor: LogitsProcessor) -> Fusion:
    """The record of a finished processor: its state is decided once."""
    spec = get_spec()
    if DRAFT_ARGMAX in backend.settings().disabled:
        return Fusion.switched_off(DRAFT_ARGMAX)
    if not processor.do_tensor_parallel_all_gather:
        return Fusion(DRAFT_ARGMAX, "off", NOT_GATHERED)
    checks = [
        name
        for name in ("SGLANG_ENABLE_NAN_LOGITS_CHECK", "SGLANG_ENABLE_ASYNC_ASSERT")
        if getattr(envs, name).get()
    ]
    reasons = {
        ALL_DP_RANKS: processor.do_tensor_parallel_all_gather_dp_attn,
        f"--speculative-eagle-topk {spec.speculative_eagle_topk} ranks several tokens, not 1": (
            spec.speculative_eagle_topk != 1
        ),
        SAMPLED: spec.speculative_use_rejection_sampling,
        TOKEN_MAP: spec.speculative_token_map is not None,
        f"{' and '.join(checks)} examines the draft's logits": bool(checks),
    }
    reason = next((reason for reason, holds in reasons.items() if holds), None)
    return Fusion(DRAFT_ARGMAX, "declined" if reason else "on", reason)


def best(shard: torch.Tensor, first: int, vocab_size: int) -> torch.Tensor:
    """Each row's largest logit and its id, as [rows, 2] int32: the bits of an FP32, and the id.

    shard: [rows, width] FP32, the ids from `first` on; those from vocab_size on are padding.
    """
    width = min(max(vocab_size - first, 0), shard.shape[1])
    if not width:
        value = shard.new_full((shard.shape[0], 1), -torch.inf)
        at = torch.zeros_like(value, dtype=torch.int32)
    else:
        numbers = shard[:, :width]
        numbers = torch.where(numbers.isnan(), -torch.inf, numbers)
        at = numbers.argmax(dim=1, keepdim=True)
        value = numbers.gather(1, at)
        at = (at + first).to(torch.int32)
    return torch.cat([value.view(torch.int32), at], dim=1)


def winners(pairs: torch.Tensor) -> torch.Tensor:
    """The ids of the largest, [rows] int64. pairs: [ranks, rows, 2] as `best` gives, ranks by id."""
    # Of equal values argmax takes the first, whose id is the lowest.
    ranks = pairs.view(torch.float32)[..., 0].argmax(dim=0, keepdim=True)
    return pairs[..., 1].gather(0, ranks)[0].long()


def gather(group: Any, pairs: torch.Tensor) -> torch.Tensor:
    """The pairs of every rank, [ranks, rows, 2], by one collective of SGLang's GroupCoordinator."""
    gathered = pairs.new_empty((group.world_size * pairs.shape[0], 2))
    group.all_gather_into_tensor(gathered, pairs)
    return gathered.view(group.world_size, *pairs.shape)


def in_place_of_logits(ids: torch.Tensor, vocab_size: int, buffer: torch.Tensor | None) -> torch.Tensor:
    """[rows, vocab_size] FP32: 0 at each row's id, LOW elsewhere; written into a buffer of that shape."""
    shape = (ids.shape[0], vocab_size)
    if buffer is None or buffer.shape != shape:
        buffer = torch.empty(shape, dtype=torch.float32, device=ids.device)
    return buffer.fill_(LOW).scatter_(1, ids[:, None], 0.0)


class DraftLogitsProcessor(LogitsProcessor):  # type: ignore[misc]
    """The logits processor of the draft model.

    Every choice that it makes is the same on all ranks of the group and comes before the first collective.
    record: a traced call adds nothing to it.
    """

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.record = _record(self)

    def _get_logits(
        self,
        hidden_states: torch.Tensor,
        lm_head: Any,
        logits_metadata: Any,
        embedding_bias: torch.Tensor | None = None,
        use_logits_buffer: bool = True,
    ) -> torch.Tensor:
        """Upstream's, or what stands in its place: see the module's docstring."""
        reason = self.record.reason or (LOGPROBS if logits_metadata.extend_return_logprob else None)
        traced = torch.compiler.is_compiling()
        if reason or traced:
            if reason and not traced:
                self.record.decline(Declined(reason))
            logits: torch.Tensor = super()._get_logits(
                hidden_states, lm_head, logits_metadata, embedding_bias, use_logits_buffer
            )
            return logits
        self.record.ran["torch"] += 1
        group = get_parallel().attn_tp_group if self.use_attn_tp_group else get_parallel().tp_group
        with self._shard_alone():
            shard = super()._get_logits(hidden_states, lm_head, logits_metadata, embedding_bias, False)
        pairs = best(shard, group.rank_in_group * shard.shape[1], self.vocab_size)
        buffer = logits_metadata.next_token_logits_buffer if use_logits_buffer else None
        return in_place_of_logits(winners(gather(group, pairs)), self.vocab_size, buffer)

    @contextmanager
    def _shard_alone(self) -> Iterator[None]:
        """While open, upstream's code scales, softcaps and casts this rank's shard, and gathers nothing."""
        self.do_tensor_parallel_all_gather = False
        try:
            yield
        finally:
            self.do_tensor_parallel_all_gather = True
