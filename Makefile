# The two commands are `make demo` and `make test`. Each does all of its own set-up (scripts/setup).

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VENV := .venv
TARGET := $(or $(CARGO_TARGET_DIR),$(CURDIR)/target)
PYTHON := $(VENV)/bin/python

.PHONY: help demo test test-rust test-python lint bench pictures nightly setup clean

help:            ## What can be made
	@grep -E '^[a-z-]+: .*##|^[a-z]+:  +##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup:           ## Installs what is missing: as root on Debian; else says what to install
	@scripts/setup test

demo:            ## Real applications: a greedy caller and who is refused; an overload, without and with shedding
	@scripts/setup demo
	@demo/run

test: setup lint test-rust test-python  ## Every test: Rust, Python, the two together

lint:            ## Formatting and lints, where this toolchain has them
	@scripts/lint

test-rust:       ## Rust alone; the engine also under a checker that runs its threads in many orders
	cargo test --locked
	SEEDS=$${SEEDS:-20} cargo test --locked --profile simulation --test shedding
	cargo test --locked --lib --features interleavings engine::interleavings

test-python:     ## Python alone, with the daemon that `test-rust` has built
	cargo build --locked
	TIDEGATE_BIN=$(TARGET)/debug/tidegate $(PYTHON) -m pytest -q clients/python/tests tests/python

bench:           ## Speed and memory beside a reference, in one run; the figures of docs/performance.md
	@scripts/setup bench
	benches/run

pictures:        ## The pictures of docs/algorithms.md, from what `tidegate replay` decides, and of docs/shedding.md
	@scripts/setup pictures
	cargo build --locked
	$(PYTHON) docs/pictures/draw.py $(TARGET)/debug/tidegate
	cargo test --locked --profile simulation --test shedding csv
	$(PYTHON) docs/pictures/shedding.py $(TARGET)/tmp/shedding

nightly:         ## Long properties; hours are welcome
	@scripts/setup test
	@if cargo deny --version >/dev/null 2>&1; then cargo deny --locked check licenses bans sources; \
	  else echo "cargo-deny is missing: nobody looks at licenses and sources (cargo install cargo-deny --locked)"; fi
	PROPTEST_CASES=$${CASES:-100000} SEEDS=$${SEEDS:-20} TWO_DAEMONS=100 KILLS=$${KILLS:-100} cargo test --release --locked
	INTERLEAVINGS=$${SCHEDULES:-200000} cargo test --release --locked --lib --features interleavings engine::interleavings
	cargo test --release --locked --test engine --test memory -- --ignored --nocapture
	SEEDS=$${SEEDS:-20} cargo test --release --locked --test shedding -- --ignored
	cargo build --locked
	KILLS=$${KILLS:-100} TIDEGATE_BIN=$(TARGET)/debug/tidegate $(PYTHON) -m pytest -q -s \
	  tests/python/test_restarts.py tests/python/test_upgrades.py tests/python/test_passed_socket.py

clean:           ## Removes everything that was built
	cargo clean
	rm -rf $(VENV)
