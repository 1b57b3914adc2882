"""Owns the calls that compute-sanitizer watches: a few of each kernel, with checks on the CPU."""

from __future__ import annotations

from dataclasses import replace

from sglang_glm53.kernels.cards import cards
from tests.kernels.calls import cases_of, run

WATCHED = [(stem, case) for stem in cards() for case in (*cases_of(stem).SMALL, *cases_of(stem).WATCHED)]


def main() -> None:
    """Run and check them all; an error is a traceback and exit status 1."""
    for stem, case in WATCHED:
        run(stem, cases_of(stem).call(replace(case, device="cuda")))
    print(f"checked {len(WATCHED)} calls")


if __name__ == "__main__":
    main()
