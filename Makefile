# Every task of the project. `make help` lists them.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN_STAMP := $(VENV)/.running
STAMP := $(VENV)/.installed
PROTO_STAMP := $(VENV)/.proto
WHEELS_STAMP := $(VENV)/.wheels-installed
BENCH_STAMP := $(VENV)/.bench-installed
TASKS_STAMP := $(VENV)/.tasks-installed
FUZZ_STAMP := $(VENV)/.fuzz-installed
SUPPLY_STAMP := $(VENV)/.supply-installed
NATIVE_STAMP := $(VENV)/.native-installed
# The hot loops are compiled in place by then.
INSTALL := DUETIME_PURE=1 $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
RUNNING := -e './sdk[cli]' -e .
ALL := -e './sdk[cli]' -e '.[spark,dev]'
# RocketMQ's messages, in a descriptor pool of their own.
WIRE := services/producer_gw/duetime_gateway/rocketmq/wire
# Optional wheels in Rust, and their sources.
NATIVE := client front raft
NATIVE_SOURCES := $(wildcard native/Cargo.* native/protoc native/.cargo/* native/*/Cargo.toml native/*/pyproject.toml native/*/*.pyi native/*/src/*.rs)
SOURCES := format sdk core shard services spark console $(NATIVE:%=native/%) deploy tests bench examples
TWINS := $(wildcard format/*/*.p?[xd] services/*/*/_*.pyx services/*/*/*/_*.pyx spark/*/*/_*.p??)

# Runs a proof and records its result; the command finds a seed in SEED.
PROVE := $(BIN)/python -m tests.proofs run
# Tests of the gate that belong to a proof run with it.
WHOLE := -m "proof or not proof"

BUILT_FROM := pyproject.toml sdk/pyproject.toml constraints.txt sdk/hatch_build.py deploy/environment.py $(TWINS)

.PHONY: help setup native java run test copies proof proofs copies-kills copies-cuts proof-store proof-spark proof-rest broker-test clients kills clients-kills repeat compose-test k8s-test upgrade-test release-fixtures hostile fuzz sanitize requirements sbom wheels soak console-soak console-pictures console-vendor check prose format proto sync torture explore lives races transactions bench bench-any-time bench-turns bench-tls bench-rocketmq bench-spark bench-console bench-docs docs tape clean

help: ## list the tasks
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(STAMP) ## make .venv with all that running, testing and checking need
	@git config core.hooksPath .githooks 2>/dev/null || true

# $(call install,PACKAGES): into .venv, which is made where there is none.
define install
	@$(PYTHON) deploy/environment.py $(1)
	@touch $(RUN_STAMP) $@
endef

$(STAMP): $(BUILT_FROM)
	@echo "installing DueTime into $(VENV), with what testing and checking need: two minutes or more"
	$(call install,$(ALL))

# What `make run` needs, and no more.
$(RUN_STAMP): $(BUILT_FROM)
	@echo "installing DueTime and what it needs into $(VENV): a minute or two"
	$(call install,$(RUNNING))

native: $(NATIVE_STAMP) ## build the optional wheels in Rust into .venv; needs cargo

# Their builds are isolated: pip fetches maturin and protoc for them, and cargo the crates of native/Cargo.lock.
$(NATIVE_STAMP): $(STAMP) $(NATIVE_SOURCES)
	@PATH="$$PATH:$(HOME)/.cargo/bin"; command -v cargo >/dev/null || { echo "no cargo: install Rust, see https://rustup.rs" >&2; exit 1; }; \
	  echo "building $(NATIVE:%=native/%): a minute or two the first time" && \
	  $(INSTALL) --no-deps --force-reinstall $(NATIVE:%=./native/%)
	@touch $@

# What Spark runs on; no part of Python's packages.
java:
	@"$${JAVA_HOME:+$$JAVA_HOME/bin/}java" -version >/dev/null 2>&1 || { \
	  command -v apt-get >/dev/null && test "$$(id -u)" = 0 || \
	    { echo "no Java: what runs on Spark will not; install Java 17 or newer, or set JAVA_HOME" >&2; exit 0; }; \
	  echo "installing openjdk-17-jre-headless" && apt-get update -qq && \
	  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends openjdk-17-jre-headless >/dev/null; }

