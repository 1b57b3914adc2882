"""Which drafts are refused, before weights load where the draft's folder is here, else while it is built."""

import json
from types import SimpleNamespace

import pytest

from sglang_glm53.serving.drafts import reasons
from sglang_glm53.serving.preflight import model_reasons
from tests.configs import EAGLE, glm53

MTP_ALONE = "of drafts, only GLM-5.3's own MTP layer has been proved with this package"


@pytest.mark.parametrize(
    "algorithm", ["EAGLE3", "STANDALONE", "NGRAM", "DFLASH", "DSPARK", "UNO", "FROZEN_KV_MTP", "MINE"]
)
def test_a_draft_that_nobody_proved_is_refused(algorithm):
    flags = SimpleNamespace(**EAGLE | {"speculative_algorithm": algorithm})
    assert reasons(flags, glm53()) == [
        f"--speculative-algorithm {algorithm}: {MTP_ALONE}: use NEXTN, or serve SGLang's own implementation "
        "without --model-impl"
    ]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({}, None),
        ({"architectures": ["GlmMoeDsaForCausalLMNextN"]}, None),
        ({"num_hidden_layers": 4, "indexer_types": ["full"] * 4, "index_topk_freq": 1}, None),
        ({"architectures": ["LlamaForCausalLMEagle3"]}, "architecture LlamaForCausalLMEagle3"),
        ({"architectures": ...}, "architecture none"),
        (
            {"num_nextn_predict_layers": 0},
            "num_nextn_predict_layers is 0, num_hidden_layers 78: SGLang's MTP draft needs exactly 1, and at "
            "least 2",
        ),
        ({"v_head_dim": ...}, "config.json lacks or misstates v_head_dim: integers are needed"),
        ({"hidden_size": 4096}, "hidden_size is 4096, the target's 6144"),
        ({"vocab_size": 1000}, "vocab_size is 1000, the target's 154880"),
    ],
)
def test_a_drafts_folder_is_judged_by_its_config(changes, problem, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(glm53(**changes)))
    flags = SimpleNamespace(**EAGLE | {"speculative_draft_model_path": str(tmp_path)})
    fix = f"{MTP_ALONE}: leave the flag out for the checkpoint's own"
    said = [f"--speculative-draft-model-path {tmp_path}: config.json: {problem}: {fix}"] if problem else []
    assert reasons(flags, glm53()) == said


def test_a_draft_of_another_architecture_is_refused_while_it_is_built():
    [reason] = model_reasons(glm53(architectures=["LlamaForCausalLMEagle3"]), is_draft=True)
    assert reason.startswith(
        f"--speculative-draft-model-path: architecture LlamaForCausalLMEagle3: {MTP_ALONE}: leave the "
    )
