# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
PY := .venv/bin/python
READY := .venv/.ready
NOW := $(shell date +%Y%m%d-%H%M%S)

.PHONY: setup demo demo-network test lint docs bench
setup: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PY) -m pip install --quiet -c constraints.txt torch
	$(PY) -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@

demo: setup
	$(PY) -m kithkin demo --out runs/demo-$(NOW)

demo-network: setup
	$(PY) -m kithkin federation demo --out runs/demo-network-$(NOW)

test: setup
	$(PY) tests/report/browser.py
	OMP_NUM_THREADS=1 $(PY) -m pytest -n auto --dist loadgroup

lint: setup
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m pyright --pythonpath $(PY)

docs: setup
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict

bench: setup
	for claim in bench/*.py; do $(PY) $$claim || exit 1; done
