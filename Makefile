# Every target does its own set-up, in .venv; what is set up already is not done again.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check
ITERATIONS ?= 3000

.PHONY: help train test test-short test-long test-quick test-lowest test-newest test-pythons test-gpu lint docs bench-cpu bench-data bench-classify bench-gpu bench-memory bench-setup bench-kernels bench-train bench-scaling bench-comm bench-comm-cpu bench-recurrent bench-infer bench-real bench-sizes clean fuzz differential bench-servers papers papers-gpu bench-predict bench-comm-profile bench-ranks bench-designs grpc-peer projects
.DELETE_ON_ERROR:

help:
	@echo "make train      train LeNet on handwritten digits, $(ITERATIONS) iterations (ITERATIONS=N)"
	@echo "make train GPU=1   the same on an NVIDIA GPU, with what that takes"
	@echo "make test       run ruff, mypy and the tests, on all cores (WORKERS=N: on N)"
	@echo "make test-long run the few tests that make test leaves out, as they take long"
	@echo "make test-quick run the tests that take no long time, a minute in all"
	@echo "make test-lowest   run them in a new environment, with the lowest versions of what osucaffe needs"
	@echo "make test-newest   the same with the newest, and mypy"
	@echo "make test-pythons  the same with each of Python $(PYTHONS) that is here"
	@echo "make fuzz       run mutated inputs of all kinds for SECONDS=600 (SEED=1): none may crash or hang"
	@echo "make soak       kill, stop and starve training ROUNDS=100 times; every resume gives the same bits"
	@echo "make differential  compare random nets with PyTorch in float64, SECONDS=600 (SEED=1, WORKERS=N),"
	@echo "                and random pycaffe sessions, solvers and data layers with plain models"
	@echo "                with GPU=1 PRECISION=fp32, tf32 or bf16 and PYTHON=... on a GPU machine"
	@echo "                WRITE=1: add the counts of these three to benchmarks/results"
	@echo "make test-gpu   run the tests that need a GPU, on a machine that has one"
	@echo "make lint       run ruff and mypy only"
	@echo "make docs       write the documentation as a site to site/, every link checked"
	@echo "make projects   run public projects' own commands in clones, PROJECTS=folder (docs/projects.md)"
	@echo "make bench-cpu  measure training on the CPU side by side with PyTorch"
	@echo "make bench-data read LMDBs side by side with PyTorch's DataLoader; PYTHON=... on a GPU machine"
	@echo "make bench-gpu  the same on a GPU, beside JAX, too, where it is (needs CuPy, cuDNN and PyTorch for CUDA)"
	@echo "make bench-memory  the largest batches that cards of 8, 16 and 24 GB train, beside PyTorch's"
	@echo "make bench-setup  how long training takes to start on a GPU, cold and warm"
	@echo "make bench-kernels  what each way of computing a convolution is worth, on a GPU"
	@echo "make bench-train  whole programs that train from files, beside PyTorch's; PYTHON=... on a GPU machine"
	@echo "make bench-scaling  training on 2 and 4 GPUs, beside PyTorch DDP"
	@echo "make bench-recurrent  an LSTM beside torch.nn.LSTM; PYTHON=... on a GPU machine"
	@echo "make bench-infer  forward passes beside OpenCV, ONNX Runtime and PyTorch; PYTHON=... on a GPU machine"
	@echo "make bench-classify  photos from files through osucaffe classify; PYTHON=... on a GPU machine"
	@echo "make bench-real DIR=...  forward passes of a folder of trained models beside OpenCV (THREADS=2 BUSY=0)"
	@echo "make bench-sizes  a detector that changes size in each pass, and what that takes"
	@echo "make bench-comm  all collectives on 2, 4 .. GPUs, beside NCCL"
	@echo "make bench-comm-cpu  all collectives on CPUs, beside the MPI library's (MAX_MB=16)"
	@echo "make grpc-peer  build/grpc_peer, plain gRPC in C++ for python -m benchmarks.rpc.bench_rpc --peer (Debian: libgrpc++-dev)"
	@echo "make bench-servers  parameter servers by each channel, beside a ring"
	@echo "make bench-designs  time to 98.5 % of MNIST by design, on links of 200 Mbit/s to 10 Gbit/s; needs root"
	@echo "make papers     what the published systems' figures would be with our designs, predicted"
	@echo "make papers-gpu  what of their figures is measured on GPUs (2 or more); PYTHON=..."
	@echo "make bench-ranks  several ranks on a GPU under MPS, by --ranks_per_gpu auto; PYTHON=..."
	@echo "make bench-comm-profile  processor time that train --comm_profile costs"
	@echo "make bench-predict  predictions beside real runs, on this machine and between namespaces"
	@echo "make clean      remove the environment, the data and everything else made here"

