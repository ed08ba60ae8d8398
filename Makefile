# Every target makes its own environment (.venv) when it is missing.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
GOLDEN ?= ../shared/data/golden/golden_llvm.jsonl.gz
# Extracted AutoTVM logs; left out of the leaderboards where they are not there.
AUTOTVM ?= cache/autotvm
# Operator measurements in the layout of NeuSight's tables.
NEUSIGHT ?= ../shared/data/neusight
JOBS ?= 2
MODEL ?= runs/demo
TRIALS ?= 32
DEVICE_DATA = $(if $(wildcard $(AUTOTVM)/manifest.json),--data autotvm=$(AUTOTVM))
export OMP_NUM_THREADS ?= 2

.PHONY: bench-sealed bench-replay-drawn bench-replay-elsewhere docker-steps bench-serve bench-by-name bench-autotune ablation priors bench-embedding bench-models bench-scoring tune-peers tables pretrained leaderboard bench-extract bench-conv bench-operators bench-bounds bench-search bench-search-elsewhere bench-new-devices bench-explain bench-replay data-a100 legacy-env ansor-test bench-ansor help venv demo test check exhaustive lines structure lint format bench golden report clean notebook lock licences claims evidence docs attack faults

help:
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

# LOCKED=cpu or LOCKED=pypi: exactly the versions and hashes of locks/, torch as a CPU build or as on PyPI;
# TORCH_WHEELS: where pip finds the CPU build, a folder or a page, if its own settings do not say.
TORCH_WHEELS ?=
REQUIRED = $(if $(LOCKED),--require-hashes -r locks/all.lock -r locks/torch-$(LOCKED).lock $(TORCH_WHEELS:%=--find-links %),-c requirements.txt --group dev -e ".[tvm]")

$(STAMP): requirements.txt pyproject.toml setup.py
	$(PYTHON) -m venv $(VENV)
	$(if $(LOCKED),,$(BIN)/pip install --quiet --disable-pip-version-check 'pip>=25.1')
	$(BIN)/pip install --quiet --disable-pip-version-check $(REQUIRED)
	$(if $(LOCKED),$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .)
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

# A test process a core and a thread each; threads that wait give their core away.
TEST_JOBS ?= $(shell env -u OMP_NUM_THREADS nproc 2>/dev/null || echo 2)
PYTEST = PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive \
	$(BIN)/python -m pytest -n $(TEST_JOBS) --dist loadfile --no-loadscope-reorder

test: $(STAMP) ## run all tests, TEST_JOBS at a time (default: the cores; 9 minutes on two)
	$(BIN)/python -c "from cdmpp.programs.native import native_library; native_library()"
	$(PYTEST) $(TEST_ARGS)

check: lint ## ruff, mypy and the quick tests: no TVM, no training (2 minutes)
	$(PYTEST) -m "not exhaustive and not slow and not training and not tvm" $(TEST_ARGS)

exhaustive: $(STAMP) ## the tests that make test samples, on everything (10 minutes)
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

bench: $(STAMP) ## run the benchmarks
	$(BIN)/python -m pytest lab/experiments --benchmark-only -o addopts=--import-mode=importlib

bench-extract: $(STAMP) ## time extraction and write docs/results/extract-speed.*
	$(BIN)/python -m lab.experiments.extract_speed

bench-autotune: $(STAMP) ## studies of the auto-tuner beside random search (4 CPU hours, resumable): docs/results/autotune.*
	OMP_NUM_THREADS=1 $(BIN)/python -m lab.experiments.autotune_campaign run
	$(BIN)/python -m lab.experiments.autotune_campaign report

bench-conv: $(STAMP) ## judge the convolution model on NeuSight's layers and write docs/results/conv.*
	OMP_NUM_THREADS=1 $(BIN)/python -m lab.experiments.conv_accuracy

bench-embedding: $(STAMP) ## judge the embedding models on data/embedding-cpu and write docs/results/embedding.*
	$(BIN)/cdmpp analytic embedding report --data data/embedding-cpu --out docs/results

