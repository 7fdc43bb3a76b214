package audit_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spf13/afero"
	"go.uber.org/zap"
	"k8s.io/client-go/rest"
	ctrlmanager "sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/extension/audit"
	"github.com/admitkit/admitkit/testing/fakes"
)

// collector is an endpoint for CloudEvents.
type collector struct {
	*httptest.Server
	mu      sync.Mutex
	got     []string
	batches int
	// answer says what to do about a batch: 0 takes it.
	answer func(ids []string) int
	notify chan struct{}
}

func newCollector(t *testing.T) *collector {
	c := &collector{notify: make(chan struct{}, 1000)}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var events []struct {
			SpecVersion, ID, Source, Type, Subject string
			Time                                   time.Time
			DataContentType                        string
			Data                                   struct{ ID string }
		}
		if err := json.NewDecoder(r.Body).Decode(&events); err != nil {
			t.Error(err)
		}
		if got := r.Header.Get("Content-Type"); !strings.HasPrefix(got, "application/cloudevents-batch+json") {
			t.Errorf("the content type is %q", got)
		}
		var ids []string
		for _, e := range events {
			if e.SpecVersion != "1.0" || e.ID == "" || e.Source == "" || e.Type == "" || e.Time.IsZero() || e.Data.ID != e.ID {
				t.Errorf("not a CloudEvent with a record: %+v", e)
			}
			ids = append(ids, e.ID)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		defer func() { c.notify <- struct{}{} }()
		if c.answer != nil {
			if code := c.answer(ids); code != 0 {
				w.WriteHeader(code)
				return
			}
		}
		c.batches++
		c.got = append(c.got, ids...)
	}))
	t.Cleanup(c.Close)
	return c
}

func (c *collector) ids() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.got)
}

// await waits until the endpoint has n events.
func (c *collector) await(t *testing.T, n int) {
	t.Helper()
	for len(c.ids()) < n {
		select {
		case <-c.notify:
		case <-time.After(20 * time.Second):
			t.Fatalf("the endpoint has %d events, want %d", len(c.ids()), n)
		}
	}
}

// runSink registers a sink and runs what it starts, until stop is called.
func runSink(t *testing.T, sink audit.Sink) (stop func()) {
	t.Helper()
	kube, err := ctrlmanager.New(&rest.Config{Host: "https://127.0.0.1:1"}, ctrlmanager.Options{})
	if err != nil {
		t.Fatal(err)
	}
	mgr := &fakes.Manager{}
	mgr.GetLoggerReturns(zap.NewNop().Sugar())
	mgr.GetKubeManagerReturns(kube)
	if err := sink.(extension.Hosted).Register(mgr); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- kube.Start(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(stop)
	return stop
}

func write(t *testing.T, sink audit.Sink, ids ...int) {
	t.Helper()
	for _, id := range ids {
		if err := sink.Write(t.Context(), recordOf(fmt.Sprintf("%03d", id), time.Now())); err != nil {
			t.Fatal(err)
		}
	}
}

func TestWithoutAQueueARecordIsTakenWhenTheEndpointHasIt(t *testing.T) {
	endpoint := newCollector(t)
	sink := audit.NewCloudEventsSink(audit.CloudEventsSinkOptions{URL: endpoint.URL})
	write(t, sink, 1)
	if got := endpoint.ids(); len(got) != 1 || got[0] != "001" {
		t.Errorf("the endpoint has %v", got)
	}
	endpoint.answer = func([]string) int { return http.StatusServiceUnavailable }
	if err := sink.Write(t.Context(), recordOf("2", time.Now())); err == nil || !strings.Contains(err.Error(), "503") {
		t.Errorf("got %v, want that the endpoint does not answer", err)
	}
}

func TestARefusalDoesNotTellTheEndpointsAddress(t *testing.T) {
	sink := audit.NewCloudEventsSink(audit.CloudEventsSinkOptions{URL: "http://127.0.0.1:1/hook?key=s3cr3t"})
	if err := sink.Write(t.Context(), recordOf("1", time.Now())); err == nil || strings.Contains(err.Error(), "s3cr3t") {
		t.Errorf("got %v, want an error without the URL", err)
	}
}

func TestTheQueueOutlivesTheEndpointAndTheProcess(t *testing.T) {
	endpoint := newCollector(t)
	down := true
	endpoint.answer = func([]string) int {
		if down {
			return http.StatusServiceUnavailable
		}
		return 0
	}
	options := audit.CloudEventsSinkOptions{
		URL: endpoint.URL, Dir: t.TempDir(), BatchSize: 10, Backoff: time.Millisecond, MaxBackoff: 5 * time.Millisecond,
	}
	first := audit.NewCloudEventsSink(options)
	stop := runSink(t, first)
	for i := range 25 {
		write(t, first, i)
	}
	write(t, first, 24) // a retry of the API server's
	stop()
	if got := endpoint.ids(); len(got) != 0 {
		t.Fatalf("the endpoint is down and has %v", got)
	}
	second := audit.NewCloudEventsSink(options)
	runSink(t, second)
	write(t, second, 25, 26)
	endpoint.mu.Lock()
	down = false
	endpoint.mu.Unlock()
	endpoint.await(t, 27)
	got := endpoint.ids()
	if len(got) != 27 || !slices.IsSorted(got) || len(slices.Compact(got)) != 27 {
		t.Errorf("want each once and in order, got %v", got)
	}
	if endpoint.batches >= 27 {
		t.Errorf("%d requests for 27 records: those that wait should go together", endpoint.batches)
	}
}

func TestAnEventThatTheEndpointRejectsHoldsUpNoOther(t *testing.T) {
	endpoint := newCollector(t)
	endpoint.answer = func(ids []string) int {
		if slices.Contains(ids, "001") {
			return http.StatusBadRequest
		}
		return 0
	}
	sink := audit.NewCloudEventsSink(audit.CloudEventsSinkOptions{URL: endpoint.URL, Dir: t.TempDir()})
	before := metric(t, "admitkit_audit_lost_total", "cloudevents")
	write(t, sink, 0, 1, 2)
	runSink(t, sink)
	endpoint.await(t, 2)
	if got := strings.Join(endpoint.ids(), " "); got != "000 002" {
		t.Errorf("the endpoint has %s", got)
	}
	if got := metric(t, "admitkit_audit_lost_total", "cloudevents") - before; got != 1 {
		t.Errorf("%v are counted as lost, want 1", got)
	}
}

func TestAQueueThatIsFullTakesNoMore(t *testing.T) {
	sink := audit.NewCloudEventsSink(audit.CloudEventsSinkOptions{URL: "http://127.0.0.1:1", Dir: "/queue", MaxQueued: 2, Fs: afero.NewMemMapFs()})
	write(t, sink, 1, 2)
	if err := sink.Write(t.Context(), recordOf("3", time.Now())); err == nil || !strings.Contains(err.Error(), "the queue is full") {
		t.Errorf("got %v, want that the queue is full", err)
	}
}

func TestAQueueOnAFullDiskIsAnError(t *testing.T) {
	disk := &flakyFs{Fs: afero.NewOsFs()}
	disk.full.Store(true)
	sink := audit.NewCloudEventsSink(audit.CloudEventsSinkOptions{URL: "http://127.0.0.1:1", Dir: t.TempDir(), Fs: disk})
	if err := sink.Write(t.Context(), recordOf("1", time.Now())); err == nil || !strings.Contains(err.Error(), "no space left") {
		t.Errorf("got %v, want that the disk is full", err)
	}
}
