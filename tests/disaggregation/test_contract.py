"""The contract of a prefill/decode pair: what it states, and that each difference is named."""

from __future__ import annotations

import dataclasses
import json
from types import SimpleNamespace

import pytest

from sglang_glm53 import __version__
from sglang_glm53.disaggregation import contract as pd_contract
from sglang_glm53.disaggregation.contract import FIXES, Contract, describe, differences, fingerprint
from sglang_glm53.geometry import INDEX_PAGE_BYTES, KV_ROW_BYTES, PAGE, ConfigError
from tests.configs import FP8, FULL_LAYERS, glm53

BF16_ROW, FP32_INDEX_PAGE = 1152, 32768
OWN = Contract(
    version="1.0",
    model="a1",
    vocabulary=154880,
    layers=78,
    index_layers=(0, 1, 2, 6),
    page_size=64,
    kv_dtype="fp8_e4m3",
    scale_rule="amax/448",
    kv_row_bytes=656,
    index_page_bytes=8448,
    mtp=False,
    seed_width=2048,
    metadata_bytes=(64, 64, 24576),
)
# Each field -> a value that differs.
OTHERS = {
    "version": "1.1",
    "model": "b2",
    "vocabulary": 154881,
    "layers": 77,
    "index_layers": (0, 1, 2),
    "page_size": 32,
    "kv_dtype": "bfloat16",
    "scale_rule": "2^ceil",
    "kv_row_bytes": 1152,
    "index_page_bytes": 16384,
    "mtp": True,
    "seed_width": 0,
    "metadata_bytes": (64, 24576),
}


def over_the_wire(contract):
    return json.loads(json.dumps(contract.wire()))


def kv_args(**changes):
    """KVArgs of 78 FP8 layers whose pool keeps index pages for the full layers alone."""
    index = [INDEX_PAGE_BYTES if layer in FULL_LAYERS else 0 for layer in range(78)]
    fields = {
        "page_size": PAGE,
        "kv_cache_dtype_str": "fp8_e4m3",
        "kv_item_lens": [PAGE * KV_ROW_BYTES] * 78,
        "num_draft_entries": 0,
        "state_types": ["dsa"],
        "state_item_lens": [index],
        "aux_item_lens": [64, 128],
        "prefill_start_layer": 0,
    }
    return SimpleNamespace(**fields | changes)


def test_the_same_contract_has_no_difference():
    assert differences(OWN, over_the_wire(OWN)) == []


def test_every_field_has_a_fix_and_a_case():
    names = [field.name for field in dataclasses.fields(Contract)]
    assert list(FIXES) == names == list(OTHERS)


@pytest.mark.parametrize("field", OTHERS)
def test_a_field_changed_alone_is_named_with_both_values_and_the_fix(field):
    peer = dataclasses.replace(OWN, **{field: OTHERS[field]})
    theirs, ours = (json.dumps(getattr(one, field)) for one in (peer, OWN))
    assert differences(OWN, over_the_wire(peer)) == [
        f"{field}: prefill has {theirs}, decode has {ours}: {FIXES[field]}"
    ]


def test_all_differences_are_listed_in_the_roles_of_the_pair():
    peer = dataclasses.replace(OWN, layers=77, mtp=True)
    found = differences(OWN, over_the_wire(peer), ("prefill", "decode"))
    assert [line.partition(", prefill has")[0] for line in found] == [
        "layers: decode has 77",
        "mtp: decode has true",
    ]


def test_a_field_of_a_newer_version_is_named():
    assert differences(OWN, over_the_wire(OWN) | {"rotation": "hadamard"}) == [
        'rotation: prefill has "hadamard", decode knows no such field: '
        "install the same sglang-glm53 on both servers"
    ]


def test_a_field_that_the_peer_leaves_out_is_named():
    peer = over_the_wire(OWN)
    del peer["scale_rule"]
    (line,) = differences(OWN, peer)
    assert line.startswith('scale_rule: the prefill server does not state it, decode has "amax/448": ')


@pytest.mark.parametrize("value", ["78", 78.5, None, [78], True])
def test_a_field_of_another_type_is_a_difference(value):
    (line,) = differences(OWN, over_the_wire(OWN) | {"layers": value})
    assert line.startswith(f"layers: prefill has {json.dumps(value)}, decode has 78: ")


def test_one_is_not_true():
    own = dataclasses.replace(OWN, mtp=True)
    assert len(differences(own, over_the_wire(own) | {"mtp": 1})) == 1


@pytest.mark.parametrize("payload", [None, "text", 7, [], [{}]])
def test_a_payload_that_is_no_object_is_refused(payload):
    (line,) = differences(OWN, payload)
    assert line.startswith(f"the prefill server states {json.dumps(payload)} for its contract: ")


