"""The request check: each value that would end a scheduler is refused by name, and nothing else is."""

from types import SimpleNamespace

import pytest

from sglang_glm53.serving.request_check import check_request, problems

VOCAB = 100


def request(**fields):
    return SimpleNamespace(**{"top_logprobs_num": 0, "logprob_start_len": -1, **fields})


@pytest.mark.parametrize(
    ("fields", "input_ids", "named"),
    [
        ({}, [1, VOCAB], "input_ids holds 100"),
        ({}, [-1], "input_ids holds -1"),
        ({}, [], "no token"),
        ({"top_logprobs_num": VOCAB + 1}, [1], "top_logprobs_num"),
        ({"top_logprobs_num": -1}, [1], "top_logprobs_num"),
        ({"logprob_start_len": -7}, [1], "logprob_start_len"),
    ],
)
def test_refused_by_name(fields, input_ids, named):
    found = problems(request(**fields), input_ids, VOCAB)
    assert len(found) == 1 and named in found[0]


@pytest.mark.parametrize(
    ("fields", "input_ids"),
    [
        ({}, [0, VOCAB - 1]),
        ({}, None),
        ({"top_logprobs_num": VOCAB, "logprob_start_len": 0}, [1]),
        ({"top_logprobs_num": None, "logprob_start_len": None}, [1]),
    ],
)
def test_served(fields, input_ids):
    assert problems(request(**fields), input_ids, VOCAB) == []


def test_sglangs_own_checks_come_first_and_all_of_ours_are_listed():
    seen = []
    manager = SimpleNamespace(model_config=SimpleNamespace(vocab_size=VOCAB))
    bad = request(top_logprobs_num=101, logprob_start_len=-2)
    with pytest.raises(ValueError, match=r"input_ids holds 100.*top_logprobs_num.*logprob_start_len"):
        check_request(lambda *call: seen.append(call), manager, bad, [100])
    assert seen == [(manager, bad, [100])]


def test_a_request_without_logprob_fields_is_left_to_sglang():
    manager = SimpleNamespace(model_config=SimpleNamespace(vocab_size=VOCAB))
    check_request(lambda *call: None, manager, SimpleNamespace(), [VOCAB])
