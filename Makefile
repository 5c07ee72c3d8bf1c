.PHONY: setup demo test test-machines test-fast test-long check format docs clean
PY := .venv/bin/python

setup:            ## make .venv, .venv-kernels and .venv-engine from their locks
	@infra/setup/setup.sh

demo: setup       ## train the shipped tiny policy end to end on this machine
	@.venv/bin/nbrl train tiny-cpu

test: setup       ## all tests but the long ones and those over several machines, two at a time
	$(PY) -m pytest -m "not long and not machines" -n 2 --durations 10

test-machines: setup  ## a training over three machines of namespaces, where root can make them; skipped elsewhere
	$(PY) -m pytest -m machines --timeout 1200

test-fast: setup  ## the tests that start no process
	$(PY) -m pytest -m "inprocess and not long" -n 2

test-long: setup  ## the long matrices
	$(PY) -m pytest -m "long or machines" --timeout 1800

check: setup      ## format, lint, types, import rules
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m mypy
	.venv/bin/lint-imports

docs: setup       ## the documentation as pages in site/; a broken link fails
	@# The variable silences a notice of Material for MkDocs: it is maintained until May 2027, its successor is Zensical.
	NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict

format: setup
	$(PY) -m ruff format .
	$(PY) -m ruff check --fix .
