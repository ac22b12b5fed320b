# `make demo` and `make test` install what is missing, ask nothing, and leave nothing running or mounted.

CARGO ?= cargo
PREFIX ?= /usr/local
DESTDIR ?=
# Arguments for the demo and the bench: `make demo ARGS=--quick`.
ARGS ?=
# The crash simulation for hours: so many times the runs of the tests, from this seed on.
TIMES ?= 100
FIRST ?= 1000000

# The fuzzers: which target (all of them, one after the other, if none is named), for how many seconds each; and for how many a soak lasts.
TARGET ?=
TIME ?= 600

# Lives of caching volumes in which a daemon is killed, at each provider.
LIVES ?= 1000

# A cloud to try: a configuration with the section of its provider, and what to rent.
CONFIG ?= /etc/surgetank/surgetank.toml
TYPE ?=

# The tests are built once, with the bugs that some of them plant. Named in the whole workspace, not by package: what is built serves all.
TESTED := --workspace --features surgetank-sim/planted-bugs,surgetank-readcache/planted-bugs,surgetank-pool-core/planted-bugs,surgetank-pool/planted-bugs,surgetank-allocation/planted-bugs,surgetank-hierarchy/planted-bugs,surgetank-mrc/planted-bugs,surgetank-whatif/planted-bugs

