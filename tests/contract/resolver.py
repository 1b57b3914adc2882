"""Owns the resolving process: SGLang's argument code and this package's check on a machine that is not there.

`Resolver` starts one for a GPU generation, or for the reference platform; each case is a forked child, since
resolving changes the process.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from sglang_glm53.testing.server import ENVIRONMENT
from tests.kernel_entries import harness

ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20


def _machine(capability: tuple[int, int], name: str, mib: int, multiprocessors: int, count: int) -> tuple:
    device = SimpleNamespace(name=name, multi_processor_count=multiprocessors, total_memory=mib * MIB)
    return capability, device, count


# Capability, device and count of GPUs, with the memory that nvidia-smi shows on such machines.
MACHINES = {
    "H200": _machine((9, 0), "NVIDIA H200", 143771, 132, 8),
    "B200": _machine((10, 0), "NVIDIA B200", 183359, 148, 8),
    "B300": _machine((10, 3), "NVIDIA B300 SXM6 AC", 275040, 148, 8),
    "GB300": _machine((10, 3), "NVIDIA GB300", 284208, 152, 4),
}
# Which machine a process shows to SGLang's imports; those of one generation keep the same answers.
GENERATIONS = {"H200": "H200", "B200": "B300", "B300": "B300", "GB300": "B300"}
# The generation that is none: this machine, on the reference platform.
REFERENCE = "reference"
# The resolved flags that an answer tells.
FLAGS = (
    *("tp_size", "attn_dp_size", "ep_size", "nnodes", "node_rank", "dist_init_addr", "moe_dense_tp_size"),
    *(
        "moe_a2a_backend",
        "deepep_mode",
        "enable_two_batch_overlap",
        "enable_mixed_chunk",
        "enable_dp_lm_head",
    ),
    *("kv_cache_dtype", "attention_backend", "dsa_prefill_backend", "dsa_decode_backend"),
    *("max_running_requests", "chunked_prefill_size", "context_length", "mem_fraction_static"),
    *("reasoning_parser", "tool_call_parser", "model_impl"),
    *("speculative_algorithm", "speculative_num_steps", "speculative_eagle_topk"),
    "speculative_num_draft_tokens",
    *("disaggregation_mode", "disaggregation_transfer_backend", "base_gpu_id", "host"),
)


class Resolver:
    """SGLang's resolution for the machines of a generation.

    resolve(...) answers with {"flags", "graphs", "upstream", "modes", "capacity", "steps", "reasons",
    "warnings"}, or with {"error"} when SGLang itself refuses.
    """

    def __init__(self, generation: str, folder: Path) -> None:
        from sglang_glm53.tiny import sizes as spec
        from tests import configs

        self.model = folder / "model"
        self.model.mkdir()
        config = spec.CONSTANTS | configs.glm53(quantization_config=configs.FP8)
        (self.model / "config.json").write_text(json.dumps(config))
        # A real nvidia-smi would tell the memory of this machine.
        tools = folder / "tools"
        tools.mkdir()
        (tools / "nvidia-smi").write_text("#!/bin/sh\nexit 1\n")
        (tools / "nvidia-smi").chmod(0o755)
        kept = {name: v for name, v in os.environ.items() if not name.startswith(("GLM53_", "SGLANG_"))}
        around = ENVIRONMENT if generation == REFERENCE else harness.build_stubs(folder)
        path = {"PATH": f"{tools}:{kept.get('PATH', '')}"}
        # argparse asks for the terminal's size at each of 500 options, half a second in all.
        terminal = {"COLUMNS": "80", "LINES": "24"}
        self._log = open(folder / "log", "w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.contract.resolver", generation],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            cwd=ROOT,
            env=kept | around | path | terminal,
        )

    def _ask(self, **question: Any) -> Any:
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            self._log.seek(0)
            raise RuntimeError(f"the resolving process ended:\n{self._log.read()[-4000:]}")
        return json.loads(answer)

    def resolve(self, argv: list[str], machine: str | None = "H200", **environment: str) -> dict[str, Any]:
        """The answer for the flags that follow --model-path and --model-impl. machine: None for this one."""
        start = ["--model-path", str(self.model), "--model-impl", "glm53", "--skip-tokenizer-init"]
        return self._ask(machine=machine, argv=[*start, *argv], environment=environment)

    def deepep_bytes(self, sizes: list[tuple[int, int, int, int]]) -> list[int]:
        """DeepEP's low-latency buffer bytes for (capacity, hidden, ranks, experts)."""
        return self._ask(deepep=sizes)

    def close(self) -> None:
        """End the process."""
        self._process.stdin.close()
        self._process.wait(timeout=30)
        self._process.stdout.close()
        self._log.close()


