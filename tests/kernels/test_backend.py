"""Owns the checks of the choice between implementations, and of what is counted and logged."""

import logging

import pytest
import torch

from sglang_glm53.fusion import Declined, log_once
from sglang_glm53.kernels import backend

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


@pytest.mark.parametrize(
    ("kernels", "device", "chosen"),
    [
        ("auto", CPU, "torch"),
        ("auto", GPU, "cuda"),
        ("torch", CPU, "torch"),
        ("torch", GPU, "torch"),
        ("emulated", CPU, "emulated"),
        ("cuda", GPU, "cuda"),
    ],
)
def test_choice(choose, kernels, device, chosen):
    choose(kernels)
    assert backend.implementation(device) == chosen


@pytest.mark.parametrize(
    ("kernels", "device", "message"),
    [
        ("emulated", GPU, "GLM53_KERNELS=emulated runs on the CPU, not on cuda:0: use auto, torch or cuda"),
        ("cuda", CPU, "GLM53_KERNELS=cuda needs a GPU, not cpu: use auto, torch or emulated"),
    ],
)
def test_a_choice_that_cannot_run(choose, kernels, device, message):
    choose(kernels)
    with pytest.raises(ValueError, match=f"^{message}$"):
        backend.implementation(device)


def test_settings_know_the_fusions(choose):
    choose("torch", disable="ffn_input")
    assert backend.settings().disabled == {"ffn_input"}
    choose("torch", disable="ffn")
    names = "attention_input, ffn_input, q_a, indexer_topk, draft_argmax"
    with pytest.raises(ValueError, match=f"GLM53_DISABLE names 'ffn': use any of {names}$"):
        backend.settings()


@pytest.mark.parametrize(("capability", "supported"), [((8, 9), False), ((9, 0), True), ((10, 3), True)])
def test_gpus_from_hopper_on_are_supported(monkeypatch, capability, supported):
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: capability)
    backend._has_capability.cache_clear()
    assert backend.is_supported(GPU) == supported
    assert backend.is_supported(CPU)
    backend._has_capability.cache_clear()


def test_a_reason_is_counted_and_logged_once(choose, caplog):
    log_once.cache_clear()
    choose("emulated")
    with caplog.at_level(logging.WARNING, "sglang_glm53"):
        for reason in ("too wide", "too wide", "too tall"):
            assert backend.choose("op", CPU, Declined(reason)) == "torch"
        assert backend.choose("op", CPU, None) == "emulated"
    assert backend.declined == {("op", "too wide"): 2, ("op", "too tall"): 1}
    assert caplog.messages == ["op runs in torch: too wide", "op runs in torch: too tall"]
