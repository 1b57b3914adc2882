"""Owns SGLang's own argument code for these tests, in worker processes: importing it takes 12 s and more."""

import json
import subprocess
import sys

import pytest

from tests.contract.resolver import REFERENCE, Resolver
from tests.kernel_entries import harness

WORKER = """
import argparse, contextlib, json, os, sys
answers = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)
from sglang.srt.server_args import ServerArgs
parser = argparse.ArgumentParser(prog="sglang")
ServerArgs.add_cli_args(parser)
def complain(message):
    raise ValueError(message)
parser.error = complain
actions = parser._option_string_actions
print(json.dumps({option: action.dest for option, action in actions.items()}), file=answers)
print(json.dumps({action.dest: action.default for action in actions.values()}, default=repr), file=answers)
for line in sys.stdin:
    try:
        parser.parse_args(json.loads(line))
        complaint = ""
    except ValueError as error:
        complaint = str(error)
    print(json.dumps(complaint), file=answers)
"""


class SglangParser:
    """SGLang's parser. fields: each flag's field; defaults: each field's; options: the flags;
    complaint(argv): its error message, empty when it parses."""

    def __init__(self) -> None:
        self._worker = subprocess.Popen(
            [sys.executable, "-c", WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.fields: dict[str, str] = json.loads(self._worker.stdout.readline())
        self.defaults: dict[str, object] = json.loads(self._worker.stdout.readline())
        self.options = set(self.fields)

    def complaint(self, argv: list[str]) -> str:
        self._worker.stdin.write(json.dumps(argv) + "\n")
        self._worker.stdin.flush()
        return json.loads(self._worker.stdout.readline())

    def close(self) -> None:
        self._worker.stdin.close()
        self._worker.wait(timeout=30)
        self._worker.stdout.close()


@pytest.fixture(scope="session")
def sglang_parser():
    parser = SglangParser()
    yield parser
    parser.close()


@pytest.fixture(scope="session")
def resolver(tmp_path_factory):
    """The Resolver of a GPU generation, or of REFERENCE, started when it is first asked for."""
    started: dict[str, Resolver] = {}

    def of(generation: str) -> Resolver:
        if generation != REFERENCE and (reason := harness.unfit()):
            pytest.skip(reason)
        if generation not in started:
            started[generation] = Resolver(generation, tmp_path_factory.mktemp(generation))
        return started[generation]

    yield of
    for each in started.values():
        each.close()
