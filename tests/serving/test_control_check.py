"""The check of control requests: each that would end a scheduler is refused by name, and nothing else is."""

from types import SimpleNamespace

import pytest

from sglang_glm53.serving.control_check import profile_problems, recorder_problems


@pytest.fixture
def profile(tmp_path):
    """Fields of a request, device -> what is wrong with it."""

    def problems(device="cpu", **fields):
        plain = {"activities": None, "output_dir": None, "profile_id": "1", "profile_prefix": None}
        return profile_problems(SimpleNamespace(**plain | fields), device, str(tmp_path))

    return problems


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"activities": ["CPU", "MEM"]}, "activities holds MEM: it needs a GPU"),
        ({"activities": ["CPU", "CUDA_PROFILER"]}, "activities holds CUDA_PROFILER: it needs a GPU"),
        ({"activities": ["CPU", "RPD"]}, "activities holds RPD"),
        ({"activities": ["CPU", "RPD"], "device": "cuda"}, "activities holds RPD"),
        ({"activities": ["GPU"]}, "activities is ['GPU']: a server without a GPU records CPU alone"),
        ({"activities": []}, "activities is []"),
        (
            {"output_dir": "/proc/no/such"},
            "output_dir /proc/no/such cannot be made (No such file or directory)",
        ),
        ({"output_dir": "/etc/hostname"}, "output_dir /etc/hostname cannot be made (File exists)"),
        ({"profile_id": "../x"}, "profile_id '../x' holds a slash"),
        ({"profile_prefix": "a/b"}, "profile_prefix 'a/b' holds a slash"),
    ],
)
def test_a_profile_that_would_end_the_scheduler(profile, fields, named):
    (problem,) = profile(**fields)
    assert named in problem


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"activities": ["CPU", "GPU"]},
        {"activities": ["GPU", "MEM", "CUDA_PROFILER"], "device": "cuda"},
        {"profile_prefix": "a"},
    ],
)
def test_a_profile_that_can_be_taken(profile, fields, tmp_path):
    assert profile(**fields) == []
    assert profile(**fields, output_dir=str(tmp_path / "new" / "folder")) == []


def test_a_recorder_must_be_there():
    assert recorder_problems("stat") == []
    (problem,) = recorder_problems(None)
    assert "--expert-distribution-recorder-mode" in problem
