"""Pairs of features that SGLang fails on after loading, or without a fix: refused with both flags named."""

import sys
from types import SimpleNamespace

import pytest

from sglang_glm53.serving.preflight import flag_reasons
from tests.configs import HARMLESS

EAGLE = {"speculative_algorithm": "EAGLE", "speculative_eagle_topk": 1}


@pytest.fixture
def found(monkeypatch):
    """flags, whether SGLang is told to draft across stages -> the reasons."""

    def reasons(flags, across_stages=False):
        envs = SimpleNamespace(SGLANG_ENABLE_PP_SPEC=SimpleNamespace(get=lambda: across_stages))
        monkeypatch.setitem(sys.modules, "sglang.srt.environ", SimpleNamespace(envs=envs))
        return flag_reasons(SimpleNamespace(**HARMLESS | flags))

    return reasons


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"pp_size": 2}, []),
        (EAGLE | {"pp_size": 2, "disaggregation_mode": "prefill"}, []),
        (
            EAGLE | {"pp_size": 2},
            [
                "--pp-size 2 with --speculative-algorithm: SGLang drafts across pipeline stages on prefill "
                "servers alone: leave one of them out"
            ],
        ),
        ({"enable_return_indexer_topk": True}, []),
        ({"enable_return_indexer_topk": True, "tp_size": 4, "attn_dp_size": 2, "attn_cp_size": 2}, []),
        (
            {"enable_return_indexer_topk": True, "tp_size": 4, "attn_dp_size": 2},
            [
                "--enable-return-indexer-topk with --tp-size 4 and --attn-dp-size 2: SGLang captures "
                "selections where each rank has its own requests: set --attn-dp-size 4"
            ],
        ),
        (
            EAGLE | {"enable_return_indexer_topk": True},
            [
                "--enable-return-indexer-topk with --speculative-algorithm: the draft's steps overwrite what "
                "the target selected: leave one of them out"
            ],
        ),
    ],
)
def test_a_pair(found, flags, expected):
    assert found(flags) == expected


def test_drafts_across_stages_where_sglang_is_told_to(found):
    assert found(EAGLE | {"pp_size": 2}, across_stages=True) == []
