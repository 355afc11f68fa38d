# Everything runs from a virtual environment that the first target makes; only Python 3.11+ and a C compiler are needed.
#   make demo      the layer on this host's Hopper GPUs, or else its PTX on two simulated ranks, compared with the reference
#   make test      lint, types, tests
#   make quick     lint, types, tests of what touches no compiler: a minute
#   make lint      ruff and mypy
#   make format    ruff, in place
#   make golden    takes the compiled kernels' present figures and digests, and the host's plans, as those to compare with (tests/golden)
#   make engines   the adapters against the Python files of the engines' newest wheels, which it downloads (tests/engine_wheels)
#   make docs      the site of all pages and of the API (build/site), to read without a network
#   make docs-check  opens every page of it in headless Chromium (Debian: chromium, chromium-driver)
#   make pictures  the drawings that docs use (docs/pictures/drawn.txt), and the tables of reference pages
# VENV=path uses another environment, JOBS=n another number of test processes.

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null && echo $$p && break; done)
VENV ?= .venv
JOBS ?= auto
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.megamoe-installed
DOCS_VENV := build/docs-venv
TORCH_CPU := https://download.pytorch.org/whl/cpu

# BLAS threads of several processes fight for the same cores.
export OPENBLAS_NUM_THREADS ?= 1
export OMP_NUM_THREADS ?= 1
# Python's compiled files save every process of a test its seconds.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: install demo test suite quick lint format golden engines pictures docs docs-check

install: $(INSTALLED)

# Without an NVIDIA GPU torch's CPU build does: the default index would bring gigabytes of CUDA libraries. Where its index cannot be
# reached, the default one serves.
$(INSTALLED): pyproject.toml
	@test -n "$(PYTHON)" || { echo "error: Python 3.11, 3.12 or 3.13 is needed; set PYTHON=path" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	command -v nvidia-smi >/dev/null || $(BIN)/python -c 'import torch' 2>/dev/null \
		|| $(BIN)/pip install --quiet --timeout 10 --retries 0 --index-url $(TORCH_CPU) 'torch>=2.11' \
		|| echo "torch's CPU index cannot be reached: taking torch from the default index"
	$(BIN)/pip install --quiet --editable '.[dev]'
	touch $@

demo: $(INSTALLED)
	$(BIN)/megamoe demo

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

pictures: $(INSTALLED)
	while read what options; do \
		$(BIN)/megamoe layout $$what $$options --svg docs/pictures/$$what.svg || exit 1; done <docs/pictures/drawn.txt
	$(BIN)/python tests/draw_structure.py docs/pictures/structure.svg
	$(BIN)/python bench/draw_results.py docs/pictures/results.svg
	$(BIN)/python bench/reference_pages.py

test: $(INSTALLED)
	$(MAKE) --jobs=2 lint suite  # types take a core alone for a minute

quick: $(INSTALLED)
	$(MAKE) --jobs=2 lint suite SUITE=--quick

suite: $(INSTALLED)
	$(BIN)/pytest $(SUITE) -n $(JOBS) --dist worksteal  # neighbors share compiled kernels, so they stay in one process

golden: $(INSTALLED)
	MEGAMOE_UPDATE_GOLDEN=1 $(BIN)/pytest -n $(JOBS) tests/golden/test_golden.py -m 'sweep or not sweep' -k figures
	cd tests/golden && $(abspath $(BIN))/python ptx_digests.py
	cd tests/golden && $(abspath $(BIN))/python plan_digests.py
	git diff --stat -- tests/golden

engines: $(INSTALLED)
	$(BIN)/python tests/engine_wheels/record.py sglang vllm
	for file in tests/engine_wheels/test_*_wheel.py; do $(BIN)/pytest -m engines $$file || exit 1; done  # an engine a process
	git diff --stat -- tests/engine_wheels

$(DOCS_VENV)/installed: pyproject.toml
	test -x $(DOCS_VENV)/bin/python || $(PYTHON) -m venv $(DOCS_VENV)
	$(PYTHON) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"], sep="\n")' \
		>$(DOCS_VENV)/requirements.txt
	$(DOCS_VENV)/bin/pip install --quiet --requirement $(DOCS_VENV)/requirements.txt
	touch $@

docs: $(DOCS_VENV)/installed
	PATH="$(abspath $(DOCS_VENV))/bin:$$PATH" NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/mkdocs build --quiet --strict

docs-check: docs
	$(DOCS_VENV)/bin/python docs/site/check.py build/site
