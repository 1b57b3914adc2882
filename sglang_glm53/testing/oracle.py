"""Owns the independent oracle: transformers' GlmMoeDsaForCausalLM, in FP32 on the CPU, in its own process."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from sglang_glm53.testing.compare import Continuation

if TYPE_CHECKING:
    import torch

# The cached and the whole-sequence pass may differ by the order of additions, no more.
SELF_AGREEMENT = 1e-3


class OracleError(RuntimeError):
    """The oracle's process failed; the message holds what it printed."""


class Oracle:
    """A running oracle process, which imports transformers once. A context manager.

    cache: a folder for answers, one file per checkpoint and question.
    """

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self._log = cache / "oracle.log"
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def greedy(
        self, checkpoint: Path, prompts: Sequence[Sequence[int]], new_tokens: int
    ) -> list[Continuation]:
        """Greedy continuations of token-id prompts, new_tokens each. checkpoint: a bf16 checkpoint's folder.

        Each is decoded step by step over a cache, then scored again as one sequence; raises OracleError when
        the two disagree, since then the oracle is none.
        """
        answer = self._ask(checkpoint, do="greedy", prompts=_plain(prompts), new_tokens=new_tokens)
        return [Continuation(tuple(tokens), tuple(gaps)) for tokens, gaps in answer]

    def score(self, checkpoint: Path, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """Teacher-forced logprobs (natural log): for each sequence, each token's but the first."""
        answer: list[list[float]] = self._ask(checkpoint, do="score", sequences=_plain(sequences))
        return answer

    def _ask(self, checkpoint: Path, **question: Any) -> Any:
        command = json.dumps({"checkpoint": str(checkpoint), **question})
        cached = self._cache / f"{hashlib.sha256(command.encode()).hexdigest()[:32]}.json"
        if not cached.exists():
            process = self._process or self._start()
            assert process.stdin is not None and process.stdout is not None
            with suppress(BrokenPipeError):
                print(command, file=process.stdin, flush=True)
            line = process.stdout.readline()
            if not line:
                raise OracleError(f"the oracle ended:\n{self._log.read_text(errors='replace')[-4000:]}")
            cached.write_text(line)
        return json.loads(cached.read_text())

    def _start(self) -> subprocess.Popen[str]:
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"},
                text=True,
            )
        return self._process


def _plain(sequences: Sequence[Sequence[int]]) -> list[list[int]]:
    return [[int(token) for token in sequence] for sequence in sequences]


def load(checkpoint: Path) -> Any:
    """The model in FP32, eval mode, with SGLang's epsilon in the q_a and kv_a norms.

    transformers builds those two norms with 1e-6; SGLang and vLLM use rms_norm_eps. Raises OracleError when
    the checkpoint does not fill the model.
    """
    import torch
    from transformers import GlmMoeDsaForCausalLM

    model, info = GlmMoeDsaForCausalLM.from_pretrained(
        checkpoint, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    unfilled = sorted(info["missing_keys"]) + sorted(map(str, info["mismatched_keys"]))
    if unfilled:
        raise OracleError(f"{checkpoint} does not fill the oracle: {', '.join(unfilled[:10])}")
    for layer in model.model.layers:
        attention = layer.self_attn
        for norm in (attention.q_a_layernorm, attention.kv_a_layernorm):
            norm.variance_epsilon = model.config.rms_norm_eps
    return model.eval()


def _logprobs(logits: torch.Tensor) -> torch.Tensor:
    return logits.double().log_softmax(-1)


def score_sequence(model: Any, tokens: Sequence[int]) -> torch.Tensor:
    """Logprobs of every next token, FP64 [len(tokens), vocabulary], from one pass without a cache."""
    import torch

    with torch.inference_mode():
        return _logprobs(model(torch.tensor([tokens]), use_cache=False).logits[0])


def greedy_one(model: Any, prompt: Sequence[int], new_tokens: int) -> Continuation:
    """One greedy continuation, decoded over a cache and checked against one pass over the whole sequence."""
    import torch

    tokens: list[int] = []
    cache, step = None, list(prompt)
    with torch.inference_mode():
        for _ in range(new_tokens):
            out = model(torch.tensor([step]), past_key_values=cache, use_cache=True)
            cache, step = out.past_key_values, [int(out.logits[0, -1].argmax())]
            tokens += step
    top = score_sequence(model, [*prompt, *tokens])[len(prompt) - 1 : -1].topk(2)
    for at, (token, ids, values) in enumerate(zip(tokens, top.indices, top.values, strict=True)):
        if token != ids[0] and values[0] - values[1] > SELF_AGREEMENT:
            raise OracleError(
                f"prompt of {len(prompt)} tokens: decoding chose {token} at step {at}, the whole sequence "
                f"{int(ids[0])}, {float(values[0] - values[1]):.3g} ahead of its runner-up"
            )
    return Continuation(tuple(tokens), tuple((top.values[:, 0] - top.values[:, 1]).tolist()))


def main() -> None:
    """Answer questions, one JSON line each, from stdin to stdout; keeps the last checkpoint loaded."""
    import torch

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    loaded, model = "", None
    for line in sys.stdin:
        question = json.loads(line)
        if question["checkpoint"] != loaded:
            loaded, model = question["checkpoint"], load(Path(question["checkpoint"]))
        answer: list[Any]
        if question["do"] == "greedy":
            found = [greedy_one(model, prompt, question["new_tokens"]) for prompt in question["prompts"]]
            answer = [(one.tokens, one.gaps) for one in found]
        else:
            answer = []
            for tokens in question["sequences"]:
                scores = score_sequence(model, tokens)[:-1]
                answer.append(scores.gather(1, torch.tensor(tokens[1:])[:, None])[:, 0].tolist())
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
