package otlp_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
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
	"k8s.io/client-go/rest"
	ctrlmanager "sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/admitkit/admitkit/extension/otlp"
	"github.com/admitkit/admitkit/testing/fakes"
)

// collector is an endpoint for logs that fails as a test wants it to.
type collector struct {
	*httptest.Server
	mu       sync.Mutex
	requests []*logspb.LogsData
	got      []string
	// answer says what to do about a request: nil takes it.
	answer func(w http.ResponseWriter, r *http.Request, ids []string) (taken bool)
	notify chan struct{}
}

func newCollector(t *testing.T) *collector {
	t.Helper()
	c := unstarted(t)
	c.Start()
	t.Cleanup(c.Close)
	return c
}

func unstarted(t *testing.T) *collector {
	c := &collector{notify: make(chan struct{}, 10_000)}
	c.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		request := &logspb.LogsData{}
		if err == nil {
			err = proto.Unmarshal(body, request)
		}
		if err != nil {
			t.Error(err)
		}
		if r.Method != http.MethodPost || r.URL.Path != "/v1/logs" || r.Header.Get("Content-Type") != "application/x-protobuf" {
			t.Errorf("got %s %s of type %s", r.Method, r.URL.Path, r.Header.Get("Content-Type"))
		}
		ids := idsOf(request)
		c.mu.Lock()
		defer c.mu.Unlock()
		defer func() { c.notify <- struct{}{} }()
		if c.answer != nil && !c.answer(w, r, ids) {
			return
		}
		c.requests = append(c.requests, request)
		c.got = append(c.got, ids...)
	}))
	return c
}

// set changes what the collector answers.
func (c *collector) set(answer func(w http.ResponseWriter, r *http.Request, ids []string) bool) {
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

func (c *collector) ids() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.got)
}

// await waits until something holds, which a request can change.
func (c *collector) await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	limit := time.After(time.Minute)
	for !holds() {
		select {
		case <-c.notify:
		case <-limit:
			t.Fatalf("not within a minute: %s; the collector has %d records", what, len(c.ids()))
		}
	}
}

func (c *collector) awaitRecords(t *testing.T, n int) {
	t.Helper()
	c.await(t, "the records are there", func() bool { return len(c.ids()) >= n })
}

// run registers a sender and runs what it starts, until stop is called.
func run(t *testing.T, logs *otlp.Logs) (stop func(), lines *observer.ObservedLogs) {
	t.Helper()
	mgr, kube, lines := host(t)
	if err := logs.Register(mgr); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- kube.Start(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop, lines
}

func host(t *testing.T) (*fakes.Manager, ctrlmanager.Manager, *observer.ObservedLogs) {
	t.Helper()
	kube, err := ctrlmanager.New(&rest.Config{Host: "https://127.0.0.1:1"}, ctrlmanager.Options{Metrics: metricsserver.Options{BindAddress: "0"}})
	if err != nil {
		t.Fatal(err)
	}
	core, lines := observer.New(zap.InfoLevel)
	mgr := fakes.NewManager()
	mgr.GetLoggerReturns(zap.New(core).Sugar())
	mgr.GetKubeManagerReturns(kube)
	return mgr, kube, lines
}

func record(body string) log.Record {
	var r log.Record
	r.SetTimestamp(time.Now())
	r.SetBody(attribute.StringValue(body))
	return r
}

func send(t *testing.T, logs *otlp.Logs, ids ...string) {
	t.Helper()
	for _, id := range ids {
		if err := logs.Send(t.Context(), id, record("body of "+id)); err != nil {
			t.Fatal(err)
		}
	}
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
	pem  []byte
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{}
	a.cert, a.key, a.pem, _ = sign(t, nil)
	return a
}

// sign makes a certificate, the authority's own if there is none.
func sign(t *testing.T, by *authority) (cert *x509.Certificate, key *ecdsa.PrivateKey, certPEM, keyPEM []byte) {
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
		SerialNumber: serial, Subject: pkix.Name{CommonName: serial.String()}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
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
	return cert, key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: text})
}

func (a *authority) pair(t *testing.T) tls.Certificate {
	t.Helper()
	_, _, cert, key := sign(t, a)
	pair, err := tls.X509KeyPair(cert, key)
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

func write(t *testing.T, path string, text []byte) {
	t.Helper()
	if err := os.WriteFile(path+".new", text, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil { // as a Secret's volume changes: at once
		t.Fatal(err)
	}
}