class _Warnings(logging.Handler):
    """Keeps the text of every warning."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def _resolve(argv: list[str]) -> dict[str, Any]:
    from sglang.srt.arg_groups import mega_moe_hook, moe_hook, overrides, validation_hook
    from sglang.srt.arg_groups.model_override_base import resolving_view
    from sglang.srt.environ import envs
    from sglang.srt.layers.moe.utils import DeepEPMode
    from sglang.srt.server_args import prepare_server_args

    from sglang_glm53.serving import deepep_capacity, preflight

    warnings = _Warnings()
    args = prepare_server_args(argv)
    logging.getLogger().addHandler(warnings)
    args.resolve_once()
    flags = resolving_view(args)
    reasons = preflight.server_reasons(args)
    validation_hook.check_server_args(args)
    draft_tokens, chunk_tokens = (
        overrides.max_speculative_num_draft_tokens(args) if flags.speculative_algorithm else None,
        overrides.max_prefill_buffer_tokens(args),
    )
    graphs = flags.cuda_graph_config
    mode = DeepEPMode(flags.deepep_mode)
    return {
        "flags": {name: getattr(flags, name) for name in FLAGS},
        "graphs": {phase: getattr(graphs, phase).backend for phase in ("decode", "prefill")},
        "upstream": {
            "graph": moe_hook._decode_graph_dispatch_tokens_per_rank(args),
            "decode": mega_moe_hook.flydsl_decode_tokens_per_rank(flags),
        },
        "modes": {"prefill": mode.resolve(True).value, "decode": mode.resolve(False).value},
        "capacity": envs.SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK.get(),
        "steps": [
            (step.name, step.rows) for step in deepep_capacity.steps(flags, draft_tokens, chunk_tokens)
        ],
        "reasons": reasons,
        "warnings": warnings.lines,
    }


def _pretend(machine: str | None) -> None:
    """Show SGLang this machine of MACHINES, or the one that is there."""
    if machine in MACHINES:
        from tests.kernel_entries import fake_cuda

        fake_cuda.install(*MACHINES[machine])


def _answer(question: dict[str, Any]) -> Any:
    if "deepep" in question:
        from deep_ep import Buffer

        return [Buffer.get_low_latency_rdma_size_hint(*sizes) for sizes in question["deepep"]]
    _pretend(question["machine"])
    os.environ.update(question["environment"])
    return _resolve(question["argv"])


def _in_child(question: dict[str, Any]) -> str:
    """The answer of a forked child as JSON; {"error": ...} when it failed, with its traceback on stderr."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            answer = _answer(question)
        except (Exception, SystemExit) as problem:
            traceback.print_exc()
            answer = {"error": f"{type(problem).__name__}: {problem}"}
        with os.fdopen(write, "w") as pipe:
            json.dump(answer, pipe)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return answer or json.dumps({"error": "the child ended without an answer; its output is in the log"})


def main() -> None:
    """Import what every case uses, then answer the cases."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # SGLang prints; only answers may reach the caller.
    _pretend(sys.argv[1])
    import sglang.srt.arg_groups.expert_pack_hook
    import sglang.srt.arg_groups.pipeline
    import sglang.srt.layers.moe.utils
    import sglang.srt.server_args  # noqa: F401
    import torch
    from sglang.srt.plugins.hook_registry import HookRegistry

    from sglang_glm53.serving import hooks

    hooks.problems(("guard",))  # Kept, so that no child parses SGLang's source again.
    torch.set_num_threads(1)  # ATen's pool of threads does not survive a fork.
    hooks.register("guard")  # As the plugin does before the arguments are read.
    HookRegistry.apply_hooks()
    for line in sys.stdin:
        print(_in_child(json.loads(line)), file=answers)
    os._exit(0)  # Taking down what was imported would take seconds.


if __name__ == "__main__":
    main()
