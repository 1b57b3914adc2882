"""The request check: each value that would end a server is refused by name, and nothing else is."""

import sys
from types import SimpleNamespace

import pytest

from sglang_glm53.serving.request_check import check_request, problems

VOCAB, HIDDEN = 100, 4
LABELS = {"model_name": "m", "tenant": ""}
FIELDS = {
    "top_logprobs_num": 0,
    "logprob_start_len": -1,
    "input_embeds": None,
    "positional_embed_overrides": None,
    "sampling_params": {},
    "custom_logit_processor": None,
    "custom_labels": None,
}


class PositionalEmbeds:
    """SGLang's type, by name."""


class CustomLogitProcessor:
    """SGLang's loader: a processor, something else, or whatever the bytes raise."""

    @staticmethod
    def from_str(text):
        return {"good": lambda logits: logits, "data": 3}[text]


@pytest.fixture(autouse=True)
def sglang(monkeypatch):
    for name, held in (
        ("managers.embed_types", {"PositionalEmbeds": PositionalEmbeds}),
        ("sampling.custom_logit_processor", {"CustomLogitProcessor": CustomLogitProcessor}),
    ):
        monkeypatch.setitem(sys.modules, f"sglang.srt.{name}", SimpleNamespace(**held))


def request(**fields):
    return SimpleNamespace(**FIELDS | fields)


def found(fields, input_ids=(1,), labels=LABELS):
    return problems(request(**fields), input_ids, VOCAB, HIDDEN, labels)


@pytest.mark.parametrize(
    ("fields", "input_ids", "named"),
    [
        ({}, [1, VOCAB], "input_ids holds 100"),
        ({}, [-1], "input_ids holds -1"),
        ({}, [], "no token"),
        ({"top_logprobs_num": VOCAB + 1}, [1], "top_logprobs_num"),
        ({"top_logprobs_num": -1}, [1], "top_logprobs_num"),
        ({"top_logprobs_num": [2]}, [1], "top_logprobs_num is [2] for one prompt"),
        ({"logprob_start_len": -7}, [1], "logprob_start_len"),
        ({"input_embeds": [[0.5] * HIDDEN, [0.5]]}, None, f"input_embeds has rows of [1, {HIDDEN}] numbers"),
        ({"input_embeds": [[0.5] * (HIDDEN + 1)]}, None, f"input_embeds has rows of [{HIDDEN + 1}] numbers"),
        ({"input_embeds": []}, None, "input_embeds has rows of no numbers"),
        ({"positional_embed_overrides": {"embeds": []}}, [1], "positional_embed_overrides is a dict"),
        ({"positional_embed_overrides": 3}, [1], "positional_embed_overrides is a int"),
        ({"sampling_params": {"stop_regex": "("}}, [1], "stop_regex '(' does not compile"),
        ({"sampling_params": {"stop_regex": ["a", "["]}}, [1], "stop_regex '[' does not compile"),
        ({"custom_logit_processor": "junk"}, [1], "custom_logit_processor does not load (KeyError"),
        ({"custom_logit_processor": "data"}, [1], "custom_logit_processor cannot be called"),
        ({"custom_labels": {"tenant": "a", "team": "b"}}, [1], "custom_labels holds team"),
    ],
)
def test_refused_by_name(fields, input_ids, named):
    (problem,) = found(fields, input_ids)
    assert named in problem


@pytest.mark.parametrize(
    ("fields", "input_ids"),
    [
        ({}, [0, VOCAB - 1]),
        ({}, None),
        ({"top_logprobs_num": VOCAB, "logprob_start_len": 0}, [1]),
        ({"top_logprobs_num": None, "logprob_start_len": None}, [1]),
        ({"input_embeds": [[0.5] * HIDDEN] * 3}, None),
        ({"positional_embed_overrides": PositionalEmbeds()}, [1]),
        ({"sampling_params": {"stop_regex": ["a+", "b"]}}, [1]),
        ({"sampling_params": {"stop_regex": 3}}, [1]),
        ({"custom_logit_processor": "good"}, [1]),
        ({"custom_labels": {"tenant": "a"}}, [1]),
    ],
)
def test_served(fields, input_ids):
    assert found(fields, input_ids) == []


def test_labels_are_free_without_metrics():
    assert found({"custom_labels": {"team": "b"}}, labels=None) == []


def _manager(**fields):
    model = SimpleNamespace(vocab_size=VOCAB, hidden_size=HIDDEN)
    return SimpleNamespace(model_config=model, **{"enable_metrics": False} | fields)


def test_sglangs_own_checks_come_first_and_all_of_ours_are_listed():
    seen = []
    manager = _manager()
    bad = request(top_logprobs_num=101, logprob_start_len=-2)
    with pytest.raises(ValueError, match=r"input_ids holds 100.*top_logprobs_num.*logprob_start_len"):
        check_request(lambda *call: seen.append(call), manager, bad, [100])
    assert seen == [(manager, bad, [100])]


def test_the_labels_are_those_of_the_servers_metrics():
    manager = _manager(enable_metrics=True, metrics_collector=SimpleNamespace(labels=LABELS))
    check_request(lambda *call: None, manager, request(custom_labels={"tenant": "a"}), [1])
    with pytest.raises(ValueError, match="custom_labels holds team"):
        check_request(lambda *call: None, manager, request(custom_labels={"team": "a"}), [1])


def test_a_request_without_logprob_fields_is_left_to_sglang():
    check_request(lambda *call: None, _manager(), SimpleNamespace(), [VOCAB])
