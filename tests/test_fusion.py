"""Owns the checks of the Fusion record: what it counts, logs and tells, and the documents' list of names."""

import logging
import re
from pathlib import Path

from sglang_glm53.fusion import FUSIONS, Declined, Fusion, log_once

DEPLOY = Path(__file__).resolve().parents[1] / "docs" / "deploy.md"


def test_a_declined_call_is_counted_each_time_and_logged_once(caplog):
    log_once.cache_clear()
    fusion = Fusion("q_a")
    with caplog.at_level(logging.INFO, "sglang_glm53"):
        for reason in ("no rows", "no rows", "too wide"):
            fusion.decline(Declined(reason))
    assert fusion.declined == {"no rows": 2, "too wide": 1}
    assert caplog.messages == [
        "fusion q_a leaves a call to SGLang: no rows",
        "fusion q_a leaves a call to SGLang: too wide",
    ]


def test_two_fusions_log_the_same_reason_each(caplog):
    log_once.cache_clear()
    with caplog.at_level(logging.INFO, "sglang_glm53"):
        for name in ("q_a", "ffn_input"):
            Fusion(name).decline(Declined("no rows"))
    assert len(caplog.messages) == 2


def test_the_status_is_of_builtin_types_with_the_details_beside():
    fusion = Fusion("q_a", note="a note", details={"layers": 3})
    fusion.ran["torch"] += 2
    # A count that others took back to nothing is none.
    fusion.declined["gone"] = 0
    found = fusion.describe()
    assert found == {
        "state": "on",
        "reason": None,
        "note": "a note",
        "ran": {"torch": 2},
        "declined": {},
        "layers": 3,
    }
    assert {type(value) for value in found.values()} == {str, type(None), dict, int}


def test_switched_off_names_the_variable():
    found = Fusion.switched_off("q_a")
    assert (found.state, found.reason) == ("off", "GLM53_DISABLE names q_a")


def test_the_documents_table_has_every_fusion():
    rows = re.findall(r"^\| `(\w+)` \| (.+) \|$", DEPLOY.read_text().partition("## Fusions")[2], re.MULTILINE)
    assert dict(rows) == dict(FUSIONS)
