# make demo: install, then run the default study.   make verify: every claim, in its quick setting.
# make test: install the development extras, then lint, types, tests. make test-all: the long runs as well.
# make bench: every benchmark; the kernels run beside neural-tangents, in an environment of its own (make bench-peers).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PEERS := .venv-peers
PYTHON_PEERS ?= $(PYTHON) python3.12 python3.11 python3.10
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: install dev demo verify lint test test-all bench bench-peers bench-kernels bench-embeddings bench-deep-linear bench-one-layer bench-linearized bench-diagnose docs-claims clean

install: $(VENV)/installed
dev: $(VENV)/installed-dev

$(VENV)/created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "kontrast needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version). Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/installed: $(VENV)/created pyproject.toml constraints.txt
	$(PIP_INSTALL) -e .
	@touch $@

$(VENV)/installed-dev: $(VENV)/created pyproject.toml constraints.txt
	$(PIP_INSTALL) -e '.[dev]'
	@touch $@ $(VENV)/installed

demo: install
	$(BIN)/kontrast study

verify: install
	$(BIN)/kontrast verify --quick

# The page of claims in docs/, from the folder that `kontrast verify` wrote.
docs-claims:
	@test -f "$(FOLDER)/claims.md" || { echo "no claims.md in FOLDER='$(FOLDER)'; give the folder that kontrast verify printed"; exit 2; }
	rm -rf docs/figures && cp -r $(FOLDER)/figures docs/figures && cp $(FOLDER)/claims.md docs/claims.md

lint: dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

test: lint
	$(BIN)/pytest -n auto -m "not slow"

test-all: lint
	$(BIN)/pytest -n auto

bench: bench-kernels bench-embeddings bench-deep-linear bench-one-layer bench-linearized bench-diagnose
	$(BIN)/python benchmarks/training_step.py

bench-kernels: $(VENV)/installed-bench bench-peers
	$(BIN)/python benchmarks/kernels.py

# nngeometry asks for torchvision, which would replace torch, and needs it for nothing that is measured.
$(VENV)/installed-bench: $(VENV)/installed-dev
	$(PIP_INSTALL) --no-deps nngeometry
	@touch $@

# Closed forms beside trained SimCLR: on the files below KONTRAST_DATA, or on what installs with kontrast.
bench-embeddings: install
	$(BIN)/python benchmarks/embeddings.py

# The flow of a deep linear network beside the network's training.
bench-deep-linear: install
	$(BIN)/python benchmarks/deep_linear.py

# The contrastive covariance beside a loop over pairs, and patterns of 5,000 images.
bench-one-layer: install
	$(BIN)/python benchmarks/one_layer.py

# Linearised networks at t = ∞ and kernel regression, against the training they stand for.
bench-linearized: install
	$(BIN)/python benchmarks/linearized.py

# Planted cases told right, the monitor's overhead, and how many labels a model would need.
bench-diagnose: dev
	$(BIN)/python benchmarks/diagnose.py
	$(BIN)/python benchmarks/monitor.py
	$(BIN)/python benchmarks/labels_needed.py

bench-peers: $(PEERS)/installed

# The first interpreter that the peers' wheels fit.
$(PEERS)/created:
	@for python in $(PYTHON_PEERS); do \
		if $$python -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null; then \
			echo "$$python -m venv $(PEERS)"; $$python -m venv $(PEERS) && touch $@ && exit 0; \
		fi; \
	done; \
	echo "neural-tangents with jax 0.4.25 needs Python 3.10, 3.11 or 3.12; none of these is one: $(PYTHON_PEERS). Try: make PYTHON_PEERS=/path/to/python3.11 $(MAKECMDGOALS)"; exit 2

$(PEERS)/installed: $(PEERS)/created constraints-peers.txt
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-peers.txt \
		neural-tangents jax jaxlib numpy scipy tf2jax
	@touch $@

clean:
	rm -rf $(VENV) $(PEERS) .mypy_cache .pytest_cache .ruff_cache .hypothesis
