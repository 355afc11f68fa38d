# Everything runs from a virtual environment that the first target makes; only Python 3.11+ and a C compiler are needed.
#   make demo      compile the kernel, run its PTX on two simulated ranks, compare with the reference
#   make test      lint, types, tests
#   make lint      ruff and mypy
#   make format    ruff, in place
#   make golden    takes the compiled kernels' present figures as those to compare with (tests/golden)
#   make pictures  the README's drawings, from the layouts
# VENV=path uses another environment, JOBS=n another number of test processes.

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null && echo $$p && break; done)
VENV ?= .venv
JOBS ?= auto
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.megamoe-installed
TORCH_CPU := https://download.pytorch.org/whl/cpu

# BLAS threads of several processes fight for the same cores.
export OPENBLAS_NUM_THREADS ?= 1
export OMP_NUM_THREADS ?= 1

.PHONY: install demo test lint format golden pictures

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
	@echo "One MoE layer over 2 ranks: 8 experts, hidden 512, intermediate 512, top-2, 13 and 7 tokens, two launches."
	$(BIN)/megamoe simulate --ranks 2 --hidden 512 --intermediate 512 --experts 8 --topk 2 --tokens 13,7 --seed 0 --mask 0.2 --launches 2
	@echo
	@echo "What this proved: the Python in src/megamoe_dsl/kernels/mega_moe compiled to one SM100 kernel without a GPU. The simulator ran"
	@echo "that kernel's PTX on every warp of both ranks: dispatch, both linears on the simulated tensor cores, SwiGLU, combine. All"
	@echo "outputs equal an independent PyTorch reference bit for bit. Between any two accesses to the same bytes, on either rank, there"
	@echo "is a barrier or fence that orders them. The second launch found its buffers clean. Speed is not simulated."

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

pictures: $(INSTALLED)
	mkdir -p docs/pictures
	for what in smem waves swizzle symmetric; do \
		$(BIN)/megamoe layout $$what --preset flash --tokens 128 --svg docs/pictures/$$what.svg || exit 1; done

test: lint
	$(BIN)/pytest -n $(JOBS)

golden: $(INSTALLED)
	MEGAMOE_UPDATE_GOLDEN=1 $(BIN)/pytest -n $(JOBS) tests/golden/test_golden.py -k figures
	git diff --stat -- tests/golden
