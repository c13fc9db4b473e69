# Two commands do everything after `git clone`: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint format slow bench clean

demo: .venv/.demo
	$(BIN)/ziggurat models
	mkdir -p demo
	$(BIN)/ziggurat info nest_tiny --picture demo/nest_tiny.png --overwrite
	$(BIN)/ziggurat info hivit_tiny --picture demo/hivit_tiny.png --overwrite
	@echo "Look at demo/nest_tiny.png and demo/hivit_tiny.png: each stage's map of a photo (random weights)."

test: lint
	$(BIN)/pytest

lint: .venv/.test
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/mypy
	$(BIN)/lint-imports

format: .venv/.test
	$(BIN)/ruff format src tests benchmarks
	$(BIN)/ruff check --fix src tests benchmarks

slow: .venv/.test
	$(BIN)/pytest -m slow

bench: .venv/.test
	$(BIN)/python benchmarks/peers.py

.venv/.demo: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet -e '.[demo]'
	touch $@

.venv/.test: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet -e '.[test]'
	touch $@ .venv/.demo

clean:
	rm -rf .venv demo build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache
