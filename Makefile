# One target a line in `make help`: the comment after ## is its text.
SHELL := /usr/bin/env bash -o pipefail
.DEFAULT_GOAL := help

ifneq ($(words $(CURDIR)),1)
$(error the folder of this clone has a space in its name, with which make cannot work: $(CURDIR))
endif

# All targets compile alike, so what one has compiled serves the others, and the next
# clone, wherever that is. What only debuggers read is a tenth of the compiler's work.
export GOFLAGS += -trimpath -gcflags=all=-dwarf=false
export CGO_ENABLED ?= 0

# The race detector needs cgo, and that a C compiler.
RACE := $(shell command -v "$$(go env CC)" >/dev/null 2>&1 && echo -race)
otlp opa: export CGO_ENABLED = $(if $(RACE),1,0)

# K8S=1.35 make test: the tests run on that version. Whoever sets both is told.
ifneq ($(K8S),)
ifeq ($(KUBEBUILDER_ASSETS),)
export KUBEBUILDER_ASSETS := $(CURDIR)/bin/k8s/$(K8S)
endif
endif

# It says itself how far it is. What Go says of its downloads goes to a log. The compiler
# would spend a third of its time on collecting garbage, which few packages need.
CONTROLPLANE = mkdir -p bin/k8s; \
	go list -C hack/controlplane -deps . >/dev/null 2>>bin/k8s/downloads.log; \
	GOGC=off GOMEMLIMIT=1GiB go run -C hack/controlplane . -module . -out $(CURDIR)/bin/k8s

TOOLS := $(CURDIR)/bin/tools
GOLANGCI_LINT := $(TOOLS)/golangci-lint
COUNTERFEITER := $(TOOLS)/counterfeiter
BENCHSTAT := $(TOOLS)/benchstat
GOTESTSUM := $(TOOLS)/gotestsum
CONTROLLER_GEN := $(TOOLS)/controller-gen
HELM := $(TOOLS)/helm
# The tests of the chart render it by Helm's library, in one process.
CHARTRENDER := $(TOOLS)/chartrender
ENFORCER := $(TOOLS)/kube-network-policies
RELEASE_TOOLS := $(TOOLS)/goreleaser $(TOOLS)/syft $(TOOLS)/validate-krew-manifest

# The modules beside that of the root, from git, so that a new one is linted and tidied.
MODULES = $(or $(patsubst %/go.mod,%,$(shell git ls-files '*/go.mod')),$(error git ls-files finds no module: this needs a clone that git trusts))
# One cannot be tidied: the tests of its tools import packages that are no more.
TIDIED = $(filter-out hack/release/tools,$(MODULES))
# hack/test.sh tests the operator with the library.
TESTED = $(foreach module,$(filter-out operator,$(MODULES)),$(if $(shell git ls-files '$(module)/*_test.go'),$(module)))

# What make generate writes.
GENERATED := testing/fakes operator/config/crd operator/api examples/preview/v1 examples/preview/crd examples/alarm/v1 examples/alarm/v2 examples/alarm/crd docs/api.txt operator/docs/api.txt docs/options.md docs/metrics.md operator/docs/metrics.md docs/security.md operator/docs/access.md operator/docs/audit/rights.md operator/charts/admitkit/README.md operator/charts/admitkit/files

.PHONY: help
help: ## List the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z0-9-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: ## See a real API server send a Pod and an exec through admitkit (under 1 min)
	@$(CONTROLPLANE) -only etcd,kube-apiserver,kubectl,kwok -compile $(CURDIR)/operator/hack/demo
	go -C operator run ./hack/demo

.PHONY: test
test: controlplane $(HELM) $(CHARTRENDER) $(GOTESTSUM) $(CONTROLLER_GEN) ## Unit and integration tests on a real API server (8 min; TESTFLAGS=-count=1)
	MODULES="$(TESTED)" hack/test.sh $(TESTFLAGS)

.PHONY: race
race: controlplane $(HELM) $(CHARTRENDER) $(GOTESTSUM) $(CONTROLLER_GEN) ## The same, all of them with the race detector (30 min)
	RACE=all MODULES="$(TESTED)" hack/test.sh $(TESTFLAGS)

.PHONY: steady
steady: controlplane $(HELM) $(CHARTRENDER) $(GOTESTSUM) $(CONTROLLER_GEN) ## The same as test three times, beside two busy loops a core (1 h)
	MODULES="$(TESTED)" hack/steady.sh