# The simulation's tests, and those that no other group has.
SIMULATED := crash array_crashes members liveness limit read_cache_life read_cache_model models rows simulated_pool
OTHERS := $(filter-out $(SIMULATED) pool mount d% in_% planted%,$(sort $(basename $(notdir $(wildcard */tests/*.rs crates/*/tests/*.rs)) $(notdir $(patsubst %/main.rs,%,$(wildcard */tests/*/main.rs crates/*/tests/*/main.rs))))))
named = $(addprefix --test ,$(1))

# What finds them there passes without a bug, as `test-pool` has seen.
FOUND_WITHOUT := --skip kept:: --skip objects:: --skip objects_faults:: --skip room:: --skip sharing:: --skip sparse::

.PHONY: help reproduce reproduce-sim validate economy demo test test-units test-product test-daemon test-pool test-simulation sim soak fuzz bench lab lives bench-peers bench-arrays bench-pool bench-objects pool-programs pool-slurm python cloud-aws cloud-gce cloud-azure cloud-openstack cuts outages replay systemd lint fmt build install uninstall clean

help:
	@echo 'make demo     a burst on a real file system: boosted, drained, verified, billed (ARGS=--quick: 40 s; ARGS=--array: volumes on burst credits; --pool: a staging pool)'
	@echo 'make test     style, layout and licence checks, then all tests'
	@echo 'make sim      the crash tests for hours (TIMES=100 times the runs of make test, seeds from FIRST=1000000)'
	@echo 'make soak     hostile clients beside a good one (TIME=600 seconds)'
	@echo 'make fuzz     libFuzzer on every parser and on recovery (TARGET=nbd: one alone; TIME=600 seconds each)'
	@echo 'make bench    the bars of docs/BENCHMARKS.md against their peers (ARGS=--quick: smaller runs)'
	@echo 'make lab      scenarios in guests under QEMU (ARGS=FILE: one; see docs/LAB.md), power cuts in switches, make systemd'
	@echo 'make lives    lives of caching volumes over files, at OpenStack itself and at fakes of clouds, with kills of the daemon (LIVES=1000 at each: hours)'
	@echo 'make bench-peers  the kernel'\''s caches and surgetank in one guest (ARGS="--scale 0.25 --rounds 1": shorter)'
	@echo 'make bench-arrays  mdadm'\''s array, lvmcache and ours in one guest (ARGS=--quick: three minutes in place of ten)'
	@echo 'make bench-pool  a checkpoint into a staging pool, SeaweedFS, JuiceFS, MooseFS and GlusterFS over throttled servers (ARGS="256 3 64": theirs on disks of 64 MiB/s)'
	@echo 'make bench-objects  a drain to an object store beside a plain multipart upload to it (ARGS="512 3 96": MiB, rounds, MiB/s of a link before the store)'
	@echo 'make pool-programs  torch, h5py, Orbax, LAMMPS, pjdfstest, fio and others on a mounted pool (ARGS="torch h5py": these alone)'
	@echo 'make python   the Python package: its wheel, its types, and its tests on pools of real processes (ARGS="-k flush": these alone)'
	@echo 'make pool-slurm  jobs with #BB_LUA lines under a Slurm of its own, over staging pools (ARGS=--planted: with bugs that it must find)'
	@echo 'make cloud-aws CONFIG=FILE  the provider'"'"'s contract and a burst on your account, for at most 0.10 USD; also cloud-gce, cloud-azure, cloud-openstack (TYPE=NAME: another volume type)'
	@echo 'make reproduce  the papers'"'"' bonnie++ and LAMMPS on slow, fast and elastic disks in one guest (ARGS=--full: hours)'
	@echo 'make cuts     guests killed in every phase over disks that lose what was not flushed (ARGS="--cuts 8")'
	@echo 'make outages  a mounted file system whose volumes stall, fail, are unplugged and come back (ARGS="--outages 12")'
	@echo 'make replay   power cuts at the flushes of a log of all writes, with fsck (ARGS="--points 15 --boosts 1": shorter)'
	@echo 'make systemd  a Debian guest that does what the README says, then kills, reboots, cuts (ARGS=--short)'
	@echo 'make reproduce-sim  the papers'"'"' applications, burstable arrays, cache allocation and a staging pool at full scale in the simulator, beside their tables (ARGS=--arrays, --allocation or --pool: these alone)'
	@echo 'make validate  what the simulator predicts of the demo, beside what it measures (ARGS=--lab: also of a guest)'
	@echo 'make economy  docs/ECONOMY.md again, from the catalog: what elastic devices cost in money beside static volumes'
	@echo 'make lint     style, layout and licence checks alone'
	@echo 'make fmt      format the sources'
	@echo 'make build    the release binary alone'
	@echo 'make install  surgetank, its unit file, man pages and completions (PREFIX=/usr/local, DESTDIR=)'
	@echo 'make uninstall  removes those again'
	@echo 'make clean    remove what was built'

demo:
	@scripts/setup demo
	$(CARGO) run --release --quiet --package surgetank-cli --bin surgetank -- demo $(ARGS)

test:
	@scripts/setup test
	@$(MAKE) --no-print-directory lint
	scripts/slurm/functions
	$(CARGO) test $(TESTED) --doc
	$(CARGO) test $(TESTED) --lib --bins --tests --examples --no-run
	@$(MAKE) --no-print-directory --jobs=3 --output-sync=target --keep-going test-pool test-daemon test-simulation test-units test-product

# Side by side, those first that wait the longest: tests of the product wait for volumes and timers; the simulation takes the processors that
# they leave, after the tests whose names begin with d (the demo alone waits for longer than most others).
test-units:
	$(CARGO) test $(TESTED) --lib --bins --examples --no-fail-fast

# More at a time than there are processors: most of them wait for leases to end most of the time.
test-pool:
	RUST_TEST_THREADS=3 $(CARGO) test $(TESTED) --test pool --test mount --no-fail-fast

test-daemon:
	$(CARGO) test $(TESTED) --test 'in_*' --no-fail-fast

test-product:
	$(CARGO) test $(TESTED) $(call named,$(OTHERS)) --no-fail-fast

test-simulation:
	$(CARGO) test $(TESTED) --test 'd*' --no-fail-fast
	nice -n 19 $(CARGO) test $(TESTED) $(call named,$(SIMULATED)) --no-fail-fast
	nice -n 19 $(CARGO) test $(TESTED) --test 'planted*' --no-fail-fast -- --nocapture $(FOUND_WITHOUT)

sim:
	@scripts/setup test
	SURGETANK_FIRST=$(FIRST) SURGETANK_TIMES=$(TIMES) $(CARGO) test --package surgetank-sim --package surgetank-pool-core --test crash --test array_crashes --test members --test read_cache_life --test models --test rows --test simulated_pool

soak:
	@scripts/setup test
	SURGETANK_SOAK_S=$(TIME) $(CARGO) test --release --package surgetank-daemon --test in_child hostile:: -- --nocapture

fuzz:
	@CARGO='$(CARGO)' scripts/fuzz '$(TIME)' $(TARGET)

bench:
	@scripts/setup bench
	$(CARGO) build --release --package surgetank-cli
	$(CARGO) lab bench $(ARGS)

lab:
	@scripts/setup lab
	$(CARGO) lab run $(ARGS)
	$(if $(ARGS),,SURGETANK_CUTS=57 $(CARGO) test --package surgetank-daemon --test in_child -- --ignored --skip ::guest_ --test-threads=1 --nocapture)
	$(if $(ARGS),,$(CARGO) test --package surgetank-cli --test pool -- --ignored --test-threads=1 --nocapture)
	$(if $(ARGS),,@$(MAKE) --no-print-directory systemd)

lives:
	@scripts/setup test
	SURGETANK_LIVES=$(LIVES) $(CARGO) test --workspace --test in_child lifecycles:: -- --test-threads=1 --nocapture

bench-peers:
	@scripts/setup lab
	$(CARGO) build --release --package surgetank-cli
	$(CARGO) lab peers $(ARGS)

bench-arrays:
	@scripts/setup lab
	$(CARGO) build --release --package surgetank-cli
	$(CARGO) lab arrays $(ARGS)

bench-pool:
	@scripts/setup bench
	$(CARGO) bench --package surgetank-mount --bench throttled --no-run
	scripts/pool-peers $(ARGS)

bench-objects:
	@scripts/setup test
	$(CARGO) build --release --package surgetank-pool --example objects
	scripts/pool-objects $(ARGS)

pool-programs:
	@scripts/setup programs
	$(CARGO) build --release --package surgetank-cli
	scripts/pool-programs $(ARGS)

pool-slurm:
	@scripts/setup slurm
	$(CARGO) build --release --package surgetank-cli
	scripts/pool-slurm $(ARGS)

python:
	@scripts/setup python
	$(CARGO) build --release --package surgetank-cli
	scripts/pool-python $(ARGS)

# On the machine that rents, with its [provider.…] section. What a run leaves that was interrupted, the next one deletes.
cloud-aws cloud-gce cloud-azure cloud-openstack:
	SURGETANK_CLOUD=$(@:cloud-%=%) SURGETANK_CLOUD_CONFIG='$(CONFIG)' SURGETANK_CLOUD_TYPE='$(TYPE)' \
		$(CARGO) test --workspace --test cloud -- --ignored --nocapture --exact on_an_account

reproduce:
	@scripts/setup reproduce
	$(CARGO) build --release --package surgetank-cli
	$(CARGO) lab reproduce $(ARGS)

cuts outages replay systemd:
	@scripts/setup lab
	$(CARGO) build --release --package surgetank-cli
	$(CARGO) lab $@ $(ARGS)

reproduce-sim:
	$(CARGO) build --release --package surgetank-cli
	$(CARGO) lab reproduce-sim $(ARGS)

economy:
	$(CARGO) lab economy

validate:
	@scripts/setup $(if $(findstring --lab,$(ARGS)),lab,demo)
	$(CARGO) build --release --package surgetank-cli
	$(CARGO) lab validate $(ARGS)

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	$(CARGO) xtask check

fmt:
	$(CARGO) fmt --all

build:
	$(CARGO) build --release --package surgetank-cli

install: build
	CARGO='$(CARGO)' PREFIX='$(PREFIX)' DESTDIR='$(DESTDIR)' scripts/install

uninstall:
	PREFIX='$(PREFIX)' DESTDIR='$(DESTDIR)' scripts/install --remove

clean:
	$(CARGO) clean
