# What a newcomer, a developer and CI need. `make demo` and `make test` set up all that they use.
BIN := .venv/bin
# The first time people see that it moves; later most of it is there already. Python compiles what is used when it is
# used: compiling everything would take as long as installing it.
PIP := $(BIN)/python -m pip install --disable-pip-version-check --no-compile $(if $(wildcard .venv/installed*),--quiet)
LOCK := uv pip compile --quiet --generate-hashes --universal --no-emit-index-url --python-version 3.11

.PHONY: install demo test gates gate-ruff gate-types gate-darwin gate-imports screenshots lock clean
install: .venv/installed

demo: install
	@$(BIN)/exo-celery demo

test: gates $(if $(CI),.venv/installed-judges)
	@$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder --reruns 1 $(if $(CI),--durations 60,-m "not slow")

# Two at a time; the two type checks keep caches of their own, or each would empty the other's.
gates: .venv/installed-dev
	@$(MAKE) --no-print-directory -j 2 -O gate-darwin gate-types gate-ruff gate-imports

gate-ruff:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

gate-types:
	$(BIN)/mypy

gate-darwin:
	$(BIN)/mypy --platform darwin --cache-dir .mypy_cache/darwin

gate-imports:
	@$(BIN)/lint-imports

screenshots: .venv/installed-dev
	@PYTHONPATH=tests:tests/integration $(BIN)/python tests/browser/screenshots.py docs/images

lock:
	$(LOCK) pyproject.toml -o requirements/runtime.txt
	$(LOCK) requirements/build.in -o requirements/build.txt
	$(LOCK) requirements/dev.in -o requirements/dev.txt
	$(LOCK) requirements/judges.in -o requirements/judges.txt

clean:
	rm -rf .venv .exo .mypy_cache .ruff_cache .pytest_cache .import_linter_cache

.venv/bin/python:
	@sh requirements/make-venv.sh .venv

.venv/installed: .venv/bin/python requirements/runtime.txt requirements/build.txt pyproject.toml
	@echo "Installing exo_celery and what it needs into .venv (minutes the first time) …"
	@$(PIP) --require-hashes -r requirements/runtime.txt -r requirements/build.txt
	@$(PIP) --quiet --no-deps --no-build-isolation -e .
	@touch $@

.venv/installed-dev: .venv/installed requirements/dev.txt
	@echo "Installing what the tests need …"
	@$(PIP) --require-hashes -r requirements/dev.txt
	@touch $@

.venv/installed-judges: .venv/installed-dev requirements/judges.txt
	@echo "Installing the clients that judge the API …"
	@$(PIP) --require-hashes -r requirements/judges.txt
	@touch $@
