"""Owns what the recordings add up to, and the document that says so.

python -m tests.kernel_entries.report writes the golden lists and the document again.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from tests import configs
from tests.kernel_entries import harness
from tests.kernel_entries.harness import Case, Entries

GOLDEN = harness.HERE / "golden"
DOCUMENT = harness.ROOT / "docs" / "kernel-entries.md"
DEVICES = {"9.0": "H200", "10.0": "B300"}
BOTH = {"dp8_deepep": "DP8 + DeepEP", "tp8": "TP8"}
# By device. On Hopper SGLang's own choice of FlashInfer's all-reduce is trtllm already.
DEPLOYMENTS = {"9.0": BOTH, "10.0": BOTH | {"tp8_trtllm": "TP8, trtllm all-reduce"}}
# The recorded layers, what they are, and how many of the 78 each stands for.
LAYERS = {
    0: ("dense, full, first", 1),
    1: ("dense, full", 2),
    3: ("MoE, shared", 56),
    6: ("MoE, full", 18),
    7: ("MoE, shared, last", 1),
}
QUANT = "jit per_token_group_quant::per_token_group_quant"
# The projections whose own quantisation each fusion saves.
SAVES = {
    "attention_input": ("self_attn.fused_qkv_a_proj_with_mqa",),
    "ffn_input": ("mlp.gate_up_proj", "mlp.shared_experts.gate_up_proj"),
    "q_a": ("self_attn.q_b_proj", "self_attn.indexer.wq_b"),
}
HEADER = """# Kernel entries of one decode step

Recorded on a CPU, without a GPU, by SGLang 0.5.23 and torch 2.14.1 with CUDA faked before they are imported.
SGLang resolves the server's arguments. Rank 0 of 8 builds the first 8 layers, at full size, from the config
of an FP8 block checkpoint, with SGLang's classes or with those of `--model-impl glm53`. Then one decode
forward of 4 rows runs under SGLang's capture mode with every kernel entry intercepted. The kinds of layers
are multiplied to 78.

An *entry* is a call that starts work on the device. It is no launch count: an entry such as FlashMLA's
decode may launch several kernels. **Not run on a GPU.** One rank has no peers and no weights, so the
workspaces of the collectives, DeepEP's buffer and the loader's absorbed projections are stand-ins.

- Both: `--tp-size 8 --kv-cache-dtype fp8_e4m3`
- DP8 + DeepEP: `--dp-size 8 --enable-dp-attention --moe-a2a-backend deepep --deepep-mode low_latency` and
  `--moe-dense-tp-size 1`
- TP8: nothing more. SGLang's all-reduce + add + norm kernel keeps the norms whose input owes a sum, all but
  the first layer's first.
- TP8, trtllm all-reduce: `--flashinfer-allreduce-fusion-backend trtllm`, which is not SGLang's choice on
  Blackwell. There FlashInfer's all-reduce + add + norm kernel quantises too.

This command writes the document and the golden lists in `tests/kernel_entries/golden` again:

```bash
python -m tests.kernel_entries.report
```

`tests/kernel_entries/test_entries.py` records again and compares.
"""


def cases(capability: str) -> dict[str, Case]:
    """A device's recordings for the document by name, "<deployment> <implementation>"."""
    return {
        f"{deployment} {implementation}": {"deployment": deployment, "implementation": implementation}
        for deployment in DEPLOYMENTS[capability]
        for implementation in ("stock", "ours")
    }


def golden_lines(entries: Entries) -> list[str]:
    """Stock's golden list: the layers of LAYERS, each entry's name, module and innermost frame."""
    chosen = [entry for layer in LAYERS for entry in harness.of_layer(entries, layer)]
    return [f"{e['name']} | {e['module']} | {e['site'].partition(' < ')[0]}" for e in chosen]


def golden_file(capability: str, deployment: str) -> Path:
    """Where a golden list is; stock enters the same with either of FlashInfer's all-reduces."""
    return GOLDEN / f"{capability}-{deployment.removesuffix('_trtllm')}.txt"


def saved(stock: Entries, ours: Entries) -> Counter[str]:
    """By fusion, the quantisations that stock enters and ours does not."""
    lost, _ = harness.change(stock, ours)
    found: Counter[str] = Counter()
    for fusion, projections in SAVES.items():
        for line in lost:
            name, _, module = line.partition(" at ")
            found[fusion] += name == QUANT and module.endswith(projections)
    return found


def step(entries: Entries) -> int:
    """The entries of the 78 layers."""
    return sum(times * len(harness.of_layer(entries, layer)) for layer, (_, times) in LAYERS.items())


def step_saved(stock: Entries, ours: Entries) -> Counter[str]:
    """saved() over the 78 layers."""
    total: Counter[str] = Counter()
    for layer, (_, times) in LAYERS.items():
        one = saved(harness.of_layer(stock, layer), harness.of_layer(ours, layer))
        total.update({fusion: times * count for fusion, count in one.items()})
    return total


def section(capability: str, recorded: dict[str, Entries]) -> str:
    """The document's part for one device. recorded: entries by the names of cases()."""
    text = f"\n## {DEVICES[capability]} (compute capability {capability}), FP8 KV cache\n"
    for deployment, title in DEPLOYMENTS[capability].items():
        stock, ours = recorded[f"{deployment} stock"], recorded[f"{deployment} ours"]
        text += f"\n{title}:\n\n| layer | of 78 | stock | ours | fewer |\n|---|---|---|---|---|\n"
        for layer, (kind, times) in LAYERS.items():
            pair = len(harness.of_layer(stock, layer)), len(harness.of_layer(ours, layer))
            text += f"| {kind} | {times} | {pair[0]} | {pair[1]} | {pair[0] - pair[1]} |\n"
        text += f"| **all layers** | 78 | {step(stock)} | {step(ours)} | {step(stock) - step(ours)} |\n"
        shares = step_saved(stock, ours)
        parts = ", ".join(f"`{fusion}` {shares[fusion]}" for fusion in SAVES)
        text += f"\nFewer entries a step, by fusion: {parts}.\n"
    return text


def _entries(answers: list[dict[str, Any]]) -> list[Entries]:
    for answer in answers:
        if "error" in answer:
            raise RuntimeError(f"{answer['error']}\n{answer['stderr'][-4000:]}")
    return [answer["entries"] for answer in answers]


def main() -> None:
    """Record on both devices and write the golden lists and the document."""
    assert sum(times for _, times in LAYERS.values()) == configs.glm53()["num_hidden_layers"]
    text = HEADER
    with tempfile.TemporaryDirectory() as folder:
        stubs = harness.build_stubs(Path(folder))
        for capability in DEVICES:
            named = cases(capability)
            answers = harness.record(capability, list(named.values()), stubs)
            recorded = dict(zip(named, _entries(answers), strict=True))
            text += section(capability, recorded)
            for deployment in DEPLOYMENTS[capability]:
                listed = "\n".join(golden_lines(recorded[f"{deployment} stock"])) + "\n"
                golden_file(capability, deployment).write_text(listed)
    DOCUMENT.write_text(text)


if __name__ == "__main__":
    main()