.PHONY: figures
figures: controlplane $(HELM) $(CHARTRENDER) $(CONTROLLER_GEN) ## Every test in its long form; the figures go to bin/figures.txt
	@status=0; \
	{ failed=0; for module in . operator $(TESTED); do go -C $$module test -v -count=1 -p 1 -timeout 2h ./... || failed=1; done; exit $$failed; } | \
	  tee bin/figures.log | grep --line-buffered -E '^(FIGURE|--- FAIL|FAIL|ok)' || status=$$?; \
	{ echo "# $$(git describe --always --dirty --abbrev=12) $$(date -u +%Y-%m-%dT%H:%M:%SZ)"; grep '^FIGURE' bin/figures.log; } > bin/figures.txt; \
	exit $$status

.PHONY: otlp
otlp: ## Send 10,000 records to a real OpenTelemetry collector that restarts (first time: 5 min)
	@mkdir -p bin
	go build -C hack/collector -ldflags="-s -w" -o $(CURDIR)/bin/collector .
	ADMITKIT_COLLECTOR=$(CURDIR)/bin/collector go -C operator test $(RACE) -v -count=1 -run '^TestARealCollector' ./audit/sink/deliver ./cmd/admitkit

.PHONY: versitygw
versitygw: ## Build the S3 server that tests of recordings use (first time: 5 min)
	go build -C hack/versitygw -trimpath -ldflags="-s -w" -o $(CURDIR)/bin/versitygw github.com/versity/versitygw/cmd/versitygw

.PHONY: opa
opa: ## Run the example of transient bindings with a real OPA server (first time: 5 min)
	@mkdir -p bin
	go build -C hack/opa -ldflags="-s -w" -o $(CURDIR)/bin/opa github.com/open-policy-agent/opa
	ADMITKIT_OPA=$(CURDIR)/bin/opa go -C operator test $(RACE) -short -v -count=1 -run '^TestTheSeedRunsWithARealOPAServer' ./cmd/hooks

.PHONY: bench
bench: $(BENCHSTAT) ## Compare with controller-runtime, side by side; writes docs/benchmarks.md (10 min)
	@mkdir -p bin
	go run ./hack/bench -benchstat $(BENCHSTAT) -write docs/benchmarks.md

.PHONY: weight
weight: ## Weigh what admitkit adds to a program; writes docs/weight.md (20 s; first time: 5 min)
	go run ./hack/weight -write docs/weight.md

FUZZTIME ?= 6s
.PHONY: fuzz
fuzz: ## Fuzz what parses what others send, 6 s each (FUZZTIME=10m for longer)
	hack/fuzz.sh $(FUZZTIME)

.PHONY: controlplane
controlplane: ## Get etcd, kube-apiserver, kubectl... into bin/k8s (builds 2 to 12 min the first time; K8S=1.35)
	@$(CONTROLPLANE)

.PHONY: matrix
matrix: ## Test on every supported Kubernetes; writes docs/support.md (over an hour the first time; MATRIX="1.34 1.35")
	go run ./hack/matrix -write docs/support.md

IMAGE ?= ghcr.io/admitkit/admitkit:dev
HOOKS_IMAGE ?= ghcr.io/admitkit/hooks:dev
SANDBOX_IMAGE ?= ghcr.io/admitkit/sandbox:dev
RECORDER_IMAGE ?= ghcr.io/admitkit/recorder:dev
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null)
.PHONY: image
image: bin/admitkit.tar bin/hooks.tar bin/sandbox.tar bin/recorder.tar ## Build the images into bin/*.tar, OCI archives (IMAGE=name, HOOKS_IMAGE=name, SANDBOX_IMAGE=name, RECORDER_IMAGE=name)

bin/admitkit.tar: NAME = $(IMAGE)
bin/hooks.tar: NAME = $(HOOKS_IMAGE)
bin/sandbox.tar: NAME = $(SANDBOX_IMAGE)
bin/recorder.tar: NAME = $(RECORDER_IMAGE)
bin/sample.tar: NAME = admitkit.dev/sample:dev
.PHONY: bin/admitkit.tar bin/hooks.tar bin/sandbox.tar bin/recorder.tar bin/sample.tar
bin/admitkit.tar bin/hooks.tar bin/sandbox.tar bin/recorder.tar bin/sample.tar: bin/%.tar: programs
	go run -C hack/image . $(SPEED) -binary $(CURDIR)/bin/image/$* -arch $$(go env GOARCH) -name $(NAME) -out $(CURDIR)/$@

# The programs of the images, static and linked side by side.
PROGRAMS := ./cmd/admitkit ./cmd/hooks ./cmd/sandbox ./cmd/recorder
.PHONY: programs
programs:
	@mkdir -p bin/image
	CGO_ENABLED=0 go -C operator build -buildvcs=false -ldflags="-s -w -X github.com/admitkit/admitkit/manager/buildinfo.version=$(VERSION)" -o $(CURDIR)/bin/image/ $(PROGRAMS)