# The extra for the CUDA that an NVIDIA driver here runs; nothing where there is none.
CUDA ?= $(addprefix cuda,$(filter 12 13,$(shell nvidia-smi 2>/dev/null | \
	sed -n 's/.*CUDA[^:]*Version: *\([0-9]*\).*/\1/p' | awk '{ print ($$1 > 13) ? 13 : $$1 }')))
ON_GPU = $(filter 1,$(GPU))
train: $(if $(ON_GPU),$(VENV)/gpu.stamp) $(VENV)/run.stamp data/mnist/mnist_train_lmdb/data.mdb
	$(BIN)/osucaffe train --solver models/lenet/solver.prototxt --max_iter $(ITERATIONS) $(if $(ON_GPU),--gpu 0)
	@$(if $(ON_GPU),,$(if $(CUDA),echo "This ran on the CPU. There is an NVIDIA GPU: make train GPU=1"))

# Tests start hundreds of programs: without bytecode each would compile every module anew.
unexport PYTHONDONTWRITEBYTECODE

# Tests that start several ranks go to one worker, one after the other.
WORKERS ?= auto
ON_ALL  = --numprocesses $(WORKERS) --maxprocesses 16 --dist loadgroup
# Both at once: the type checker takes one core only.
test: $(VENV)/dev.stamp
	@$(MAKE) --no-print-directory --jobs=2 lint test-short

test-short: $(VENV)/dev.stamp
	$(BIN)/pytest $(ON_ALL) -m "not long"

test-long: $(VENV)/dev.stamp
	$(BIN)/pytest $(ON_ALL) -m long

test-quick: $(VENV)/dev.stamp
	$(BIN)/pytest $(ON_ALL) -m "not slow and not ranks and not long"

# New environments. EXTRAS=dev,cuda13 runs the tests on a GPU, too.
EXTRAS ?= dev
NEW    ?= $(VENV)-newest
FRESH   = rm -rf $(1) && $(PYTHON) -m venv $(1) && $(1)/bin/python -m pip --disable-pip-version-check \
	install --quiet $(2) --editable '.[$(EXTRAS)]'

test-lowest:
	$(PYTHON) tests/project/lowest.py $(EXTRAS) > $(VENV)-lowest.txt
	$(call FRESH,$(VENV)-lowest,--constraint $(VENV)-lowest.txt)
	$(VENV)-lowest/bin/pytest $(ON_ALL)

test-newest:
	$(call FRESH,$(NEW))
	$(NEW)/bin/mypy --python-executable $(NEW)/bin/python
	$(NEW)/bin/pytest $(ON_ALL)

PYTHONS ?= 3.11 3.12 3.13 3.14
test-pythons:
	@for version in $(PYTHONS); do \
		found=; \
		for each in python$$version $${PYENV_ROOT:-$$HOME/.pyenv}/versions/$$version.*/bin/python; do \
			if $$each -c '' 2> /dev/null; then found=$$each; fi; \
		done; \
		if [ -z "$$found" ]; then absent="$$absent $$version"; continue; fi; \
		$(MAKE) test-newest PYTHON=$$found NEW=$(VENV)-$$version || exit 1; \
		ran="$$ran $$version"; \
	done; \
	echo "Ran with Python$${ran:- none}; not here:$${absent:- none}."

test-gpu: $(VENV)/$(or $(CUDA),cuda13).stamp
	$(BIN)/pytest -m gpu

