# Every target makes its own environment (.venv) when it is missing.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
GOLDEN ?= ../shared/data/golden/golden_llvm.jsonl.gz
# Extracted AutoTVM logs.
AUTOTVM ?= cache/autotvm
export OMP_NUM_THREADS ?= 2

.PHONY: help venv lock demo test check exhaustive lines notebook structure docs lint docker-steps format lab evidence licences claims golden tables pretrained pretrained-networks data-a100 legacy-env ansor-test clean

help:
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

# LOCKED=cpu or LOCKED=pypi: exactly the versions and hashes of locks/, torch as a CPU build or as on PyPI;
# TORCH_WHEELS: where pip finds the CPU build, a folder or a page, if its own settings do not say.
TORCH_WHEELS ?=
REQUIRED = $(TORCH_WHEELS:%=--find-links %) $(if $(LOCKED),--require-hashes -r locks/all.lock -r locks/torch-$(LOCKED).lock,-c requirements.txt --group dev -e ".[tvm]")

# pip shows its progress to a person.
PIP_INSTALL = $(BIN)/pip install --disable-pip-version-check $(shell test -t 2 || echo --quiet)
$(STAMP): requirements.txt pyproject.toml setup.py
	@echo "installing about 130 packages into $(VENV): 2 GB, one to three minutes, with a CPU build of torch; about 7 GB with the CUDA build that pip takes where it finds no other for this Python (TORCH_WHEELS=FOLDER names a place)"
	$(PYTHON) -m venv $(VENV)
	$(if $(LOCKED),,$(PIP_INSTALL) 'pip>=25.1')
	$(PIP_INSTALL) --no-compile $(REQUIRED)
	$(if $(LOCKED),$(PIP_INSTALL) --no-deps --no-build-isolation -e .)
	@touch $@

venv: $(STAMP) ## install everything into .venv

LOCK = cache/lock/bin/uv pip compile --quiet --no-config --generate-hashes --no-annotate --custom-compile-command "make lock" --python-version 3.11
lock: ## exact versions with hashes into locks/ (TORCH_WHEELS: where a CPU build of torch is)
	$(PYTHON) -m venv cache/lock
	cache/lock/bin/pip install --quiet --disable-pip-version-check uv==0.13.9
	grep '^torch==' requirements.txt > cache/lock/torch.txt
	$(LOCK) --universal pyproject.toml --extra tvm --group dev -c requirements.txt --excludes cache/lock/torch.txt -o locks/all.lock
	$(LOCK) --universal cache/lock/torch.txt -c locks/all.lock -o locks/torch-pypi.lock
	$(if $(TORCH_WHEELS),$(LOCK) --python-platform x86_64-manylinux_2_28 --find-links $(TORCH_WHEELS) cache/lock/torch.txt -c locks/all.lock -o locks/torch-cpu.lock)

demo: $(STAMP) ## train on the shipped real measurements and print the table and the report
	$(BIN)/python scripts/train.py --out runs/demo --seed 0

# A test process a core and one more, as tests wait for servers and workers, of a thread each;
# threads that wait give their core away.
TEST_JOBS ?= $(shell echo $$(($$(env -u OMP_NUM_THREADS nproc 2>/dev/null || echo 2) + 1)))
PYTEST = PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive \
	$(BIN)/python -m pytest -n $(TEST_JOBS) --dist loadfile --no-loadscope-reorder

test: $(STAMP) ## run all tests, TEST_JOBS at a time (default: the cores and one; 10 CPU minutes)
	$(BIN)/python -c "from cdmpp.programs.native import native_library; native_library()"
	$(PYTEST) $(TEST_ARGS)

check: lint ## ruff, mypy and the quick tests: no TVM, no training (2 minutes)
	$(PYTEST) -m "not exhaustive and not slow and not training and not tvm" $(TEST_ARGS)

exhaustive: $(STAMP) ## what make test samples, on everything, and what is too heavy for it (over 10 minutes)
	$(PYTEST) -m exhaustive $(TEST_ARGS)

lines: $(STAMP) ## count the lines of the product, package by package
	@$(BIN)/python -m tests.code_structure lines

notebook: $(STAMP) ## run the notebook of examples/ and keep what it prints
	$(BIN)/python -m tests.notebook

structure: $(STAMP) ## write docs/code-structure.md from what the folders say of themselves
	$(BIN)/python -m tests.code_structure write

DOCS_STAMP := $(VENV)/.docs
$(DOCS_STAMP): $(STAMP)
	$(BIN)/pip install --quiet --disable-pip-version-check --group docs
	@touch $@

docs: $(DOCS_STAMP) ## build the documentation site into site/, links checked (needs no network once installed)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --clean
	@echo "site/index.html; to read it with its search: $(BIN)/python -m http.server --directory site"

lint: $(STAMP) ## ruff, mypy and hadolint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/hadolint docker/Dockerfile docker/Dockerfile.cuda

docker-steps: $(STAMP) ## run the steps of docker/Dockerfile in a clean environment, without a daemon (TORCH_INDEX=URL)
	$(BIN)/python docker/try_steps.py docker/Dockerfile --then cdmpp predict --help