.PHONY: release
release: $(RELEASE_TOOLS) $(HELM) ## Build the release of the tag at HEAD into bin/release; uploads nothing
	go run ./hack/release build

# Without qemu the programs for the other architecture are not run.
.PHONY: release-check
release-check: $(RELEASE_TOOLS) $(HELM) ## Build a release of HEAD twice and examine it (20 min the first time)
	-@[ "$$(uname)" != Linux ] || hack/debian.sh qemu-user-static qemu-aarch64-static
	go run ./hack/release check

CLUSTER := $(CURDIR)/bin/cluster
.PHONY: cluster-up
cluster-up: bin/busybox.tar ## Start a real cluster on this machine, with one node (Linux, root)
	@$(CONTROLPLANE) -node
	@go build -buildvcs=false -o bin/tools/cluster ./hack/cluster
	@bin/tools/cluster -dir $(CLUSTER) -binaries $(CURDIR)/bin/k8s/$(or $(K8S),current) -sandbox bin/busybox.tar up

.PHONY: cluster-down
cluster-down: ## End it, and leave nothing but its logs
	@go build -buildvcs=false -o bin/tools/cluster ./hack/cluster
	@bin/tools/cluster -dir $(CLUSTER) down

# With E2E_IMAGE and KUBECONFIG it runs on that cluster: see operator/e2e. E2EFLAGS=-short is
# the short form, which .ci/run runs: its tests wait for the node, and run beside each other,
# though only one of the packages that need the cluster. The long one, of the nightly workflow, measures.
.PHONY: e2e
e2e: export E2E_ENFORCER := $(ENFORCER)
e2e: BEGAN := $(shell date +%s)
e2e: $(HELM) $(ENFORCER) $(GOTESTSUM) ## End-to-end tests on a real cluster: the image, by the chart, with kubectl (Linux, root)
	@mkdir -p bin; status=0; \
	(cd operator && $(GOTESTSUM) --format standard-verbose --hide-summary=output,skipped --jsonfile $(CURDIR)/bin/e2e.json -- \
	  -vet=off -count=1 -p $(if $(findstring -short,$(E2EFLAGS)),2,1) -parallel 8 -timeout 90m -tags e2e $(E2EFLAGS) ./e2e/... $(if $(E2E_CLUSTER),../hack/cluster)) || status=$$?; \
	echo "the ten slowest tests:"; $(GOTESTSUM) tool slowest --jsonfile bin/e2e.json --threshold 1s --num 10; \
	echo "FIGURE e2e.s=$$(($$(date +%s) - $(BEGAN))) s"; exit $$status
ifndef E2E_IMAGE
e2e: export KUBECONFIG := $(CLUSTER)/kubeconfig
e2e: export E2E_IMAGE := $(IMAGE)
e2e: export E2E_RECORDER_IMAGE := $(RECORDER_IMAGE)
e2e: export E2E_CLUSTER := $(CLUSTER)
e2e: export E2E_SANDBOX := $(CURDIR)/bin/image/sandbox
e2e: export E2E_UNTRUSTED := $(CURDIR)/bin/image/untrusted
e2e: cluster-load
endif

# They have one version for all commits, so that none of them is linked in vain.
.PHONY: cluster-load
cluster-load: $(HELM) ## Put the images into that cluster's node
	@$(MAKE) --no-print-directory -j4 cluster-up bin/admitkit.tar bin/recorder.tar bin/sample.tar VERSION=e2e SPEED=-fast \
	  PROGRAMS="./cmd/admitkit ./cmd/sandbox ./cmd/recorder github.com/admitkit/admitkit/internal/testkit/sample ./e2e/untrusted"
	@for image in admitkit recorder sample; do bin/tools/cluster -dir $(CLUSTER) load bin/$$image.tar || exit 1; done

# What Pods of tests run. The machine's own busybox may need libraries, for which
# ldd succeeds.
bin/busybox.tar: hack/image/main.go
	@busybox=$$(command -v busybox); \
	if [ -z "$$busybox" ] || ldd "$$busybox" >/dev/null 2>&1; then \
	  busybox=$(TOOLS)/busybox; hack/debian.sh busybox-static busybox || exit 1; \
	fi; \
	go run -C hack/image . -busybox "$$busybox" -arch $$(go env GOARCH) -name admitkit.dev/busybox:dev -out $(CURDIR)/$@

