package deliver_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/log"
	logspb "go.opentelemetry.io/proto/otlp/logs/v1"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/extension/deliver"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/testing/fakes"
)

// encoding is one of the two, for tests of what they have in common.
type encoding struct {
	name, receiver, item  string
	undelivered, rejected string
	failures              string
	sender                func(deliver.Options) sender
}

// sender sends something with an ID by either encoding.
type sender interface {
	extension.Hosted
	Validate() error
	put(ctx context.Context, id string) error
}

type events struct{ *deliver.Events }

func (e events) put(ctx context.Context, id string) error { return e.Send(ctx, event(id)) }

type logs struct{ *deliver.Logs }

func (l logs) put(ctx context.Context, id string) error {
	return l.Send(ctx, id, record("body of "+id))
}

// both runs a test for each encoding.
func both(t *testing.T, test func(t *testing.T, e encoding)) {
	for _, e := range []encoding{
		{
			"CloudEvents", "endpoint", "event", "admitkit_cloudevents_undelivered", "admitkit_cloudevents_rejected_total", "admitkit_cloudevents_failed_total",
			func(o deliver.Options) sender { return newEvents(o) },
		},
		{
			"OTLP", "collector", "record", "admitkit_otlp_undelivered", "admitkit_otlp_rejected_total", "admitkit_otlp_failures_total",
			func(o deliver.Options) sender { return newLogs(o) },
		},
	} {
		t.Run(e.name, func(t *testing.T) { test(t, e) })
	}
}

func newEvents(o deliver.Options) events {
	return events{deliver.NewEvents(deliver.EventOptions{Options: o, Source: "test"})}
}

func newLogs(o deliver.Options) logs { return logs{deliver.NewLogs(deliver.OTLPOptions{Options: o})} }

// quick are options with short pauses.
func quick(name, url, dir string) deliver.Options {
	return deliver.Options{Name: name, URL: url, Dir: dir, Backoff: time.Millisecond, MaxBackoff: 5 * time.Millisecond}
}

func event(id string) deliver.Event {
	return deliver.Event{ID: id, Type: "test", Time: time.Now(), Data: map[string]string{"id": id}}
}

func record(body string) log.Record {
	var r log.Record
	r.SetTimestamp(time.Now())
	r.SetBody(attribute.StringValue(body))
	return r
}

func send(t *testing.T, s sender, ids ...string) {
	t.Helper()
	for _, id := range ids {
		if err := s.put(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
}

// receiver is a server for both encodings that fails as a test wants it to.
type receiver struct {
	*httptest.Server
	mu  sync.Mutex
	got []string
	// batches are the sizes of the requests, and requests those for logs.
	batches  []int
	requests []*logspb.LogsData
	// answer says what to do about a request: nil takes it.
	answer func(w http.ResponseWriter, r *http.Request, ids []string) (taken bool)
	notify chan struct{}
}

func newReceiver(t *testing.T) *receiver {
	t.Helper()
	c := unstarted(t)
	c.Start()
	t.Cleanup(c.Close)
	return c
}

func unstarted(t *testing.T) *receiver {
	c := &receiver{notify: make(chan struct{}, 10_000)}
	c.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		var ids []string
		request := &logspb.LogsData{}
		switch of := r.Header.Get("Content-Type"); {
		case r.Method == http.MethodPost && of == "application/x-protobuf" && r.URL.Path == "/v1/logs":
			if err := proto.Unmarshal(body, request); err != nil {
				t.Error(err)
			}
			ids = idsOf(request)
		case r.Method == http.MethodPost && strings.HasPrefix(of, "application/cloudevents-batch+json"):
			ids = idsOfEvents(t, body)
		default:
			t.Errorf("got %s %s of type %s", r.Method, r.URL.Path, of)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		defer func() { c.notify <- struct{}{} }()
		if c.answer != nil && !c.answer(w, r, ids) {
			return
		}
		c.batches = append(c.batches, len(ids))
		c.requests = append(c.requests, request)
		c.got = append(c.got, ids...)
	}))
	return c
}