format: $(STAMP) ## format the sources
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lab: $(STAMP) ## run an experiment of the laboratory (RUN="NAME OPTION=VALUE ..."; RUN=NAME); without RUN list them
	$(BIN)/python -m lab $(if $(RUN),run $(RUN),list)

evidence: $(STAMP) ## which results were made with earlier models or features, and what reruns them (RUN=1: rerun; RUN="conv embedding": these)
	$(BIN)/python -m lab stale $(if $(RUN),--run $(filter-out 1,$(RUN)))

licences: $(STAMP) ## list the licences of all packages that are needed: docs/licences.md
	$(BIN)/python -m tests.licences

claims: $(STAMP) ## fill docs/results, draw docs/accuracy.svg, and look up the numbers of README.md in the results
	$(BIN)/python -m lab claims

golden: $(STAMP) ## compare replayed records with the original TVM's results (GOLDEN=FILE)
	$(BIN)/python -m lab golden $(GOLDEN) --network-info data/tenset-cpu/network_info

# Measured programs: campaigns that are kept packed; their tables are made by the code of today.
# Those that a model learns from have times as on a quiet core.
PACKED = $(patsubst %/campaign.tar.xz,%,$(wildcard $(addsuffix /campaign.tar.xz,data/metaschedule-cpu* data/icelake-convolutions data/pasted-cpu-zen*)))
# What searches of random networks measured: nothing learns from it, it says what the fastest programs take.
SEARCHED = $(filter data/metaschedule-cpu-searched%,$(PACKED))
CAMPAIGNS = $(filter-out $(SEARCHED),$(PACKED))
# Times on a GPU are not those of a shared core: they stay as measured.
LEARNED = $(CAMPAIGNS:%=cache/%) cache/data/metaschedule-h200 $(AUTOTVM) data/ansor-gpu data/metaschedule-a100
TABLES = $(addsuffix /manifest.json,$(addprefix cache/,$(PACKED)) cache/data/metaschedule-h200)

.SECONDEXPANSION:
cache/data/%/manifest.json: data/%/campaign.tar.xz $$(wildcard data/$$*/machine_code.parquet data/$$*/in_network.json) $(STAMP)
	rm -rf $(@D) && mkdir -p $(@D)
	tar -C $(@D) -xJf $<
	$(foreach f,$(filter %.parquet %.json,$^),cp $(f) $(@D);)
	$(BIN)/cdmpp measure --tables-only $(if $(filter $(@D),$(addprefix cache/,$(CAMPAIGNS))),--quiet-times) --out $(@D)

# Programs that no model learns from: what experiments evaluate on.
HELD_OUT = $(foreach d,sealed3-cpu sealed9-cpu pasted-cpu-sealed pasted-cpu-sealed9 zen5-records zen5-kernels icelake-kernels icelake-pasted sealed-gpu,cache/data/$(d)/manifest.json)

tables: $(TABLES) $(HELD_OUT) ## extract the campaigns that data/ keeps packed, into cache/data

pretrained: $(STAMP) $(TABLES) ## train and package the model behind --model pretrained (AUTOTVM=DIR)
	$(BIN)/python -m lab pretrain --package --programs-per-device 0 --config configs/train/pretrained.yaml $(foreach d,$(LEARNED),--data $(d))
	$(BIN)/cdmpp dataset extract --out cache/tenset-cpu
	$(BIN)/cdmpp train-code --model pretrained --package --data cache/tenset-cpu $(foreach d,$(CAMPAIGNS),$(if $(wildcard $(d)/machine_code.parquet),--data cache/$(d))) $(SEARCHED:%=--searched cache/%)
	$(BIN)/cdmpp distil --model pretrained --package $(foreach d,$(LEARNED) cache/tenset-cpu,--data $(d))

NETWORKS ?= data/networks-cpu
pretrained-networks: $(STAMP) ## train and package the model behind `predict --torch` (NETWORKS=DIR)
	OMP_NUM_THREADS=1 $(BIN)/cdmpp networks train --dataset $(NETWORKS) --out runs/pretrained-networks
	$(BIN)/cdmpp networks package runs/pretrained-networks --made-by "make pretrained-networks" --licence "own measurements, shipped with this package under its licence (Apache-2.0)"

data-a100: legacy-env ## make data/metaschedule-a100 again from its database (25 minutes on one core)
	$(BIN)/cdmpp dataset extract --dataset data/metaschedule-a100 --device a100 --out data/metaschedule-a100

legacy-env: $(STAMP) ## build .venv-legacy: the old TVM, for AutoTVM logs and Ansor's own replay
	$(BIN)/python -m tvm_helper.legacy.setup

ansor-test: $(STAMP) ## test our cost model inside the old TVM's Ansor (builds .venv-legacy)
	$(BIN)/python -m tvm_helper.cost_model.ansor.setup
	$(BIN)/python -m tvm_helper.cost_model.ansor.run -m pytest -o addopts=--import-mode=importlib tests/ansor
	$(BIN)/python -m pytest -m ansor tests/tvm_helper

clean: ## remove runs and caches (keeps .venv)
	rm -rf runs cache build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
