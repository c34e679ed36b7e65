# The two commands are `make demo` and `make test`. Each does all of its own set-up (scripts/setup).

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VENV := .venv
TARGET := $(or $(CARGO_TARGET_DIR),$(CURDIR)/target)
PYTHON := $(VENV)/bin/python

PYTEST := TIDEGATE_BIN=$(TARGET)/debug/tidegate $(PYTHON) -m pytest

# What failed is tried once more, and that is told: these drive real processes in real time (scripts/test_rust says why).
again = { echo "TRIED AGAIN: what failed"; $(1) && echo "PASSED AT THE SECOND TRY"; }

# With a test beside it, so that what it depends on is what `cargo test` has built: without one, features differ.
BUILD := cargo build --locked --bin tidegate --test pure token_bucket::

NIGHTLY := $(addprefix nightly-,sources tests interleavings measured fleet restarts clients page packages migrate)

.PHONY: help demo test test-rust test-python test-go test-ruby test-packages packages lint bench pictures nightly $(NIGHTLY) setup clean

help:            ## What can be made
	@grep -E '^[a-z-]+: .*##|^[a-z]+:  +##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup:           ## Installs what is missing: as root on Debian; else says what to install
	@scripts/setup test

demo:            ## Real applications: a greedy caller; an overload, without and with shedding; three hosts and one budget
	@scripts/setup demo
	@demo/run

test: setup lint test-rust test-python test-packages test-ruby test-go  ## Every test: Rust, Python, Ruby, Go, and these together

lint:            ## Formatting and lints, where this toolchain has them
	@scripts/lint

test-rust:       ## Rust alone; the engine also under a checker that runs its threads in many orders
	scripts/test_rust
	SEEDS=$${SEEDS:-20} RUNS=$${RUNS:-2000} cargo test --locked --profile simulation --test shedding --test fleet
	cargo test --locked --lib --features interleavings engine::interleavings

test-python:     ## Python alone, with the daemon that `test-rust` has built
	$(BUILD)
	$(PYTEST) -q clients/python/tests tests/python || $(call again,$(PYTEST) -q --lf --lfnf=none clients/python/tests tests/python)
	$(PYTEST) -q -s -rs tests/clients || $(call again,$(PYTEST) -q -s -rs --lf --lfnf=none tests/clients)
	$(PYTEST) -q -rs -m "not nightly" tests/migrate || $(call again,$(PYTEST) -q -rs -m "not nightly" --lf --lfnf=none tests/migrate)

test-go:         ## Go alone, under its race detector, with the daemon that `test-rust` has built
	$(BUILD)
	cd clients/go && export TIDEGATE_BIN=$(TARGET)/debug/tidegate && go test -race ./... || $(call again,go test -race ./...)
	cd clients/go/grpc && go test -race ./... || $(call again,go test -race ./...)

test-packages:   ## The .deb: what is in it, a machine in which it is installed, and every link of the documentation
	$(BUILD)
	$(PYTEST) -q -rs -m "not nightly" tests/packages || $(call again,$(PYTEST) -q -rs -m "not nightly" --lf --lfnf=none tests/packages)

packages:        ## The .deb and the .rpm of a release build, in target/debian
	cargo build --release --locked
	packaging/build deb
	packaging/build rpm

test-ruby:       ## Ruby alone, with the daemon that `test-rust` has built
	$(BUILD)
	TIDEGATE_BIN=$(TARGET)/debug/tidegate clients/ruby/test/run

bench:           ## Speed and memory beside a reference, in one run; the figures of docs/performance.md
	@scripts/setup bench
	benches/run

pictures:        ## The pictures of docs/: from what `tidegate replay` decides, of shedding and the fleet, and of the daemon's page
	@scripts/setup pictures
	cargo build --locked
	$(PYTHON) docs/pictures/draw.py $(TARGET)/debug/tidegate
	cargo test --locked --profile simulation --test shedding csv
	$(PYTHON) docs/pictures/shedding.py $(TARGET)/tmp/shedding
	cargo test --locked --profile simulation --test fleet csv
	$(PYTHON) docs/pictures/fleet.py $(TARGET)/tmp/fleet
	$(PYTHON) docs/pictures/page.py $(TARGET)/debug/tidegate

nightly:         ## Long properties; hours are welcome. What fails keeps nothing else from being tried
	@scripts/setup test
	@$(MAKE) -k -j1 --no-print-directory $(NIGHTLY)

nightly-sources:
	@if cargo deny --version >/dev/null 2>&1; then cargo deny --locked check licenses bans sources; \
	  else echo "cargo-deny is missing: nobody looks at licenses and sources (cargo install cargo-deny --locked)"; fi

nightly-tests:
	PROPTEST_CASES=$${CASES:-100000} SEEDS=$${SEEDS:-20} TWO_DAEMONS=$${TWO_DAEMONS:-100} KILLS=$${KILLS:-100} TREES=$${TREES:-20000} STOPS=$${STOPS:-200} \
	  cargo test --profile nightly --locked --no-fail-fast

nightly-interleavings:
	INTERLEAVINGS=$${SCHEDULES:-200000} cargo test --profile nightly --locked --lib --features interleavings \
	  engine::interleavings

nightly-measured:
	cargo test --profile nightly --locked --no-fail-fast --test daemon host:: --test memory --test daemon state:: -- --ignored --nocapture
	SEEDS=$${SEEDS:-20} cargo test --profile nightly --locked --test shedding -- --ignored

nightly-fleet:
	RUNS=$${FLEET_RUNS:-100000} cargo test --profile nightly --locked --test fleet -- --include-ignored
	cargo test --profile nightly --locked --test redis fleet_real:: -- --ignored --nocapture --test-threads 1

nightly-restarts:
	$(BUILD)
	KILLS=$${KILLS:-100} $(PYTEST) -q -s \
	  tests/python/test_restarts.py tests/python/test_upgrades.py tests/python/test_passed_socket.py

nightly-clients:
	$(BUILD)
	REQUESTS=$${REQUESTS:-50000} FORKED_REQUESTS=$${FORKED_REQUESTS:-10000} FLIPS=$${FLIPS:-5000} \
	  $(PYTEST) -q -s -rs tests/clients

# What `make test` skips where there is no browser: one is 300 MB.
nightly-page:
	@scripts/setup page
	$(BUILD)
	$(PYTEST) -q -rs tests/python/test_page.py tests/python/test_report.py

nightly-packages:
	$(BUILD)
	$(PYTEST) -q -rs tests/packages

# What `make test` skips where there is no nginx, and the rate limit service of Envoy with a Redis.
nightly-migrate:
	@scripts/setup migrate
	$(BUILD)
	$(PYTEST) -q -rs tests/migrate

clean:           ## Removes everything that was built
	cargo clean
	rm -rf $(VENV)
