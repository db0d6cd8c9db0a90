PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
WORKERS ?= 2

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help env demo results results-rl suite ablations test test-slow lint types unit format bench docs docs-serve build clean

# Every method, for the tables of the documentation.
METHODS := alrao,sgd,adam,alrao-adam,prodigy,dadapt-sgd,dadapt-adam,dog,schedulefree
RL := pendulum lunarlander

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

env: $(STAMP) ## create .venv with the pinned development environment

$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "alrao needs Python 3.11 or newer; none was found. Use: make PYTHON=/path/to/python" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "alrao needs Python 3.11 or newer; $(PYTHON) is $$("$(PYTHON)" -V 2>&1). Use: make PYTHON=/path/to/python" >&2; exit 1; }
	@test -x $(BIN)/python || "$(PYTHON)" -m venv $(VENV)
	@echo "installing the development environment into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@touch $@

demo: $(STAMP) ## compare Alrao with SGD at seven rates, and Adam, on scikit-learn's digits
	@$(BIN)/alrao compare digits --jobs $(WORKERS)

results: $(STAMP) ## train what docs/results.md shows (two hours, resumable; needs ALRAO_DATA)
	$(BIN)/alrao compare regression --methods $(METHODS) --jobs $(WORKERS)
	$(BIN)/alrao compare cifar10 --model small --methods $(METHODS) --jobs $(WORKERS)
	$(BIN)/alrao compare ptb --methods $(METHODS) --jobs $(WORKERS)
	$(BIN)/alrao keep
	$(BIN)/alrao table results --markdown docs/results.md
	$(BIN)/python tools/comparison.py

results-rl: $(STAMP) ## train the Q-learning of docs/results.md (under three hours, resumable; RL=pendulum for one)
	for task in $(RL); do $(BIN)/alrao compare $$task --methods alrao,sgd,adam --seeds 3 --jobs $(WORKERS) || exit 1; done
	$(BIN)/alrao keep
	$(BIN)/alrao table results --markdown docs/results.md
	$(BIN)/python tools/comparison.py

suite: $(STAMP) ## train what docs/suite.md shows (hours, resumable; needs ALRAO_DATA)
	$(BIN)/alrao suite --seeds 5 --jobs $(WORKERS)
	$(BIN)/alrao keep suite/runs --results suite/results
	$(BIN)/alrao suite --seeds 5 --no-run --markdown docs/suite.md

ABLATIONS := sgd,sgd-cosine,adamw-cosine,alrao-zoom,first,first-constant,first-average,first-average-cosine,first-no-rewind
ABLATIONS := $(ABLATIONS),first-fast,first-slow,first-narrow,first-wide,first-short-memory,first-long-memory,first-mode
ABLATIONS := $(ABLATIONS),first-sum,first-copies-still,first-sgd,no-zoom,no-zoom-sgd,second,second-copies-still,second-slow-body
ABLATIONS := $(ABLATIONS),second-fast-body,second-unit-features,second-unit-layers,second-sum,second-sum-mode
ABLATIONS := $(ABLATIONS),second-sum-copies-30,second-sum-copies-still

ablations: $(STAMP) ## train what docs/ablations.md shows (an hour, resumable; needs ALRAO_DATA)
	$(BIN)/alrao suite --workloads cnn,cnn-plain,lstm,table --contenders $(ABLATIONS) --seeds 1 --jobs $(WORKERS)
	$(BIN)/alrao keep suite/runs --results suite/results
	$(BIN)/alrao suite --workloads cnn,cnn-plain,lstm,table --contenders $(ABLATIONS) --seeds 1 --no-run \
	  --markdown docs/ablations.md --title "Ablations of Zoom"

test: lint types unit ## everything a change must pass: style, types, fast tests

test-slow: $(STAMP) ## the long tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) -m slow

lint: $(STAMP) ## style and formatting, changing nothing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP) ## mypy, strict, on the library
	$(BIN)/mypy

unit: $(STAMP) ## the fast tests alone
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS)

format: $(STAMP) ## fix what can be fixed, then format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP) ## time and memory of a step, beside torch.optim
	$(BIN)/python benchmarks/step.py
	$(BIN)/python benchmarks/memory.py

docs: $(STAMP) ## the documentation's site, into site/; a broken link or an undocumented name fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "open site/index.html"

docs-serve: $(STAMP) ## the same on a local address, made again at every change
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

build: $(STAMP) ## sdist and wheel into dist/
	rm -rf dist
	$(BIN)/python -m build

clean: ## remove caches and build products, keep .venv
	rm -rf build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info
	find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
