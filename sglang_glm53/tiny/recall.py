"""Owns the weights of a checkpoint that repeats its context: every token is the one `period` positions back.

Target and MTP layer both find that token by attention, further back than index_topk positions, where each
selects it by an indexer of its own. So drafts are right only if speculative decoding is right in this:

- Attention looks `period - 1` positions back by RoPE alone; queries and keys hold nothing else. The draft of
  step n, whose own position is n later, needs the selection of draft-extend to reach n positions further.
- An index key is a constant under RoPE, so a row selects index_topk positions in a fixed window behind it.
  The target's begins at the position that it needs. The MTP layer's begins at the one that draft DRAFTS
  needs, with none to spare: neither the target's selection nor one from a row earlier serves all drafts.
- A position without its index key is not selected, and drafts soon look back at generated ones.
- The MTP layer's queries have the sign that the final norm gives the hidden state.

The residual stream holds the code of the token read, the code of the token found, and a level that every
token's embedding has, in two halves: one for keys and one for queries.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from sglang_glm53.geometry import INDEX_HEAD_DIM, KV_LORA, KV_ROPE
from sglang_glm53.tiny.sizes import CONSTANTS, DRAFTS, LEVELS, TinySpec
from sglang_glm53.tiny.weights import draw as draw_random
from sglang_glm53.tiny.weights import normal

# A level far above the codes keeps the RMS of the stream, and with it the keys, the same at every position.
LEVEL = 6.0
# Of the code that the layers together write, relative to the code that an embedding has.
FOUND = 0.5
# RoPE's fastest four frequencies tell neighbours apart; these slower four are one hill over 1000 positions.
NEAR, FAR = slice(0, 4), slice(6, 10)
# The logit of the position looked for is by this much above its neighbours'.
MARGIN = 12.0
# What the random MLPs add, next to what they add in a random checkpoint.
MLP = 0.1
LOGIT = 30.0


@dataclass(frozen=True)
class _Stream:
    """Where the parts of the residual stream lie. code: elements of one code."""

    code: int

    def __init__(self, hidden: int) -> None:
        object.__setattr__(self, "code", (hidden - LEVELS) // 2)

    @property
    def read(self) -> slice:
        return slice(0, self.code)

    @property
    def found(self) -> slice:
        return slice(self.code, 2 * self.code)

    @property
    def keys(self) -> slice:
        return slice(2 * self.code, 2 * self.code + LEVELS // 2)

    @property
    def queries(self) -> slice:
        return slice(2 * self.code + LEVELS // 2, 2 * self.code + LEVELS)


def draw(spec: TinySpec, name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """The values of one stored tensor, FP32; a tensor that plays no part is that of a random checkpoint."""
    values = draw_random(spec.seed, name, shape)
    part = name.removesuffix(".weight").rpartition(".")[2]
    if ".indexer." in name:
        is_draft = name.startswith(f"model.layers.{spec.layers}.")
        nearest = spec.period - (DRAFTS if is_draft else 1)
        return _indexer(spec, name.partition(".indexer.")[2], nearest, values)
    if part in ("down_proj", "o_proj"):
        values *= MLP
    build = _BUILD.get(part)
    return values if build is None else build(spec, values)


def _codes(spec: TinySpec) -> torch.Tensor:
    """[vocab, code]: each token's direction, at unit RMS."""
    code = normal(spec.seed, "codes", (spec.vocab, _Stream(spec.hidden).code))
    return code / code.square().mean(1, keepdim=True).sqrt()


def _embedding(spec: TinySpec, values: torch.Tensor) -> torch.Tensor:
    stream = _Stream(spec.hidden)
    values = torch.full_like(values, LEVEL)
    values[:, stream.read], values[:, stream.found] = _codes(spec), 0
    return values


def _head(spec: TinySpec, values: torch.Tensor) -> torch.Tensor:
    stream = _Stream(spec.hidden)
    values = torch.zeros_like(values)
    values[:, stream.found] = _codes(spec) * (LOGIT / stream.code)
    return values


def _final_norm(spec: TinySpec, values: torch.Tensor) -> torch.Tensor:
    """The query levels change sign, and the MTP layer changes it back: without the norm, it looks away."""
    values[_Stream(spec.hidden).queries] *= -1
    return values


