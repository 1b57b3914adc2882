"""Owns the Fusion record: what one fusion does in this process, for every table, log line and status."""

from __future__ import annotations

import functools
import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

ATTENTION_INPUT, FFN_INPUT, Q_A = "attention_input", "ffn_input", "q_a"
INDEXER_TOPK, DRAFT_ARGMAX = "indexer_topk", "draft_argmax"

# Every fusion by its name, which GLM53_DISABLE takes, and what it does.
FUSIONS: Mapping[str, str] = MappingProxyType(
    {
        ATTENTION_INPUT: "the norm before attention quantises for the fused A projection",
        FFN_INPUT: "the norm before the FFN quantises for its projections and DeepEP's normal dispatch",
        Q_A: "the norm of the query's latent quantises for q_b_proj and the indexer's wq_b",
        INDEXER_TOPK: "top-k and page table in one deterministic kernel",
        DRAFT_ARGMAX: "the draft's ranks gather each row's best token instead of its logits",
    }
)

State = Literal["on", "off", "declined"]

logger = logging.getLogger("sglang_glm53")


@dataclass(frozen=True)
class Declined:
    """Why a fusion or a kernel leaves a call, or all of them, to what ran before it."""

    reason: str


@functools.cache
def log_once(message: str, level: int = logging.INFO) -> None:
    """Log a message the first time that this process comes to it."""
    logger.log(level, "%s", message)


@dataclass
class Fusion:
    """One fusion in this process.

    state: "on"; "off" by GLM53_DISABLE or for want of work; "declined" where it can never run here. reason:
    for the latter two, or why some layers do without. note: who else takes a part of its calls.
    ran: calls by what served them. declined: calls left to SGLang, by reason. details: counts of its own.
    Counters are of Python calls: a replayed CUDA graph adds nothing.
    """

    name: str
    state: State = "on"
    reason: str | None = None
    note: str | None = None
    ran: Counter[str] = field(default_factory=Counter)
    declined: Counter[str] = field(default_factory=Counter)
    details: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def switched_off(cls, name: str) -> Fusion:
        """The record of a fusion that GLM53_DISABLE names."""
        return cls(name, "off", f"GLM53_DISABLE names {name}")

    def decline(self, why: Declined) -> None:
        """Count a call that is left to SGLang, and log each reason once."""
        self.declined[why.reason] += 1
        log_once(f"fusion {self.name} leaves a call to SGLang: {why.reason}")

    def describe(self) -> dict[str, Any]:
        """The record in builtin types, for /server_info."""
        return {
            "state": self.state,
            "reason": self.reason,
            "note": self.note,
            "ran": dict(self.ran),
            "declined": dict(+self.declined),
            **self.details,
        }
