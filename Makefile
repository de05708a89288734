# engi: the two commands most people need are "make up" and "make test".
# Everything here works from a clean clone with Go, Node and Debian's apt.

SHELL       := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VERSION ?= $(shell git describe --tags --match 'v*' --always --dirty 2>/dev/null || echo unknown)
COMMIT  ?= $(shell git rev-parse HEAD 2>/dev/null || echo unknown)
ARCH    ?= $(shell go env GOARCH)
LDFLAGS := -s -w -X main.version=$(VERSION) -X main.commit=$(COMMIT)
# The compiler spends a fifth of its time on collecting its garbage.
BUILD   := GOOS=linux GOARCH=$(ARCH) GOGC=400 go build
# The same for builds, tests and tools, so that nothing is compiled twice. No program
# that is built here has tables for debuggers, so the compiler makes none.
export CGO_ENABLED := 0
export GOFLAGS := $(GOFLAGS) -trimpath -gcflags=all=-dwarf=false
# Programs for another machine stay apart from those that run here.
BIN     := $(CURDIR)/bin$(if $(filter-out $(shell go env GOHOSTARCH),$(ARCH)),/$(ARCH))
# Sandboxes want root, or sudo that asks nothing; else they do with less.
ROOT    := $(CURDIR)/.ci/as-root

# Programs of others that tests need stay for the next clone.
KEPT    := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/engi-test

# What integration tests look for; they skip without it, and fail instead of
# skipping when ENGI_TEST_REQUIRE is 1.
TESTENV = ENGI_BIN=$(BIN)/engi ENGI_RUNSC=$(BIN)/runsc ENGI_GUEST=$(BIN)/engi-guest ENGI_JS=$(BIN)/engi-js GOTESTSUM=$(BIN)/gotestsum \
	ENGI_TEST_TEMPLATES=$$($(ROOT) $(BIN)/engi config show cache_dir)/templates \
	ENGI_TEST_DENO=$$($(ROOT) find "$$($(ROOT) $(BIN)/engi config show cache_dir)/templates/builds" -path '*/usr/local/bin/deno' | head -1)
# What only "make test-all" has, besides.
ALLENV = ENGI_TEST_DIST=$(CURDIR)/dist ENGI_TEST_VERSION=$(VERSION) ENGI_TEST_INNGEST=$(KEPT)/inngest ENGI_TEST_S3=$(KEPT)/versitygw ENGI_TEST_EMBEDDER=$(CURDIR)/test/e2e/embed/py/.venv/bin/python
GOTEST  = go test -timeout 30m $$([ $$(id -u) = 0 ] || echo -exec $(ROOT))

.PHONY: help
help: ## say what there is
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

.PHONY: setup
setup: ## install what building and testing need from Debian
	@.ci/setup

.PHONY: packages
packages: ## install the packages and programs of others that "make test-all" runs against engi
	@.ci/setup all
	@# The ones wait for the network, the others for processors.
	@{ .ci/inngest $(KEPT) && .ci/s3 $(KEPT); } & built=$$!; .ci/packages || { kill $$built; exit 1; }; wait $$built

.PHONY: build
build: $(BIN)/runsc programs ## build bin/engi, bin/engi-guest, bin/engi-js and bin/runsc