bench-operators: $(STAMP) ## judge the operator model beside recorded peers and write docs/results/operators.*
	OMP_NUM_THREADS=1 $(BIN)/cdmpp analytic operator fit --data $(NEUSIGHT)/train --out runs/operators.json
	OMP_NUM_THREADS=1 $(BIN)/cdmpp analytic operator evaluate --data $(NEUSIGHT) --model runs/operators.json --out docs/results

BOUND_DATA = $(EXTRACTED) $(PACKED:%=cache/%) cache/tenset-cpu cache/ansor-gpu $(AUTOTVM)
bench-bounds: $(STAMP) $(TABLES) ## put lower bounds beside every measurement and write docs/results/bounds.md (AUTOTVM=DIR)
	$(BIN)/cdmpp dataset extract --out cache/tenset-cpu
	$(BIN)/cdmpp dataset extract --dataset data/ansor-gpu --out cache/ansor-gpu
	$(BIN)/python -m lab.experiments.bounds $(foreach d,$(BOUND_DATA),--data $(notdir $(d))=$(d)) --operators $(NEUSIGHT)

bench-modules: $(STAMP) ## measure featurising modules in TVM's hands, beside TVM's own extractor
	$(BIN)/python -m lab.experiments.module_speed

bench-scoring: $(STAMP) ## time scoring of search candidates beside TVM's XGBModel (MODEL=RUN)
	OMP_NUM_THREADS=1 taskset -c 0 $(BIN)/python -m lab.experiments.scoring_speed --model $(MODEL) --out docs/results

ATTACK_CASES ?= 1000000
attack: $(STAMP) ## mutated and hand-made data at every reader, resumable (hours on one core; ATTACK_CASES=1000 a campaign is minutes): docs/results/fuzz.*
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz.attack --most $(ATTACK_CASES) --page docs/results

TIMES ?= 10
KILLS ?= 50
faults: $(STAMP) ## commands killed, ended, starved of disk, robbed of their folder, run twice; resumable (TIMES=2 KILLS=2 is a quarter of an hour of one core): docs/results/faults.*
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.faults.run --times $(TIMES) --kills $(KILLS) --page docs/results

SERVE_SECONDS ?= 60
bench-serve: $(STAMP) ## attack and load a server on this machine's loopback (10 minutes of two quiet cores): docs/results/serve.*
	OMP_NUM_THREADS=1 $(BIN)/python -m lab.experiments.serve_attack --out docs/results/serve-attack.json
	OMP_NUM_THREADS=1 $(BIN)/python -m lab.experiments.serve_load --seconds $(SERVE_SECONDS) --out docs/results
	$(BIN)/python -m lab.experiments.serve_page docs/results

REPLAY_MODEL ?= pretrained
REPLAYS = OMP_NUM_THREADS=1 TVM_NUM_THREADS=1 taskset -c 0 $(BIN)/python -m lab.experiments.replay_validation
bench-replay: $(STAMP) ## replayed networks against measured ones (DEVICE=LABEL of this CPU, REPLAY_MODEL=RUN that knows it, TRIALS=32): docs/results/replay.*
	$(REPLAYS) --device $(DEVICE) --model $(REPLAY_MODEL) --batches 1
	$(REPLAYS) --device $(DEVICE) --model $(REPLAY_MODEL) --trials $(TRIALS) --networks dlrm resnet-18 bert-encoder dcgan --batches 1

DRAWN ?= runs/drawn
$(DRAWN): | $(STAMP)
	$(BIN)/python -m lab.experiments.varied_networks $@ --wide --count 12 --seed $(or $(SEED),2029) --batches 1 2 4 --most-flops 4e9

bench-replay-drawn: $(STAMP) $(DRAWN) ## the same of networks that no choice has seen (SEED=2029 draws them): docs/results/replay-drawn.*
	$(REPLAYS) --device $(DEVICE) --trials $(TRIALS) --drawn $(DRAWN) --work runs/replay-drawn