SECONDS ?= 600
SEED    ?= 1
PRECISION ?= fp32
fuzz: $(VENV)/dev.stamp
	$(BIN)/python -m tests.fuzz --seconds $(SECONDS) --seed $(SEED) $(if $(WRITE),--write)

# On a GPU nets take all of the time; on CPUs a third, on an emulated GPU a sixth if there is g++, and
# sessions, solvers and data layers the rest.
differential: $(if $(filter python3,$(PYTHON)),$(VENV)/differential.stamp)
	$(if $(filter python3,$(PYTHON)),$(BIN)/python,$(PYTHON)) -m tests.differential \
		--seconds $(if $(ON_GPU),$(SECONDS),$$(($(SECONDS) / 3))) \
		--seed $(SEED) $(if $(filter-out auto,$(WORKERS)),--workers $(WORKERS)) \
		$(if $(ON_GPU),--gpu --precision $(PRECISION)) $(if $(WRITE),--write)
	@$(if $(ON_GPU),,! command -v g++ > /dev/null || $(BIN)/python -m tests.differential --emulated --wide \
		--seconds $$(($(SECONDS) / 6)) --seed $(SEED))
	@$(if $(ON_GPU),,for each in sessions settings.solvers settings.data; do \
		$(BIN)/python -m tests.differential.$$each --seconds $$(($(SECONDS) / 6)) --seed $(SEED) || exit 1; done)

ROUNDS ?= 100
soak: $(VENV)/dev.stamp
	$(BIN)/python -m tests.soak --rounds $(ROUNDS) --seed $(SEED) $(if $(WRITE),--write soak-cpu)

projects: $(VENV)/dev.stamp
	$(PIP) install --quiet six fissix
	PROJECTS="$(PROJECTS)" $(BIN)/python -m tests.projects

lint: $(VENV)/dev.stamp
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

# (The theme's page is clear about what comes after it: Zensical, which reads the same mkdocs.yml.)
docs: $(VENV)/dev.stamp
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

bench-cpu: $(VENV)/bench.stamp
	$(BIN)/python -m benchmarks.training.bench_cpu

# Where there is a GPU, PYTHON names the Python that has CuPy and PyTorch of its CUDA version.
bench-data: $(if $(filter python3,$(PYTHON)),$(VENV)/bench.stamp)
	$(if $(filter python3,$(PYTHON)),$(BIN)/python,$(PYTHON)) -m benchmarks.data.bench_data

bench-classify:
	$(PYTHON) -m benchmarks.inference.bench_classify

bench-recurrent: $(if $(filter python3,$(PYTHON)),$(VENV)/bench.stamp)
	$(if $(filter python3,$(PYTHON)),$(BIN)/python,$(PYTHON)) -m benchmarks.training.bench_recurrent

bench-infer: $(if $(filter python3,$(PYTHON)),$(VENV)/bench.stamp)
	$(if $(filter python3,$(PYTHON)),$(BIN)/python,$(PYTHON)) -m benchmarks.inference.bench_infer $(if $(filter python3,$(PYTHON)),,--gpu)

THREADS ?= 2
BUSY ?= 0
bench-real: $(VENV)/dev.stamp
	@$(if $(DIR),,echo "make bench-real DIR=...: a folder of NAME.prototxt and NAME.caffemodel"; exit 1)
	$(BIN)/python -m benchmarks.inference.bench_real $(DIR) --threads $(THREADS) --busy $(BUSY)

bench-sizes: $(VENV)/dev.stamp
	$(BIN)/python -m benchmarks.inference.bench_sizes

# A GPU machine brings CuPy, cuDNN and PyTorch of its own CUDA version: PYTHON names its Python.
bench-gpu:
	$(PYTHON) -m benchmarks.training.bench_gpu

bench-memory:
	$(PYTHON) -m benchmarks.training.bench_memory

bench-setup:
	$(PYTHON) -m benchmarks.training.bench_setup

bench-kernels:
	$(PYTHON) -m benchmarks.training.bench_kernels

bench-train: $(if $(filter python3,$(PYTHON)),$(VENV)/bench.stamp)
	$(if $(filter python3,$(PYTHON)),$(BIN)/python,$(PYTHON)) -m benchmarks.training.bench_train

