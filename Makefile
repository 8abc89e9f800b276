# Every target makes the environments that it needs.
PYTHON ?= python3
# Files or options for `make test` and `make test-all`.
TESTS =
# zensical, the successor of mkdocs-material, builds the same pages where it is
# installed.
SITE_BUILDER = mkdocs
# Subjects for `make frozen`; all if there are none.
SUBJECTS =
# Processes that test at a time. One tests a whole file: what its tests share
# is made once.
WORKERS ?= 2
PYTEST = -m pytest --numprocesses=$(WORKERS) --dist=loadfile
# Of other backends; `make test-jax PORTABLE=portable` runs slow ones too.
PORTABLE = portable and not slow
# Seconds of processor time of all fast tests, on the machine that
# tests/cpu_budget.py measures by; not asked of some.
BUDGET = $(if $(TESTS),,--cpu-budget=430)
# Old packages do what newer ones beside them deprecate; converters and the
# example server are for the TensorFlow of their day. Frozen ends of intervals
# are as close as the solver of one SciPy finds them.
OTHER_VERSIONS = -m "not slow" -W ignore::DeprecationWarning \
  --ignore=tests/papers --ignore=tests/exporting --ignore=tests/serving \
  --ignore=tests/frozen
PIP_INSTALL = -m pip install --quiet --disable-pip-version-check
SETUP = setup.cfg pyproject.toml
export TF_CPP_MIN_LOG_LEVEL ?= 3
# Python keeps what it compiled: tests start some programs many times.
unexport PYTHONDONTWRITEBYTECODE

# Tests mostly compile: thousands of small programs, each run a few times.
# These flags save code generation, not XLA's rewriting of programs.
# `make test-jax XLA_FLAGS=` tests code as users' programs get it, and helps
# where a newer XLA no longer knows a flag. The last flag is known neither to
# TensorFlow 2.18 nor to the nightly, and an unknown flag ends the process.
FAST_XLA = --xla_backend_optimization_level=0 \
  --xla_llvm_disable_expensive_passes=true
test test-all test-slow test-jax: export XLA_FLAGS ?= $(FAST_XLA) \
  --xla_cpu_use_fusion_emitters=false
test-minimum test-nightly: export XLA_FLAGS ?= $(FAST_XLA)
test-jax: export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS ?= 0

.PHONY: demo test test-all test-slow test-backends test-jax test-torch test-minimum \
  test-nightly mutants frozen lint types format docs notebooks dist bench bench-peers clean help

help:
	@echo "make demo           train, measure, repair, draw and serve (about a minute"
	@echo "                    after the installation)"
	@echo "make test           every claim once, on the TensorFlow backend"
	@echo "make test-all       also slow tests, and those of examples/papers"
	@echo "make test-slow      slow tests alone, such as TESTS=tests/examples"
	@echo "make test-backends  reference values and laws on JAX and on torch"
	@echo "make test-minimum   make test with the oldest versions that setup.cfg allows;"
	@echo "                    Python 3.11 or 3.12"
	@echo "make test-nightly   make test with the newest keras-nightly and tf-nightly"
	@echo "make mutants        small faults in a copy, which tests must see"
	@echo "make frozen         the frozen results anew, of SUBJECTS or all: CONTRIBUTING"
	@echo "                    says when that is allowed"
	@echo "make lint           ruff and mypy"
	@echo "make types          mypy"
	@echo "make docs           the documentation, into build/site"
	@echo "make notebooks      the same with outputs in its notebooks, a few minutes"
	@echo "make dist           sdist and wheel, checked, into dist"
	@echo "make bench          the benchmarks; tables in benchmarks/results"
	@echo "make bench-peers    metrics and calibrators beside other libraries, more"
	@echo "                    than half an hour"

demo: .venv/demo
	@# TensorFlow tells much on its first import; an error is shown.
	@mkdir -p work/quickstart
	@.venv/bin/python examples/quickstart.py 2> work/quickstart/log.txt \
	  || { cat work/quickstart/log.txt >&2; exit 1; }

test: .venv/dev
	KERAS_BACKEND=tensorflow .venv/bin/python $(PYTEST) -m "not slow" \
	  --ignore=tests/papers $(BUDGET) $(TESTS)

test-all: .venv/dev
	KERAS_BACKEND=tensorflow .venv/bin/python $(PYTEST) $(TESTS)

# Without those of examples/papers.
test-slow: .venv/dev
	KERAS_BACKEND=tensorflow .venv/bin/python $(PYTEST) -m slow \
	  --ignore=tests/papers $(TESTS)

test-backends: test-jax test-torch

test-jax: .venv-jax/dev
	@# Different tests compile equal programs. Not kept for the next run, which
	@# may be on another kind of processor.
	cache=$$(mktemp -d); trap 'rm -rf "$$cache"' EXIT; \
	  KERAS_BACKEND=jax JAX_COMPILATION_CACHE_DIR=$$cache \
	  .venv-jax/bin/python $(PYTEST) -m "$(PORTABLE)" $(TESTS)

test-torch: .venv-torch/dev
	KERAS_BACKEND=torch .venv-torch/bin/python $(PYTEST) -m "$(PORTABLE)" $(TESTS)

test-minimum: .venv-minimum/dev
	KERAS_BACKEND=tensorflow .venv-minimum/bin/python $(PYTEST) \
	  $(OTHER_VERSIONS) $(TESTS)