bench-replay-elsewhere: $(STAMP) $(DRAWN) ## the same on a CPU that the shipped model does not know, as it comes and added (half an hour of a quiet core): docs/results/replay-elsewhere.*
	OMP_NUM_THREADS=1 taskset -c 0 $(BIN)/cdmpp device add measured-here --threads 1
	$(REPLAYS) --device this-cpu --drawn $(DRAWN) --work runs/replay-drawn --out runs/replay-untold
	mkdir -p runs/replay-added && cp runs/replay-untold/* runs/replay-added
	$(REPLAYS) --device measured-here --model runs/device-measured-here --drawn $(DRAWN) --work runs/replay-drawn --out runs/replay-added --predict-again
	$(BIN)/python -m lab.experiments.replay_elsewhere runs/replay-untold runs/replay-added

bench-sealed: cache/data/sealed2-cpu/manifest.json cache/data/sealed-cpu/manifest.json $(STAMP) ## judge the shipped model on kernels that no choice has seen: docs/results/sealed.*
	OMP_NUM_THREADS=1 $(BIN)/python -m lab.experiments.sealed cache/data/sealed2-cpu --opened cache/data/sealed-cpu

SEARCHES = OMP_NUM_THREADS=1 TVM_NUM_THREADS=1 taskset -c 0 $(BIN)/python -m lab.experiments.search_campaign
define SEARCH_STEPS
$(SEARCHES) run --device this-cpu --short --out runs/$(1) --cells '*--xgb-warm0--*' '*--cdmpp-verify--*'
$(SEARCHES) remeasure --device this-cpu --out runs/$(1)
$(SEARCHES) report --page $(1) --out runs/$(1)
endef
bench-search: $(STAMP) ## searches under our model and TVM's, on a CPU that the model knows under other labels (two hours of one core, resumable): docs/results/search.*
	$(call SEARCH_STEPS,search)

bench-search-elsewhere: $(STAMP) ## the same on a CPU that nobody measured: docs/results/search-elsewhere.*
	$(call SEARCH_STEPS,search-elsewhere)

EXPLAINED := cache/data/metaschedule-cpu-broad cache/data/metaschedule-cpu-networks
bench-explain: $(EXPLAINED:%=%/manifest.json) $(STAMP) ## shares of stores beside stores that were switched off, on this CPU: docs/results/explain.*
	mkdir -p runs/metaschedule-cpu && tar -C runs/metaschedule-cpu -xJf data/metaschedule-cpu/campaign.tar.xz
	taskset -c 0 $(BIN)/python -m lab.experiments.explain_faithful runs/metaschedule-cpu $(EXPLAINED) --device this-cpu --programs 72 --out runs/explain.json
	$(BIN)/python -m lab.experiments.explain_page runs/explain.json

bench-new-devices: cache/data/zen5-records/manifest.json cache/data/zen5-kernels/manifest.json $(STAMP) ## how far off a model is on devices that it has never seen (AUTOTVM=DIR, such as cache/autotvm): docs/results/new-devices.*
	OMP_NUM_THREADS=1 $(BIN)/python -m lab.experiments.new_devices $(AUTOTVM)

# `make evidence RUN=1` makes them, `RUN="conv embedding"` only these; DEVICE names this machine's CPU.
evidence: export NEUSIGHT := $(NEUSIGHT)
evidence: export DEVICE := $(DEVICE)
evidence: $(STAMP) ## which results are not of today's code, why, and what makes them (RUN=1: make them)
	$(BIN)/python -m lab.evidence $(if $(RUN),run $(filter-out 1,$(RUN)))

licences: $(STAMP) ## list the licences of all packages that are needed: docs/licences.md
	$(BIN)/python -m tests.licences

claims: $(STAMP) ## look up what the README says in the pages of results: docs/results/claims.md
	$(BIN)/python -m lab.claims

golden: $(STAMP) ## compare replayed records with the original TVM's results (GOLDEN=FILE)
	$(BIN)/python scripts/golden.py $(GOLDEN) --network-info data/tenset-cpu/network_info

# Measured programs: extracted datasets, and campaigns that are kept packed, without tables.
EXTRACTED = data/metaschedule-cpu data/metaschedule-cpu-found
PACKED = $(filter-out $(EXTRACTED),$(patsubst %/campaign.tar.xz,%,$(wildcard data/metaschedule-cpu*/campaign.tar.xz)))
# What searches of random networks measured: nothing learns from it, it says what the fastest programs take.
SEARCHED = data/metaschedule-cpu-searched
CAMPAIGNS = $(filter-out $(SEARCHED),$(PACKED))
TABLES = $(PACKED:%=cache/%/manifest.json)

