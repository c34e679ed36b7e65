# The two commands are `make demo` and `make test`. Each does all of its own set-up (scripts/setup).

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VENV := .venv
TARGET := $(or $(CARGO_TARGET_DIR),$(CURDIR)/target)
PYTHON := $(VENV)/bin/python

PYTEST := env TIDEGATE_BIN=$(TARGET)/debug/tidegate $(PYTHON) -m pytest

# Builds the daemon together with a test, so that it has the features of `cargo test`.
BUILD := cargo build --locked --package tidegate --bin tidegate --test memory

# The stages of `make test`. Those with real processes run one after another: those of CLIENTS as soon as there is a daemon, those of
# REAL when the Rust tests are built. Beside them, at lower priority, this build, and the stages that only compute. The lints of files
# and what needs no daemon run beside the build of the daemon, which leaves a processor idle while it compiles the library.
CLIENTS := python ruby go roulette
REAL := daemon redis
# Not the idle class: the kernel lets a process that watches files exit only after every reader of file events has run again.
IDLE := nice -n 19
COMPUTED := simulations pure memory examples

# Builds test programs with clippy in the same pass, if installed.
LINTED := $(shell clippy-driver --version >/dev/null 2>&1 && echo CLIPPY_ARGS=-Dwarnings RUSTC_WORKSPACE_WRAPPER=$(CURDIR)/scripts/rustc_linted)

# Not incrementally, which is slower for a single build.
LINTED_ONCE := CARGO_INCREMENTAL=0 $(LINTED)

# Time limit of `make test`.
TIME_MAX := 25m

NIGHTLY := $(addprefix nightly-,sources tests interleavings measured race fleet restarts clients conformance proxies page packages release migrate fuzz sanitizer mutants)

.PHONY: help demo test quick lint bench race pictures book packages release nightly $(NIGHTLY) setup clean lanes $(addprefix test-,$(CLIENTS) $(REAL) $(COMPUTED) binary client programs files timing node java php rust)

help:            ## Lists the targets
	@grep -E '^[a-z-]+: .*##|^[a-z]+:  +##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup:           ## Installs missing tools: as root on Debian; else lists them
	@scripts/setup test
	@scripts/setup packages

demo:            ## Real applications: a greedy caller; an overload, without and with shedding; one budget for three hosts, for three applications
	@scripts/setup demo
	@demo/run