run: $(RUN_STAMP) ## start the cluster on this machine and show delayed messages arrive
	@exec $(BIN)/duetime up --demo

# Where there is room, the files of tests are in memory: nothing here outlives a test, and proofs run on the disk. Tests
# make programs too, which containers forbid there.
IN_MEMORY := $(shell [ "$$(df --output=avail -k /dev/shm 2>/dev/null | tail -n 1)" -ge 8388608 ] 2>/dev/null && \
  [ "$$(sed -n 's/^MemAvailable: *\([0-9]*\).*/\1/p' /proc/meminfo)" -ge 12582912 ] && \
  ! grep -q ' /dev/shm .*noexec' /proc/mounts && echo TMPDIR=/dev/shm)

test: setup java ## every test that finds a fault quickly: ten minutes; WORKERS=1 runs them one after the other
	$(IN_MEMORY) $(BIN)/pytest -n $(or $(WORKERS),3) --dist loadfile --no-loadscope-reorder --randomly-seed=$$($(BIN)/python -m tests.seeds)

proof: setup ## all that `make test` leaves out: hours; each target below that is recorded in proofs.json, one after the other
	@failed=; for target in $$($(BIN)/python -m tests.proofs list); do $(MAKE) $$target || failed="$$failed $$target"; done; \
	  [ -z "$$failed" ] || { echo "FAILED:$$failed" >&2; exit 1; }

proofs: setup ## the last result of each proof, its commit, and the changes since
	@$(BIN)/python -m tests.proofs show

proof-store: setup ## proof: every power cut and example of the store's tests
	$(PROVE) $@ '$(BIN)/pytest -m proof -n 2 --dist worksteal tests/store tests/format tests/scheduler tests/retry tests/outbox tests/fuzz'

proof-spark: setup java ## proof: every job on every kind of store, on a cluster of two workers too
	$(PROVE) $@ '$(BIN)/pytest -m proof tests/spark'

proof-rest: setup java ## proof: wheels, the tutorial, official Python clients, one more way of the command
	$(PROVE) $@ '$(BIN)/pytest -m proof -n 2 --dist loadfile $(addprefix --ignore=tests/,brokers crash fuzz format hostile outbox retry scheduler soak spark store)'

clients: setup ## proof: RocketMQ's official Node, Java, Go and Rust clients and KEDA's Go stubs, unmodified; needs node, maven, go, cargo and their registries
	$(PROVE) $@ '$(BIN)/pytest tests/clients -m clients -n 3 --dist loadgroup -p no:randomly $(if $(CLIENT),-k $(CLIENT))'

broker-test: setup ## proof: real RocketMQ brokers, 5.3.3 and 5.5.1, continue exports; needs java, maven and its registry
	$(PROVE) $@ '$(BIN)/pytest tests/brokers -m proof -p no:randomly'

kills: setup ## proof: kill -9 of every process and of consumers; KILLS=200 MESSAGES=20000 SEED=
	$(PROVE) $@ 'DUETIME_TEST_KILLS=$(or $(KILLS),200) DUETIME_TEST_MESSAGES=$(or $(MESSAGES),20000) \
	  $(BIN)/pytest -s $(WHOLE) tests/crash --ignore tests/crash/test_rocketmq_kills.py -p no:randomly'

clients-kills: setup ## proof: RocketMQ's official Python and Go clients under kill -9 of gateways and stores; MESSAGES=20000 SEED=
	$(PROVE) $@ 'DUETIME_TEST_MESSAGES=$(or $(MESSAGES),20000) $(BIN)/pytest -s $(WHOLE) tests/crash/test_rocketmq_kills.py -p no:randomly'

