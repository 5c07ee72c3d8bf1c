.PHONY: setup setup-agents setup-verifiers demo test test-more test-long test-fast test-machines check format docs
PY := .venv/bin/python
# Tests start hundreds of Pythons, and without its bytecode each would compile all of nbrl again.
unexport PYTHONDONTWRITEBYTECODE
# In CI a report in JUnit's format is kept, and a test that costs too much fails; the same one costs twice as much on some machines.
pytest = $(PY) -m pytest $(if $(CI),--junitxml reports/$@.xml)

setup:            ## make .venv, .venv-kernels and .venv-engine from their locks
	@infra/setup/setup.sh

setup-verifiers: setup  ## make .venv-verifiers too, for environments of the kind verifiers
	@tasks/environments/verifiers/nbrl_verifiers/setup.sh

setup-agents: setup  ## make .venv-agents too, for the agents of examples/programs
	@examples/programs/environment/setup.sh

demo: setup       ## train the shipped tiny policy end to end on this machine
	@.venv/bin/nbrl train tiny-cpu

test: setup       ## what every change must pass, about ten minutes on two cores, two tests at a time
	$(pytest) -m "not more and not long and not machines" -n 2 $(if $(CI),--budget 20)

test-more: setup-agents setup-verifiers  ## the slower tests, about an hour; SHARD=2/6 is the second of six parts of them
	$(pytest) -m "more and not long and not machines" -n 2 $(if $(SHARD),--shard $(SHARD)) $(if $(TOUCHED),--touched $(TOUCHED))

test-long: setup  ## the long matrices, three machines, and more examples of every property; SHARD=1/12 is a part of them
	$(pytest) -m "long or machines or properties" --timeout 1800 --hypothesis-profile thorough $(if $(SHARD),--shard $(SHARD))

test-fast: setup  ## the tests of `make test` that start no process
	$(pytest) -m "inprocess and not more and not long" -n 2

test-machines: setup  ## a training over three machines of namespaces, where root can make them; skipped elsewhere
	$(pytest) -m machines --timeout 1200

check: setup      ## format, lint, types, import rules, words
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m mypy
	.venv/bin/lint-imports
	$(PY) -m tests.words

docs: setup       ## the documentation as pages in site/; a broken link fails
	@# The variable silences a notice of Material for MkDocs: it is maintained until May 2027, its successor is Zensical.
	NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict

format: setup
	$(PY) -m ruff format .
	$(PY) -m ruff check --fix .
