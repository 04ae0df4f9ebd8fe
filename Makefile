# One verb a line; `make help` lists them.
.PHONY: help install compile up test quick deep kernels mutants coverage lint format lock protos crd chart-docs parameter-docs config-docs terminal plugin docs bench readme clean \
  cluster-build cluster-images versions-build versions cluster-up cluster-down kind-up images audit faults attacks clients client-docs engines engine-docs e2e e2e-all soak

# Where it is set, every process would rewrite and compile the tests anew.
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
PORT ?= 8080
# Of the plugin's archives, once they are published, and of the project.
PLUGIN_URL ?= https://example.com/releases
PLUGIN_HOMEPAGE ?= https://example.com/kvasir
HARNESS := PYTHONPATH=e2e/cluster:api python3 -m harness
# A file is run by one process: what its tests share is made once.
LOCK := .venv/tools/bin/uv pip compile -q --universal --generate-hashes --no-emit-index-url --no-header \
  -c locks/constraints.in
# Three, on two cores too: tests of processes mostly wait. In the order of tests/support/file_order.py,
# not by the number of a file's tests: files of few long tests begin early.
PYTEST := $(BIN)/pytest -n 3 --dist loadfile --no-loadscope-reorder --durations=20
SCRIPTS := scripts/*.py images/*.py benchmarks/*.py benchmarks/gpu e2e/*.py e2e/faults e2e/attacks e2e/clients/*.py e2e/engines e2e/soaking e2e/upgrades e2e/gpu
# Of Kubernetes, beside that of the nodes.
VERSIONS ?= oldest newest
# Kills, frozen processes, late writes, loads and adapters are of our own processes: no version changes
# them.
OF_NO_VERSION := kills freezes late_writes faults canary canary_fleet autoscaling lora_adapters
VERSIONED := tests/integration/api tests/integration/chart tests/integration/operator \
  tests/integration/router/discovery \
  $(OF_NO_VERSION:%=--ignore tests/integration/operator/test_%.py)
E2E := $(BIN)/pytest e2e/kubernetes -s --durations=20

help:  ## list the verbs
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

install:  ## make .venv with everything a developer needs
	@scripts/install.sh dev

compile: install  ## compile the router's hot modules (a minute, a C compiler): less CPU a request
	@$(BIN)/python -m kvasir_router.compiling

up:  ## install, then serve the tiny model through router and engine until Ctrl-C
	@scripts/install.sh up
	@$(BIN)/kvasir up -f manifests/tiny.yaml --port $(PORT)

test: install  ## install and run every test; the slowest are named
	@$(PYTEST)

quick: install  ## the tests that take little
	@$(PYTEST) -m "not slow"

deep: install  ## property tests with 2,000 new examples each; a failure prints its @example
	@HYPOTHESIS_PROFILE=deep $(BIN)/pytest -n 3 -m hypothesis --timeout 3600

kernels: install  ## every kernel of the zoo for six kinds of GPU: hours; goes on where it was stopped
	@$(BIN)/python e2e/gpu/compile_kernels.py --out build/kernels.json

mutants: install  ## 300 changes of scheduler, block pool, admission, parser, claims and plan: tests tell
	@$(BIN)/python scripts/mutants.py

coverage: install  ## the lines that `make test` runs, in its processes too; build/coverage/index.html
	@$(PYTEST) --cov --cov-report=html:build/coverage --cov-report=term:skip-covered

lint: install  ## ruff, mypy strict (less so over tests), the layers between packages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	MYPYPATH=benchmarks:e2e:e2e/gpu:images:scripts $(BIN)/mypy tests
	MYPYPATH=benchmarks:benchmarks/gpu:e2e:e2e/gpu:scripts $(BIN)/mypy $(SCRIPTS)
	MYPYPATH=images $(BIN)/mypy e2e/kubernetes
	$(BIN)/lint-imports

format: install  ## let ruff rewrite what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lock: install  ## resolve every set anew into locks/
	@for set in sim engine download router operator docs dev up; do \
	  case $$set in sim|engine|download) extras="$$set s3";; up) extras="engine router";; *) extras=$$set;; esac; \
	  $(LOCK) pyproject.toml $$(printf -- '--extra %s ' $$extras) -o locks/$$set.txt || exit 1; done
	@for group in clients engines; do $(LOCK) --group $$group -o locks/$$group.txt || exit 1; done
	@$(LOCK) pyproject.toml -o locks/plugin.txt
	@echo "uv>=0.13.9" | $(LOCK) - -o locks/uv.txt
	@echo "pip-audit>=2.10.1" | $(LOCK) - -o locks/audit.txt

protos: install  ## generate the gRPC stubs from api/proto
	$(BIN)/python scripts/gen_protos.py

crd: install  ## generate the CustomResourceDefinitions from the models of the resources
	$(BIN)/python -m kvasir.resource.crd_writer charts/kvasir/files/crds

chart-docs: install  ## write the charts' README.md from their values.yaml
	$(BIN)/python scripts/chart_docs.py

parameter-docs: install  ## write docs/{sampling_parameters,engine_flags}.md from the engine's tables
	$(BIN)/python scripts/parameter_docs.py

config-docs: install  ## write docs/router-config.md from the models of the router's files
	$(BIN)/python scripts/config_docs.py

client-docs: install  ## write the table of docs/clients.md from the tests of e2e/clients and the locks
	PYTHONPATH=e2e $(BIN)/python -m clients.page

engine-docs: install  ## write the table of docs/engine_types.md from the table of engine types
	$(BIN)/python scripts/engine_type_docs.py

terminal: install  ## draw docs/images/terminal.svg from a real `kvasir up` and `kvasir chat`
	$(BIN)/python scripts/record_terminal.py

plugin: install  ## build `kubectl kvasir` as one file a platform, with krew's manifest, into build/plugin
	@$(BIN)/python scripts/build_plugin.py --base-url $(PLUGIN_URL) --homepage $(PLUGIN_HOMEPAGE)

docs: install  ## build the site into build/site: strict, and readable offline
	@[ -x .venv/docs/bin/python ] || .venv/tools/bin/uv venv -q --python $(BIN)/python .venv/docs
	@.venv/tools/bin/uv pip sync -q --python .venv/docs/bin/python locks/docs.txt
	@NO_MKDOCS_2_WARNING=1 .venv/docs/bin/mkdocs build --strict

bench: install  ## measure what docs/benchmarks.md says, on a quiet machine, and write it anew
	@for each in core_loop http_streaming serve_start cpu_throughput; do \
	  $(BIN)/python benchmarks/$$each.py --save || exit 1; done
	@$(BIN)/python benchmarks/report.py

cluster-build:  ## build Kubernetes itself, DNS and helm for tests; once, minutes, then cached
	@$(HARNESS) build

cluster-images: cluster-build  ## build the images that the cluster's tests use; once, then what changed
	@$(HARNESS) images

versions-build:  ## build the API servers of the oldest and the newest Kubernetes; once, minutes, then cached
	@$(HARNESS) versions $(VERSIONS)

versions: install cluster-build versions-build  ## tests of definitions, chart, operator and discovery on these two
	@for each in $(VERSIONS); do KVASIR_KUBERNETES=$$each $(PYTEST) $(VERSIONED) || exit 1; done

cluster-up: cluster-build  ## a cluster on this machine: two nodes, DNS, fake GPUs, our images (root)
	@$(HARNESS) up

cluster-down:  ## end that cluster and remove all it made
	@$(HARNESS) down

kind-up:  ## the same on kind, where Docker and kind are
	@e2e/cluster/kind/up.sh

images: install  ## build the container images, their bills of materials too; PUSH=registry/path pushes
	@SBOM=$${SBOM-build/sbom} images/build.sh

audit:  ## look up all pinned packages in PyPI's advisories
	@[ -x .venv/audit/bin/python ] || .venv/tools/bin/uv venv -q --python $(BIN)/python .venv/audit
	@.venv/tools/bin/uv pip sync -q --python .venv/audit/bin/python locks/audit.txt
	@for lock in locks/*.txt; do echo "$$lock"; \
	  .venv/audit/bin/pip-audit --strict --disable-pip --require-hashes --progress-spinner off -r $$lock || exit 1; done

faults: install  ## router, engines and clients killed, stopped, lying; random HTTP for a minute
	@$(BIN)/python e2e/router_faults.py --quick
	@$(BIN)/python e2e/http_fuzz.py --seconds 60

attacks: install  ## slow clients, floods, smuggling, bombs and mutated bodies, for two minutes
	@$(BIN)/python e2e/attack_suite.py

clients: install  ## clients of Python and JavaScript against the tiny model; their versions: docs/clients.md (Node.js 20)
	@[ -x .venv/clients/bin/python ] || .venv/tools/bin/uv venv -q --python $(BIN)/python .venv/clients
	@.venv/tools/bin/uv pip sync -q --python .venv/clients/bin/python locks/clients.txt
	@e2e/clients/javascript/install.sh
	@$(BIN)/pytest e2e/clients --durations=20

engines: install  ## an engine of others, transformers serve, behind the router: streams, usage, replacement
	@e2e/engines/install.sh
	@$(BIN)/pytest e2e/engines --durations=20

e2e: install cluster-build  ## the full cluster's tests, three minutes of load (root)
	@$(E2E)

e2e-all: install cluster-build versions  ## the same with every step, and an upgrade of 0.1.0 under load (root), after `make versions`
	@KVASIR_E2E_STEPS=all $(E2E)
	@KVASIR_E2E_SAVE=e2e/results $(BIN)/pytest e2e/upgrades -s

soak: install cluster-build  ## an hour of mixed load, a fault every 20 s: nothing lost, nothing grows (root)
	@PYTHONPATH=e2e/cluster:benchmarks $(BIN)/python -u e2e/soak.py --save e2e/results/soak.json

readme:  ## the README's commands, in a fresh clone with an environment of its own
	@scripts/check_readme.sh

clean:  ## remove the environment and every cache
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage* build/coverage build/site
