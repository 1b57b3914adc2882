"""After a fault a prefill/decode pair serves again: no answer was wrong, nothing is held, and only what was
killed was started anew."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest

from tests.e2e import faults, pairs, transfer_faults
from tests.e2e.asking import continuation
from tests.e2e.faults import FAULTS, Found, Scene

pytestmark = [
    pytest.mark.matrix,
    pytest.mark.skipif(pairs.missing() is not None, reason=pairs.missing() or "none"),
]

FLAGS = ("--dtype", "float32")
# With few tokens reserved, the decode takes requests that outgrow it while they run.
DECODE = ("--max-total-tokens", str(faults.DECODE_POOL), "--num-reserved-decode-tokens", "16")


@pytest.fixture(scope="module")
def scene(serve, checkpoint, folder) -> Iterator[Scene]:
    with pairs.pair(
        serve,
        checkpoint("default"),
        *FLAGS,
        decode=DECODE,
        prefill_mutation="faulty_transfers",
        env=faults.TIMEOUTS,
    ) as pair:
        scored = {"return_logprob": True, "top_logprobs_num": 2}
        short = [pair.generate(one, faults.NEW_TOKENS, **scored) for one in faults.PROMPTS]
        long = [pair.generate(one, faults.LONG_TOKENS, **scored) for one in faults.LONG]
        yield Scene(pair, [*map(continuation, short)], [*map(continuation, long)], folder / "tmp")


@pytest.fixture(scope="module")
def figures(pytestconfig) -> Iterator[dict[str, Found]]:
    """fault -> what its injections brought; written down at the end if --fault-report asks."""
    figures: dict[str, Found] = {}
    yield figures
    if path := pytestconfig.getoption("--fault-report"):
        Path(path).write_text(table(figures))


def table(figures: dict[str, Found]) -> str:
    """The figures as a Markdown table."""
    lines = ["| fault | injections | right | wrong | errors | left | seconds: median, longest |"]
    lines.append("|---|---|---|---|---|---|---|")
    for name, one in figures.items():
        seconds = f"{median(one.seconds):.1f}, {max(one.seconds):.1f}"
        # A wrong answer ends the run before it is counted.
        lines.append(
            f"| {name} | {one.injections} | {one.answers} | 0 | {one.errors} | {one.left} | {seconds} |"
        )
    return "\n".join([*lines, ""])


@pytest.mark.parametrize("name", FAULTS)
def test_a_pair_recovers(name, scene, figures, pytestconfig):
    found = figures[name] = Found()
    for number in range(pytestconfig.getoption("--injections")):
        faults.inject(scene, name, number, found)
    print(name, found)
    assert found.injections == pytestconfig.getoption("--injections")
    if "killed" in name or "dropped" in name:
        assert found.errors > 0
    else:
        assert found.answers > 0


def test_the_checks_notice(serve, checkpoint, folder):
    with pairs.pair(
        serve,
        checkpoint("default"),
        *FLAGS,
        prefill_mutation="faulty_transfers",
        decode_mutation="leaked_slots",
        env=faults.TIMEOUTS,
    ) as pair:
        scored = {"return_logprob": True, "top_logprobs_num": 2}
        expected = [continuation(pair.generate(faults.PROMPTS[-1], faults.NEW_TOKENS, **scored))]
        (folder / "tmp" / transfer_faults.LOSE).touch()
        with pytest.raises(AssertionError, match="prompts differ"):
            faults.check_serves(Scene(pair, expected, [], folder / "tmp"))
        with pytest.raises(AssertionError, match="metadata_slots_held"):
            faults.check_returned(pair.decode, limit=2)
