# Every target works on a fresh clone: each one first brings .venv up to date (see .ci/venv).
PYTHON_IN_VENV := .venv/bin/python

.PHONY: setup demo test matrix lint

setup:
	.ci/venv .venv -e .

demo: setup
	.ci/demo

test: setup
	$(PYTHON_IN_VENV) -m pytest -m "not matrix"

matrix: setup
	$(PYTHON_IN_VENV) -m pytest -m matrix

lint: setup
	$(PYTHON_IN_VENV) -m ruff check .
	$(PYTHON_IN_VENV) -m ruff format --check .
	$(PYTHON_IN_VENV) -m mypy
	@if command -v clang-format >/dev/null; then \
	  find csrc -name '*.cuh' -exec clang-format --dry-run --Werror {} +; \
	else \
	  echo "clang-format is not installed: the formatting of csrc was not checked"; \
	fi