# The same Python needs mpi4py, and the MPI that it was built for.
bench-scaling:
	$(PYTHON) -m benchmarks.communication.bench_scaling

bench-ranks:
	$(PYTHON) -m benchmarks.communication.bench_ranks_per_gpu

bench-comm:
	$(PYTHON) -m benchmarks.communication.bench_comm --gpu

grpc-peer:
	mkdir -p build
	$${CXX:-c++} -O2 -std=c++17 -o build/grpc_peer benchmarks/rpc/grpc_peer/grpc_peer.cc $$(pkg-config --cflags --libs grpc++)

bench-servers: $(VENV)/dev.stamp
	$(BIN)/python -m benchmarks.communication.bench_servers
	$(BIN)/python -m benchmarks.communication.bench_registration

bench-designs: $(VENV)/dev.stamp data/mnist/mnist_train_lmdb/data.mdb
	$(BIN)/python -m benchmarks.communication.bench_designs

MAX_MB ?= 16
bench-comm-cpu: $(VENV)/dev.stamp
	$(BIN)/python -m benchmarks.communication.bench_comm --max_mb $(MAX_MB)

papers: $(VENV)/run.stamp
	$(BIN)/python -m benchmarks.papers

papers-gpu: bench-comm bench-scaling bench-ranks bench-gpu
	$(PYTHON) models/edsr/photographs.py --out data/photographs --pixels 0.45
	$(PYTHON) -m benchmarks.training.super_resolution --gpu 0

bench-comm-profile: $(VENV)/dev.stamp
	$(BIN)/python -m benchmarks.communication.bench_comm_profile

bench-predict: $(VENV)/dev.stamp data/mnist/mnist_train_lmdb/data.mdb
	$(BIN)/python -m benchmarks.prediction.bench_predict

data/mnist/mnist_train_lmdb/data.mdb: | $(VENV)/run.stamp
	$(BIN)/osucaffe data mnist --out data/mnist

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "osucaffe needs Python 3.11 or later: make PYTHON=/path/to/python3.11 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/run.stamp: pyproject.toml | $(VENV)/bin/python
	@echo "Installing osucaffe in $(VENV) ..."
	@$(PIP) install --quiet --editable .
	@touch $@

$(VENV)/dev.stamp: pyproject.toml | $(VENV)/bin/python
	@echo "Installing osucaffe and what its tests need in $(VENV) ..."
	@$(PIP) install --quiet --editable '.[dev]'
	@touch $@ $(VENV)/run.stamp

$(VENV)/gpu.stamp: pyproject.toml | $(VENV)/bin/python
	@$(if $(CUDA),,echo "GPU=1: there is no NVIDIA driver (nvidia-smi) for CUDA 12 or 13"; exit 1)
	@echo "Installing osucaffe and $(CUDA) in $(VENV) ..."
	@$(PIP) install --quiet --editable '.[$(CUDA)]'
	@touch $@ $(VENV)/run.stamp

$(VENV)/cuda%.stamp: pyproject.toml | $(VENV)/bin/python
	$(PIP) install --quiet --editable '.[dev,cuda$*]'
	@touch $@ $(VENV)/run.stamp $(VENV)/dev.stamp

$(VENV)/differential.stamp: pyproject.toml | $(VENV)/bin/python
	@echo "Installing osucaffe and PyTorch in $(VENV) ..."
	@$(PIP) install --quiet --editable '.[dev,differential]'
	@touch $@ $(VENV)/run.stamp $(VENV)/dev.stamp

$(VENV)/bench.stamp: pyproject.toml | $(VENV)/bin/python
	@echo "Installing osucaffe and PyTorch in $(VENV) ..."
	@$(PIP) install --quiet --editable '.[bench]'
	@touch $@ $(VENV)/run.stamp

clean:
	rm -rf $(VENV) $(VENV)-* data/mnist build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
	rm -f models/lenet/lenet_iter_*.caffemodel models/lenet/lenet_iter_*.solverstate
	find . -name __pycache__ -prune -exec rm -rf {} +