repeat: setup java ## one test many times or until it fails, beside busy loops; TEST=tests/core/test_bell.py TIMES=50 LOAD=2
	$(BIN)/python -m tests.loaded $(or $(LOAD),0) $(BIN)/pytest -q -x $(WHOLE) --count $(or $(TIMES),20) $(TEST)

compose-test: setup ## proof: build the images, and docker compose up under kills, scaling and an upgrade; needs a Docker engine
	$(PROVE) $@ 'DUETIME_TEST_REQUIRE_COMPOSE=1 $(BIN)/pytest tests/compose -m compose -s'

check: setup ## lint, types, import rules, spelling, links, prose, commits, generated code
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/mypy examples/*.py deploy/site/*.py tests/crash/*.py tests/soak/*.py tests/fuzz/{__main__,guided,sanitize}.py tests/proofs.py
	$(BIN)/lint-imports
	$(BIN)/python -m deploy.site.check
	$(BIN)/python -m tests.tidy.prose
	$(PYTHON) deploy/commits.py --new
	$(BIN)/codespell README.md CHANGELOG.md Makefile docs proto $(SOURCES)
	$(MAKE) proto sync
	git diff --exit-code --stat -- sdk/duetime/v1 sdk/duetime/client/sync/clients.py $(WIRE)

prose: setup ## lower the exceptions of prose to the present counts: tests/tidy/prose.txt
	$(BIN)/python -m tests.tidy.prose --lower

docs: setup ## the documents as a site that needs no other host: dist/site/html; a broken link fails
	$(BIN)/python -m deploy.site.build

tape: setup ## record the demonstration as the picture of the README: docs/pictures/tape.svg
	$(BIN)/python -m deploy.site.tape

format: setup ## format the code and mend what ruff can
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

# The newest protoc whose code every protobuf from 5 on takes: later ones write code for their own runtime and the next.
$(PROTO_STAMP): Makefile
	$(PYTHON) -m venv --clear $(VENV)/protoc
	$(VENV)/protoc/bin/python -m pip install --quiet --disable-pip-version-check 'grpcio-tools==1.62.3' 'setuptools<81'
	@touch $@

PROTOC := $(VENV)/protoc/bin/python -W ignore -m grpc_tools.protoc
proto: setup $(PROTO_STAMP) ## generate duetime.v1, and RocketMQ's messages, from proto/
	$(PROTOC) -Iproto --python_out=sdk --pyi_out=sdk --grpc_python_out=sdk proto/duetime/v1/*.proto
	$(PROTOC) -Iproto/apache/rocketmq/v2 --python_out=$(WIRE) --pyi_out=$(WIRE) proto/apache/rocketmq/v2/messaging.proto
	sed -i -e 's/^from google.protobuf import descriptor_pool as _descriptor_pool$$/from duetime_gateway.rocketmq.wire import pool as _descriptor_pool/' \
	  -e 's/_descriptor_pool.Default()/_descriptor_pool.POOL/' $(WIRE)/messaging_pb2.py

sync: setup ## generate the synchronous clients from the asynchronous ones
	$(BIN)/python sdk/make_sync.py

torture: setup ## proof: 1,000 crashes, most of them power cuts, and after each: is all there; batches cut at every byte; POINTS=1000 MINUTES=40 SEED=
	$(PROVE) $@ 'POINTS=$(or $(POINTS),1000) MINUTES=$(or $(MINUTES),40) $(BIN)/python -m tests.crash.torture && \
	  CUT_STEP=1 $(BIN)/pytest -q -n 2 $(WHOLE) tests/store/test_batches.py -k any_byte'

explore: setup ## proof: tests by examples, with new ones each time; RUNS=2000 of each test
	$(PROVE) $@ 'RUNS=$(or $(RUNS),2000) $(BIN)/pytest -q -n $(or $(WORKERS),2) $(WHOLE) --hypothesis-profile=explore --timeout 3000 \
	  $$(grep -rl --include="test_*.py" hypothesis tests)'

lives: setup ## proof: thousands of lives of pending messages against a sorted list, through crashes and power cuts; RUNS=3000
	$(PROVE) $@ 'RUNS=$(or $(RUNS),3000) $(BIN)/pytest -q $(WHOLE) --hypothesis-profile=explore --timeout 3000 tests/store/test_pending_state_machine.py tests/store/test_schedule_lives.py'

copies: setup native ## proof: groups of three and five copies in one process, by seeds: faults, then equal logs; needs cargo; RUNS=10000 SEED=
	$(PROVE) $@ 'RUNS=$(or $(RUNS),10000) $(BIN)/python -m tests.copies'

copies-kills: setup native ## proof: a shard of three processes under load, whose copies are killed and stopped; needs cargo; KILLS=60 SEED=
	$(PROVE) $@ 'DUETIME_TEST_KILLS=$(or $(KILLS),60) $(BIN)/pytest -s $(WHOLE) tests/copies/test_processes.py'

copies-cuts: setup native ## proof: a shard of three processes under load, whose network is cut, with right and wrong clocks; needs cargo; CUTS=13 SEED=
	$(PROVE) $@ 'DUETIME_TEST_CUTS=$(or $(CUTS),13) $(BIN)/pytest -s $(WHOLE) tests/copies/test_cuts.py -p no:randomly'

races: setup ## proof: cancels, reschedules and replacements at the moment when messages fall due; PAIRS=100000 KILLS=0 SEED=
	$(PROVE) $@ 'PAIRS=$(or $(PAIRS),100000) KILLS=$(or $(KILLS),0) $(BIN)/python -m tests.crash.races'

transactions: setup ## proof: transactions while gateway, store and producers are killed; TXS=20000 KILLS=60 SEED=
	$(PROVE) $@ 'TXS=$(or $(TXS),20000) KILLS=$(or $(KILLS),60) $(BIN)/python -m tests.crash.transactions'

k8s-test: setup ## proof: deploy/k8s and the Helm chart on a real cluster: pods die, updates roll, 1,000 messages are accounted for; KUBECONFIG= K8S_LOAD=
	$(PROVE) $@ 'tests/kubernetes/run'

upgrade-test: setup ## proof: a loaded cluster of the last release is stopped or killed, and becomes this version's
	$(PROVE) $@ '$(BIN)/pytest tests/upgrade -m upgrade -s'

release-fixtures: setup ## what tests/upgrade keeps of the release that tests/upgrade/release.py names; once for each release
	$(BIN)/python -m tests.upgrade.make_release

hostile: setup ## proof: an adversary with valid requests, slow connections, full disks and lost databases; an hour at most
	$(PROVE) $@ '$(BIN)/pytest tests/hostile $(WHOLE) -s -p no:randomly'

fuzz: $(FUZZ_STAMP) ## proof: hostile bytes for every decoder; what is found stays in tests/fuzz/corpus; COUNT=10000000 SEED= TARGETS=
	$(PROVE) $@ '$(BIN)/python -m tests.fuzz --count $(or $(COUNT),10000000) --seed $$SEED $(TARGETS)'

sanitize: setup ## proof: the compiled twins under ASan and UBSan: their tests, and hostile bytes; needs gcc
	$(PROVE) $@ '$(BIN)/python -m tests.fuzz.sanitize .sanitize'

soak: setup ## proof: ten minutes of mixed delays on segments that soon leave, on a fast clock; MINUTES=10 SEED=
	$(PROVE) $@ 'DUETIME_SOAK_MINUTES=$(or $(MINUTES),10) $(BIN)/pytest $(WHOLE) tests/soak -s'

console-soak: setup ## proof: a day of the cluster on a fast clock: the console's memory does not grow; MINUTES=0 HOURS=24
	$(PROVE) $@ 'DUETIME_CONSOLE_SOAK_HOURS=$(or $(HOURS),24) DUETIME_CONSOLE_SOAK_MINUTES=$(or $(MINUTES),0) $(BIN)/pytest $(WHOLE) tests/console/test_soak.py -s'

console-pictures: setup ## take the console's pictures for the documents: docs/pictures/console-*.png; needs chromium
	$(BIN)/python -m tests.console.pictures

requirements: $(SUPPLY_STAMP) ## the images' packages with their hashes, by constraints.txt: deploy/docker/requirements-*.txt
	$(BIN)/python deploy/docker/lock.py

sbom: $(SUPPLY_STAMP) ## what the images' packages are, and the crates of the wheels that `make native` built, as CycloneDX: dist/sbom/
	@mkdir -p dist/sbom
	for image in servers spark; do $(BIN)/cyclonedx-py requirements --output-reproducible --of JSON --sv 1.6 \
	  --pyproject pyproject.toml --mc-type application -o dist/sbom/$$image.cdx.json deploy/docker/requirements-$$image.txt || exit 1; done
	$(foreach wheel,$(NATIVE),cp $(VENV)/lib/python3*/site-packages/duetime_$(wheel)-*.dist-info/sboms/*.json dist/sbom/ 2>/dev/null || echo "native/$(wheel) is not built";)

wheels: $(WHEELS_STAMP) ## dist/: both distributions as sources, the client for any platform, and both compiled for each Python here; PYTHONS=
	$(BIN)/python deploy/wheels.py $(PYTHONS)

bench: setup $(if $(PEERS),$(BENCH_STAMP)) $(if $(findstring tasks,$(PEERS)),$(TASKS_STAMP)) ## measure beside a PostgreSQL queue and a bare grpcio echo; PEERS=all: and more servers; PEERS=tasks: Celery, dramatiq, Taskiq
	$(BIN)/python -m bench $(if $(PEERS),--peers $(PEERS))

bench-any-time: setup ## many due at one instant, and millions pending for any time; PENDING=10000000 INSTANT=500000
	$(BIN)/python -m bench.any_time --pending $(or $(PENDING),10000000) --instant $(or $(INSTANT),500000)

bench-turns: setup ## processor time a message beside another tree's, in turns; BASE=../base TURNS=12
	$(BIN)/python -m bench.turns --base $(BASE) --turns $(or $(TURNS),12)

bench-tls: setup ## what TLS and tokens cost, beside a plain cluster, in turns
	$(BIN)/python -m bench.tls

bench-rocketmq: setup ## RocketMQ's calls beside a bare grpcio echo of them; IDLE=1000: what so many idle push consumers cost
	$(BIN)/python -m bench.rocketmq $(if $(IDLE),--idle $(IDLE))

bench-spark: setup java ## the backlog on Spark, and lateness beside it; PENDING=20000000
	$(BIN)/python -m bench.spark jobs --pending $(or $(PENDING),20000000)
	$(BIN)/python -m bench.spark beside

bench-console: setup ## time of the console's pages, with 10 messages pending and with many; needs chromium; PENDING=10000000
	$(BIN)/python -m bench.console --pending $(or $(PENDING),10000000)

bench-docs: setup $(BENCH_STAMP) ## write the last run into docs/benchmarks.md, with its pictures
	$(BIN)/python -m bench.report --into --pictures

$(BENCH_STAMP): $(STAMP)
	$(INSTALL) -e ./sdk -e '.[bench]'
	@touch $@

$(TASKS_STAMP): $(STAMP)
	$(INSTALL) -e ./sdk -e '.[tasks]'
	@touch $@

$(FUZZ_STAMP): $(STAMP)
	$(INSTALL) -e ./sdk -e '.[fuzz]'
	@touch $@

$(WHEELS_STAMP): $(RUN_STAMP)
	$(INSTALL) -e ./sdk -e '.[wheels]'
	@touch $@

$(SUPPLY_STAMP): $(STAMP)
	$(INSTALL) -e ./sdk -e '.[supply]'
	@touch $@

console-vendor: ## fetch the console's scripts of others, by version and hash: console/duetime_console/static/vendor
	$(PYTHON) deploy/console_vendor.py

clean: ## remove what the tasks made, the data directory excepted
	rm -rf $(VENV) dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .fuzz .sanitize native/target
