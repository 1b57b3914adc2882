"""Owns the request check: values that stock SGLang 0.5.23 passes on to a scheduler, which they then kill."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def problems(request: Any, input_ids: list[int] | None, vocab: int) -> list[str]:
    """What makes a tokenized generation request unservable, each with the field; empty when it can run.

    request: SGLang's GenerateReqInput, one request. input_ids: its tokens, None when it brings embeddings.
    vocab: tokens in the vocabulary.
    """
    found = []
    if input_ids is not None:
        outside = next((token for token in input_ids if not 0 <= token < vocab), None)
        if not input_ids:
            found.append("the input holds no token: send text or input_ids with at least one")
        if outside is not None:
            found.append(f"input_ids holds {outside}: token ids go from 0 to {vocab - 1}")
    count = request.top_logprobs_num or 0
    if not 0 <= count <= vocab:
        found.append(f"top_logprobs_num (logprobs, top_logprobs) is {count}: it goes from 0 to {vocab}")
    start = request.logprob_start_len
    if start is not None and start < -1:
        found.append(f"logprob_start_len is {start}: use -1 for the output alone, else 0 or more")
    return found


def check_request(original: Callable[..., None], manager: Any, obj: Any, input_ids: list[int] | None) -> None:
    """AROUND TokenizerManager._validate_one_request: SGLang's own checks, then ours.

    Raises ValueError naming every bad field, which SGLang answers with 400. Without it an id past the
    vocabulary, an empty input or a logprob count past the vocabulary raises in the scheduler and ends the
    server. Source: SGLang 0.5.23, managers/tokenizer_manager.py TokenizerManager._validate_one_request.
    """
    original(manager, obj, input_ids)
    # Embedding requests have none of these fields, and GLM-5.3 serves none.
    if hasattr(obj, "top_logprobs_num") and (
        found := problems(obj, input_ids, manager.model_config.vocab_size)
    ):
        raise ValueError("; ".join(found))