func idsOfEvents(t *testing.T, body []byte) (ids []string) {
	var events []struct {
		SpecVersion, ID, Source, Type, Subject string
		Time                                   time.Time
		DataContentType                        string
		Data                                   struct{ ID string }
	}
	if err := json.Unmarshal(body, &events); err != nil {
		t.Error(err)
	}
	for _, e := range events {
		if e.SpecVersion != "1.0" || e.ID == "" || e.Source == "" || e.Type == "" || e.Time.IsZero() || e.Data.ID != e.ID {
			t.Errorf("not a CloudEvent with its data: %+v", e)
		}
		ids = append(ids, e.ID)
	}
	return ids
}

// set changes what the server answers.
func (c *receiver) set(answer func(w http.ResponseWriter, r *http.Request, ids []string) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answer = answer
}

// status answers with a status, and takes nothing.
func status(code int) func(http.ResponseWriter, *http.Request, []string) bool {
	return func(w http.ResponseWriter, _ *http.Request, _ []string) bool {
		w.WriteHeader(code)
		return false
	}
}

// partially takes a request but for so many records.
func partially(rejected uint64, message string) func(http.ResponseWriter, *http.Request, []string) bool {
	return func(w http.ResponseWriter, _ *http.Request, _ []string) bool {
		partial := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), rejected)
		partial = protowire.AppendString(protowire.AppendTag(partial, 2, protowire.BytesType), message)
		w.Header().Set("Content-Type", "application/x-protobuf")
		_, _ = w.Write(protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), partial))
		return true
	}
}

func idsOf(request *logspb.LogsData) (ids []string) {
	for _, resource := range request.ResourceLogs {
		for _, scope := range resource.ScopeLogs {
			for _, record := range scope.LogRecords {
				for _, pair := range record.Attributes {
					if pair.Key == "log.record.uid" {
						ids = append(ids, pair.Value.GetStringValue())
					}
				}
			}
		}
	}
	return ids
}

func (c *receiver) ids() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.got)
}

// await waits until something holds, which a request can change.
func (c *receiver) await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	limit := time.After(time.Minute)
	for !holds() {
		select {
		case <-c.notify:
		case <-limit:
			t.Fatalf("not within a minute: %s; the server has %d", what, len(c.ids()))
		}
	}
}

// awaitAll waits until the server has n events or records.
func (c *receiver) awaitAll(t *testing.T, n int) {
	t.Helper()
	c.await(t, "all are there", func() bool { return len(c.ids()) >= n })
}

// run registers a sender and runs what it starts, until stop is called.
func run(t *testing.T, s sender) (stop func(), lines *observer.ObservedLogs) {
	t.Helper()
	kube, start := testkit.Alone(t)
	core, lines := observer.New(zap.InfoLevel)
	mgr := fakes.NewManager()
	mgr.GetLoggerReturns(zap.New(core).Sugar())
	mgr.GetKubeManagerReturns(kube)
	if err := s.Register(mgr); err != nil {
		t.Fatal(err)
	}
	return start(), lines
}

// metric returns the value of a counter or gauge with these label values.
func metric(t *testing.T, name string, values ...string) float64 {
	t.Helper()
	families, err := metrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			var has []string
			for _, label := range m.GetLabel() {
				has = append(has, label.GetValue())
			}
			slices.Sort(has)
			slices.Sort(values)
			if family.GetName() == name && slices.Equal(has, values) {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	t.Fatalf("there is no metric %s of %v", name, values)
	return 0
}

// authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  string
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{}
	a.cert, a.key, a.pem, _ = sign(t, "authority", nil)
	return a
}

// sign makes a certificate with a name, the authority's own if there is none.
func sign(t *testing.T, name string, by *authority) (cert *x509.Certificate, key *ecdsa.PrivateKey, certPEM, keyPEM string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IsCA: by == nil, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	parent, signer := template, key
	if by != nil {
		parent, signer = by.cert, by.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err == nil {
		cert, err = x509.ParseCertificate(der)
	}
	if err != nil {
		t.Fatal(err)
	}
	text, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return cert, key, pemOf("CERTIFICATE", der), pemOf("EC PRIVATE KEY", text)
}

func pemOf(typ string, der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: typ, Bytes: der}))
}

func (a *authority) pair(t *testing.T) tls.Certificate {
	t.Helper()
	_, _, cert, key := sign(t, "server", a)
	pair, err := tls.X509KeyPair([]byte(cert), []byte(key))
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

func (a *authority) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

func write(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil { // as a Secret's volume changes: at once
		t.Fatal(err)
	}
	return path
}
