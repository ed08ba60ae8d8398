# Every target makes its own environment (.venv) when it is missing.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
GOLDEN ?= ../shared/data/golden/golden_llvm.jsonl.gz
# Extracted data sets of the leaderboards; those that are not there are left out.
AUTOTVM ?= cache/autotvm
ANSOR_GPU ?= cache/ansor-gpu
JOBS ?= 2
DEVICE_DATA = $(if $(wildcard $(AUTOTVM)/manifest.json),--data autotvm=$(AUTOTVM))
SUITE_DATA = $(DEVICE_DATA) $(if $(wildcard $(ANSOR_GPU)/manifest.json),--data ansor-gpu=$(ANSOR_GPU))
export OMP_NUM_THREADS ?= 2

.PHONY: tune-peers pretrained leaderboard bench-extract legacy-env help venv demo test lint format bench golden report clean

help:
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(STAMP): requirements.txt requirements-dev.txt pyproject.toml setup.py
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements.txt -r requirements-dev.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps -e .
	@touch $@

venv: $(STAMP) ## install everything into .venv

demo: $(STAMP) ## train on the shipped real measurements and print the table and the report
	$(BIN)/python scripts/train.py --out runs/demo --seed 0

test: $(STAMP) ## run the tests
	$(BIN)/python -m pytest

lint: $(STAMP) ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP) ## format the sources
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP) ## run the benchmarks
	$(BIN)/python -m pytest tests/benchmarks --benchmark-only -o addopts=--import-mode=importlib

bench-extract: $(STAMP) ## time extraction and write docs/results/extract-speed.*
	$(BIN)/python tests/benchmarks/extract_speed.py

bench-modules: $(STAMP) ## measure featurising modules in TVM's hands, beside TVM's own extractor
	$(BIN)/python -m tvm_helper.benchmark_modules --out docs/results/module-speed.md

golden: $(STAMP) ## compare replayed records with the original TVM's results (GOLDEN=FILE)
	$(BIN)/python scripts/golden.py $(GOLDEN) --network-info data/tenset-cpu/network_info

pretrained: $(STAMP) ## train and package the model behind --model pretrained (AUTOTVM=DIR ANSOR_GPU=DIR)
	$(BIN)/python scripts/pretrain.py $(foreach d,$(AUTOTVM) $(ANSOR_GPU),$(if $(wildcard $(d)/manifest.json),--data $(d)))

leaderboard: $(STAMP) ## run both suites and write docs/results/cross-*.* (AUTOTVM=DIR ANSOR_GPU=DIR)
	$(BIN)/python scripts/benchmark.py --suite cross-model --jobs $(JOBS) $(SUITE_DATA)
	$(BIN)/python scripts/benchmark.py --suite cross-device --jobs $(JOBS) $(DEVICE_DATA)

report: $(STAMP) ## train three seeds and write docs/results/by-task.*
	$(BIN)/python scripts/benchmark.py --suite by-task --seeds 0,1,2 --out docs/results

tune-peers: $(STAMP) ## tune every peer on validation parts, 10 CPU minutes each (TUNE_DATA="NAME=DIR ...")
	OMP_NUM_THREADS=1 $(BIN)/python -m cdmpp.training.tune_peers $(foreach entry,$(TUNE_DATA),--data $(entry))

legacy-env: $(STAMP) ## build .venv-legacy: the old TVM, for AutoTVM logs and Ansor's own replay
	$(BIN)/python -m tvm_helper.legacy.setup

clean: ## remove runs and caches (keeps .venv)
	rm -rf runs cache build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
