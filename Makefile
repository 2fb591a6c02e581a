# `make demo` shows the suite at work, `make test` runs all tests; both set everything up first, in .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

# Hundreds of interpreters are started here: each would compile all anew where the environment forbids to keep that.
unexport PYTHONDONTWRITEBYTECODE

SEED ?= 1
COUNT ?= 100
MINUTES ?= 20

.PHONY: help demo test test-all lowest newest campaign reach mutants consumers viewers frameworks frameworks-table serving mcp check lint types imports spelling generated api package man-pages format proto benchmarks release release-check image site clean

help:
	@echo "make demo        train a small model on simulated NeuronCores and watch it with neuron-ls"
	@echo "make test        run the tests of every capability, in three to six minutes"
	@echo "make test-all    run all tests: also the slow ones, and every example of the property tests"
	@echo "make lowest      run the tests of make test with the lowest versions of all requirements; make newest: the newest"
	@echo "make campaign    kill, flood and feed the suite odd input; MINUTES=20 CAMPAIGN='--seed 1 floods'"
	@echo "make reach       record which tests reach which code, for make mutants"
	@echo "make mutants     show which small changes of the product no test notices; SEED=1 COUNT=100 MODULE="
	@echo "make consumers   install what some tests run beside ours: Ray, Datadog's check, Helm, models of Kubernetes, its Prometheus operator and Grafana"
	@echo "make viewers     install what some tests open profiles in: Perfetto, xprof, TensorBoard, HolisticTraceAnalysis; and axe-core"
	@echo "make frameworks  install what some tests train with: transformers, accelerate, Lightning, PEFT, TRL, torchft"
	@echo "make frameworks-table  train with each of them and write the table of docs/device.md, in half an hour"
	@echo "make serving     install what the example of a server needs: starlette, uvicorn"
	@echo "make mcp         install the SDK that neuron-mcp and its tests need"
	@echo "make check       run all checks: lint, types, imports, spelling, generated code, the API, manual pages, package"
	@echo "make format      format the code"
	@echo "make proto       write the generated modules of the gRPC API"
	@echo "make benchmarks  measure the figures that the documents tell"
	@echo "make release     build the packages of a release in dist/: wheel, source archive, deb, rpm, Helm repository, checksums, SBOM"
	@echo "make release-check  build them twice, compare, install each and use it; as root also the deb, the rpm and the image"
	@echo "make image       build the container image of neurond with docker, podman or buildah"
	@echo "make site        build the documentation site in dist/site, from README.md, docs/ and man/"
	@echo "make clean       remove what the above made"

demo: $(VENV)/demo.stamp
	@$(BIN)/python examples/demo.py

test: $(VENV)/test.stamp
	$(BIN)/python -m pytest -n auto --dist worksteal -m 'not slow' $(PYTEST)

# The slow tests, and the property tests once more with all their examples.
test-all: test $(VENV)/consumers/stamp $(VENV)/viewers/stamp $(VENV)/axe/stamp $(VENV)/frameworks/stamp $(VENV)/serving/stamp $(VENV)/mcp/stamp
	ALL_EXAMPLES=1 $(BIN)/python -m pytest -n auto --dist worksteal -m 'slow or hypothesis' $(PYTEST)

campaign: $(VENV)/test.stamp
	@$(BIN)/python -m campaign --minutes $(MINUTES) $(CAMPAIGN)

mutants: $(VENV)/test.stamp
	@$(BIN)/python scripts/mutants --seed $(SEED) --count $(COUNT) --module '$(MODULE)' --output $(VENV)/mutants/matrix.json

# Which tests reach which blocks of statements: `make mutants` goes by it. Later it runs only changed files of tests.
reach: $(VENV)/test.stamp
	@$(BIN)/python scripts/mutants --record $(if $(QUICK),--quick)

consumers: $(VENV)/consumers/stamp

viewers: $(VENV)/viewers/stamp $(VENV)/axe/stamp

frameworks: $(VENV)/frameworks/stamp

frameworks-table: $(VENV)/test.stamp $(VENV)/frameworks/stamp
	@$(BIN)/python benchmarks/frameworks_table.py --write

serving: $(VENV)/serving/stamp

mcp: $(VENV)/mcp/stamp

check: lint types imports spelling generated api man-pages package

lint: $(VENV)/test.stamp
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(VENV)/test.stamp
	$(BIN)/mypy

imports: $(VENV)/test.stamp
	$(BIN)/lint-imports

spelling: $(VENV)/test.stamp
	$(BIN)/codespell

