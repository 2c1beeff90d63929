# make lab: open the workbook, on working copies of its chapters (ARGS='--fresh 05': one anew).  make test: the whole test suite.  make book: run every chapter and render build/book/.
# make check: the essentials, in two minutes, and the lines of each folder.  make pythons: the essentials under each newer Python that is installed,
#   the trainer beside the oldest and the newest TRL of the range, and the core alone in an empty environment.
# make audit: the ledger of claims recomputed by a second implementation, and where its numbers come from.
# make bench: what things cost, as ratios; nothing in it fails for being slow.
# make gpu: the tests that need a GPU.
# make portable: the tests that train, as other CPUs would run them (ARGS='"seed 1"': one setting).
# make browsers: every chapter run in a browser, closed and opened again, and screenshots of every kind of widget.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

# Many a container sets it. Without bytecode each process compiles torch and transformers anew: 15 s instead of 6.
unexport PYTHONDONTWRITEBYTECODE

# Tests that start processes, browsers or whole chapters, train run after run, or measure a study.
LONG   := browser test_arena.py test_bundled.py test_chapters.py test_claims.py test_commands.py test_confidence_study.py test_coupling_topic.py \
          test_diagnosis.py test_distributed.py test_equality.py test_examples.py test_hidden_credit.py test_interrupts.py test_laboratory.py test_loop.py test_loss_types.py test_memory.py \
          test_monitor.py test_policies.py test_run_folders.py test_runs.py test_token_record.py test_token_values.py test_training_curves.py test_wheel.py

# the ends of pyproject's range; each is installed into a folder that stands before the venv's
TRLS   := 'trl==1.13.*' 'trl>=1.13,!=1.15.*,<2'

.PHONY: lab test check pythons trls core audit bench portable gpu browsers book lint clean

lab: $(READY)
	$(BIN)/python -m workbook lab $(ARGS)

# One worker for the browser, one for the rest, whose kernels and processes keep two cores busy: three took longer.
test: $(READY) lint
	$(BIN)/python -m pytest -n 2 --no-loadscope-reorder

check: $(READY) lint
	$(BIN)/python -m pytest -n logical --maxprocesses 2 $(LONG:%=--ignore=tests/%)
	$(BIN)/python tests/house.py

pythons: trls core
	for python in python3.12 python3.13; do \
	  if $$python --version; then $(MAKE) check PYTHON=$$python VENV=build/$$python || exit 1; fi; \
	done

trls: $(READY)
	for trl in $(TRLS); do \
	  rm -rf build/trl && $(BIN)/python -m pip install --disable-pip-version-check -q --no-deps --target build/trl "$$trl" && \
	  PYTHONPATH=$(CURDIR)/build/trl $(BIN)/python -m pytest tests/test_equality.py tests/test_trainer.py tests/test_token_record.py tests/test_settings.py || exit 1; \
	done

# without any extra, from another folder
core:
	rm -rf build/core && $(PYTHON) -m venv build/core
	build/core/bin/python -m pip install --disable-pip-version-check -q -c constraints.txt .
	cd build/core && bin/python $(CURDIR)/examples/drop_in_lora.py --steps 2

audit: $(READY)
	PYTHONPATH=tests $(BIN)/python -m audit $(ARGS)

bench: $(READY)
	$(BIN)/python tests/bench.py $(ARGS)

portable: $(READY)
	$(BIN)/python tests/portable.py $(ARGS)

gpu: $(READY)
	$(BIN)/python -m pytest -m gpu $(ARGS)

browsers: $(READY)
	WORKBOOK_THOROUGH=1 $(BIN)/python -m pytest tests/browser $(ARGS)

book: $(READY)
	$(BIN)/python -m workbook chapters --profile teach --in-place --book build/book

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache --no-logo

# The venv is made anew whenever the declared environment changes. Most of its 18,000 files are never compiled: those that
# everything imports are here, by two processes at once, lest each of the first ones does it.
# The pip that comes with a Python is as old as it: one of 2023 takes twice as long, half of it to find what it was told.
# Setuptools warns of each editable installation that a folder may be named like a package; none is here.
PIP    := $(BIN)/python -m pip install --disable-pip-version-check -q -c constraints.txt

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed, this is " + sys.version.split()[0] + ": make lab PYTHON=python3.11")'
	@echo "Making $(VENV) with the pinned packages, once: some minutes."
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) --upgrade pip
	@PYTHONWARNINGS='ignore:Editable installation' $(PIP) --no-compile -e '.[all,lab,dev]'
	@$(BIN)/python -c 'import workbook.app.worker' & \
	$(BIN)/python -c 'import altair, datasets, IPython, jupyterlab.labapp, nbclient, playwright.sync_api, pytest' & wait
	@touch $@

clean:
	rm -rf $(VENV) build
