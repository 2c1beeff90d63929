# make lab       open the workbook, on working copies of its chapters (ARGS='--fresh 05': one anew)
# make test      what a change must not break: the core, equality with TRL, three chapters, the form
#                and the heatmap in a browser
# make audit     the studies and their second implementation: every row and every printed number
# make chapters  all chapters in the smoke profile
# make release   whatever else there is: all chapters in a browser, two processes, interrupts, Colab's
#                list of packages, both ends of TRL, newer Pythons, the core without any extra
# make check     the essentials of it
# make book      run every chapter and render build/book/
# make bench     what things cost, as ratios; nothing in it fails for being slow
# make gpu       the tests that need a GPU
# make portable  the tests that train, as other CPUs would run them (ARGS='"seed 1"': one setting)
# make lock      constraints.txt, the pins for every platform and Python, from what pyproject.toml
#                declares; those that still fit stay (ARGS=--upgrade: the newest of each)
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

# Many a container sets it. Without bytecode each process compiles torch and transformers anew: 15 s instead of 6.
unexport PYTHONDONTWRITEBYTECODE

# not of `make test`: research, releases, and pages other than the form and the heatmap
ASIDE  := tests/research tests/release $(addprefix tests/browser/test_,book.py chapter_04.py \
          chapters.py live.py predict.py replay.py)
# not of `make check`: tests that start processes, browsers or whole chapters, or train for long
LONG   := browser $(addprefix test_,bundled.py chapters.py commands.py diagnosis.py equality.py \
          laboratory.py loop.py memory.py monitor.py policies.py run_folders.py runs.py \
          token_record.py token_values.py wheel.py)

# the ends of pyproject's range; each is installed into a folder that stands before the venv's
TRLS   := 'trl==1.13.*' 'trl>=1.13,!=1.15.*,<2'

.PHONY: lab test check audit chapters release pythons trls core bench portable gpu book lock lint clean

lab: $(READY)
	$(BIN)/python -m workbook lab $(ARGS)

# One worker for the browser, one for the rest, whose kernels and processes keep two cores busy.
test: $(READY) lint
	$(BIN)/python -m pytest -n 2 --no-loadscope-reorder $(ASIDE:%=--ignore=%)

check: $(READY) lint
	$(BIN)/python -m pytest -n 2 $(ASIDE:%=--ignore=%) $(LONG:%=--ignore=tests/%)

audit: $(READY)
	$(BIN)/python -m pytest -n 2 tests/research
	PYTHONPATH=tests $(BIN)/python -m audit $(ARGS)

chapters: $(READY)
	$(BIN)/python -m pytest -n 2 tests/release/test_every_chapter.py

release: $(READY) chapters pythons
	WORKBOOK_TEST_COLAB=1 WORKBOOK_THOROUGH=1 $(BIN)/python -m pytest -n 2 --no-loadscope-reorder \
	  tests/release tests/browser tests/test_colab.py --ignore=tests/release/test_every_chapter.py

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

bench: $(READY)
	$(BIN)/python tests/bench.py $(ARGS)

portable: $(READY)
	$(BIN)/python tests/portable.py $(ARGS)

gpu: $(READY)
	$(BIN)/python -m pytest -m gpu $(ARGS)

book: $(READY)
	$(BIN)/python -m workbook chapters --profile teach --in-place --book build/book

lock:
	$(PYTHON) -m venv build/uv
	build/uv/bin/python -m pip install --disable-pip-version-check -q uv
	build/uv/bin/uv pip compile -q --universal --python-version 3.11 --no-annotate \
	  --extra all --extra lab --extra dev pyproject.toml -o constraints.txt $(ARGS)

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
