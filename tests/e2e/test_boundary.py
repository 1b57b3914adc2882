"""FP8 serving with the boundary fusion: the same bits as without it, every projection proved to take it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sglang_glm53.kernels.cards import cards
from sglang_glm53.testing.compare import check_logprobs, logprob_figures
from sglang_glm53.testing.server import Server, ServerError
from sglang_glm53.tiny.checkpoint import TinySpec, write
from tests.e2e.ahead import parameters, run_ahead
from tests.e2e.asking import prompt
from tests.e2e.checkpoints import geometry

SPEC = TinySpec(fp8=True)
LAYERS, DENSE, FULL = SPEC.layers, geometry(SPEC).num_dense_layers, len(geometry(SPEC).full_layers)
PROMPTS = [prompt(length, vocab=SPEC.vocab) for length in (1, 20, 65, 260)]
NEW_TOKENS, CHUNK = 6, 64
ONE = "one rank"
CHUNKED = f"chunks of {CHUNK}"
OVERLAP = "two-batch overlap"
SHAPES = {
    ONE: (),
    CHUNKED: ("--chunked-prefill-size", str(CHUNK)),
    "TP 2": ("--tp-size", "2"),
    "DP 2": ("--tp-size", "2", "--attn-dp-size", "2"),
    OVERLAP: (
        *("--tp-size", "2", "--attn-dp-size", "2", "--moe-a2a-backend", "deepep", "--deepep-mode", "normal"),
        "--enable-two-batch-overlap",
    ),
}
BOUNDARY = "attention_input,ffn_input,q_a"
# By default one rank, and overlap, where the FP8 form crosses a split; the other shapes are for the matrix.
CASES = {
    shape: pytest.param(shape, marks=() if shape in (ONE, OVERLAP) else pytest.mark.matrix)
    for shape in SHAPES
}
SETTINGS = {
    "on": {},
    "off": {"GLM53_DISABLE": BOUNDARY},
    "emulated": {"GLM53_KERNELS": "emulated"},
    "emulated, off": {"GLM53_KERNELS": "emulated", "GLM53_DISABLE": BOUNDARY},
}
MAKERS = {"on": "torch", "emulated": "add_rmsnorm_quant"}
FUSIONS = BOUNDARY.split(",")
GATHERED = "the rows are gathered over attention DP after the norm"
EVERY_LAYER = f"({LAYERS} of {LAYERS} layers)"


@dataclass(frozen=True)
class Answers:
    """What one server answered, and the fusions of its status for each data-parallel group.

    scored: the logprobs of each prompt's tokens after the first; generated: those of the new tokens.
    idle: the forwards of each group's that had no request.
    """

    tokens: list[list[int]]
    scored: list[list[float]]
    generated: list[list[float]]
    fusions: list[dict[str, Any]]
    idle: list[int]


def ask(server: Server) -> Answers:
    """One prompt at a time, so that the batches are the same in every server."""
    answers = [server.generate(one, NEW_TOKENS, return_logprob=True, logprob_start_len=0) for one in PROMPTS]
    scored, generated = (
        [[value for value, _, _ in answer["meta_info"][field]] for answer in answers]
        for field in ("input_token_logprobs", "output_token_logprobs")
    )
    states = [state["glm53"] for state in server.server_info()["internal_states"]]
    return Answers(
        [answer["output_ids"] for answer in answers],
        [row[1:] for row in scored],
        generated,
        [state["fusions"] for state in states],
        [state["overlap"]["overlapped"].get("IDLE", 0) for state in states],
    )


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("boundary") / "checkpoint"
    write(SPEC, out)
    return out


@pytest.fixture(scope="module")
def kernel(request) -> None:
    """The emulated kernels, compiled before a server needs them."""
    if not any("emulated" in own.get("setting", "") for own in parameters(request)):
        return
    if shutil.which("c++") is None:
        pytest.skip("emulated kernels: no host C++ compiler: apt-get install g++")
    code = f"from sglang_glm53.kernels import jit; [jit.emulated_module(stem) for stem in {list(cards())}]"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


@pytest.fixture(scope="module")
def answers(request, serve, path, kernel) -> Iterator[Callable[..., Answers]]:
    """(shape, setting, mutation) -> the answers of such a server."""

    def started(shape: str, setting: str, mutation: str) -> Answers:
        flags = ("--dtype", "bfloat16", *SHAPES[shape])
        with serve(path, *flags, env=SETTINGS[setting], mutation=mutation) as server:
            return ask(server)

    wanted = [
        (own.get("shape", ONE), own.get("setting", "on"), own.get("mutation", ""))
        for own in parameters(request)
        if "reason" not in own
    ]
    with run_ahead(started, wanted) as result:
        yield lambda shape=ONE, setting="on", mutation="": result(shape, setting, mutation)


@pytest.mark.parametrize("setting", ["off"])
@pytest.mark.parametrize("shape", CASES.values())
def test_on_and_off_give_the_same_bits(shape, setting, answers):
    on, off = answers(shape), answers(shape, setting)
    assert (on.tokens, on.scored, on.generated) == (off.tokens, off.scored, off.generated)
    assert [len(row) for row in on.scored] == [len(one) - 1 for one in PROMPTS]
    assert [len(row) for row in on.generated] == [NEW_TOKENS] * len(PROMPTS)
    for fusions in off.fusions:
        states = {name: (fusions[name]["state"], fusions[name]["reason"]) for name in FUSIONS}
        assert states == {name: ("off", f"GLM53_DISABLE names {name}") for name in FUSIONS}


@pytest.mark.parametrize("shape", [CASES[ONE], CASES[CHUNKED], CASES["TP 2"]])
def test_every_projection_takes_what_its_norm_made(shape, answers):
    [fusions] = answers(shape).fusions
    prefills = sum(-(-len(one) // CHUNK) for one in PROMPTS) if shape == CHUNKED else len(PROMPTS)
    steps = prefills + len(PROMPTS) * (NEW_TOKENS - 1)
    expected = {
        "attention_input": {"fused_qkv_a_proj_with_mqa": LAYERS},
        "ffn_input": {"mlp.gate_up_proj": DENSE, "mlp.shared_experts.gate_up_proj": LAYERS - DENSE},
        "q_a": {"q_b_proj": LAYERS, "indexer.wq_b": FULL},
    }
    for name, layers in expected.items():
        entry = fusions[name]
        assert (entry["state"], entry["reason"], entry["note"], entry["layers"]) == ("on", None, None, LAYERS)
        assert entry["ran"] == {"torch": LAYERS * steps}
        assert entry["taken"] == {projection: count * steps for projection, count in layers.items()}
        assert entry["declined"] == {}


@pytest.mark.parametrize("shape", [CASES["DP 2"]])
def test_under_attention_dp_the_ffn_quantises_what_it_gathered(shape, answers):
    for fusions in answers(shape).fusions:
        entry = fusions["ffn_input"]
        assert (entry["state"], entry["reason"]) == ("declined", f"{GATHERED} {EVERY_LAYER}")
        assert entry["ran"] == entry["taken"] == {}
        assert entry["declined"][GATHERED] > 0
        made = fusions["attention_input"]["ran"]["torch"]
        assert made > 0
        assert fusions["attention_input"]["taken"] == {"fused_qkv_a_proj_with_mqa": made}


@pytest.mark.parametrize("shape", [OVERLAP])
def test_under_overlap_the_fp8_form_travels_with_its_micro_batch(shape, answers):
    projections = {
        "attention_input": ("fused_qkv_a_proj_with_mqa",),
        "ffn_input": ("mlp.gate_up_proj", "mlp.shared_experts.gate_up_proj"),
        "q_a": ("q_b_proj",),
    }
    found = answers(shape)
    for fusions, idle in zip(found.fusions, found.idle, strict=True):
        for name, names in projections.items():
            entry = fusions[name]
            made = entry["ran"]["torch"]
            assert entry["state"] == "on" and made > 0
            left = made - sum(entry["taken"].get(projection, 0) for projection in names)
            # The row that pads an idle rank goes through no shared expert.
            assert 0 <= left <= (name == "ffn_input") * idle * (LAYERS - DENSE)


@pytest.mark.parametrize("mutation", ["copied_outputs"])
@pytest.mark.parametrize("setting", MAKERS)
def test_a_projection_that_gets_a_copy_quantises_it_to_the_same_bits(setting, mutation, answers):
    fused, copied = answers(ONE, setting), answers(ONE, setting, mutation)
    assert (copied.tokens, copied.scored) == (fused.tokens, fused.scored)
    assert copied.generated == fused.generated
    for name in FUSIONS:
        entry, lost = fused.fusions[0][name], copied.fusions[0][name]
        assert list(entry["ran"]) == list(lost["ran"]) == [MAKERS[setting]]
        assert lost["taken"] == {} and entry["declined"] == {}
        counts = {projection.split(": ")[0]: count for projection, count in lost["declined"].items()}
        assert counts == entry["taken"]


@pytest.mark.parametrize("setting", ["emulated"])
def test_the_emulated_kernel_stays_near_torch(setting, answers):
    check_logprobs(logprob_figures(answers(ONE, setting).scored, answers().scored), close=0.95)


@pytest.mark.parametrize(("setting", "how"), [("emulated, off", "emulated"), ("off", "torch")])
def test_the_emulated_selection_gives_the_same_bits(setting, how, answers):
    found, torchs = answers(ONE, setting), answers(ONE, "off")
    assert (found.tokens, found.scored, found.generated) == (torchs.tokens, torchs.scored, torchs.generated)
    steps = len(PROMPTS) * NEW_TOKENS
    selection = found.fusions[0]["indexer_topk"]
    assert selection["ran"] == {how: FULL * steps}
    assert (selection["state"], selection["declined"]) == ("on", {})


@pytest.mark.parametrize("setting", ["emulated, off"])
@pytest.mark.parametrize("mutation", ["one_wrong_position"])
def test_one_wrong_position_changes_the_logprobs(setting, mutation, answers):
    faulty, own = answers(ONE, setting, mutation), answers(ONE, setting)
    assert [len(row) for row in faulty.scored] == [len(row) for row in own.scored]
    # The selection is everything up to index_topk, 64 tokens: the prompt of 65 has one row past it, its last.
    assert [a == b for a, b in zip(faulty.scored, own.scored, strict=True)] == [True, True, True, False]
    assert [a == b for a, b in zip(faulty.generated, own.generated, strict=True)] == [
        True,
        True,
        False,
        False,
    ]


@pytest.mark.parametrize(
    ("name", "flags", "reason"),
    [
        ("default", (), "fused_qkv_a_proj_with_mqa: UnquantizedLinearMethod takes no FP8 input"),
        (None, ("--dtype", "float32"), "the activations are float32, not bfloat16"),
    ],
    ids=["bf16 checkpoint", "float32 activations"],
)
def test_a_declined_fusion_says_why(name, flags, reason, serve, path, checkpoint):
    with serve(checkpoint(name) if name else path, *flags) as server:
        server.generate(PROMPTS[1], 2)
        [state] = server.server_info()["internal_states"]
        log = server.log_text()
    fusions = state["glm53"]["fusions"]
    entry = fusions["attention_input"]
    assert (entry["state"], entry["reason"]) == ("declined", f"{reason} {EVERY_LAYER}")
    assert (entry["ran"], entry["taken"], entry["declined"]) == ({}, {}, {reason: 2 * LAYERS})
    assert {fusions[name]["state"] for name in FUSIONS} == {"declined"}
    assert log.count(f"fusion attention_input leaves a call to SGLang: {reason}\n") == 1
    assert f"fusion attention_input  declined; {reason} {EVERY_LAYER}\n" in log


@pytest.mark.parametrize("mutation", ["stale_fp8_form"])
def test_a_stale_form_is_noticed_when_it_is_taken(mutation, answers):
    with pytest.raises(ServerError, match="input changed after ffn_input had quantised it"):
        answers(mutation=mutation)


@pytest.mark.parametrize("mutation", ["unnoticed_stale_fp8_form"])
def test_a_stale_form_that_goes_unnoticed_changes_the_logprobs(mutation, answers):
    stale, own = answers(mutation=mutation), answers()
    assert [len(row) for row in stale.scored] == [len(row) for row in own.scored]
    assert stale.scored != own.scored
