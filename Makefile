# Every target creates the environment it needs. A fresh clone needs only Python 3.11 or newer.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python scripts/install.py --constraint constraints.txt
CHECK_PYTHON := $(PYTHON) -c 'import sys; sys.exit("the pinned development packages need Python 3.11 or newer (maskwright itself 3.10): pass PYTHON=...") if sys.version_info < (3, 11) else None'
export PYTHONDONTWRITEBYTECODE :=  # let the subprocesses of the tests reuse bytecode
# Two workers with one thread each: most tests are too small for more threads. In CI a run fails if
# more tests are skipped than this, which happens if Chromium or a framework is missing.
MAX_SKIPPED ?= 3
PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal
TEST := MASKWRIGHT_MAX_SKIPPED=$(if $(CI),$(MAX_SKIPPED),1000) OMP_NUM_THREADS=1 $(PYTEST)

.DEFAULT_GOAL := help
.PHONY: help setup tour test test-fast test-engine test-triton test-gpu test-all test-core test-tf test-torch test-c test-sanitize dist notebooks check fuzz audit-faults conformance bench docs release-check pictures format clean

help: ## List the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# Files on which the environment depends; it is set up again when one of them changes.
PARTS := pyproject.toml setup.py constraints.txt $(wildcard csrc/*.[ch])

$(VENV)/.ready: $(PARTS)
	@echo "Setting up $(VENV) (once; a minute or two) …"
	@$(CHECK_PYTHON)
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) --editable '.[dev]'
	@touch $@

# The tour needs some frameworks, but no development tools.
$(VENV)/.tour: $(PARTS)
	@echo "Setting up $(VENV) with PyTorch, JAX and Keras (once; a minute or two) …"
	@$(CHECK_PYTHON)
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) torch==2.13.0 jax keras tokenizers safetensors --editable '.[cli]'
	@touch $@

$(VENV)/.peers: $(VENV)/.ready
	@echo "Adding the frameworks that tests and benchmarks compare with (once; some minutes) …"
	@$(PIP) torch==2.13.0 transformers jax keras attn-gym onnxruntime --editable '.[apps,onnx,triton]'
	@$(PIP) --no-deps xformers
	@$(BIN)/python -m compileall -q -q -j 2 $(VENV)/lib || true  # some files need other Python versions
	@touch $@ $(VENV)/.tour  # includes everything that the tour needs

# TensorFlow has its own environment: it is as large as all other frameworks together.
$(VENV)-tf/.ready: pyproject.toml setup.py
	@echo "Setting up $(VENV)-tf with TensorFlow (once; some minutes) …"
	@$(PYTHON) -m venv $(VENV)-tf
	@$(VENV)-tf/bin/python -m pip install --quiet --disable-pip-version-check tensorflow-cpu==2.21.0 hypothesis==6.170.15 pytest==9.2.0 --editable .
	@touch $@

# The core depends on numpy only and is tested on every supported Python version; not all of them
# have the versions pinned in constraints.txt.
$(VENV)-core/.ready:
	@echo "Setting up $(VENV)-core with numpy only (once) …"
	@$(PYTHON) -m venv $(VENV)-core
	@$(VENV)-core/bin/python -m pip install --quiet --disable-pip-version-check numpy hypothesis pytest
	@touch $@

# Another version of PyTorch has its own environment, outside constraints.txt: several GB, with CUDA's
# packages. The kernel is that of .venv.
TORCH ?= 2.15.0
$(VENV)-torch-$(TORCH)/.ready: $(VENV)/.ready
	@echo "Setting up $(VENV)-torch-$(TORCH) (once; some minutes) …"
	@$(PYTHON) -m venv $(VENV)-torch-$(TORCH)
	@$(VENV)-torch-$(TORCH)/bin/python -m pip install --quiet --disable-pip-version-check torch==$(TORCH) transformers hypothesis pytest pytest-xdist pyyaml safetensors filelock
	@touch $@

setup: $(VENV)/.ready ## Set up .venv for development

tour: $(VENV)/.tour ## Run the tour in the terminal and write tour.html (under a minute)
	@$(BIN)/maskwright tour

test: $(VENV)/.peers ## Run all tests except TensorFlow's
	$(TEST)

test-fast: $(VENV)/.peers ## Run the unit tests of core, engine, targets and lint (at most 90 seconds)
	MASKWRIGHT_FAST=1 OMP_NUM_THREADS=1 $(PYTEST) tests/core tests/engine tests/targets tests/linting

test-all: $(VENV)/.peers ## Run all tests with all cases; make test runs a subset of similar cases
	MASKWRIGHT_ALL_CASES=1 $(TEST)

# Without the C kernel, as on a machine without a compiler; then with more threads than cores. A sample of
# `make conformance` is part of it: operator samples and ONNX nodes in tests/engine, and model families.
FAMILIES := tests/integrations/test_transformers_models.py -k "conformance or prefill or padded_batch or gradients"
test-engine: $(VENV)/.peers ## Run the engine's tests without the C kernel, and with 4 threads; a sample of make conformance
	MASKWRIGHT_ISA=none MASKWRIGHT_MAX_SKIPPED=5 OMP_NUM_THREADS=1 $(PYTEST) tests/engine \
	    --ignore=tests/engine/native --ignore=tests/engine/test_arrays.py --ignore=tests/engine/test_fast_path.py --ignore=tests/engine/test_unaligned.py \
	    --ignore-glob='*/test_native*.py'
	MASKWRIGHT_MAX_SKIPPED=0 OMP_NUM_THREADS=4 $(PYTEST) tests/engine
	MASKWRIGHT_MAX_SKIPPED=0 OMP_NUM_THREADS=1 $(PYTEST) tests/conformance $(FAMILIES)

test-triton: $(VENV)/.peers ## Run all tests of the Triton kernels in Triton's interpreter (slow)
	TRITON_INTERPRET=1 OMP_NUM_THREADS=1 $(PYTEST) tests/engine/backends/triton

test-gpu: $(VENV)/.ready ## Run the Triton kernels on a GPU; needs torch for CUDA or ROCm
	$(BIN)/python -c 'import sys, torch; sys.exit(None if torch.cuda.is_available() else "test-gpu: torch finds no CUDA or ROCm GPU. Run this on a machine with one, with a torch build for it.")'
	$(BIN)/python -m pytest tests/engine/backends/triton/test_gpu.py
	$(BIN)/maskwright doctor --device cuda --verify

test-torch: $(VENV)-torch-$(TORCH)/.ready ## Run engine and integrations on another PyTorch: make test-torch TORCH=2.15.0
	PYTHONPATH=src OMP_NUM_THREADS=1 $(VENV)-torch-$(TORCH)/bin/python -m pytest -n auto tests/engine tests/integrations

test-tf: $(VENV)-tf/.ready ## Run TensorFlow's tests in their own environment
	$(VENV)-tf/bin/python -m pytest tests/tensorflow tests/lessons/test_frameworks_agree.py

test-core: $(VENV)-core/.ready ## Run the core's tests with numpy only: make test-core PYTHON=python3.13
	PYTHONPATH=src $(VENV)-core/bin/python -m pytest tests/core tests/recipes

# The C library without Python. EMULATE_AVX512 computes the AVX-512 tiles with AVX2, so that they are
# tested on any processor with AVX2.
C_FILES := $(wildcard csrc/*.[ch] csrc/tests/*.c)
C_TEST = mkdir -p build && $${CC:-cc} -std=gnu11 -Wall -Wextra -Werror -Wno-psabi -fno-math-errno -fno-trapping-math \
    $(filter-out csrc/module.c,$(wildcard csrc/*.c)) csrc/tests/test_kernel.c -lm -pthread -ldl -o build/test_kernel
test-c: ## Test the C library without Python
	$(C_TEST) -O2
	build/test_kernel

# Python itself is not built with sanitizers, so their runtime is preloaded.
SANITIZE := -O1 -g -DEMULATE_AVX512 -fno-omit-frame-pointer
UNDEFINED := -fsanitize=address,undefined -fno-sanitize-recover=undefined
test-sanitize: $(VENV)/.peers ## Run the tests of the C library and the kernel under sanitizers (address, undefined behaviour, threads)
	$(C_TEST) $(SANITIZE) -fsanitize=thread
	build/test_kernel
	$(C_TEST) $(SANITIZE) $(UNDEFINED)
	build/test_kernel
	MASKWRIGHT_BUILD=required MASKWRIGHT_CFLAGS="$(SANITIZE) $(UNDEFINED)" $(BIN)/python setup.py --quiet build_ext --build-temp build/sanitize --build-lib build/sanitize
	LD_PRELOAD=$$($${CC:-cc} -print-file-name=libasan.so) ASAN_OPTIONS=detect_leaks=0 OMP_NUM_THREADS=1 \
	MASKWRIGHT_KERNEL=build/sanitize/maskwright/engine/native/_kernel.abi3.so \
	$(BIN)/python -m pytest tests/engine/native

# On Linux auditwheel gives the wheel its manylinux tag, which says from which glibc on it runs.
dist: $(VENV)/.ready ## Build the source distribution and a wheel with the kernel, into dist/
	rm -rf build/dist dist
	MASKWRIGHT_BUILD=required $(BIN)/python -m build --quiet --outdir build/dist
	mkdir dist
	cp build/dist/*.tar.gz dist/
	if [ "$$(uname)" = Linux ]; then PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m auditwheel repair --wheel-dir dist build/dist/*.whl; else cp build/dist/*.whl dist/; fi

check: $(VENV)/.ready ## Formatting, lint, types and import contracts
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $(C_FILES)
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

fuzz: $(VENV)/.peers ## Compare random masks with the oracle: 100,000 evaluated, 20,000 lowered, 10,000 in attention, 10,000 with bias and sinks; 10,000 requests
	MASKWRIGHT_FUZZ=$(or $(CASES),100000) $(TEST) tests/core/test_truth.py
	MASKWRIGHT_TARGET_CASES=$(or $(TARGET_CASES),20000) $(TEST) tests/targets/test_lowering.py
	MASKWRIGHT_ENGINE_CASES=$(or $(ENGINE_CASES),10000) $(TEST) tests/engine/test_attention.py tests/engine/test_scores.py
	MASKWRIGHT_EXPLORE_CASES=$(or $(EXPLORE_CASES),10000) $(TEST) tests/explore/test_fuzz.py

audit-faults: $(VENV)/.peers ## Audit models with planted faults and their healthy twins; updates docs/audit.md
	$(BIN)/python -m tests.auditing.faults
	MASKWRIGHT_ALL_CASES=1 $(TEST) tests/auditing/test_huggingface.py tests/auditing/faults

# Some tests are in no package: SUITES is a folder with a clone of each repository.
conformance: $(VENV)/.peers ## Run other libraries' tests with maskwright in place of their attention; SUITES=DIR for those in no package
	$(BIN)/python -m conformance $(if $(SUITES),--suites $(SUITES))

bench: $(VENV)/.peers ## Run all benchmarks (more than half an hour on a quiet machine); writes benchmarks/results/
	$(BIN)/python -m benchmarks

docs: $(VENV)/.peers ## Regenerate the generated pages of docs/ and build the site into site/
	$(BIN)/python -m docs.generate
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict  # --quiet would hide warnings from --strict too
	@echo "The documentation is in site/index.html"

release-check: $(VENV)/.peers ## Check that results and pages are current; scripts/release_check.py --help says what
	$(BIN)/python scripts/release_check.py

notebooks: $(VENV)/.peers ## Run the notebooks and store their outputs
	$(BIN)/python -m notebooks.run

pictures: $(VENV)/.ready ## Redraw the pictures of docs/, with screenshots of the explorer in Chromium
	$(BIN)/python -m docs.pictures

format: $(VENV)/.ready ## Format the code and apply automatic fixes
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(C_FILES)
	$(BIN)/ruff check --fix .

clean: ## Remove the environments and all generated files
	rm -rf $(VENV) $(VENV)-core $(VENV)-tf .hypothesis .mypy_cache .pytest_cache .ruff_cache build dist site src/*.egg-info src/maskwright/engine/native/*.so
