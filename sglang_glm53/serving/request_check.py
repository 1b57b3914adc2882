"""Owns the request checks: values that stock SGLang 0.5.23 passes on to a process, which they then end."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Iterable
from typing import Any

# What bytes that are no pickle of a processor raise; any other error is answered with 500, and nothing ends.
_UNPICKLING = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ImportError,
    EOFError,
    pickle.UnpicklingError,
)


def problems(
    request: Any, input_ids: list[int] | None, vocab: int, hidden: int, labels: Iterable[str] | None
) -> list[str]:
    """What makes a tokenized generation request unservable, each with the field; empty when it can run.

    request: SGLang's GenerateReqInput, one request. input_ids: its tokens, None when it brings embeddings.
    vocab: tokens in the vocabulary. hidden: numbers in an embedding. labels: the metrics' label names, None
    for a server without metrics.
    """
    return [
        *_token_problems(input_ids, vocab),
        *_embedding_problems(request, hidden),
        *_logprob_problems(request, vocab),
        *_stop_problems(request.sampling_params.get("stop_regex")),
        *_processor_problems(request.custom_logit_processor),
        *_label_problems(request.custom_labels, labels),
    ]


def _token_problems(input_ids: list[int] | None, vocab: int) -> list[str]:
    if input_ids is None:
        return []
    if not input_ids:
        return ["the input holds no token: send text or input_ids with at least one"]
    outside = next((token for token in input_ids if not 0 <= token < vocab), None)
    return [] if outside is None else [f"input_ids holds {outside}: token ids go from 0 to {vocab - 1}"]


def _embedding_problems(request: Any, hidden: int) -> list[str]:
    found = []
    if request.input_embeds is not None:
        widths = sorted({len(row) for row in request.input_embeds})
        if widths != [hidden]:
            found.append(f"input_embeds has rows of {widths or 'no'} numbers: each needs {hidden}")
    if request.positional_embed_overrides is not None:
        from sglang.srt.managers.embed_types import PositionalEmbeds

        # No JSON value is one; what Engine hands over arrives as it is.
        if not isinstance(request.positional_embed_overrides, PositionalEmbeds):
            kind = type(request.positional_embed_overrides).__name__
            found.append(
                f"positional_embed_overrides is a {kind}, not a PositionalEmbeds of sgl.Engine: leave it out"
            )
    return found


def _logprob_problems(request: Any, vocab: int) -> list[str]:
    found = []
    count = request.top_logprobs_num or 0
    if not isinstance(count, int):
        found.append(f"top_logprobs_num is {count} for one prompt: it is a number there")
    elif not 0 <= count <= vocab:
        found.append(f"top_logprobs_num (logprobs, top_logprobs) is {count}: it goes from 0 to {vocab}")
    start = request.logprob_start_len
    if isinstance(start, int) and start < -1:
        found.append(f"logprob_start_len is {start}: use -1 for the output alone, else 0 or more")
    return found


def _stop_problems(given: Any) -> list[str]:
    found = []
    for pattern in given if isinstance(given, list) else [given]:
        try:
            if isinstance(pattern, str):
                re.compile(pattern)
        except (re.error, OverflowError, RecursionError) as error:
            found.append(f"stop_regex {pattern!r} does not compile: {error}")
    return found


def _processor_problems(given: str | None) -> list[str]:
    if not given:
        return []
    from sglang.srt.sampling.custom_logit_processor import CustomLogitProcessor

    wanted = "send what CustomLogitProcessor.to_str() gives"
    try:
        # The scheduler runs it anyway, and only where --enable-custom-logit-processor allows it.
        processor = CustomLogitProcessor.from_str(given)
    except _UNPICKLING as error:
        return [f"custom_logit_processor does not load ({type(error).__name__}: {error}): {wanted}"]
    return [] if callable(processor) else [f"custom_logit_processor cannot be called: {wanted}"]


def _label_problems(given: dict[str, str] | None, known: Iterable[str] | None) -> list[str]:
    if not given or known is None:
        return []
    return [
        f"custom_labels holds {name}: the metrics have no such label: start the server with "
        f"--tokenizer-metrics-allowed-custom-labels {name}"
        for name in sorted(set(given).difference(known))
    ]


def check_request(original: Callable[..., None], manager: Any, obj: Any, input_ids: list[int] | None) -> None:
    """AROUND TokenizerManager._validate_one_request: SGLang's own checks, then ours.

    Raises ValueError naming every bad field, which SGLang answers with 400. Without it such a request raises
    in the scheduler, or in the tokenizer's own loop, and ends the server; a list for a count and a pattern
    that does not compile are answered with 500. Source: SGLang 0.5.23, managers/tokenizer_manager.py
    TokenizerManager._validate_one_request.
    """
    original(manager, obj, input_ids)
    # Embedding requests have none of these fields, and GLM-5.3 serves none.
    if not hasattr(obj, "top_logprobs_num"):
        return
    model = manager.model_config
    labels = manager.metrics_collector.labels if manager.enable_metrics else None
    if found := problems(obj, input_ids, model.vocab_size, model.hidden_size, labels):
        raise ValueError("; ".join(found))