.PHONY: generate
generate: $(COUNTERFEITER) $(CONTROLLER_GEN) ## Write generated code anew
	PATH=$(TOOLS):$$PATH go generate ./...
	PATH=$(TOOLS):$$PATH go -C operator generate ./...
	go run -C hack/tools ./apilist -dir $(CURDIR) > bin/generated && mv bin/generated docs/api.txt
	go run -C hack/tools ./apilist -dir $(CURDIR)/operator > bin/generated && mv bin/generated operator/docs/api.txt
	go run -C hack/tools ./optiondoc -dir $(CURDIR) > bin/generated && mv bin/generated docs/options.md
	go run -C hack/tools ./metricdoc -dir $(CURDIR) webhook certs manager extension internal > bin/generated && mv bin/generated docs/metrics.md
	go run -C hack/tools ./metricdoc -dir $(CURDIR)/operator -operations ../../docs access audit binding hook sandbox session internal > bin/generated && mv bin/generated operator/docs/metrics.md
	go run -C hack/helm ./chartdoc -dir $(CURDIR)
	go -C operator run ./hack/rbacdoc -dir $(CURDIR)
	cp operator/config/crd/*.yaml operator/charts/admitkit/files/crds/
	cp operator/config/crd/metacontroller/*.yaml operator/charts/admitkit/files/crds/metacontroller/
	cp operator/config/policy/*.yaml operator/charts/admitkit/files/policies/
	go -C operator test -count=1 -run '^TestThe(Rules|Settings)OfTheChart' ./cmd/admitkit -update > /dev/null
	go -C operator test -count=1 -run '^TestTheFilesOfTheChart' ./cmd/sandbox -update > /dev/null

.PHONY: lint
lint: $(GOLANGCI_LINT) ## Vet and lint, the import law included
	$(GOLANGCI_LINT) run --allow-parallel-runners ./...
	@for module in $(MODULES); do \
	  [ -n "$$(git ls-files "$$module/*.go")" ] || continue; \
	  echo "linting $$module"; (cd $$module && $(GOLANGCI_LINT) run --allow-parallel-runners --config $(CURDIR)/.golangci.yml ./...) || exit 1; \
	done

.PHONY: fmt
fmt: $(GOLANGCI_LINT) ## Format the code
	$(GOLANGCI_LINT) fmt ./...
	cd operator && $(GOLANGCI_LINT) fmt --config $(CURDIR)/.golangci.yml ./...

GOVULNCHECK := go run golang.org/x/vuln/cmd/govulncheck@v1.9.0

.PHONY: vulnerabilities
vulnerabilities: ## Look for known vulnerabilities in what is called; needs vuln.go.dev
	$(GOVULNCHECK) ./...
	cd operator && $(GOVULNCHECK) ./...

.PHONY: apidiff
apidiff: ## Compare the public API with that of the last release
	go -C hack/tools test ./apidiff
	go run -C hack/tools ./apidiff -dir $(CURDIR)

.PHONY: verify
verify: generate apidiff ## Check that generated files are current, modules tidy and incompatible changes named
	hack/tidy.sh -diff . $(TIDIED)
	git diff --exit-code -- $(GENERATED)
	@untracked=$$(git ls-files --others --exclude-standard -- $(GENERATED)); \
	if [ -n "$$untracked" ]; then echo "generated, but not in git: $$untracked"; exit 1; fi

.PHONY: clean
clean: ## Remove bin, the built Kubernetes included
	rm -rf bin

# The tools are built once for each version of hack/tools/go.mod. go tool keeps what
# it has linked in Go's build cache, for the next clone of this repository.
tool = @mkdir -p $(TOOLS) && cp "$$(go -C hack/$(1) tool -n $(notdir $@))" $@

$(GOLANGCI_LINT): hack/tools/go.mod
	@echo "building golangci-lint (3 to 5 min the first time)"
	$(call tool,tools)

$(COUNTERFEITER) $(BENCHSTAT) $(CONTROLLER_GEN) $(GOTESTSUM): hack/tools/go.mod
	$(call tool,tools)

$(RELEASE_TOOLS): hack/release/tools/go.mod
	@echo "building $(notdir $@) (several minutes the first time)"
	@mkdir -p $(TOOLS) && cp "$$(CGO_ENABLED=0 go -C hack/release/tools tool -n $(notdir $@))" $@

# It enforces network policies in the end-to-end tests. Its command is called standard.
$(ENFORCER): hack/netpol/go.mod
	@echo "building kube-network-policies (3 min the first time)"
	@mkdir -p $(TOOLS) && cp "$$(go -C hack/netpol tool -n standard)" $@

$(CHARTRENDER): $(wildcard hack/helm/chartrender/*.go)
$(HELM) $(CHARTRENDER): hack/helm/go.mod
	@echo "building $(notdir $@), with Helm's library (2 min the first time)"
	$(call tool,helm)