.SECONDEXPANSION:
cache/data/%/manifest.json: data/%/campaign.tar.xz $$(wildcard data/$$*/machine_code.parquet data/$$*/in_network.json) $(STAMP)
	rm -rf $(@D) && mkdir -p $(@D)
	tar -C $(@D) -xJf $<
	$(foreach f,$(filter %.parquet %.json,$^),cp $(f) $(@D);)
	$(BIN)/cdmpp measure --tables-only --out $(@D)

tables: $(TABLES) ## extract the campaigns that data/ keeps packed, into cache/data

pretrained: $(STAMP) $(TABLES) ## train and package the model behind --model pretrained (AUTOTVM=DIR)
	$(BIN)/python scripts/pretrain.py --package --programs-per-device 0 --config configs/train/pretrained.yaml $(foreach d,$(EXTRACTED) $(CAMPAIGNS:%=cache/%) $(AUTOTVM) data/ansor-gpu data/metaschedule-a100,--data $(d))
	$(BIN)/cdmpp dataset extract --out cache/tenset-cpu
	$(BIN)/cdmpp train-code --model pretrained --package --data cache/tenset-cpu $(foreach d,$(CAMPAIGNS),$(if $(wildcard $(d)/machine_code.parquet),--data cache/$(d))) $(SEARCHED:%=--searched cache/%)

NETWORKS ?= data/networks-cpu
# SeerNet as published (width 256, 500 epochs) takes hours a training on one core.
SEERNET ?= $(foreach m,seernet seernet_multi,--set $(m).hidden=128 --set $(m).fit.epochs=40 --set $(m).fit.batch=16)
pretrained-networks: $(STAMP) ## train and package the model behind `predict --torch` (NETWORKS=DIR)
	OMP_NUM_THREADS=1 $(BIN)/cdmpp networks train --dataset $(NETWORKS) --out runs/pretrained-networks
	$(BIN)/cdmpp networks package runs/pretrained-networks --made-by "make pretrained-networks" --licence "own measurements, shipped with this package under its licence (Apache-2.0)"

bench-network-models: $(STAMP) ## judge models of whole networks and write docs/results/networks.* (NETWORKS=DIR, SEERNET="--set ...", resumable; a quiet core)
	OMP_NUM_THREADS=1 $(BIN)/python -m lab.experiments.network_models outside --dataset $(NETWORKS)
	OMP_NUM_THREADS=1 $(BIN)/python -m lab.experiments.network_models fit --splits architecture --dataset $(NETWORKS) $(SEERNET)
	OMP_NUM_THREADS=1 $(BIN)/python -m lab.experiments.network_models fit --splits random --models residual,trees,mlp,operator-linear,roofline,constant --dataset $(NETWORKS) $(SEERNET)
	OMP_NUM_THREADS=1 $(BIN)/python -m lab.experiments.network_models report --dataset $(NETWORKS)

