# Every target sets up .venv by itself; a fresh clone needs Python 3.11 or newer and nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python scripts/install.py --constraint constraints.txt
CHECK_PYTHON := $(PYTHON) -c 'import sys; sys.exit("What is pinned for development needs Python 3.11 or newer (maskwright itself 3.10). Pass PYTHON=...") if sys.version_info < (3, 11) else None'
export PYTHONDONTWRITEBYTECODE :=  # else each of the many processes that tests start compiles everything anew
# Two workers of one thread each: most tests are too small for more. A run fails if it skips more
# tests than this, as it would without Chromium or one of the frameworks.
MAX_SKIPPED ?= 3
PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal
TEST := MASKWRIGHT_MAX_SKIPPED=$(if $(CI),$(MAX_SKIPPED),1000) OMP_NUM_THREADS=1 $(PYTEST)

.DEFAULT_GOAL := help
.PHONY: help setup tour test test-engine test-all test-core test-tf test-sanitize dist notebooks check fuzz audit-zoo bench docs pictures format clean

help: ## Show what can be made
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# What an environment is made of: when one of these changes, it is made anew.
PARTS := pyproject.toml setup.py constraints.txt $(wildcard src/maskwright/engine/native/src/*.[ch])

$(VENV)/.ready: $(PARTS)
	@echo "Setting up $(VENV) (once; a minute or two) …"
	@$(CHECK_PYTHON)
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) --editable '.[dev]'
	@touch $@

# The tour needs some frameworks, and nothing of what developers need.
$(VENV)/.tour: $(PARTS)
	@echo "Setting up $(VENV) with PyTorch, JAX and Keras (once; a minute or two) …"
	@$(CHECK_PYTHON)
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) torch==2.13.0 jax keras tokenizers safetensors --editable '.[cli]'
	@touch $@

$(VENV)/.peers: $(VENV)/.ready
	@echo "Adding the frameworks that tests and benchmarks compare with (once; some minutes) …"
	@$(PIP) torch==2.13.0 transformers jax keras attn-gym onnxruntime --editable '.[apps,onnx]'
	@$(PIP) --no-deps xformers
	@$(BIN)/python -m compileall -q -q -j 2 $(VENV)/lib || true  # a few files are of other Pythons
	@touch $@ $(VENV)/.tour  # all that the tour needs is among them

# TensorFlow is as large as all the others together, and has an environment of its own.
$(VENV)-tf/.ready: pyproject.toml setup.py
	@echo "Setting up $(VENV)-tf with TensorFlow (once; some minutes) …"
	@$(PYTHON) -m venv $(VENV)-tf
	@$(VENV)-tf/bin/python -m pip install --quiet --disable-pip-version-check tensorflow-cpu==2.21.0 hypothesis==6.170.15 pytest==9.2.0 --editable .
	@touch $@

# The core needs numpy alone, and is tried on every Python that maskwright runs on: not all of them
# have what constraints.txt pins.
$(VENV)-core/.ready:
	@echo "Setting up $(VENV)-core with numpy alone (once) …"
	@$(PYTHON) -m venv $(VENV)-core
	@$(VENV)-core/bin/python -m pip install --quiet --disable-pip-version-check numpy hypothesis pytest
	@touch $@

setup: $(VENV)/.ready ## Set up .venv for development

tour: $(VENV)/.tour ## See what maskwright does, in the terminal and as tour.html (less than a minute)
	@$(BIN)/maskwright tour

test: $(VENV)/.peers ## Run all tests but TensorFlow's (some minutes on two cores)
	$(TEST)

test-all: $(VENV)/.peers ## Run all tests with every case, where make test takes some of many alike
	MASKWRIGHT_ALL_CASES=1 $(TEST)

# Without the C kernel, as on a machine without a compiler; then with more threads than cores.
test-engine: $(VENV)/.peers ## Run the engine's tests without the C kernel, and with 4 threads
	MASKWRIGHT_ISA=none MASKWRIGHT_MAX_SKIPPED=5 OMP_NUM_THREADS=1 $(PYTEST) tests/engine \
	    --ignore=tests/engine/native --ignore=tests/engine/test_arrays.py --ignore-glob='*/test_native*.py'
	MASKWRIGHT_MAX_SKIPPED=0 OMP_NUM_THREADS=4 $(PYTEST) tests/engine

test-tf: $(VENV)-tf/.ready ## Run TensorFlow's tests, in an environment of its own
	$(VENV)-tf/bin/python -m pytest tests/tensorflow tests/lessons/test_frameworks.py

test-core: $(VENV)-core/.ready ## Run the core's tests with numpy alone, on any Python: make test-core PYTHON=python3.13
	PYTHONPATH=src $(VENV)-core/bin/python -m pytest tests/core tests/recipes

# The library is loaded by a Python that knows nothing of sanitizers, so theirs comes first. The tiles
# of AVX-512 are tested on any processor with AVX2, being computed by it.
SANITIZE := -O1 -g -DEMULATE_AVX512 -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
test-sanitize: $(VENV)/.peers ## Run the kernel's tests under AddressSanitizer and UndefinedBehaviorSanitizer
	MASKWRIGHT_BUILD=required MASKWRIGHT_CFLAGS="$(SANITIZE)" $(BIN)/python setup.py --quiet build_ext --build-temp build/sanitize --build-lib build/sanitize
	LD_PRELOAD=$$($${CC:-cc} -print-file-name=libasan.so) ASAN_OPTIONS=detect_leaks=0 OMP_NUM_THREADS=1 \
	MASKWRIGHT_KERNEL=build/sanitize/maskwright/engine/native/_kernel.abi3.so \
	$(BIN)/python -m pytest tests/engine/native

dist: $(VENV)/.ready ## Build the source distribution and a wheel with the kernel, into dist/
	MASKWRIGHT_BUILD=required $(BIN)/python -m build --quiet

check: $(VENV)/.ready ## Formatting, lint, types and import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

fuzz: $(VENV)/.peers ## 100,000 random masks beside the oracle, 20,000 lowered, 10,000 attended, 10,000 questions
	MASKWRIGHT_FUZZ=$(or $(CASES),100000) $(TEST) tests/core/test_truth.py
	MASKWRIGHT_TARGET_CASES=$(or $(TARGET_CASES),20000) $(TEST) tests/targets/test_lowering.py
	MASKWRIGHT_ENGINE_CASES=$(or $(ENGINE_CASES),10000) $(TEST) tests/engine/test_attention.py
	MASKWRIGHT_EXPLORE_CASES=$(or $(EXPLORE_CASES),10000) $(TEST) tests/explore/test_fuzz.py

audit-zoo: $(VENV)/.peers ## Audit models with planted mistakes, and their healthy twins
	$(BIN)/python -m tests.zoo
	MASKWRIGHT_ALL_CASES=1 $(TEST) tests/auditing/test_audit_transformers.py tests/zoo

bench: $(VENV)/.peers ## Measure, beside PyTorch in the same run; writes benchmarks/results/
	$(BIN)/python -m benchmarks

docs: $(VENV)/.ready ## Write the generated pages of docs/ anew, and build the site into site/
	$(BIN)/python -m docs.generate
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict  # --quiet would hide warnings from --strict too
	@echo "The documentation is in site/index.html"

notebooks: $(VENV)/.peers ## Run the notebooks anew, and keep what they show
	$(BIN)/python -m notebooks.run

pictures: $(VENV)/.ready ## Draw the pictures of docs/ anew, and photograph the explorer in Chromium
	$(BIN)/python -m docs.pictures

format: $(VENV)/.ready ## Format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean: ## Remove everything that make made
	rm -rf $(VENV) $(VENV)-core $(VENV)-tf .hypothesis .mypy_cache .pytest_cache .ruff_cache build dist site src/*.egg-info src/maskwright/engine/native/*.so