# Nightly packages are those of the day, and stand in for `keras`.
test-nightly: .venv-nightly/bin/python
	.venv-nightly/bin/python $(PIP_INSTALL) -e ".[test]" \
	  tensorflow-datasets importlib_resources
	.venv-nightly/bin/python -m pip uninstall --quiet --yes keras
	.venv-nightly/bin/python $(PIP_INSTALL) --upgrade --force-reinstall --no-deps \
	  keras-nightly
	.venv-nightly/bin/python $(PIP_INSTALL) --upgrade tf-nightly
	KERAS_BACKEND=tensorflow .venv-nightly/bin/python $(PYTEST) \
	  $(OTHER_VERSIONS) $(TESTS)

mutants: .venv/dev
	KERAS_BACKEND=tensorflow .venv/bin/python tests/mutants

# With the flags of `make test`, under which they are compared.
frozen: export XLA_FLAGS ?= $(FAST_XLA) --xla_cpu_use_fusion_emitters=false
frozen: .venv/dev
	KERAS_BACKEND=tensorflow .venv/bin/python tests/frozen $(SUBJECTS)

lint: .venv/dev
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

types: .venv/dev
	.venv/bin/mypy

format: .venv/dev
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

docs: .venv/dev
	KERAS_BACKEND=tensorflow .venv/bin/python docs/generator build/docs
	.venv/bin/python -m $(SITE_BUILDER) build --strict

# What is published.
notebooks: .venv/dev
	KERAS_BACKEND=tensorflow .venv/bin/python docs/generator build/docs --execute
	.venv/bin/python -m $(SITE_BUILDER) build --strict

dist: .venv/dev
	rm -rf dist
	.venv/bin/python -m build --outdir dist .
	.venv/bin/python -m twine check --strict dist/*

bench: .venv/dev
	.venv/bin/python benchmarks/losses.py --out=benchmarks/results/losses.md
	.venv/bin/python benchmarks/loss_terms.py \
	  --out=benchmarks/results/loss_terms.md
	.venv/bin/python benchmarks/aurc_accuracy.py \
	  --out=benchmarks/results/aurc_accuracy.md
	.venv/bin/python benchmarks/metrics_exactness.py \
	  --out=benchmarks/results/metrics_exactness.md
	.venv/bin/python benchmarks/fit_overhead.py \
	  --out=benchmarks/results/fit_overhead.md
	.venv/bin/python benchmarks/import_time.py \
	  --out=benchmarks/results/import_time.md
	.venv/bin/python benchmarks/interval_coverage.py \
	  --out=benchmarks/results/interval_coverage.md
	.venv/bin/python benchmarks/verdicts.py --out=benchmarks/results/verdicts.md
	.venv/bin/python benchmarks/label_reports.py \
	  --out=benchmarks/results/label_reports.md
	.venv/bin/python benchmarks/risk_guarantee.py \
	  --out=benchmarks/results/risk_guarantee.md
	.venv/bin/python benchmarks/pipeline.py --out=benchmarks/results/pipeline.md
	.venv/bin/python benchmarks/array_pipeline.py \
	  --out=benchmarks/results/array_pipeline.md
	.venv/bin/python benchmarks/training.py --out=benchmarks/results/training.md
	.venv/bin/python benchmarks/glibc_memory.py \
	  --out=benchmarks/results/glibc_memory.md
	.venv/bin/python benchmarks/digits_calibrators.py \
	  --csv=benchmarks/results/runs/digits_calibrators.csv
	.venv/bin/python benchmarks/scenes_calibrators.py \
	  --csv=benchmarks/results/runs/scenes_calibrators.csv

bench-peers: .venv-bench/dev
	.venv-bench/bin/python benchmarks/metrics.py \
	  --out=benchmarks/results/metrics.md
	.venv-bench/bin/python benchmarks/calibrators.py \
	  --out=benchmarks/results/calibrators.md

.venv/bin/python .venv-jax/bin/python .venv-torch/bin/python \
.venv-bench/bin/python .venv-minimum/bin/python .venv-nightly/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || \
	  { echo "keras_calib needs Python 3.11 to 3.13: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv $(@D:/bin=)

.venv/demo: .venv/bin/python $(SETUP)
	@echo "Installing the package and TensorFlow into .venv ..."
	.venv/bin/python $(PIP_INSTALL) -e ".[examples]"
	touch $@

.venv/dev: .venv/demo
	.venv/bin/python $(PIP_INSTALL) -e ".[examples,dev]"
	touch $@

.venv-jax/dev: .venv-jax/bin/python $(SETUP)
	.venv-jax/bin/python $(PIP_INSTALL) -e ".[test]" "jax[cpu]>=0.5"
	touch $@

.venv-minimum/dev: .venv-minimum/bin/python $(SETUP)
	@# Each lower bound as the version to install. Newer metadata of data sets
	@# need a newer protobuf than TensorFlow 2.18 allows.
	sed -nE 's/^    ([A-Za-z0-9_-]+)>=([0-9.]+).*/\1==\2/p' setup.cfg | sort -u \
	  > .venv-minimum/constraints.txt
	echo "tensorflow-metadata<1.18" >> .venv-minimum/constraints.txt
	.venv-minimum/bin/python $(PIP_INSTALL) -c .venv-minimum/constraints.txt \
	  -e ".[tfds,test]"
	touch $@

# torch is pinned because its newest wheels bring gigabytes for GPUs.
.venv-torch/dev: .venv-torch/bin/python $(SETUP)
	.venv-torch/bin/python $(PIP_INSTALL) "torch==2.13.0"
	.venv-torch/bin/python $(PIP_INSTALL) -e ".[test]"
	touch $@

.venv-bench/dev: .venv-bench/bin/python $(SETUP)
	.venv-bench/bin/python $(PIP_INSTALL) "torch==2.13.0"
	.venv-bench/bin/python $(PIP_INSTALL) -e ".[examples,bench]"
	touch $@

clean:
	rm -rf .venv .venv-jax .venv-torch .venv-bench .venv-minimum .venv-nightly build dist work *.egg-info
