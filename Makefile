# The one door: `make help`. Every target makes what it needs in .venv; nothing outside this folder is changed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
C_FILES := $(shell find csrc tests/c tests/crash tests/fuzz benchmarks examples -name '*.[ch]' 2>/dev/null)
NATIVE_INPUTS := setup.py pyproject.toml src/memledger/_ffi_build.py $(shell find csrc -name '*.[ch]')

# The C core as a library for programs without Python: cc -Icsrc/include ... build/libmemledger.a -pthread
EMBED_DIR ?= build
EMBED_CFLAGS ?= -O2
EMBED_OS := csrc/os/os_$(if $(filter Darwin,$(shell uname -s)),darwin,linux).c csrc/os/os_fork.c $(wildcard csrc/os/os_posix*.c)
EMBED_OBJECTS := $(patsubst csrc/%.c,$(EMBED_DIR)/embed/%.o,$(wildcard csrc/core/*.c) $(EMBED_OS))

.PHONY: help demo test test-c test-ray lint fix bench model docs embed soak clean
.DEFAULT_GOAL := help

help:
	@echo "make demo    watch processes share a simulated card, without and with the ledger (under a minute)"
	@echo "make test    all tests: C, Python, cases, crash tests (some minutes)"
	@echo "make test-ray memledger.ray on a local Ray of two nodes (installs ray)"
	@echo "make lint    formatting, types, layering and source rules"
	@echo "make fix     format and fix what tools can fix"
	@echo "make bench   speed, each figure beside an empty method of the same kind"
	@echo "make bench-peers   the same work by shared_memory, LMDB, SQLite, Redis and others (minutes)"
	@echo "make bench-scale   cost by number of members and devices (minutes)"
	@echo "make bench-sampler overhead in a denoising loop of torch on the CPU (installs torch)"
	@echo "make bench-comfy   overhead of the ComfyUI integration per sampler step"
	@echo "make model   the protocols' Spin models"
	@echo "make docs    the documentation as a site, in build/site"
	@echo "make embed   the C core as build/libmemledger.a, for programs without Python"
	@echo "make soak    the long suite (hours by SOAK_S=seconds)"
	@echo "make clean   remove .venv and what was built"
	@echo "PYTHON=python3.12 make ... takes another interpreter (3.10 or newer)"

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "memledger needs Python 3.10 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1). Try PYTHON=python3.12 make ..." >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
	  { rm -rf $(VENV); echo "could not make a virtual environment; on Debian: apt-get install python3-venv" >&2; exit 1; }
	@$(BIN)/python -m pip install --quiet --upgrade pip

# The package itself, with what the command line and the demo show things with.
$(VENV)/.built: $(BIN)/python $(NATIVE_INPUTS)
	@echo "building memledger into $(VENV)"
	@$(BIN)/python -m pip install --quiet --editable '.[cli]'
	@touch $@

$(VENV)/.dev: $(VENV)/.built requirements-dev.txt
	@$(BIN)/python -m pip install --quiet --requirement requirements-dev.txt
	@touch $@

$(VENV)/.docs: $(VENV)/.built requirements-docs.txt
	@$(BIN)/python -m pip install --quiet --requirement requirements-docs.txt
	@touch $@

demo: $(VENV)/.built
	@$(BIN)/memledger demo

test-c: $(VENV)/.dev
	@$(BIN)/python tests/c/run.py

test: test-c
	@$(BIN)/python -m pytest -q

test-ray: $(VENV)/.dev
	@$(BIN)/python -m pip install --quiet 'ray>=2.9'
	@$(BIN)/python -m pytest -q tests/cluster

lint: $(VENV)/.dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/clang-format --dry-run --Werror $(C_FILES)
	@$(BIN)/mypy
	@$(BIN)/basedpyright --level error tests/typing
	@$(BIN)/python -m pytest -q tests/lint

fix: $(VENV)/.dev
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .
	@$(BIN)/clang-format -i $(C_FILES)

bench: $(VENV)/.dev
	@$(BIN)/python benchmarks/report.py

.PHONY: bench-peers bench-scale bench-sampler bench-comfy
bench-peers: $(VENV)/.dev
	@$(BIN)/python -m pip install --quiet lmdb redis prometheus_client matplotlib psutil nvidia-ml-py
	@benchmarks/peers/get_redis.sh $(VENV)/redis
	@$(BIN)/python -m benchmarks.peers.run

bench-scale: $(VENV)/.dev
	@$(BIN)/python -m benchmarks.scale

bench-sampler: $(VENV)/.dev
	@$(BIN)/python -m pip install --quiet torch==2.13.0
	@$(BIN)/python -m benchmarks.sampler

bench-comfy: $(VENV)/.dev
	@$(BIN)/python -m benchmarks.comfy

model: $(BIN)/python
	@$(BIN)/python tests/model/run.py

docs: $(VENV)/.docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@! grep -rnoE '(src|href)="https?://[^"]*\.(js|css|woff2?|png)"' build/site --include='*.html' || \
	  { echo "a page wants something from elsewhere" >&2; exit 1; }
	@echo "read build/site/index.html"

embed: $(EMBED_DIR)/libmemledger.a

$(EMBED_DIR)/libmemledger.a: $(EMBED_OBJECTS)
	@rm -f $@
	@$(AR) rcs $@ $^

$(EMBED_DIR)/embed/%.o: csrc/%.c $(wildcard csrc/*/*.h)
	@mkdir -p $(@D)
	@$(CC) -std=c11 -Wall -Wextra -fPIC -fno-strict-aliasing -pthread $(EMBED_CFLAGS) -Icsrc -c $< -o $@

soak: $(VENV)/.dev
	@$(BIN)/python -m pytest -q -m long

clean:
	rm -rf $(VENV) build dist src/*.egg-info src/memledger/*.so
