# Every target works on a fresh clone: each one first brings .venv up to date (see .ci/venv).
PYTHON_IN_VENV := .venv/bin/python
# Two workers take the test files one by one; a server, like a worker, keeps one core busy.
WORKERS ?= 2
PYTEST = OMP_NUM_THREADS=1 $(PYTHON_IN_VENV) -m pytest -n $(WORKERS) --durations=25

.PHONY: setup demo check test matrix soak lint

setup:
	.ci/venv .venv -e .
	.ci/system_packages

demo: setup
	.ci/demo

# Of the tests that `make test` runs, what starts no server; the sanitizers alone take a minute and are left out.
check: setup
	$(PYTEST) --ignore tests/e2e --deselect tests/emulation/test_kernels.py::test_values_under_every_check

test: setup
	$(PYTEST)

matrix: setup
	$(PYTEST) -m matrix

# Each fault of a prefill/decode pair ten times; the figures go to SOAK_REPORT.
SOAK_REPORT ?= pd-soak.md
soak: setup
	$(PYTHON_IN_VENV) -m pytest tests/e2e/test_pd_faults.py --injections 10 --fault-report $(SOAK_REPORT)

lint: setup
	$(PYTHON_IN_VENV) -m ruff check .
	$(PYTHON_IN_VENV) -m ruff format --check .
	$(PYTHON_IN_VENV) -m mypy
	@if command -v clang-format >/dev/null; then \
	  find csrc -name '*.cuh' -exec clang-format --dry-run --Werror {} +; \
	else \
	  echo "clang-format is not installed: the formatting of csrc was not checked"; \
	fi