def test_a_rank_states_what_its_pools_hold():
    assert describe(kv_args(), glm53(), 2048) == Contract(
        version=__version__,
        model=fingerprint(glm53()),
        vocabulary=154880,
        layers=78,
        index_layers=tuple(FULL_LAYERS),
        page_size=PAGE,
        kv_dtype="fp8_e4m3",
        scale_rule=f"{pd_contract.KV_SCALES}; {pd_contract.INDEX_SCALES}",
        kv_row_bytes=KV_ROW_BYTES,
        index_page_bytes=INDEX_PAGE_BYTES,
        mtp=False,
        seed_width=2048,
        metadata_bytes=(64, 128),
    )


@pytest.mark.parametrize(
    ("row", "index_page", "rule"),
    [
        (BF16_ROW, INDEX_PAGE_BYTES, pd_contract.INDEX_SCALES),
        (2 * BF16_ROW, FP32_INDEX_PAGE, "none"),
    ],
)
def test_the_scale_rule_is_that_of_the_fp8_parts(row, index_page, rule):
    own = kv_args(kv_item_lens=[PAGE * row] * 78, state_item_lens=[[index_page] * 78])
    found = describe(own, glm53(), 2048)
    assert (found.scale_rule, found.kv_row_bytes, found.index_page_bytes) == (rule, row, index_page)


def test_pages_that_a_pool_keeps_for_shared_layers_change_nothing():
    own = kv_args(state_item_lens=[[INDEX_PAGE_BYTES] * 78])
    assert describe(own, glm53(), 2048) == describe(kv_args(), glm53(), 2048)


def test_a_full_layer_without_pages_is_not_claimed():
    pages = kv_args().state_item_lens[0]
    pages[6] = 0
    found = describe(kv_args(state_item_lens=[pages]), glm53(), 2048)
    assert found.index_layers == tuple(layer for layer in FULL_LAYERS if layer != 6)


def test_a_pool_without_index_pages_claims_none():
    found = describe(kv_args(state_types=[], state_item_lens=[]), glm53(), 2048)
    assert (found.index_layers, found.index_page_bytes) == ((), 0)


@pytest.mark.parametrize(("first", "last"), [(0, 40), (40, 78)])
def test_a_pipeline_stage_states_the_whole_models_contract(first, last):
    pages = kv_args().state_item_lens[0][first:last]
    stage = kv_args(
        kv_item_lens=[PAGE * KV_ROW_BYTES] * (last - first),
        state_item_lens=[pages],
        prefill_start_layer=first,
    )
    assert describe(stage, glm53(), 2048) == describe(kv_args(), glm53(), 2048)


def test_a_decodes_stage_claims_what_it_cannot_place():
    pages = kv_args().state_item_lens[0][40:]
    stage = kv_args(kv_item_lens=[PAGE * KV_ROW_BYTES] * 38, state_item_lens=[pages])
    del stage.prefill_start_layer
    assert describe(stage, glm53(), 2048).index_layers == tuple(FULL_LAYERS)


def test_the_draft_models_entries_come_last_and_mean_mtp():
    pages = [*kv_args().state_item_lens[0], INDEX_PAGE_BYTES]
    own = kv_args(kv_item_lens=[PAGE * KV_ROW_BYTES] * 79, num_draft_entries=1, state_item_lens=[pages])
    assert describe(own, glm53(), 2048) == dataclasses.replace(describe(kv_args(), glm53(), 2048), mtp=True)


@pytest.mark.parametrize(
    "changes",
    [
        {"quantization_config": FP8},
        {"num_nextn_predict_layers": 0},
        {"torch_dtype": "float32"},
        {"indexer_types": ...},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_what_says_nothing_of_the_numbers_leaves_the_fingerprint(changes):
    assert fingerprint(glm53(**changes)) == fingerprint(glm53())


@pytest.mark.parametrize(
    "changes",
    [
        {"num_hidden_layers": 77, "indexer_types": ...},
        {"index_topk": 1024},
        {"vocab_size": 154881},
        {"index_topk_freq": 3, "indexer_types": ...},
        {"rms_norm_eps": 1e-6},
        {"rope_parameters": {"rope_theta": 1000000, "rope_type": "default"}},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_what_changes_the_numbers_changes_the_fingerprint(changes):
    assert fingerprint(glm53(**changes)) != fingerprint(glm53())


def test_a_config_object_has_the_fingerprint_of_its_dict():
    assert fingerprint(SimpleNamespace(**glm53())) == fingerprint(glm53())


def test_another_models_config_has_no_fingerprint():
    with pytest.raises(ConfigError, match="index_topk"):
        fingerprint(glm53(index_topk=...))


def test_a_stock_decodes_kv_page_is_compared():
    own = kv_args()
    assert pd_contract.row_difference(own, PAGE * KV_ROW_BYTES) is None
    found = pd_contract.row_difference(own, PAGE * BF16_ROW)
    assert found is not None
    assert found.startswith("kv_page_bytes: decode has 73728, prefill has 41984: give both servers the same ")
