# The only commands to know. `make help` prints what each does.
SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin
# Containers need root: a user for whom sudo asks no password (any more) gets it for the demo alone.
SUDO = $(shell [ "$$(id -u)" = 0 ] || ! sudo -n true 2>/dev/null || echo sudo)

# Each worker, and each Python that a test starts, would compile the tests' modules again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo demo-kubernetes cluster cluster-down test kubernetes crio docker callers record-peer check fmt golden bench fuzz gpu gpu-kit likeness install static test-static deb rpm bundle wheel image release manifests ci ci-full clean

help: ## print this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 24

setup: $(VENV)/.launchers ## set up .venv with every program in .venv/bin

$(VENV)/.ready: pyproject.toml Makefile tests/support/packages.sh tests/support/venv.sh
	@bash tests/support/packages.sh
	@bash tests/support/venv.sh $(VENV) "$(PYTHON)"
	@touch $@

# Again after each change: what was compiled from an older source is not used.
$(VENV)/.launchers: $(VENV)/.ready $(shell find nvct nvct_sim -name '*.py' -o -name launcher.c -o -name hook.h)
	@$(BIN)/python -m compileall -q nvct nvct_sim # so that sudo leaves no files of root in the checkout
	@$(BIN)/nvct launchers install --bin-dir $(BIN)
	@touch $@

# nvct-hot of an older source is built again; without one, the bundle does without.
FRESH_STATIC := [ ! -e build/static/nvct-hot ] || $(MAKE) --no-print-directory static >/dev/null

demo: setup ## run the main job on a simulated 8-GPU node; pods too, if Kubernetes is built
	@$(FRESH_STATIC)
	@$(SUDO) $(BIN)/nvct demo
	@$(SUDO) $(BIN)/python -m tests.kubernetes.demo

demo-kubernetes: setup ## a pod with a GPU in a real Kubernetes on a simulated node; builds it once, with Go 1.26
	@echo "building Kubernetes and helm, if they are not built: some minutes" >&2
	@$(FRESH_STATIC)
	@$(SUDO) $(BIN)/python -m tests.kubernetes.programs >/dev/null
	@$(SUDO) $(BIN)/python -m tests.kubernetes.demo

cluster: setup ## a real Kubernetes with nvct on a simulated node, to play in; builds it once, with Go 1.26
	@echo "starting Kubernetes; programs that are not built take some minutes" >&2
	@$(FRESH_STATIC)
	@$(SUDO) $(BIN)/python -m tests.kubernetes.programs >/dev/null
	@$(SUDO) $(BIN)/python -m tests.kubernetes.playground up

cluster-down: ## end what `make cluster` has started
	@$(SUDO) $(BIN)/python -m tests.kubernetes.playground down

PACKAGED := python3-click python3-jsonschema python3-rich python3-yaml
TESTED := podman uidmap musl mmdebstrap iproute2 openssl procps build-essential debhelper dh-python rpm \
  systemd-container prometheus createrepo-c cpio gnupg $(PACKAGED)

PYTEST := pytest
# In the order that tests/conftest.py gives: a random one, but files with slow tests first.
PARALLEL := -n auto --dist loadfile --no-loadscope-reorder
test: setup ## run the tests; installs what they need, and says what was skipped for want of what
	@bash tests/support/packages.sh $(TESTED)
	@$(BIN)/python -m $(PYTEST) -q $(PARALLEL)

kubernetes: setup ## build Kubernetes and helm for the tests, with Go 1.26: some minutes, once
	@echo "building Kubernetes and helm, if they are not built: some minutes" >&2
	@$(BIN)/python -m tests.kubernetes.programs

crio: setup ## build CRI-O for the tests, with Go 1.26: three minutes, once
	@echo "building CRI-O, if it is not built: some minutes" >&2
	@$(BIN)/python -m tests.engines.crio_program

docker: setup ## build Docker for the tests, with Go 1.26: four minutes, once
	@echo "building Docker, if it is not built: some minutes" >&2
	@$(BIN)/python -m tests.engines.docker_program

callers: setup ## build BuildKit, nerdctl and cri-dockerd for the tests, with Go 1.26: five minutes, once
	@echo "building BuildKit, nerdctl and cri-dockerd, if they are not built: some minutes" >&2
	@$(BIN)/python -m tests.callers.programs

record-peer: kubernetes ## record what NVIDIA's cluster programs in PEER=DIR answer on simulated nodes (as root)
	@test -n "$(PEER)" || { echo "say where NVIDIA's programs are: make record-peer PEER=DIR; see tests/peer/README.md" >&2; exit 2; }
	@$(BIN)/python -m tests.peer $(PEER) $(NODES)

