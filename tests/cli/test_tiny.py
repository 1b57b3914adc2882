"""`glm53 tiny`: its flags, its output, and its refusals."""

import argparse
import dataclasses
import json
import subprocess
import sys

import pytest

from sglang_glm53.cli import main, tiny
from sglang_glm53.tiny.checkpoint import TinySpec, write

SMALL = [
    *("--layers", "4", "--hidden", "128", "--heads", "2", "--experts", "2", "--index-heads", "8"),
    *("--dense-intermediate", "128", "--moe-intermediate", "128", "--vocab", "292", "--seed", "3"),
]
SPEC = TinySpec(
    layers=4, hidden=128, heads=2, experts=2, index_heads=8, dense_intermediate=128, moe_intermediate=128,
    vocab=292, seed=3,
)  # fmt: skip


def parse(*words):
    parser = argparse.ArgumentParser()
    tiny.add_arguments(parser)
    return parser.parse_args(words)


def test_every_size_has_a_flag_and_the_specs_default():
    args = parse("out")
    assert {
        field.name: getattr(args, field.name) for field in dataclasses.fields(TinySpec)
    } == dataclasses.asdict(TinySpec())


def test_json_describes_what_was_written(tmp_path, capsys):
    assert main(["tiny", str(tmp_path / "ck"), *SMALL, "--fp8", "--mtp", "--schedule", "FSFF", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    files = sorted(path.name for path in (tmp_path / "ck").iterdir())
    assert report == {
        "path": str(tmp_path / "ck"),
        "files": files,
        "bytes": sum((tmp_path / "ck" / file).stat().st_size for file in files),
        "parameters": report["parameters"],
        "seed": 3,
        "schedule": "FSFF",
        "mtp": True,
        "fp8": True,
        "twin": str(tmp_path / "ck-bf16"),
    }
    assert json.loads((tmp_path / "ck-bf16" / "config.json").read_text())["num_nextn_predict_layers"] == 1
    index = json.loads((tmp_path / "ck" / "model.safetensors.index.json").read_text())
    scales = sum(name.endswith("_scale_inv") for name in index["weight_map"])
    assert index["metadata"]["total_size"] > report["parameters"]
    assert scales == 5 * 5 + 4 * 2 + 3 * 3 + 2 * 3 * 3


def test_text_names_the_folder_the_schedule_and_the_twin(tmp_path, capsys):
    twin = tmp_path / "elsewhere"
    assert main(["tiny", str(tmp_path / "ck"), *SMALL, "--fp8", "--twin", str(twin)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{tmp_path / 'ck'}: ")
    assert lines[1:] == ["schedule FFFS, seed 3", f"{twin}: the same values in bf16"]


def test_another_process_writes_the_same_bytes(tmp_path):
    command = [sys.executable, "-c", "import sys; from sglang_glm53.cli import main; sys.exit(main())"]
    subprocess.run([*command, "tiny", str(tmp_path / "a"), *SMALL], check=True, capture_output=True)
    write(SPEC, tmp_path / "b")
    files = sorted(path.name for path in (tmp_path / "b").iterdir())
    assert [f for f in files if (tmp_path / "a" / f).read_bytes() != (tmp_path / "b" / f).read_bytes()] == []


def test_a_refusal_names_every_flag_and_prints_nothing_on_stdout(tmp_path, capsys):
    assert main(["tiny", str(tmp_path / "ck"), "--hidden", "100", "--schedule", "SF", "--json"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(
        "glm53 tiny: error: --hidden 100: use a multiple of 128, such as 128; --schedule SF: "
    )
    assert not (tmp_path / "ck").exists()


def test_a_folder_that_holds_files_needs_force(tmp_path, capsys):
    (tmp_path / "notes.txt").write_text("mine")
    assert main(["tiny", str(tmp_path), *SMALL]) == 2
    assert "add --force" in capsys.readouterr().err
    assert main(["tiny", str(tmp_path), *SMALL, "--force"]) == 0


def test_few_index_heads_are_warned_about_on_stderr(tmp_path, capsys):
    assert main(["tiny", str(tmp_path / "ck"), *SMALL, "--index-heads", "4"]) == 0
    assert "warning: --index-heads 4: with fewer than 8" in capsys.readouterr().err


@pytest.mark.parametrize("module", ["torch", "tokenizers", "transformers", "sglang"])
def test_help_imports_nothing_heavy(module):
    code = (
        "import sys; from sglang_glm53.cli import main\n"
        "try: main(['tiny', '--help'])\n"
        f"except SystemExit: sys.exit({module!r} in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--index-topk N" in done.stdout
