package cloudevents_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/afero"
	"go.uber.org/zap"
	"k8s.io/client-go/rest"
	ctrlmanager "sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/admitkit/admitkit/extension/cloudevents"
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
				t.Errorf("not a CloudEvent with its data: %+v", e)
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

// run registers a sender and runs what it starts, until stop is called.
func run(t *testing.T, s *cloudevents.Sender) (stop func()) {
	t.Helper()
	return runWith(t, s, zap.NewNop())
}

func runWith(t *testing.T, s *cloudevents.Sender, log *zap.Logger) (stop func()) {
	t.Helper()
	kube, err := ctrlmanager.New(&rest.Config{Host: "https://127.0.0.1:1"}, ctrlmanager.Options{Metrics: metricsserver.Options{BindAddress: "0"}})
	if err != nil {
		t.Fatal(err)
	}
	mgr := fakes.NewManager()
	mgr.GetLoggerReturns(log.Sugar())
	mgr.GetKubeManagerReturns(kube)
	if err := s.Register(mgr); err != nil {
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

func event(id string) cloudevents.Event {
	return cloudevents.Event{ID: id, Type: "test", Time: time.Now(), Data: map[string]string{"id": id}}
}

func send(t *testing.T, s *cloudevents.Sender, ids ...int) {
	t.Helper()
	for _, id := range ids {
		if err := s.Send(t.Context(), event(fmt.Sprintf("%03d", id))); err != nil {
			t.Fatal(err)
		}
	}
}

func TestWithoutAQueueAnEventIsTakenWhenTheEndpointHasIt(t *testing.T) {
	endpoint := newCollector(t)
	sender := cloudevents.New(cloudevents.Options{Name: "test", Source: "test", URL: endpoint.URL})
	send(t, sender, 1)
	if got := endpoint.ids(); len(got) != 1 || got[0] != "001" {
		t.Errorf("the endpoint has %v", got)
	}
	endpoint.answer = func([]string) int { return http.StatusServiceUnavailable }
	if err := sender.Send(t.Context(), event("2")); err == nil || !strings.Contains(err.Error(), "503") {
		t.Errorf("got %v, want that the endpoint does not answer", err)
	}
}

func TestARefusalDoesNotTellTheEndpointsAddress(t *testing.T) {
	sender := cloudevents.New(cloudevents.Options{Name: "test", Source: "test", URL: "http://127.0.0.1:1/hook?key=s3cr3t"})
	if err := sender.Send(t.Context(), event("1")); err == nil || strings.Contains(err.Error(), "s3cr3t") {
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
	options := cloudevents.Options{
		Name: "test", Source: "test", URL: endpoint.URL, Dir: t.TempDir(), BatchSize: 10, Backoff: time.Millisecond, MaxBackoff: 5 * time.Millisecond,
	}
	first := cloudevents.New(options)
	stop := run(t, first)
	for i := range 25 {
		send(t, first, i)
	}
	send(t, first, 24) // a retry of the API server's
	stop()
	if got := endpoint.ids(); len(got) != 0 {
		t.Fatalf("the endpoint is down and has %v", got)
	}
	second := cloudevents.New(options)
	run(t, second)
	send(t, second, 25, 26)
	endpoint.mu.Lock()
	down = false
	endpoint.mu.Unlock()
	for n := 27; ; n++ { // more, if the endpoint still read a request that was given up when the first stopped
		endpoint.await(t, n)
		if slices.Contains(endpoint.ids(), "026") {
			break
		}
	}
	var got []string
	for _, id := range endpoint.ids() {
		if !slices.Contains(got, id) {
			got = append(got, id)
		}
	}
	if len(got) != 27 || !slices.IsSorted(got) {
		t.Errorf("want each, in order, got %v", got)
	}
	if endpoint.batches >= 27 {
		t.Errorf("%d requests for 27 events: those that wait should go together", endpoint.batches)
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
	options := cloudevents.Options{Name: "rejecting", Source: "test", URL: endpoint.URL, Dir: t.TempDir()}
	var rejected []json.RawMessage
	options.Rejected = func(event json.RawMessage) { rejected = append(rejected, event) }
	sender := cloudevents.New(options)
	send(t, sender, 0, 1, 2)
	stop := run(t, sender)
	endpoint.await(t, 2)
	if got := strings.Join(endpoint.ids(), " "); got != "000 002" {
		t.Errorf("the endpoint has %s", got)
	}
	stop()
	if len(rejected) != 1 || !strings.Contains(string(rejected[0]), `"id":"001"`) {
		t.Errorf("rejected: %s", rejected)
	}
	families, err := metrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() == "admitkit_cloudevents_rejected_total" {
			if got := family.GetMetric()[0]; got.GetCounter().GetValue() != 1 || got.GetLabel()[0].GetValue() != "rejecting" {
				t.Errorf("counted as rejected: %v", got)
			}
			return
		}
	}
	t.Error("the rejection is not counted")
}

func TestAQueueThatIsFullTakesNoMore(t *testing.T) {
	sender := cloudevents.New(cloudevents.Options{Name: "test", Source: "test", URL: "http://127.0.0.1:1", Dir: "/queue", MaxQueued: 2, Fs: afero.NewMemMapFs()})
	send(t, sender, 1, 2)
	if err := sender.Send(t.Context(), event("3")); err == nil || !strings.Contains(err.Error(), "the queue is full") {
		t.Errorf("got %v, want that the queue is full", err)
	}
}

// fullDisk takes a part of what is written, as write(2) does.
type fullDisk struct{ afero.Fs }

func (d fullDisk) OpenFile(name string, flag int, perm os.FileMode) (afero.File, error) {
	file, err := d.Fs.OpenFile(name, flag, perm)
	return fullFile{file}, err
}

type fullFile struct{ afero.File }

func (f fullFile) Write(p []byte) (int, error) {
	n, _ := f.File.Write(p[:len(p)/2])
	return n, syscall.ENOSPC
}

func TestAQueueOnAFullDiskIsAnError(t *testing.T) {
	sender := cloudevents.New(cloudevents.Options{Name: "test", Source: "test", URL: "http://127.0.0.1:1", Dir: t.TempDir(), Fs: fullDisk{afero.NewOsFs()}})
	if err := sender.Send(t.Context(), event("1")); err == nil || !strings.Contains(err.Error(), "no space left") {
		t.Errorf("got %v, want that the disk is full", err)
	}
}

func TestAnIDNamesNoFileOutsideTheQueue(t *testing.T) {
	fs := afero.NewMemMapFs()
	sender := cloudevents.New(cloudevents.Options{Name: "test", Source: "test", URL: "http://127.0.0.1:1", Dir: "/queue", Fs: fs})
	for _, id := range []string{"../x", "x", "a-x", "../x"} {
		if err := sender.Send(t.Context(), event(id)); err != nil {
			t.Fatal(err)
		}
	}
	files, err := afero.ReadDir(fs, "/queue")
	if err != nil || len(files) != 3 {
		t.Errorf("%v: want a file for each of three IDs, got %d", err, len(files))
	}
}

func TestWrongOptionsAreNamed(t *testing.T) {
	for want, options := range map[string]cloudevents.Options{
		"Name":             {Source: "test", URL: "https://example.com"},
		"Source":           {Name: "test", URL: "https://example.com"},
		"must be https":    {Name: "test", Source: "test", URL: "http://example.com"},
		"must be positive": {Name: "test", Source: "test", URL: "https://example.com", MaxQueued: -1},
	} {
		if err := cloudevents.New(options).Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error that names %s", err, want)
		}
	}
	if err := cloudevents.New(cloudevents.Options{Name: "test", Source: "test", URL: "http://127.0.0.1:1"}).Validate(); err != nil {
		t.Error(err)
	}
}

func TestAnAnswerThatDoesNotEndIsNoDelivery(t *testing.T) {
	for want, answer := range map[string]func(http.ResponseWriter, *http.Request){
		"its answer did not end": func(w http.ResponseWriter, r *http.Request) {
			_, _ = w.Write([]byte("a"))
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		},
		"more than 65536 bytes": func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 64<<10+1)) },
		"":                      func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 64<<10)) },
	} {
		server := httptest.NewServer(http.HandlerFunc(answer))
		t.Cleanup(server.Close)
		limit := time.Minute
		if strings.Contains(want, "did not end") {
			limit = time.Second
		}
		s := cloudevents.New(cloudevents.Options{Name: "unended", Source: "test", URL: server.URL, Client: &http.Client{Timeout: limit}})
		err := s.Send(t.Context(), cloudevents.Event{ID: "1", Type: "t", Time: time.Now()})
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}