check: setup ## format, lint, types, layers, spelling
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/codespell

fmt: setup ## format the code
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

GOLDEN-container_cli := tests/unit/cli/container
GOLDEN-engineconf := tests/engineconf
GOLDEN-errors := tests/golden/errors
GOLDEN-help := tests/golden/help
GOLDEN-hostile := tests/hostile/test_corpus.py tests/hostile/test_corpus_hooks.py
GOLDEN-hosts := tests/hosts
GOLDEN-reach := tests/kubernetes/test_reach.py
GOLDEN-reasons := tests/unit/doctor/test_reasons.py
GOLDEN-spec := tests/golden/spec
GOLDEN-startup := tests/startup
REWRITTEN := tests/golden tests/startup docs/reasons.md SECURITY.md
KINDS := $(sort $(patsubst GOLDEN-%,%,$(filter GOLDEN-%,$(.VARIABLES))))
golden: setup ## rewrite the golden files of one KIND from what the code does now, and show them
	@test -n "$(GOLDEN-$(KIND))" || { echo "make golden KIND=one of: $(KINDS)" >&2; exit 2; }
	@$(BIN)/python -m pytest -q --update-golden $(GOLDEN-$(KIND))
	@git --no-pager diff -- $(REWRITTEN); git status --short -- $(REWRITTEN)

bench: setup static ## measure against bare runc (and the incumbent, NVCT_BENCH_PEER=DIR)
	@$(BIN)/python -m tests.bench

fuzz: setup ## feed the parsers mutated input (N=100000 times each, TARGET=one of them)
	@$(BIN)/python -m tests.fuzz $(TARGET) --executions $(or $(N),100000)

gpu: setup ## the whole chain on this machine's GPU, without network (SIM=1: on a simulated one)
	@$(SUDO) $(BIN)/python -m tests.gpu $(if $(SIM),--sim)

gpu-kit: setup static ## build the folder with which tests/gpu/run.sh records a machine without a network
	@bash tests/support/packages.sh runc crun busybox-static
	@$(BIN)/python -m tests.gpu kit build/gpu-kit build/static/nvct-hot

likeness: setup ## list what a simulated GPU answers otherwise than the real one of RECORD=FILE
	@test -n "$(RECORD)" || { echo "say which record: make likeness RECORD=FILE; tests/gpu/recorded has some" >&2; exit 2; }
	@$(SUDO) $(BIN)/python -m tests.gpu likeness $(RECORD)

install: setup ## put everything below DESTDIR, as the packages do
	@tree=$$(mktemp -d) && trap 'rm -rf "$$tree"' EXIT && sh packaging/tree.sh "$$tree" && \
	  BUILD_PYTHON=$(BIN)/python VENDOR=$$tree/vendor sh packaging/install.sh

static: ## build nvct-hot, the hot side as one static file, into build/static
	@bash tests/support/packages.sh musl-tools dpkg-dev
	@mkdir -p build/static
	@sh packaging/static/build.sh $(CURDIR)/build/static/nvct-hot

STATIC_TESTS := tests/unit/container tests/golden/errors tests/hostile \
  tests/integration/test_static.py tests/integration/test_containers.py tests/integration/test_prestart.py \
  tests/integration/test_farm.py tests/integration/test_matrix.py tests/integration/test_extras.py \
  tests/integration/test_policy.py tests/integration/test_rootless.py

test-static: setup static ## run the tests of the hot side against nvct-hot, in containers too
	@$(BIN)/nvct launchers install --bin-dir $(BIN) --form static --hot $(CURDIR)/build/static/nvct-hot
	@NVCT_TESTS_HOT=$(CURDIR)/build/static/nvct-hot $(BIN)/python -m pytest -q $(PARALLEL) $(STATIC_TESTS); \
	  status=$$?; $(BIN)/nvct launchers install --bin-dir $(BIN); exit $$status

# The packages have nvct-hot in them where it can be built; they do without it.
STATIC_IF_POSSIBLE := $(MAKE) --no-print-directory static || echo "packages without nvct-hot" >&2

deb: setup ## build the Debian packages into dist/
	@$(STATIC_IF_POSSIBLE)
	@bash tests/support/packages.sh build-essential debhelper dh-python $(PACKAGED)
	@sh packaging/deb/build.sh