leaderboard: $(STAMP) ## run the suites and write docs/results/cross-*.* (AUTOTVM=DIR)
	$(BIN)/python scripts/benchmark.py --suite cross-model --jobs $(JOBS) $(DEVICE_DATA)
	$(BIN)/python scripts/benchmark.py --suite cross-device --jobs $(JOBS)
	$(if $(DEVICE_DATA),$(BIN)/python scripts/benchmark.py --suite cross-device-autotvm --jobs $(JOBS) $(DEVICE_DATA))

ablation: $(STAMP) ## what each part of the transformer is worth, on development seeds: docs/results/ablation.*
	$(BIN)/python scripts/benchmark.py --suite ablation --jobs $(JOBS)

priors: $(STAMP) ## what an analytic model inside the transformer is worth: docs/results/priors.*
	$(BIN)/python scripts/benchmark.py --suite priors --jobs $(JOBS)

bench-by-name: $(STAMP) ## trainings by the names of devices in a fresh clone, resumable: docs/results/data-by-name.* (FETCHED=mirror of the T4's logs)
	OMP_NUM_THREADS=1 $(BIN)/python -m lab.experiments.data_by_name run v100 k80 mi50 a100 t4
	$(if $(FETCHED),OMP_NUM_THREADS=1 $(BIN)/python -m lab.experiments.data_by_name run t4 --fetched $(FETCHED))
	$(BIN)/python -m lab.experiments.data_by_name report

bench-models: $(STAMP) ## time training and prediction of all models and write docs/results/model-speed.*
	OMP_NUM_THREADS=1 $(BIN)/python -m lab.experiments.model_speed

report: $(STAMP) ## train three seeds and write docs/results/by-task.*
	$(BIN)/python scripts/benchmark.py --suite by-task --seeds 0,1,2 --out docs/results

TUNE_KINDS = gbdt gbdt-rank segment-mlp tlp tlp-rank recursive-lstm cdmpp-paper
tune-peers: $(STAMP) $(TUNE_KINDS:%=tune-%) ## tune every peer on validation parts, 10 CPU minutes each (TUNE_DATA=DIR), into configs/models

tune-%: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/cdmpp autotune --model $* --sampler random --pruner none --trials 400 --no-train $(if $(TUNE_DATA),--dataset $(TUNE_DATA)) \
	  --set name=$* --set cpu_minutes=10 --set 'presets=[configs/models/$*.yaml]' --out runs/tune-$* \
	  $(if $(findstring rank,$*),--set objective.kind=error-and-order --set objective.order_weight=100) \
	  $(if $(findstring gbdt,$*),,--set 'trial_settings=[$(subst -,_,$*).loop.cpu_seconds=60]')
	cp runs/tune-$*/best.yaml configs/models/$*.yaml

data-a100: legacy-env ## make data/metaschedule-a100 again from its database (half an hour on two cores)
	$(BIN)/cdmpp dataset extract --dataset data/metaschedule-a100 --device a100 --out data/metaschedule-a100

legacy-env: $(STAMP) ## build .venv-legacy: the old TVM, for AutoTVM logs and Ansor's own replay
	$(BIN)/python -m tvm_helper.legacy.setup

ansor-test: $(STAMP) ## test our cost model inside the old TVM's Ansor (builds .venv-legacy)
	$(BIN)/python -m tvm_helper.cost_model.ansor.setup
	$(BIN)/python -m tvm_helper.cost_model.ansor.run -m pytest -o addopts=--import-mode=importlib tests/ansor
	$(BIN)/python -m pytest -m ansor tests/tvm_helper

bench-ansor: $(STAMP) ## searches of Ansor under our model and its XGBModel: docs/results/ansor.* (ANSOR_ARGS="--device LABEL" of this CPU)
	$(BIN)/python -m tvm_helper.cost_model.ansor.setup
	OMP_NUM_THREADS=1 TVM_NUM_THREADS=1 $(BIN)/python -m tvm_helper.cost_model.ansor.run -m lab.experiments.ansor_search $(ANSOR_ARGS)
	$(BIN)/python -m lab.experiments.ansor_search_page

clean: ## remove runs and caches (keeps .venv)
	rm -rf runs cache build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
