# Every verb makes .venv by itself and installs what it needs, pinned by constraints.txt. A stamp file
# in .venv marks each finished install, so that a second run starts at once.
#   core: what `depthchart` itself needs     lab: JupyterLab and widgets     dev: lab, kernels, tests

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input install --quiet --progress-bar off -c constraints.txt
INPUTS := pyproject.toml constraints.txt hatch_build.py
NOTEBOOKS = $(wildcard notebooks/*.ipynb)
BENCHMARKS = $(wildcard benchmarks/bench_*.py)
# Tests run in two processes: more threads in each would only fight for the cores.
JOBS ?= 2
export OMP_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
.PHONY: help demo lab dashboard test lint bench gpu notebooks pictures clean
.DELETE_ON_ERROR:

help: ## list the verbs
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 20

demo: $(VENV)/core.stamp ## replay the seed bug, simulate a trace, write a report
	$(BIN)/depthchart demo

lab: $(VENV)/lab.stamp ## open JupyterLab on the index of notebooks/
	$(BIN)/jupyter lab --notebook-dir=. --LabApp.default_url=/lab/tree/notebooks/index.ipynb $(if $(filter 0,$(shell id -u)),--allow-root)

dashboard: $(VENV)/lab.stamp ## open the tree explorer as a page without code
	$(BIN)/voila --template=depthchart notebooks/10_time_travel.ipynb

test: lint ## lint, types, import contracts, then every test that is not marked slow
	$(BIN)/python -m pytest -n $(JOBS) -m "not slow" tests

lint: $(VENV)/dev.stamp ## ruff, mypy, import contracts, notebooks without outputs
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(if $(NOTEBOOKS),$(BIN)/nbstripout --verify $(NOTEBOOKS))

bench: $(VENV)/dev.stamp ## run every benchmarks/bench_*.py
	$(if $(BENCHMARKS),,$(error no benchmarks/bench_*.py to run))
	set -e; for script in $(BENCHMARKS); do echo "== $$script"; $(BIN)/python $$script; done

# Runs with the machine's own torch and Triton, which fit its driver; nothing is installed.
gpu: ## on a machine with a GPU: its tests, every golden, the goals' shapes; writes out/gpu_goals.csv
	mkdir -p out
	PYTHONPATH=kernels:toolkit $(PYTHON) -m depthchart_kernels.goals --out out/gpu_goals.csv

notebooks: $(VENV)/dev.stamp ## run every notebook into out/notebooks/, sources stay as they are
	$(if $(NOTEBOOKS),,$(error no notebooks/*.ipynb to run))
	$(BIN)/depthchart export --execute --out out/notebooks $(NOTEBOOKS)

pictures: $(VENV)/core.stamp ## draw the README's pictures anew
	$(BIN)/python docs/make_pictures.py

clean: ## remove .venv, caches and everything that was built
	rm -rf $(VENV) out dist build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/venv.stamp:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "depthchart needs Python 3.11 or newer, but \
	$(PYTHON) is " + sys.version.split()[0] + ": run make with PYTHON=python3.12 or the like")'
	$(PYTHON) -m venv --clear $(VENV)
	@touch $@

# The build backend is pinned like the rest, hence no isolated build.
$(VENV)/core.stamp: $(VENV)/venv.stamp $(INPUTS)
	@echo "installing the core into $(VENV) (once)"
	@$(PIP) hatchling editables
	@$(PIP) --no-build-isolation -e .
	@touch $@

$(VENV)/lab.stamp: $(VENV)/core.stamp
	@echo "installing JupyterLab into $(VENV) (once)"
	@$(PIP) --no-build-isolation -e '.[lab]'
	@touch $@

$(VENV)/dev.stamp: $(VENV)/core.stamp
	@echo "installing torch, JupyterLab and the test tools into $(VENV) (once, a few minutes)"
	@$(PIP) --no-build-isolation -e '.[dev]'
	@touch $@