rpm: setup ## build the rpm packages into dist/; after make bundle also nvct-bundle
	@$(STATIC_IF_POSSIBLE)
	@bash tests/support/packages.sh rpm $(PACKAGED)
	@sh packaging/rpm/build.sh

bundle: setup ## build the bundle, which needs no Python on its host, into dist/
	@$(STATIC_IF_POSSIBLE)
	@$(BIN)/python packaging/bundle/build.py --out dist

wheel: setup ## build the wheel and the sources for pip into dist/
	@SOURCE_DATE_EPOCH=$${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct)} $(BIN)/python -m hatchling build --directory dist

# Only these two need the network, once: copy build/image to a machine without it.
build/image/base.tar: packaging/image/base.sh
	@bash tests/support/packages.sh mmdebstrap uidmap
	@mkdir -p build/image
	@sh packaging/image/base.sh $@ $(MIRROR)

WHEELS := packaging/bundle/requirements.txt packaging/image/requirements.txt
build/image/wheels/.ready: $(WHEELS) | setup
	@mkdir -p build/image/wheels
	@$(BIN)/python -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
	  --require-hashes --dest build/image/wheels $(addprefix --requirement ,$(WHEELS))
	@touch $@

manifests: kubernetes ## render the chart into packaging/kubernetes, for clusters without helm
	@$(BIN)/python packaging/kubernetes/render.py \
	  --helm "$$($(BIN)/python -m tests.kubernetes.programs | tail -n 1)/helm"

image: setup build/image/base.tar build/image/wheels/.ready ## build the image of all programs, an OCI archive, into dist/
	@$(STATIC_IF_POSSIBLE)
	@rm -rf build/image/bundle && mkdir build/image/bundle
	@PIP_NO_INDEX=1 PIP_FIND_LINKS=$(CURDIR)/build/image/wheels \
	  $(BIN)/python packaging/bundle/build.py --out build/image/bundle >/dev/null
	@tar -xzf build/image/bundle/*.tar.gz -C build/image/bundle && rm build/image/bundle/*.tar.gz
	@$(BIN)/python packaging/image/build.py --base build/image/base.tar --bundle build/image/bundle/nvct-* \
	  --wheels build/image/wheels --out dist

SIGNED := --key "$(KEY)" --url "$(URL)" --out "$(or $(OUT),build/release)" $(if $(FORMER),--former "$(FORMER)")
release: setup ## all that can be installed, signed by gpg's KEY, for a web server at URL, into build/release or OUT
	@test -n "$(KEY)" -a -n "$(URL)" || { echo "say who signs and where it will be served: make release KEY=... URL=https://..." >&2; exit 2; }
	@bash tests/support/packages.sh createrepo-c cpio dpkg-dev gnupg
	@$(BIN)/python packaging/release/build.py $(SIGNED) --check $(if $(DIRTY),--dirty)
	@$(MAKE) --no-print-directory static && $(MAKE) --no-print-directory STATIC_IF_POSSIBLE=: deb bundle rpm wheel image kubernetes
	@$(BIN)/python packaging/release/build.py $(SIGNED) \
	  --helm "$$($(BIN)/python -m tests.kubernetes.programs | tail -n 1)/helm"

ci: check ## everything that a change must pass; a skipped engine test fails
	@bash tests/support/packages.sh $(TESTED) lintian rpmlint
	@$(MAKE) --no-print-directory static kubernetes crio
	@NVCT_TESTS_REQUIRE=engine $(MAKE) --no-print-directory test PYTEST="tests.support.again --durations=25"

ci-full: docker callers ci test-static ## what takes longer: CRI-O, Docker, callers, many more property examples, and the bench; writes docs/results
	@mkdir -p docs/results
	@{ date -u +"%Y-%m-%d"; uname -srm; $(BIN)/python --version; runc --version | head -1; \
	  NVCT_TESTS_PROFILE=full NVCT_TESTS_REQUIRE=release $(BIN)/python -m tests.support.again -q $(PARALLEL) tests/property tests/fuzz tests/engines tests/callers \
	    tests/integration/test_matrix.py tests/integration/test_packages.py tests/integration/test_release.py tests/integration/test_upgrade.py \
	    tests/unit/mig/test_random_plans.py tests/unit/agent/dra/test_share_lifecycles.py tests/kubernetes && \
	  $(BIN)/python -m tests.fuzz --executions 100000 && \
	  $(BIN)/python -m tests.bench; } 2>&1 | tee docs/results/$$(date -u +%F).txt; exit $${PIPESTATUS[0]}

clean: ## remove what the other targets made
	@rm -rf $(VENV) .cache build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
