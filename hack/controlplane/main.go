// Command controlplane puts the Kubernetes binaries that tests, demo and
// benchmarks run into a folder: etcd, kube-apiserver, kube-controller-manager,
// kubectl and kwok, and with -node what a real node runs: kubelet, kube-proxy
// and kube-scheduler. A binary that KUBEBUILDER_ASSETS holds is linked from
// there. On a machine that reaches the internet, etcd, kube-apiserver and kubectl
// are those that envtest publishes, and kwok is that of its release. Every other one
// is built once, all of them in one module graph, so that they share what they import.
//
// With -k8s it does so for an older Kubernetes, which shares etcd and kwok with
// the default one.
//
// It is safe to interrupt (a binary appears under its name only when it is
// whole), safe to run twice at the same time (the second waits), and does
// nothing when nothing is missing.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// current is a link beside the version folders to the one last made of the default
// version or from KUBEBUILDER_ASSETS, which is where testing/controlplane looks.
const current = "current"

// leftover is how the names of folders begin that a killed run leaves behind.
const leftover = ".building-"

type binary struct {
	name string
	// pkg is the package to build.
	pkg string
	// first is how long the first build takes on two cores with nothing cached.
	first time.Duration
}

var binaries = []binary{
	{"etcd", "go.etcd.io/etcd/server/v3", 15 * time.Second},
	{"kubectl", "k8s.io/kubernetes/cmd/kubectl", 60 * time.Second},
	{"kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver", 8*time.Minute + 30*time.Second},
	{"kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager", 2*time.Minute + 30*time.Second},
	{kwok, "sigs.k8s.io/kwok/cmd/kwok", 50 * time.Second},
}

// versioned says whether a binary is part of Kubernetes.
func (b binary) versioned() bool { return strings.HasPrefix(b.pkg, "k8s.io/kubernetes/") }

// nodeBinaries share most of their packages with those above.
var nodeBinaries = []binary{
	{"kubelet", "k8s.io/kubernetes/cmd/kubelet", 50 * time.Second},
	{"kube-proxy", "k8s.io/kubernetes/cmd/kube-proxy", 20 * time.Second},
	{"kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler", 20 * time.Second},
}

// options are what a user chooses.
type options struct {
	module, out string
	// k8s is a version of the table. If it is empty, the version is that of
	// KUBEBUILDER_ASSETS, or else the first of the table.
	k8s  string
	node bool
	// only names the binaries to get; empty means all.
	only string
	// download is yes (or empty) or no, index the URL of another index than envtest's,
	// and kwok that of another folder than the one of kwok's release.
	download, index, kwok string
	kwokSums              map[string]string
	limits                limits
	// compile is the folder of a command to compile, too.
	compile string
	// list prints the supported versions, and does nothing else.
	list bool
	// args are the arguments that are no options.
	args []string
}

func main() {
	o := options{k8s: os.Getenv("K8S"), download: os.Getenv("K8S_DOWNLOAD"), index: os.Getenv("K8S_INDEX"), kwok: os.Getenv("K8S_KWOK"), kwokSums: kwokSums, limits: defaultLimits}
	flag.StringVar(&o.module, "module", ".", "the folder of this module, where go build is run")
	flag.StringVar(&o.out, "out", "", "the folder that gets <version>/ and the link "+current+" (required)")
	flag.StringVar(&o.k8s, "k8s", o.k8s, "the Kubernetes version, for example 1.35; the link "+current+" is left alone if it is not the default one (K8S)")
	flag.BoolVar(&o.node, "node", false, "get the binaries of a real node, too")
	flag.StringVar(&o.only, "only", "", "the binaries to get, separated by commas (default: all)")
	flag.StringVar(&o.download, "download", o.download, "yes or no: take what is published, or build everything (K8S_DOWNLOAD; default yes)")
	flag.StringVar(&o.index, "index", o.index, "the URL of the index of what is published (K8S_INDEX; default: envtest's)")
	flag.StringVar(&o.kwok, "kwok", o.kwok, "the URL of the folder that has kwok's binaries (K8S_KWOK; default: that of its release)")
	flag.StringVar(&o.compile, "compile", "", "the folder of a command to compile into Go's build cache, so that go run has only to run it")
	flag.BoolVar(&o.list, "list", false, "print the supported versions, and do nothing")
	flag.Parse()
	o.args = flag.Args()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintf(os.Stderr, "controlplane: %v\n", err)
		stop()
		os.Exit(1) //nolint:gocritic // stop has just run
	}
}

func run(ctx context.Context, o options) error {
	if len(o.args) > 0 {
		return fmt.Errorf("the arguments %q are left over: each option begins with -, for example -k8s 1.35", o.args)
	}
	if o.list {
		for _, r := range supported {
			fmt.Println(r.minor, r.version)
		}
		return nil
	}
	p, err := newPlan(ctx, o)
	if err != nil {
		return err
	}
	began := time.Now()
	if err := p.get(ctx); err != nil {
		return err
	}
	if p.version == p.release.version { // not what KUBEBUILDER_ASSETS has
		if err := replaceLink(p.version, filepath.Join(p.out, p.release.minor)); err != nil {
			return err
		}
	}
	if p.release.main() {
		if err := replaceLink(p.version, filepath.Join(p.out, current)); err != nil {
			return err
		}
	}
	fmt.Printf("controlplane: %s is complete (%s)\n", p.dir, time.Since(began).Round(time.Second))
	if o.compile == "" {
		return nil
	}
	return goBuild{name: filepath.Base(o.compile), dir: o.compile, pkg: ".", env: os.Environ(), log: filepath.Join(p.out, downloads)}.run(ctx, "true", "")
}
