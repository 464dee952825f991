# Every target starts from nothing but make and Python 3.10 to 3.14.
#
#   make models PYTHON=python3.12           another Python (then run `make clean` first)
#   make models ARGS='-k magika -x'         arguments for pytest
#   make models WORKERS=4                   cases at a time; one may need several gigabytes
#   make dashboard RUNS='a b' SITE=site     folders of runs and records, and where the site goes

PYTHON  ?= python3
VENV    ?= .venv
WORKERS ?= 2
ARGS    ?=
RUNS    ?= docs/runs artifacts/runs
SITE    ?= artifacts/site
HISTORY ?= artifacts/history

BIN   := $(VENV)/bin
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help venv models dashboard test lint format lock clean distclean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(STAMP) ## make .venv with the locked versions and this project in it

$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 15))' || { \
	  echo "$(PYTHON) is not a Python 3.10 to 3.14: name one, e.g. make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "$(PYTHON) has no venv module: install it (Debian, Ubuntu: apt-get install python3-venv)" >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

models: $(STAMP) ## run the embedded models on the default devices, print the funnel, write the dashboard
	@code=0; \
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(ARGS) || code=$$?; \
	if [ $$code -le 1 ]; then $(MAKE) --no-print-directory dashboard || code=$$?; fi; \
	exit $$code

# Runs become files of the history once; each is a whole run by itself.
dashboard: $(STAMP) ## build the site of the kept example runs and of all in artifacts/runs
	@mkdir -p $(HISTORY)
	@for file in $(wildcard $(addsuffix /*.jsonl.gz,$(RUNS)) $(addsuffix /*.jsonl,$(RUNS))); do \
	  name=$$(basename $$file); name=$${name%.gz}; name=$${name%.jsonl}; \
	  test -e $(HISTORY)/$$name.jsonl.gz || \
	  $(BIN)/onnx-models merge $$file -o $(HISTORY) >/dev/null || echo "$$file: left out" >&2; \
	done
	$(BIN)/onnx-models dashboard $(HISTORY) -o $(SITE)

test: $(STAMP) ## run the tests of the suite itself
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile onnx_models/meta_tests $(ARGS)

lint: $(STAMP) ## ruff, mypy and, for the workflows, actionlint and zizmor, changing nothing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	@# From a wheel for Linux only; it finds shellcheck on PATH.
	if [ -x $(BIN)/actionlint ]; then PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/actionlint; fi
	$(BIN)/zizmor --offline --quiet .github/workflows

format: $(STAMP) ## let ruff rewrite what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lock: ## resolve requirements.lock again for every supported Python (UPGRADE=1: newest versions)
	$(PYTHON) -m venv --clear .lock-venv
	.lock-venv/bin/python -m pip install --quiet uv
	.lock-venv/bin/uv pip compile --quiet --no-config --universal --python-version 3.10 --generate-hashes \
	  --no-emit-index-url --no-emit-find-links --custom-compile-command 'make lock' \
	  --extra dev --extra dashboard $(if $(UPGRADE),--upgrade) --output-file requirements.lock pyproject.toml
	rm -rf .lock-venv

clean: ## remove .venv, caches and built files; artifacts/ stays
	rm -rf $(VENV) .lock-venv build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean ## remove artifacts/ as well: results, records, fetched inputs
	rm -rf artifacts
