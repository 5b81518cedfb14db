# Every target sets up .venv by itself; a fresh clone needs Python 3.10 or newer and nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TEST := $(BIN)/python -m pytest -n 2 --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help setup tour test check fuzz bench docs format clean

help: ## Show what can be made
	@awk 'BEGIN {FS = ":.*## "} /^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(VENV)/.ready: pyproject.toml constraints.txt
	@echo "Setting up $(VENV) (once; a minute or two) …"
	@$(PYTHON) -c 'import sys; sys.exit("maskwright needs Python 3.10 or newer; pass PYTHON=...") if sys.version_info < (3, 10) else None'
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

$(VENV)/.torch: $(VENV)/.ready
	@echo "Adding PyTorch, the peer that benchmarks and tests compare with …"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch==2.13.0
	@touch $@

setup: $(VENV)/.ready ## Set up .venv for development

tour: $(VENV)/.ready ## See what maskwright does, in the terminal
	@$(BIN)/maskwright tour

test: $(VENV)/.torch ## Run all tests (about two minutes on two cores)
	$(TEST)

check: $(VENV)/.ready ## Formatting, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

fuzz: $(VENV)/.torch ## Compare 100,000 random masks with the oracle (about half an hour)
	MASKWRIGHT_FUZZ=$(or $(CASES),100000) $(TEST) tests/core/test_truth.py

bench: $(VENV)/.torch ## Measure, beside PyTorch in the same run; writes benchmarks/results/
	$(BIN)/python -m benchmarks

docs: $(VENV)/.ready ## Write the generated pages of docs/ anew
	$(BIN)/python -m docs.generate

format: $(VENV)/.ready ## Format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean: ## Remove everything that make made
	rm -rf $(VENV) .hypothesis .mypy_cache .pytest_cache .ruff_cache dist
