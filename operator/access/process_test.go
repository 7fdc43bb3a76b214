package access_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/freeport"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/operator/access"
)

// A manager as a process of its own can be killed and measured.

// managerVariable has the processOptions of a test binary that is to be a
// manager.
const managerVariable = "ACCESS_TEST_MANAGER"

type processOptions struct {
	KubeConfig, Namespace string
	Port                  int32
	Metrics               string
	LeaderElection        bool
	Workers               int
}

// runProcess is a manager that ends when its standard input does.
func runProcess(text string) int {
	var options processOptions
	if err := json.Unmarshal([]byte(text), &options); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	collect := make(chan os.Signal, 1)
	signal.Notify(collect, syscall.SIGUSR1)
	go func() {
		for range collect {
			debug.FreeOSMemory()
			fmt.Println("collected")
		}
	}()
	mgr, err := manager.New(manager.Options{
		OperatorFingerprint: "admitkit", Namespaces: []string{options.Namespace}, Host: "127.0.0.1", Port: options.Port, KubeConfig: options.KubeConfig,
		Serving: manager.ServingOptions{MetricsAddress: options.Metrics, DrainPeriod: new(time.Duration)}, Watching: manager.WatchingOptions{LeaderElection: options.LeaderElection},
		RegisterWebHook: new(bool),
	})
	if err == nil {
		err = mgr.AddExtension(access.New(access.Options{Workers: options.Workers}))
	}
	if err == nil {
		go func() {
			<-mgr.Ready()
			fmt.Println("ready")
			<-mgr.GetKubeManager().Elected()
			fmt.Println("leads", time.Now().UnixNano())
		}()
		err = mgr.Start(testkit.UntilParentEnds())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// process is a running manager process.
type process struct {
	*testkit.Process
	options processOptions
	leads   time.Time
}

// startProcess runs a manager process for a namespace in which start has
// registered the webhooks, or will, at the same port.
func startProcess(t *testing.T, options processOptions) *process {
	t.Helper()
	options.KubeConfig = managerUser.KubeConfig
	p := &process{Process: testkit.RunAgain(t, managerVariable, options), options: options}
	p.Await(t, "ready")
	return p
}

// awaitLead waits until the process leads.
func (p *process) awaitLead(t *testing.T) {
	t.Helper()
	nanos, err := strconv.ParseInt(strings.TrimPrefix(p.Await(t, "leads"), "leads "), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	p.leads = time.Unix(0, nanos)
}

// resident returns the resident memory in MB after a garbage collection.
func (p *process) resident(t *testing.T) float64 {
	t.Helper()
	if err := p.Cmd.Process.Signal(syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	p.Await(t, "collected")
	return testkit.Megabytes(testkit.Memory(t, p.Cmd.Process.Pid, "VmRSS"))
}

// metric sums the samples of a metric whose lines contain all of the parts.
func (p *process) metric(t *testing.T, name string, parts ...string) float64 {
	t.Helper()
	return sum(t, p.scrape(t), name, parts...)
}

// scrape returns all metrics of one moment.
func (p *process) scrape(t *testing.T) string {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+p.options.Metrics+"/metrics", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func sum(t *testing.T, scraped, name string, parts ...string) float64 {
	t.Helper()
	sum := 0.0
line:
	for line := range strings.Lines(scraped) {
		key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		if key != name && !strings.HasPrefix(key, name+"{") {
			continue
		}
		for _, part := range parts {
			if !strings.Contains(key, part) {
				continue line
			}
		}
		number, err := strconv.ParseFloat(value, 64)
		if err != nil {
			t.Fatal(err)
		}
		sum += number
	}
	return sum
}

// register registers the webhooks of a manager that runs elsewhere.
func register(t *testing.T, namespace string, port int32) {
	t.Helper()
	registrar := newManager(t, manager.Options{OperatorFingerprint: "admitkit", Namespaces: []string{namespace}, Host: "127.0.0.1", Port: port, RESTConfig: cluster.Config()}, access.Options{})
	if err := registrar.RegisterExtensions(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := registrar.UnregisterExtensions(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
}

// startManagerProcess registers the webhooks, runs a manager process that leads,
// and returns when the API server calls it.
func startManagerProcess(t *testing.T, namespace string) *process {
	t.Helper()
	port := freeport.For(t)
	register(t, namespace, port)
	p := startProcess(t, processOptions{Namespace: namespace, Port: port, Metrics: fmt.Sprintf("127.0.0.1:%d", freeport.For(t)), LeaderElection: true})
	p.awaitLead(t)
	awaitWebhooks(t, namespace)
	return p
}

// awaitWebhooks waits until the API server, which learns of webhooks by a watch
// of its own, calls them.
func awaitWebhooks(t *testing.T, namespace string) {
	t.Helper()
	testkit.Eventually(t, "the API server calls the webhooks", func(ctx context.Context) bool {
		probe := podRequest(namespace, "probe", "none")
		probe.Spec.Duration = "0s"
		err := admin.Create(ctx, probe, client.DryRunAll)
		return err != nil && strings.Contains(err.Error(), "0s must be more than 0")
	})
}
