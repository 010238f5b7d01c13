# Each target makes .venv and installs what it needs, so one command suffices on a fresh machine (Python >= 3.10, g++ >= 11).
PYTHON ?= python3
TORCH ?= torch==2.13.0
BIN := .venv/bin
JOBS ?= $(shell nproc)

.PHONY: build lint format clean

.venv/.deps: pyproject.toml
	test -d .venv || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q --upgrade pip
	$(BIN)/python -m pip install -q $(TORCH) "scikit-build-core>=0.10" "cmake>=3.24" ninja pyyaml jinja2
	touch $@

# Rebuilds the native libraries in place; what a change of C++ or of the op table needs.
build:
	@test -d .venv || $(MAKE) .venv/.deps
	$(BIN)/cmake -S . -B build -G Ninja -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python $(CMAKE_ARGS) > build.log 2>&1 || (cat build.log; exit 1)
	$(BIN)/cmake --build build -j $(JOBS)

lint:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	git ls-files '*.cpp' '*.h' | xargs $(BIN)/clang-format --dry-run --Werror
	$(BIN)/mypy

format:
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	git ls-files '*.cpp' '*.h' | xargs $(BIN)/clang-format -i

clean:
	rm -rf build build.log cann_host/lib64 torch_npu/*.so
