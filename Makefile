# Each target makes .venv and installs what it needs, so that one command suffices on a fresh machine with
# Python >= 3.10 and g++ >= 11.
PYTHON ?= python3
TORCH ?= torch==2.13.0
BIN := .venv/bin
JOBS ?= $(shell nproc)
PIP := $(BIN)/python -m pip --disable-pip-version-check
export CMAKE_BUILD_PARALLEL_LEVEL ?= $(JOBS)

.PHONY: demo test test-quick test-aarch64 bench conformance build lint format docs clean

demo: .venv/.installed-demo
	$(BIN)/python examples/demo.py

test: .venv/.installed-test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist loadgroup

# Under three minutes: leaves out what is marked slow.
test-quick: .venv/.installed-test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist loadgroup -m "not slow"

# The host kernels for Arm hosts, under qemu: apt-get install g++-aarch64-linux-gnu qemu-user
test-aarch64: .venv/.installed-test
	$(BIN)/python -m pytest tests/cann_host/test_kernels_aarch64.py

bench: .venv/.installed-bench
	$(BIN)/python -m benchmarks eager

# The smoke set and the vendor's test files over cann_host, and docs/conformance.md. ADAPTER=vendor (the wheel from PyPI)
# or ours. ASCEND_PYTORCH and ASCEND_OP_PLUGIN name checkouts of the vendor's sources; CONFORMANCE="--set …" is a part of it.
ADAPTER ?= vendor
ADAPTER_PYTHON_vendor := .venv-vendor/bin/python
ADAPTER_PYTHON_ours := $(BIN)/python
ADAPTER_PYTHON = $(abspath $(ADAPTER_PYTHON_$(ADAPTER)))
conformance: .venv/.installed-test $(if $(filter vendor,$(ADAPTER)),.venv-vendor/.installed)
	$(BIN)/python tests/conformance/run_conformance.py --adapter $(ADAPTER) --python $(ADAPTER_PYTHON) --jobs $(JOBS) $(CONFORMANCE)

# The vendor's tests use functions that numpy 2.4 took away.
.venv-vendor/.installed:
	test -d .venv-vendor || $(PYTHON) -m venv .venv-vendor
	.venv-vendor/bin/pip install -q $(TORCH) torch-npu==2.13.0 "numpy<2.4" pytest expecttest hypothesis scipy
	touch $@

# Installs the package, editable: Python sources are used where they stand, native libraries are built into the tree.
.venv/.installed: pyproject.toml
	test -d .venv || $(PYTHON) -m venv .venv
	$(PIP) install -q --upgrade pip
	$(PIP) install -q $(TORCH) "scikit-build-core>=0.10" "cmake>=3.24" ninja pyyaml jinja2
	$(PIP) install -q --no-build-isolation -e .
	touch $@

.venv/.installed-%: .venv/.installed
	$(PIP) install -q --no-build-isolation -e ".[$*]"
	touch $@

# Rebuilds the native libraries: what a change of C++ or of the op table needs.
build: .venv/.installed
	$(BIN)/cmake --build build

lint: .venv/.installed-lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	git ls-files '*.cpp' '*.h' | xargs $(BIN)/clang-format --dry-run --Werror
	$(BIN)/mypy

format: .venv/.installed-lint
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	git ls-files '*.cpp' '*.h' | xargs $(BIN)/clang-format -i

docs: .venv/.installed
	$(BIN)/python -m opspec.coverage

clean:
	rm -rf build cann_host/lib64 torch_npu/*.so .venv/.installed* .venv-vendor