# The dashboard is part of bin/engi. It changes with its sources.
WEB := internal/server/web/dist/app/index.html
.PHONY: web
web: $(WEB) ## build the dashboard, internal/server/web/dist/app
$(WEB): $(addprefix internal/server/web/ui/,package.json package-lock.json index.html vite.config.ts) $(shell find internal/server/web/ui/src internal/server/web/ui/runtime/src internal/server/web/ui/runtime/*.* -type f ! -name openapi.d.ts)
	@.ci/web

.PHONY: programs
programs: web
	@mkdir -p $(BIN)
	@$(BUILD) -ldflags '$(LDFLAGS)' -o $(BIN)/engi ./cmd/engi
	@$(BUILD) -ldflags '-s -w' -o $(BIN)/ ./cmd/engi-guest ./cmd/engi-js

# gVisor takes long to build and changes only with its pin.
.PHONY: runsc
runsc: $(BIN)/runsc
$(BIN)/runsc: tools/runsc/go.mod tools/runsc/go.sum $(wildcard tools/runsc/*.go tools/runsc/overlay/*.go)
	@echo 'building runsc from the pinned gVisor module (once, about a minute)'
	@mkdir -p $(BIN)
	@cd tools/runsc && go run ./overlay $(BIN)/.gvisor && \
		$(BUILD) -modfile $(BIN)/.gvisor/go.mod -ldflags '-s -w' -o $@.new . && \
		rm -rf $(BIN)/.gvisor && mv $@.new $@

.PHONY: template
template: setup build ## build the base template, if it is not there yet
	@$(ROOT) $(BIN)/engi template build base

.PHONY: up
up: ## build everything, start a server, run a first program in a sandbox
	@.ci/up

.PHONY: down
down: ## stop the server that "make up" started and destroy its sandboxes
	@$(ROOT) $(BIN)/engi stop --destroy

.PHONY: modules
modules: ## download the modules of Go, again where the network fails
	@.ci/modules

.PHONY: test
test: modules template $(BIN)/gotestsum ## the gate: an honest look at everything, in real sandboxes too; 20 minutes at most on two processors
	@.ci/setup test
	@$(TESTENV) ENGI_TEST_REQUIRE=1 .ci/test

.PHONY: test-all
test-all: modules template $(BIN)/gotestsum $(BIN)/staticcheck ## every test there is, one suite after the other, and a table at the end; SUITE="race web" chooses
	@STATICCHECK=$(BIN)/staticcheck $(TESTENV) $(ALLENV) ENGI_TEST_REQUIRE=1 .ci/test-all $(SUITE)

.PHONY: fuzz
fuzz: ## fuzz what reads bytes that others wrote; TIME=15s each, PART=0/4 (to 3/4) a fourth of the packages
	@PART=$(PART) .ci/fuzz $${TIME:-15s} ./...

.PHONY: soak
soak: template ## hours of fuzzing, random faults and a hostile tenant; TIME=10m each, FAULTS=10000, TENANTS=30m
	@.ci/fuzz $${TIME:-10m} ./...
	@$(MAKE) --no-print-directory chaos FAULTS=$${FAULTS:-10000}
	@$(TESTENV) ENGI_SEED=random ENGI_TEST_REQUIRE=1 $(GOTEST) -count=1 -p 1 -v ./internal/app/... ./internal/session/... ./internal/sandbox/{fleet,provider}/... ./internal/sandbox/outputlog ./internal/server/pagestream ./internal/network/egress/policy ./internal/node/config ./internal/function
	@$(TESTENV) ENGI_SEED=random ENGI_TEST_REQUIRE=1 ENGI_TENANTS_TIME=$${TENANTS:-30m} $(GOTEST) -count=1 -timeout 120m -v ./test/e2e/tenants

.PHONY: check
check: $(BIN)/staticcheck ## format, modules, vet, staticcheck, pinned versions
	@STATICCHECK=$(BIN)/staticcheck .ci/check

$(BIN)/staticcheck $(BIN)/gotestsum: tools/check/go.mod
	@mkdir -p $(BIN)
	@cd tools/check && go build -o $(BIN)/ honnef.co/go/tools/cmd/staticcheck gotest.tools/gotestsum
	@touch $(BIN)/staticcheck $(BIN)/gotestsum

.PHONY: release
release: build ## one file that carries everything, dist/engi-linux-ARCH, and packages of it for Debian, npm and Python, and of the runtime for pages
	@.ci/setup release
	@test -e $(WEB) || { echo 'a release has a dashboard: see above' >&2; exit 1; }
	@mkdir -p dist
	@rm -rf internal/node/bundle/payload
	@go run ./internal/node/bundle/pack -out internal/node/bundle/payload $(BIN)/runsc $(BIN)/engi-guest $(BIN)/engi-js
	@$(BUILD) -tags release -ldflags '$(LDFLAGS)' -o dist/engi-linux-$(ARCH) ./cmd/engi
	@rm -rf internal/node/bundle/payload
	@.ci/package dist/engi-linux-$(ARCH) $(ARCH) $(VERSION) dist
	@cd dist && sha256sum $$(ls | grep -v '^SHA256SUMS$$') | tee SHA256SUMS

.PHONY: chaos
chaos: template ## 1000 random faults; SEED=N replays, FAULTS=N changes how many
	@$(TESTENV) ENGI_TEST_REQUIRE=1 ENGI_CHAOS_FAULTS=$${FAULTS:-1000} ENGI_CHAOS_SEED=$${SEED:-random} \
		$(GOTEST) -count=1 -timeout 300m -v -run 'Chaos|Lifecycle' ./test/chaos

.PHONY: bench
bench: template ## measure against the goals and write bench/*.json
	@mkdir -p bench
	@for b in claim exec burst boot density replenish compare; do \
		echo "== $$b"; $(ROOT) $(BIN)/engi bench $$b --json | tee bench/$$b.json; done

.PHONY: bench-script
bench-script: template ## scripts side by side with goja, Node's vm and Deno
	@$(BUILD) -o $(BIN)/bench-goja ./test/bench/goja
	@$(ROOT) $(BIN)/engi bench script --compare --goja $(BIN)/bench-goja --deno "$$(find "$$($(ROOT) $(BIN)/engi config show cache_dir)/templates/builds" -path '*/usr/local/bin/deno' | head -1)"

.PHONY: clean
clean: ## remove what was built here; templates and data stay
	@rm -rf bin dist bench internal/node/bundle/payload internal/server/web/dist/app
