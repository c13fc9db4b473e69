# Two commands do everything after `git clone`: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
CHROMIUM := { test "$$(id -u)" = 0 && command -v apt-get && apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends chromium; } >/dev/null 2>&1

.PHONY: demo test lint format slow bench clean

demo: .venv/.demo
	$(BIN)/ziggurat train nest/digits --out demo/nest --overwrite
	$(BIN)/ziggurat train nest/digits --model timm/deit_tiny_patch16_224 --out demo/deit --overwrite
	$(BIN)/ziggurat eval demo/nest
	$(BIN)/ziggurat eval demo/deit
	$(BIN)/python -c "from ziggurat.data.images import open_images as o; o('digits').test.image(7).save('demo/digit.png')"
	$(BIN)/ziggurat explain demo/nest demo/digit.png --out demo/explained.png --overwrite
	$(BIN)/ziggurat info nest_tiny --picture demo/nest_tiny.png --overwrite
	$(BIN)/ziggurat report demo/nest demo/deit --out demo/report.html --overwrite
	@echo "Look at demo/report.html (and, from there, at each run's own report) and demo/explained.png."

test: lint
	$(BIN)/pytest --numprocesses logical --maxprocesses 4 --dist worksteal

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
	$(BIN)/ziggurat bench nest_tiny hvt_s_1 rest_small hivit_tiny regionvit_s --peers

.venv/.demo: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet -e '.[demo]'
	touch $@

.venv/.test: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet -e '.[test]'
	@command -v chromium >/dev/null || $(CHROMIUM) || echo "no chromium: the page is not tested"
	touch $@ .venv/.demo

clean:
	rm -rf .venv demo build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache
