# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
PY := .venv/bin/python
READY := .venv/.ready

BROWSER := .venv/.browser

.PHONY: setup demo demo-network test lint bench
setup: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PY) -m pip install --quiet -c constraints.txt torch
	$(PY) -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@

demo: setup
	$(PY) -m kithkin demo

demo-network: setup
	$(PY) -m kithkin federation demo --out runs/demo-network-$$(date +%Y%m%d-%H%M%S)

$(BROWSER): $(READY) tests/report/browser.py
	$(PY) tests/report/browser.py
	touch $@

test: setup $(BROWSER)
	OMP_NUM_THREADS=1 $(PY) -m pytest -n auto --dist loadgroup

lint: setup
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m pyright --pythonpath $(PY)

bench: setup
	for claim in bench/*.py; do $(PY) $$claim || exit 1; done
