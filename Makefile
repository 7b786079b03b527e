# One place for every command. The environment is made when it is missing or pyproject.toml changed.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
export PYTHONDONTWRITEBYTECODE ?= 1

.PHONY: demo up test test-vllm check fmt bench soak image-check dashboards dashboards-images clean
.DEFAULT_GOAL := test

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

demo: $(STAMP)  ## the main job in about a minute: direct, then through kvgate
	$(BIN)/kvgate demo

up: $(STAMP)  ## the compose file's cpu profile as processes, until Ctrl-C
	@$(BIN)/python deploy/up.py

test: check  ## everything that runs without a real vLLM
	@$(BIN)/python tests/e2e/console/browser.py  # brings a Chromium where there is none
	@$(BIN)/python tests/passes.py

test-vllm: $(STAMP)  ## acceptance against the real vLLM CPU wheel (environment cached outside the checkout)
	$(BIN)/python tests/vllm/environment.py ensure
	$(BIN)/pytest -m vllm tests/vllm

check: $(STAMP)  ## lint, format, types, import contracts, unit tests: before every commit
	$(BIN)/ruff check --no-cache .
	$(BIN)/ruff format --no-cache --check .
	$(BIN)/mypy
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/pytest -n logical --dist loadfile tests/unit

fmt: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(STAMP)  ## performance claims, measured side by side in one run
	$(BIN)/python bench/relay.py

soak: $(STAMP)  ## the long forms of the soaks and fuzzers
	KVGATE_SOAK=1 $(BIN)/pytest -m soak --timeout 1800 tests

image-check:  ## build the container image and try it; needs root, buildah and debootstrap, some minutes
	deploy/check_image.sh

dashboards: $(STAMP)  ## grafana/dashboards/*.json, after a change in grafana/ or of a metric
	PYTHONPATH=grafana $(BIN)/python -m kvgate_dashboards

dashboards-images: dashboards  ## the pictures of them, from a real run and a real Prometheus (two minutes)
	PYTHONPATH=tests:deploy:grafana $(BIN)/python -m support.watched_pictures

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache dist build