test:            ## Every test: Rust, Python, Ruby, Go, and these together; the time of each stage at the end
	@scripts/setup test
	@rm -rf $(TARGET)/test && mkdir -p $(TARGET)/test
	@timeout --foreground $(TIME_MAX) $(MAKE) --no-print-directory lanes || \
	  { echo "failed, or longer than $(TIME_MAX):"; sort $(TARGET)/test/times; tail -n +1 $(TARGET)/test/*.failed; exit 1; }
	@sort $(TARGET)/test/times

# A shell makes background jobs ignore SIGINT and SIGQUIT, with which tests end their daemons: `--default-signal`.
STAGES := $(MAKE) -k --no-print-directory BUILT=1
lanes:
	@failed=0; { scripts/setup packages && $(STAGES) test-files test-client; } & files=$$!; \
	$(IDLE) $(STAGES) BUILT= test-binary || { wait; exit 1; }; \
	$(IDLE) $(STAGES) BUILT= test-programs & programs=$$!; wait $$files || failed=1; \
	env --default-signal $(STAGES) $(addprefix test-,$(CLIENTS)) & clients=$$!; \
	wait $$programs || { wait; exit 1; }; \
	$(IDLE) $(STAGES) -j2 $(addprefix test-,$(COMPUTED)) & computed=$$!; \
	wait $$clients || failed=1; env --default-signal $(STAGES) $(addprefix test-,$(REAL)) || failed=1; \
	wait $$computed || failed=1; $(STAGES) test-timing && exit $$failed

quick:           ## Half a minute, and a build of what changed: the rooms' own tests, one daemon, one client
	@$(LINTED) scripts/stage quick-programs scripts/programs unit pure daemon
	@scripts/stage quick-unit $(TARGET)/test/unit
	@scripts/stage quick-pure $(TARGET)/test/pure engine:: vectors:: rules:: limit::
	@scripts/stage quick-daemon $(TARGET)/test/daemon --test-threads 4 server::judging server::frames server::hello server::leases
	@scripts/stage quick-client $(PYTEST) -q clients/python/tests/test_client.py clients/python/tests/test_vectors.py

lint: test-files  ## Formatting and lints, where this toolchain has them
	@scripts/stage clippy scripts/lint clippy

# Builds the daemon, as the test programs do.
test-binary:
	@$(if $(BUILT),:,$(LINTED_ONCE) scripts/stage binary scripts/with_packages $(BUILD))

# Builds all test programs. The stages below run them by path, without cargo's lock.
test-programs:
	@$(if $(BUILT),:,$(LINTED_ONCE) scripts/stage programs scripts/programs)

test-files:
	@scripts/stage files scripts/lint files

test-pure: test-programs
	@scripts/stage pure sh -c '$(TARGET)/test/unit && $(TARGET)/test/pure'

test-memory: test-programs
	@scripts/stage memory $(TARGET)/test/memory

test-daemon: test-programs
	@scripts/stage daemon $(TARGET)/test/daemon --test-threads 6 --skip timing::

# Alone, after the lanes: it compares times.
test-timing: test-programs
	@env --default-signal scripts/stage timing $(TARGET)/test/daemon --test-threads 1 timing::

test-redis: test-programs
	@scripts/stage redis $(TARGET)/test/redis --test-threads 6

test-simulations: test-programs
	@scripts/stage simulations sh -c '$(TARGET)/test/shedding && $(TARGET)/test/fleet'

test-examples: test-programs
	@$(LINTED_ONCE) scripts/stage examples cargo test --locked --package tidegate --doc

test-python: test-binary
	@TIDEGATE_BIN=$(TARGET)/debug/tidegate scripts/stage python $(PYTHON) -m pytest -q -rs -n 2 --dist loadgroup -m "not (nightly or simulated or without_daemon)"

# The Python client against a scripted daemon. Also builds the Go client's tests.
test-client:
	@scripts/stage client sh -c '$(PYTHON) -m pytest -q -rs -n 2 clients/python/tests -m without_daemon && cd clients/go && go test -race -run "^$$" ./... && cd grpc && go test -race -run "^$$" ./...'

test-ruby: test-binary
	@TIDEGATE_BIN=$(TARGET)/debug/tidegate scripts/stage ruby clients/ruby/test/run

test-go: test-binary
	@TIDEGATE_BIN=$(TARGET)/debug/tidegate scripts/stage go sh -c 'cd clients/go && go test -count=1 -race -parallel 8 ./... && cd grpc && go test -count=1 -race ./...'

# One client through tests/conformance: $(call CONFORMS,NAME).
CONFORMS = { [ -x $(PYTHON) ] || scripts/setup packages; } && $(PYTHON) -m pytest -q -rs tests/conformance -k "test_client and $(1)-"

# Not a stage of `make test`: it needs npm and 65 MB of development dependencies.
test-node: test-binary
	@TIDEGATE_BIN=$(TARGET)/debug/tidegate scripts/stage node sh -c 'clients/node/test/run && $(call CONFORMS,node)'

# Not a stage of `make test`: it needs a JDK 17, Maven and 90 MB of packages.
test-java: test-binary
	@TIDEGATE_BIN=$(TARGET)/debug/tidegate scripts/stage java sh -c 'clients/java/test/run && $(call CONFORMS,java)'

# Not a stage of `make test`: it needs php-fpm, nginx and PHPUnit.
test-php: test-binary
	@scripts/setup php
	@TIDEGATE_BIN=$(TARGET)/debug/tidegate scripts/stage php sh -c 'clients/php/test/run && $(call CONFORMS,php)'

# Not a stage of `make test`, which is at its time limit: it builds tokio and the client.
test-rust: test-binary
	@TIDEGATE_BIN=$(TARGET)/debug/tidegate scripts/stage rust sh -c 'clients/rust/test/run && $(call CONFORMS,rust)'

test-roulette: test-binary
	@TIDEGATE_BIN=$(TARGET)/debug/tidegate scripts/stage roulette $(PYTHON) -m pytest -q -rs -n 2 tests/roulette

packages:        ## The .deb and the .rpm of a release build, in target/debian
	cargo build --release --locked
	packaging/build deb
	packaging/build rpm

release:         ## The files of a release in target/release-files, and the command that publishes each; uploads nothing
	@scripts/setup release
	$(PYTHON) packaging/release

bench:           ## Speed and memory beside a reference; the figures of docs/performance.md, and which miss their musts
	@scripts/setup bench
	@scripts/setup race
	benches/run

# ROUNDS=1 takes two minutes.
race:            ## The daemon and other limiters in turn, in one run: a table of ratios, and target/race.json for the chart of docs/performance.md
	@scripts/setup race
	cargo bench --locked --package tidegate-benches --bench sockets -- --only race --reps $${ROUNDS:-5} --seconds 1 --race $(TARGET)/race.json

pictures:        ## The pictures of docs/: decisions of `tidegate replay`, the demo, shedding, the fleet, and the daemon's page
	@scripts/setup pictures
	cargo build --locked
	$(PYTHON) docs/pictures/draw.py $(TARGET)/debug/tidegate
	$(PYTHON) docs/pictures/terminal.py $(TARGET)/debug/tidegate
	cargo test --locked --profile simulation --test shedding csv -- --ignored
	$(PYTHON) docs/pictures/shedding.py $(TARGET)/tmp/shedding
	cargo test --locked --profile simulation --test fleet csv -- --ignored
	$(PYTHON) docs/pictures/fleet.py $(TARGET)/tmp/fleet
	$(PYTHON) docs/pictures/page.py $(TARGET)/debug/tidegate

# The book has the files that its pages link to, so that it needs no address of the repository.
BOOK := *.md docs clients/*/*.md LICENSE benches/sockets config demo packaging tests/vectors
book:            ## The pages as a site, in target/book/html; needs mdbook (cargo install mdbook --locked)
	@rm -rf $(TARGET)/book && mkdir -p $(TARGET)/book/src
	@git ls-files -zco --exclude-standard -- $(BOOK) | xargs -0 cp --parents -t $(TARGET)/book/src
	@cd $(TARGET)/book/src && cp docs/book.toml . && sed -E 's,\]\(,&docs/,; s,docs/\.\./,,' docs/SUMMARY.md >SUMMARY.md && rm docs/SUMMARY.md
	@mdbook build $(TARGET)/book/src --dest-dir $(TARGET)/book/html

nightly:         ## Long tests, for hours. A failed target does not stop the others
	@scripts/setup test
	@scripts/setup packages
	@env --default-signal $(MAKE) -k -j1 --no-print-directory $(NIGHTLY)

# Checks lints (with benchmarks, which `make test` does not build), links in docs of all items, and dependencies. The database of advisories needs the network.
nightly-sources:
	@scripts/lint clippy
	@RUSTDOCFLAGS="-Dwarnings -Arustdoc::private_intra_doc_links" cargo doc --quiet --locked --no-deps --lib --document-private-items
	@if ! cargo deny --version >/dev/null 2>&1; then echo "SKIPPED: licenses, bans and sources need cargo-deny (cargo install cargo-deny --locked)"; \
	  else cargo deny --locked check bans licenses sources && \
	  if cargo deny fetch db >/dev/null 2>&1; then cargo deny --locked check --disable-fetch advisories; \
	  else echo "SKIPPED: advisories: cannot fetch their database"; fi; fi

nightly-tests:
	PROPTEST_CASES=$${CASES:-100000} SEEDS=$${SEEDS:-20} TWO_DAEMONS=$${TWO_DAEMONS:-100} KILLS=$${KILLS:-100} TREES=$${TREES:-20000} STOPS=$${STOPS:-200} \
	  FUZZ_MUTATIONS=$${FUZZ_MUTATIONS:-20} TIMES=$${TIMES:-4} \
	  cargo test --profile nightly --locked --no-fail-fast

nightly-interleavings:
	INTERLEAVINGS=$${SCHEDULES:-200000} cargo test --profile nightly --locked --test interleavings \
	  --features interleavings

nightly-measured:
	cargo test --profile nightly --locked --no-fail-fast --test daemon --test memory -- --ignored --nocapture
	SEEDS=$${SEEDS:-20} cargo test --profile nightly --locked --test shedding -- --include-ignored

# Every server of the race takes part, or prints why not.
nightly-race:
	ROUNDS=1 $(MAKE) --no-print-directory race

nightly-fleet:
	RUNS=$${FLEET_RUNS:-100000} cargo test --profile nightly --locked --test fleet -- --include-ignored
	cargo test --profile nightly --locked --test redis -- --ignored --nocapture --test-threads 1
	cargo test --profile nightly --locked --test shedding csv -- --ignored
	$(PYTEST) -q -m simulated tests/python/test_pictures.py

nightly-restarts:
	$(BUILD)
	KILLS=$${KILLS:-100} $(PYTEST) -q -s \
	  tests/python/test_restarts.py tests/python/test_upgrades.py tests/python/test_passed_socket.py tests/python/test_pictures.py -m "not simulated"

nightly-clients: test-node test-java test-php test-rust
	$(BUILD)
	@$(PYTHON) -m pip install --quiet --disable-pip-version-check pyright==1.1.414 || echo "SKIPPED: pyright cannot be installed"
	REQUESTS=$${REQUESTS:-50000} FORKED_REQUESTS=$${FORKED_REQUESTS:-10000} FLIPS=$${FLIPS:-5000} \
	  $(PYTEST) -q -s -rs tests/clients tests/migrate/test_pages.py::test_quickstart_of_express tests/python/test_demo.py \
	  clients/python/tests/test_types.py

# Every client, and the scenarios that wait for half a minute.
nightly-conformance: test-node test-java test-php test-rust
	$(BUILD)
	$(PYTEST) -q -rs -n 2 --dist loadgroup tests/conformance

# nginx, Caddy and Envoy before an application, as docs/http.md and docs/envoy.md configure them.
nightly-proxies:
	@scripts/setup proxies
	$(BUILD)
	$(PYTEST) -q -s -rs tests/python/test_http_proxies.py tests/python/test_envoy_page.py

# Tests that `make test` skips without a browser (300 MB), and the book without mdbook.
nightly-page:
	@scripts/setup page
	$(BUILD)
	$(PYTEST) -q -rs tests/python/test_page.py tests/python/test_report.py tests/packages/test_docs.py

# An hour of new seeds, which are printed. ROULETTE=FILE: appends a line of JSON per run.
NIGHTLY += nightly-roulette
.PHONY: nightly-roulette
nightly-roulette:
	$(BUILD)
	TIDEGATE_BIN=$(TARGET)/debug/tidegate $(PYTHON) tests/roulette --seconds 120 --faults 120 --slices $${SLICES:-28} \
	  --results $${ROULETTE:-$(TARGET)/roulette.jsonl}

nightly-packages:
	$(BUILD)
	$(PYTEST) -q -rs tests/packages

# Beside the files of a release, the chart that `make test` skips without helm.
nightly-release: release
	$(BUILD)
	$(PYTEST) -q -rs tests/packages/test_release.py tests/packages/test_containers.py

# Tests that `make test` skips without nginx, and the rate limit service of Envoy with a Redis: also random trees beside it.
nightly-migrate:
	@scripts/setup migrate
	$(BUILD)
	$(PYTEST) -q -rs tests/migrate

# Ten minutes per target. New inputs stay in fuzz/corpus; docs/testing.md describes how to add them to tests/corpora.
nightly-fuzz:
	@scripts/fuzz $${FUZZ_SECONDS:-600}

nightly-sanitizer:
	@scripts/sanitizer

# A sample of untried mutants; appends results to target/mutants/results.tsv.
nightly-mutants:
	@scripts/mutants --sample $${MUTANTS:-200} --seed $${SEED:-1}

clean:           ## Removes all build results
	cargo clean
	rm -rf $(VENV)
