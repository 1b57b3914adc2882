"""The schedule in each of the forms that a config may state it in, and the faults that stop a start."""

from types import SimpleNamespace

import pytest

from sglang_glm53 import geometry
from sglang_glm53.geometry import ConfigError, Geometry, schedule, schedule_problems
from tests.configs import FULL_LAYERS, glm53

F, S = "full", "shared"


def rule(**fields):
    return {"num_hidden_layers": 8, **fields}


def test_glm53_has_21_full_and_57_shared_layers():
    g = Geometry.from_config(glm53())
    assert list(g.full_layers) == FULL_LAYERS
    assert (g.layer_types.count(F), g.layer_types.count(S)) == (21, 57)


@pytest.mark.parametrize("left_out", ["indexer_types", "index_topk_freq", "index_skip_topk_offset"])
def test_either_statement_of_the_schedule_is_enough(left_out):
    layers = schedule(glm53(**{left_out: ...}))
    assert [layer for layer, kind in enumerate(layers) if kind == F] == FULL_LAYERS


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, [F] * 8),
        ({"index_topk_freq": 1}, [F] * 8),
        ({"index_skip_topk_offset": 3}, [F] * 8),
        ({"index_topk_freq": 4}, [F, F, S, S, S, F, S, S]),
        ({"index_topk_freq": 3, "index_skip_topk_offset": 1}, [F, S, S, F, S, S, F, S]),
        ({"index_topk_freq": 4, "index_skip_topk_offset": 3}, [F, F, F, S, S, S, F, S]),
        ({"index_topk_pattern": "FFSSFSSS"}, [F, F, S, S, F, S, S, S]),
        ({"index_topk_pattern": "FS"}, [F, S, F, F, F, F, F, F]),
        ({"index_topk_pattern": "FSSSFSSSFSSS", "index_topk_freq": 2}, [F, S, S, S, F, S, S, S]),
        ({"indexer_types": [F, F, S, F, S, S, F, F], "index_topk_pattern": "F"}, [F, F, S, F, S, S, F, F]),
    ],
)
@pytest.mark.parametrize("form", [dict, lambda config: SimpleNamespace(**config)], ids=["dict", "object"])
def test_schedule(fields, expected, form):
    assert schedule(form(rule(**fields))) == tuple(expected)


def test_every_form_of_a_sound_schedule_has_no_problem():
    for config in (glm53(), glm53(indexer_types=...), glm53(index_topk_freq=...), SimpleNamespace(**glm53())):
        assert schedule_problems(config) == []


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        (
            {"indexer_types": [F, F, F, S, S, F, S, S], "index_topk_freq": 4, "index_skip_topk_offset": 3},
            "indexer_types calls layer 5 'full', but index_topk_pattern or index_topk_freq and "
            "index_skip_topk_offset make it 'shared': remove one of the two or make them agree",
        ),
        (
            {"indexer_types": [F] * 8, "index_topk_pattern": "FFS"},
            "indexer_types calls layer 2 'full', but index_topk_pattern or index_topk_freq and "
            "index_skip_topk_offset make it 'shared': remove one of the two or make them agree",
        ),
        (
            {"indexer_types": [S, F, F, F, F, F, F, F]},
            "layer 0 is 'shared', but no full layer before it could give it a selection: make it 'full'",
        ),
        (
            {"index_topk_pattern": "SF"},
            "layer 0 is 'shared', but no full layer before it could give it a selection: make it 'full'",
        ),
        (
            {"indexer_types": [F] * 7},
            "indexer_types has 7 entries for num_hidden_layers=8: give one per layer",
        ),
        (
            {"indexer_types": [F] * 6 + ["fulll", None]},
            "indexer_types holds None, fulll: every entry must be 'full' or 'shared'",
        ),
        (
            {"indexer_types": "full"},
            "indexer_types='full' must be a list with one entry for each layer",
        ),
        (
            {"index_topk_freq": 0},
            "index_topk_freq=0 and index_skip_topk_offset=None must be integers, at least 1",
        ),
        (
            {"index_topk_freq": 4, "index_skip_topk_offset": 0},
            "index_topk_freq=4 and index_skip_topk_offset=0 must be integers, at least 1",
        ),
        (
            {"index_topk_freq": "4", "index_skip_topk_offset": 3},
            "index_topk_freq='4' and index_skip_topk_offset=3 must be integers, at least 1",
        ),
    ],
)
def test_schedule_problems(fields, problem):
    assert schedule_problems(rule(**fields)) == [problem]


def test_dimensions_come_from_the_config():
    g = Geometry.from_config(
        SimpleNamespace(**glm53(hidden_size=512, v_head_dim=96, first_k_dense_replace=1))
    )
    assert (g.hidden, g.v, g.nope, g.rope, g.num_dense_layers) == (512, 96, 192, 64, 1)
    assert (g.num_layers, g.num_experts, g.index_heads, g.index_topk, g.num_mtp_layers) == (
        78,
        256,
        32,
        2048,
        1,
    )


def test_a_model_without_mtp():
    assert Geometry.from_config(glm53(num_nextn_predict_layers=...)).num_mtp_layers == 0


def test_every_missing_or_misstated_field_is_named():
    config = glm53(q_lora_rank=None, index_topk="2048", v_head_dim=...)
    with pytest.raises(ConfigError) as error:
        Geometry.from_config(config)
    assert str(error.value) == (
        "config.json lacks or misstates q_lora_rank, v_head_dim, index_topk: integers are needed"
    )


def test_byte_layouts():
    assert (geometry.KV_SCALE_OFFSET, geometry.KV_ROPE_OFFSET, geometry.KV_ROW_BYTES) == (512, 528, 656)
    assert (geometry.INDEX_SCALE_OFFSET, geometry.INDEX_PAGE_BYTES) == (8192, 8448)
