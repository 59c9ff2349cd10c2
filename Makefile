# Two commands: `make run` and `make test`. Both set up `.venv` first; set-up runs again only when what it depends on changed.

PYTHON ?= $(shell for p in python3.11 python3 python3.14 python3.13 python3.12; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$p" && break; done || echo python3)
VENV := .venv
STAMP := $(VENV)/.set-up
PYTEST := $(VENV)/bin/python -m pytest
TESTS ?=
# As an installed program is: else where no bytecode may be written (PYTHONDONTWRITEBYTECODE) each start would compile all of it.
COMPILED := $(VENV)/bin/python -m compileall -q coordinator worker_agent tasks migrations bench tests
# What pytest makes of the tests' asserts, once and not by each of its processes.
REWRITTEN := $(VENV)/bin/python -m tests.support.rewritten
# A limit for the whole command, should one of its own processes stand still; in the foreground, so that Ctrl+C reaches it.
LIMIT = $(shell command -v timeout >/dev/null 2>&1 && echo timeout --foreground --kill-after=30)

GOAL ?= What does this repository do, how is it laid out, and how is it tested?
DIR ?= .
# Literally, whatever characters the goal holds; the recipe reads them from the environment.
export COORDINATOR_MAKE_GOAL := $(value GOAL)
export COORDINATOR_MAKE_DIR := $(value DIR)

.PHONY: help setup run check test test-slow bench bench-quick clean
.DEFAULT_GOAL := help

help:
	@echo 'make run [GOAL="…"] [DIR=path]   set up and survey a repository with the offline model'
	@echo 'make test                        set up and run the tests (make test-slow: the slow ones)'
	@echo 'make check                       lint, format, types'
	@echo 'make bench-quick                 what a run costs beside the bare SDK (make bench: beside other programs, too)'
	@echo 'make setup                       leave .venv/bin/coordinator'

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt scripts/bootstrap.py
	@$(PYTHON) scripts/bootstrap.py $(VENV) $(STAMP)

run: $(STAMP)
	@env -u MAKEFLAGS -u MAKELEVEL -u MFLAGS $(VENV)/bin/coordinator run --offline \
		--cwd "$$COORDINATOR_MAKE_DIR" -- "$$COORDINATOR_MAKE_GOAL"
	@printf '\n%s\n%s\n' 'Next: $(VENV)/bin/coordinator ps --all lists the workers of this run; show ID and logs ID say what each one did.' \
		'With ANTHROPIC_API_KEY set, $(VENV)/bin/coordinator run "your goal" has Claude work on it; help lists the commands.' >&2

# What failed beside others is run once more, alone: a time limit that a busy machine broke is told apart from a fault, and named.
test: $(STAMP)
	@$(COMPILED)
	@$(REWRITTEN)
	@unset MAKEFLAGS MAKELEVEL MFLAGS; \
	$(if $(LIMIT),$(LIMIT) 1700) $(PYTEST) -m 'not slow and not real' -n auto --dist worksteal $(TESTS); code=$$?; \
	[ $$code -eq 1 ] || exit $$code; \
	echo 'make test: the failures above once more, alone; what passes now is not reliable on a busy machine' >&2; \
	$(if $(LIMIT),$(LIMIT) 600) $(PYTEST) -m 'not slow and not real' --last-failed --last-failed-no-failures none $(TESTS)

check: $(STAMP)
	@$(VENV)/bin/ruff format --check --quiet . && $(VENV)/bin/ruff check --quiet . && echo 'ruff: clean'
	@$(VENV)/bin/mypy --no-error-summary && echo 'mypy: clean'
	@$(VENV)/bin/python -m scripts.reference --check && echo 'docs/reference: current'

test-slow: $(STAMP)
	@$(COMPILED)
	@env -u MAKEFLAGS -u MAKELEVEL -u MFLAGS $(if $(LIMIT),$(LIMIT) 3400) $(PYTEST) -m 'slow and not real' --timeout 600 $(TESTS)

bench: $(STAMP)
	@$(COMPILED)
	@$(VENV)/bin/python -m bench --peers --write

bench-quick: $(STAMP)
	@$(COMPILED)
	@$(VENV)/bin/python -m bench.fanout --quick

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .hypothesis
