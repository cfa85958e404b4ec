# keras-mp: `make demo` and `make test` do all their own set-up, on a machine with Python 3.11 and pip.

PYTHON  ?= python3
BACKEND ?= torch
VENV    := .venv
BIN     := $(VENV)/bin
STAMP   := $(VENV)/.installed
PIP     := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

TORCH   := $(shell grep '^torch==' constraints.txt)

# Threads that fight over two cores are slower than one.
export OMP_NUM_THREADS        ?= 1
export TF_NUM_INTRAOP_THREADS ?= 1
export TF_NUM_INTEROP_THREADS ?= 1
export TF_CPP_MIN_LOG_LEVEL   ?= 2

.PHONY: demo test test-all check format install clean record screenshots docs

demo: install          ## train three real jobs and watch them (BACKEND=torch|tensorflow)
	@$(BIN)/keras-mp demo --backend $(BACKEND)

test: install          ## the test suite on every backend; a missing backend is an error
	KERAS_BACKEND=torch      $(BIN)/python -m pytest -n 2 -m "not slow"
	KERAS_BACKEND=tensorflow $(BIN)/python -m pytest -n 2 -m "backend and not slow"
	KERAS_BACKEND=jax        $(BIN)/python -m pytest -n 2 -m "backend and not slow"

test-all: install      ## the slow sweeps
	@for b in torch tensorflow jax; do \
	  which="backend and slow"; [ $$b = torch ] && which=slow; \
	  KERAS_BACKEND=$$b $(BIN)/python -m pytest -n 2 -m "$$which"; code=$$?; \
	  if [ $$code -ne 0 ] && [ $$code -ne 5 ]; then exit $$code; fi; \
	done

check: install         ## lint, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

record: install        ## write the journals that the dashboard's tests and pictures read, by real runs
	$(BIN)/python tests/recorded/record.py
	KERAS_BACKEND=torch $(BIN)/python tests/recorded/lab.py

screenshots: install   ## draw docs/*.svg from the recorded journals with the real dashboard
	$(BIN)/python docs/screenshots.py

docs: install          ## the documentation as a site, in build/site; a broken link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

install: $(STAMP)

# torch's CPU build first: the plain one brings several gigabytes of CUDA on Linux. Where pip's
# index has none, PIP_EXTRA_INDEX_URL may name one that has (PyTorch's own, see its install page).
$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV): minutes the first time"
	@if [ "$$(uname -s)" = Linux ]; then \
	  $(PIP) $(TORCH)+cpu 2>/dev/null || \
	  echo "no CPU build of $(TORCH) at pip's index: taking the plain one, which brings CUDA"; \
	fi
	@$(PIP) -e '.[dev,docs,torch,jax]' tensorflow-cpu
	@touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
