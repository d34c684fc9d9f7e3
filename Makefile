# Everything a developer or a machine does here, by name. `make help` lists it.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTEST := $(BIN)/python -m pytest
SOURCES := platform functions connectors runtime tests examples

.DEFAULT_GOAL := help
.PHONY: help setup servers fmt lint types test unit property simulate integration clients compat-java chaos soak bench bench-peers demo cluster check wheel proto lock clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Magnetar needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1). Set PYTHON=..."; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	$(BIN)/python -m compileall -q $(filter-out tests examples,$(SOURCES))
	@touch $@

setup: $(STAMP) ## make .venv with everything, `magnetar` in .venv/bin

fmt: setup ## format and sort imports
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)

lint: setup ## ruff, and the house rules
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)

types: setup ## mypy, strict
	$(BIN)/mypy

servers: ## what tests need and pip cannot bring: etcd
	@command -v etcd >/dev/null || test -n "$$MAGNETAR_ETCD" \
	  || { test "$$(id -u)" = 0 && apt-get update -qq && apt-get install -y -qq --no-install-recommends etcd-server >/dev/null; } \
	  || echo "etcd is missing: apt-get install etcd-server, or set MAGNETAR_ETCD to its program; tests of it will fail"

WORKERS ?= 2
test: setup servers ## every test: unit, property, simulation, integration with real servers
	$(PYTEST) -n $(WORKERS) --dist worksteal tests/unit tests/property tests/simulation
	$(PYTEST) -n $(WORKERS) --dist loadfile tests/integration tests/compatibility --ignore=tests/integration/spark
	$(PYTEST) tests/integration/spark tests/clients tests/chaos

unit: setup ## the fast tests only
	$(PYTEST) tests/unit tests/property

property: setup ## property tests and fuzzing of the parsers
	$(PYTEST) tests/property

SEEDS ?= 100
FIRST ?= 0
JOBS ?= 2
simulate: setup ## seeded worlds: SEEDS=n FIRST=k JOBS=m of each; SEED=17 tells one again
	$(BIN)/python -m magnetar.simulation $(if $(SEED),--seed $(SEED),--seeds $(SEEDS) --first $(FIRST) --jobs $(JOBS)) $(if $(WORLD),--world $(WORLD))

integration: setup servers ## real ZooKeeper, Spark, processes and the official client
	$(PYTEST) tests/integration tests/compatibility

clients: setup ## tours of the Java, Go and Node clients, pulsar-admin and pulsar-perf
	$(PYTEST) tests/clients

compat-java: setup ## the same for Java only: fetched from Maven Central, left out where Maven or Java is missing
	$(PYTEST) tests/clients/test_java_client.py tests/clients/test_pulsar_admin.py tests/clients/test_pulsar_perf.py

chaos: setup ## a real cluster under load while everything goes wrong: MINUTES=2 SEED=k
	$(BIN)/python -m magnetar.testing.chaos --minutes $(or $(MINUTES),2) $(if $(SEED),--seed $(SEED))

soak: setup ## 200 topics, 2,000 connections coming and going, two kills: MINUTES=30 SEED=k
	$(BIN)/python -m magnetar.testing.soak --minutes $(or $(MINUTES),30) $(if $(SEED),--seed $(SEED))

bench-peers: setup ## beside Apache Pulsar, Redis and RabbitMQ streams, in one run; writes docs/benchmarks.md
	test -x .cache/peers/venv/bin/python || $(PYTHON) -m venv .cache/peers/venv
	.cache/peers/venv/bin/python -m pip install --quiet --disable-pip-version-check -r tests/benchmarks/peers/requirements.txt
	$(BIN)/python -m tests.benchmarks.peers --clients .cache/peers/venv/bin/python --write docs/benchmarks.md

bench: setup ## throughput, latency, CPU per message and memory, each beside a raw probe
	$(BIN)/python -m tests.benchmarks

demo: setup ## the main job on real data: which airport and which airline runs late, hour by hour
	$(BIN)/python examples/flights/demo.py

cluster: setup ## 3 ZooKeepers, 4 bookies, 2 brokers and a worker on this machine, until Ctrl-C
	@exec $(BIN)/python -m magnetar.cli.local_cluster $(DATA)

check: lint types test ## what CI runs

wheel: setup ## build the distribution
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .

proto: setup ## generate protobuf code again
	$(BIN)/python -m magnetar.protocol.generate

lock: setup ## resolve the locked dependencies again (needs uv)
	uv pip compile --quiet pyproject.toml --all-extras --group dev --generate-hashes --universal --python-version 3.11 \
	  --no-header --no-annotate --no-emit-index-url --output-file requirements.lock

clean: ## remove the virtual environment and all caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis dist build out