def _mtp_input(spec: TinySpec, values: torch.Tensor) -> torch.Tensor:
    """From (token, hidden state): the token's code and key level, the hidden state's query level."""
    stream, values = _Stream(spec.hidden), torch.zeros_like(values)
    token, hidden = values[:, : spec.hidden], values[:, spec.hidden :]
    token[stream.read, stream.read] = torch.eye(stream.code)
    token[stream.keys, stream.keys] = torch.eye(LEVELS // 2)
    hidden[stream.queries, stream.queries] = -torch.eye(LEVELS // 2)
    return values


def _query_latent(spec: TinySpec, values: torch.Tensor) -> torch.Tensor:
    """Element 0 is the query level, element 1 the key level: both sqrt(q_lora / 2) after the norm."""
    stream, values = _Stream(spec.hidden), torch.zeros_like(values)
    values[0, stream.queries] = values[1, stream.keys] = 1.0
    return values


def _key_latent(spec: TinySpec, values: torch.Tensor) -> torch.Tensor:
    stream, values = _Stream(spec.hidden), torch.zeros_like(values)
    values[: stream.code, stream.read] = torch.eye(stream.code)
    first = KV_LORA + 2 * NEAR.start
    values[first : first + 2 * (NEAR.stop - NEAR.start) : 2, stream.keys] = 2.0 / LEVELS
    return values


def _frequencies(of: slice) -> torch.Tensor:
    theta = CONSTANTS["rope_parameters"]["rope_theta"]
    return torch.tensor([theta ** (-2 * pair / KV_ROPE) for pair in range(of.start, of.stop)])


def _towards(distance: float, of: slice) -> torch.Tensor:
    """[KV_ROPE]: the query that meets a key of (1, 0) in each pair best at this distance."""
    query, angle = torch.zeros(KV_ROPE), _frequencies(of) * distance
    query[2 * of.start : 2 * of.stop : 2], query[2 * of.start + 1 : 2 * of.stop : 2] = (
        angle.cos(),
        -angle.sin(),
    )
    return query


def _query(spec: TinySpec, values: torch.Tensor) -> torch.Tensor:
    values = torch.zeros_like(values)
    neighbour = (1 - _frequencies(NEAR).cos()).sum()
    # The key level after the layer's norm is near LEVEL / sqrt(mean square of an embedding).
    stream = _Stream(spec.hidden)
    key = LEVEL / math.sqrt((stream.code + LEVELS * LEVEL**2) / spec.hidden)
    size = MARGIN * math.sqrt(spec.nope + KV_ROPE) / (neighbour * key * math.sqrt(spec.q_lora / 2))
    heads = values.view(spec.heads, spec.nope + KV_ROPE, -1)
    heads[:, spec.nope :, 0] = _towards(spec.period - 1, NEAR) * size
    return values


def _parts(spec: TinySpec) -> int:
    """The heads that it takes to carry one code."""
    return -(-_Stream(spec.hidden).code // spec.v)


def _value(spec: TinySpec, values: torch.Tensor) -> torch.Tensor:
    """Head h carries the elements of the code from h % parts * v on."""
    heads, code = values.view(spec.heads, spec.nope + spec.v, -1), _Stream(spec.hidden).code
    for head in range(spec.heads):
        carried = torch.arange(head % _parts(spec) * spec.v, min(code, (head % _parts(spec) + 1) * spec.v))
        heads[head, spec.nope :] = 0
        heads[head, spec.nope + torch.arange(carried.numel()), carried] = 1.0
    return values


def _output(spec: TinySpec, values: torch.Tensor) -> torch.Tensor:
    stream, parts = _Stream(spec.hidden), _parts(spec)
    # The norm of the KV latent makes a code's RMS sqrt(KV_LORA / code).
    size = FOUND / math.sqrt(KV_LORA / stream.code) / (spec.heads // parts) / math.sqrt(spec.layers)
    heads = values.view(spec.hidden, spec.heads, spec.v)
    for head in range(spec.heads // parts * parts):
        carried = torch.arange(head % parts * spec.v, min(stream.code, (head % parts + 1) * spec.v))
        heads[stream.code + carried, head, torch.arange(carried.numel())] += size
    return values


def _indexer(spec: TinySpec, name: str, nearest: int, values: torch.Tensor) -> torch.Tensor:
    """nearest: how far back the window of selected positions begins."""
    if name == "k_norm.weight":
        return torch.zeros_like(values)
    if name == "k_norm.bias":
        values = torch.zeros_like(values)
        values[2 * FAR.start : 2 * FAR.stop : 2] = 1.0
        values[KV_ROPE] = 1.0
        return values
    if name == "wq_b.weight":
        values = torch.zeros_like(values)
        heads = values.view(spec.index_heads, INDEX_HEAD_DIM, -1)
        heads[:, :KV_ROPE, 1] = _towards(nearest + (spec.index_topk - 1) / 2, FAR) * 0.5
        # No score is negative: ReLU would make them equal.
        heads[:, KV_ROPE, 1] = 0.5 * (FAR.stop - FAR.start) + 0.5
        return values
    if name == "weights_proj.weight":
        values = torch.zeros_like(values)
        values[:, _Stream(spec.hidden).keys] = 1.0 / LEVELS
    return values


_BUILD = {
    "embed_tokens": _embedding,
    "lm_head": _head,
    "head": _head,
    "q_a_proj": _query_latent,
    "q_b_proj": _query,
    "kv_a_proj_with_mqa": _key_latent,
    "kv_b_proj": _value,
    "o_proj": _output,
    "eh_proj": _mtp_input,
    "norm": _final_norm,
}
