"""Owns the passes of whole fake checkpoints through Intake that the intake tests share."""

from sglang_glm53.weights.checks import Intake
from sglang_glm53.weights.parameter_map import plan
from tests.weights.fake_model import GEOMETRY, Build, fake_model, stored_tensors

CHECKPOINT = stored_tensors()
BF16_CHECKPOINT = stored_tensors(fp8=False)
BUILDS = {
    "fp8": Build(),
    "bf16": Build(fp8=False),
    "merged": Build(merged_index=True),
    "fused": Build(fuse_shared=True),
    "stage2": Build(stage=(3, 5)),
    "ep1": Build(ep_rank=1, ep_size=2),
    "draft": Build(draft=True),
    "draft_bf16": Build(draft=True, fp8=False),
}
PLANS = {name: plan(fake_model(build), GEOMETRY, draft=build.draft) for name, build in BUILDS.items()}
# The full heading of extra tensors.
EXTRA = """extra tensors (--model-loader-extra-config '{"glm53_allow_extra": true}' skips them)"""


def tensors(build):
    """The sound checkpoint for a build."""
    return dict(CHECKPOINT if BUILDS[build].fp8 else BF16_CHECKPOINT)


def run(build, given, files=(), **options):
    """Pass every tensor of a checkpoint: the names that went on, and the problems."""
    intake = Intake(PLANS[build], dict(files), **options)
    passed = [name for name, tensor in given.items() if intake.take(name, tensor)]
    return passed, intake.problems()