generated: $(VENV)/proto/stamp
	rm -rf $(VENV)/generated && mkdir -p $(VENV)/generated
	PATH="$(CURDIR)/$(VENV)/proto/bin:$$PATH" scripts/generate-rpc $(VENV)/generated
	@for file in $(VENV)/generated/neurontools/rpc/*; do \
	    cmp "$$file" "neurontools/rpc/$${file##*/}" || { echo "$${file##*/} is out of date; run make proto"; exit 1; }; \
	done

# What clients of the last release go by is still there; and buf's rules, where npm can have it.
api: $(VENV)/test.stamp
	$(BIN)/python scripts/check-api
	@if npm install --silent --no-audit --no-fund --prefix $(VENV)/buf @bufbuild/buf@1.75.0 >/dev/null 2>&1; then \
	    $(VENV)/buf/node_modules/.bin/buf lint --path neurontools/v1; \
	else \
	    echo "npm can't install buf: nobody looks whether neuron.proto keeps to its rules"; \
	fi

man-pages:
	@scripts/check-man-pages

package: $(VENV)/test.stamp
	BIN=$(BIN) scripts/check-package

format: $(VENV)/test.stamp
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

proto: $(VENV)/proto/stamp
	PATH="$(CURDIR)/$(VENV)/proto/bin:$$PATH" scripts/generate-rpc

benchmarks: $(VENV)/test.stamp
	@for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done

release: $(VENV)/release/stamp
	BIN=$(VENV)/release/bin packaging/build dist

release-check: release
	BIN=$(VENV)/release/bin packaging/build $(VENV)/release/again >/dev/null
	cmp dist/SHA256SUMS $(VENV)/release/again/SHA256SUMS
	@for archive in dist/*.whl dist/*.tar.gz; do BIN=$(BIN) scripts/check-package "$$PWD/$$archive" || exit 1; done
	@if [ "$$(id -u)" = 0 ]; then packaging/try-packages dist; else echo "run packaging/try-packages as root to try the deb, the rpm and the image"; fi

image: release
	BIN=$(VENV)/release/bin packaging/build-image

site: $(VENV)/site/stamp
	NO_MKDOCS_2_WARNING=1 $(VENV)/site/bin/mkdocs build --quiet --clean --config-file packaging/site/mkdocs.yml

clean:
	rm -rf $(VENV) build dist

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "neurontools needs Python 3.11 or later, and $(PYTHON) is older; run: make PYTHON=python3.11 ..."; exit 1; }
	@echo "making $(VENV)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/demo.stamp: $(VENV)/bin/python pyproject.toml constraints.txt
	@echo "installing neurontools and torch into $(VENV); this takes a minute"
	@$(PIP) --editable '.[runtime]'
	@touch $@

$(VENV)/test.stamp: $(VENV)/bin/python pyproject.toml constraints.txt
	@echo "installing neurontools, torch and the development tools into $(VENV); this takes a minute"
	@$(PIP) --editable '.[runtime,otlp,dev]'
	@touch $@ $(VENV)/demo.stamp

# Packages for examples/serve.py alone, which tests add to its path: the product needs no web framework.
$(VENV)/serving/stamp: $(VENV)/bin/python pyproject.toml
	@echo "installing starlette and uvicorn into $(VENV)/serving"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade --target $(VENV)/serving \
	    $$($(BIN)/python scripts/requirements-of serving)
	@touch $@

# The quick half of the tests with the lowest and with the newest versions of all requirements, in new environments.
lowest newest: $(VENV)/bin/python
	rm -rf $(VENV)/$@ && $(BIN)/python -m venv $(VENV)/$@
	scripts/requirements-of --lowest >$(VENV)/lowest.txt
	$(VENV)/$@/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
	    $(if $(filter lowest,$@),--constraint $(VENV)/lowest.txt) --editable '.[runtime,otlp,dev]'
	$(VENV)/$@/bin/python -m pytest -n auto --dist worksteal -m 'not slow' $(PYTEST)

# An environment of its own for the packages of each of these extras.
$(foreach extra,consumers mcp viewers proto release site,$(VENV)/$(extra)/stamp): $(VENV)/%/stamp: $(VENV)/bin/python pyproject.toml
	@echo "installing the packages of the extra $* into $(VENV)/$*; this takes a minute"
	@$(BIN)/python -m venv $(VENV)/$*
	@$(VENV)/$*/bin/python -m pip install --quiet --disable-pip-version-check $$($(BIN)/python scripts/requirements-of $*)
	@touch $@

# axe-core checks the browser pages. Without npm, its test is skipped.
$(VENV)/axe/stamp:
	@mkdir -p $(VENV)/axe
	@npm install --prefix $(VENV)/axe --silent --no-audit --no-fund --ignore-scripts axe-core@4.14.1 || \
	    echo "npm is not installed; the test of the pages with axe-core will be skipped"
	@touch $@

# An environment of its own: more than a gigabyte, torch once more among it, that only tests/frameworks/ needs.
$(VENV)/frameworks/stamp: $(VENV)/bin/python pyproject.toml constraints.txt
	@echo "installing other people's training frameworks and torch into $(VENV)/frameworks; this takes a minute"
	@$(BIN)/python -m venv $(VENV)/frameworks
	@$(VENV)/frameworks/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
	    --editable '.[runtime,frameworks]'
	@touch $@
