package webhook

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
	ctrlwebhook "sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/admitkit/admitkit/certs"
	"github.com/admitkit/admitkit/internal/freeport"
)

// benchServer says, to a process of the test binary, that it is a server of the
// benchmark, and which one. The server is a process of its own so that its CPU
// time can be told from the client's.
const benchServer = "ADMITKIT_BENCH_SERVER"

// BenchmarkHTTPS sends the admission of case mutate over HTTP/1.1 and TLS, as an
// API server does to a Service, by a number of connections that are always busy.
// Besides the time it reports the requests that the server answers in a second
// of CPU time, and the 99th percentile of the latency.
func BenchmarkHTTPS(b *testing.B) {
	body := recorded(b, cases()["mutate"].file)
	for _, connections := range []int{1, 16, 256} {
		for _, impl := range []string{"admitkit", "controller-runtime"} {
			b.Run(fmt.Sprintf("case=https%d/impl=%s", connections, impl), func(b *testing.B) {
				server := startBenchServer(b, impl)
				client := server.client(connections)
				defer client.CloseIdleConnections()
				latencies := make([][]time.Duration, connections)
				var left atomic.Int64
				load := func(n int) {
					left.Store(int64(n))
					var all sync.WaitGroup
					for i := range connections {
						all.Go(func() {
							for left.Add(-1) >= 0 {
								latencies[i] = append(latencies[i], server.send(b, client, body))
							}
						})
					}
					all.Wait()
				}
				load(4 * connections) // connections, caches
				for i := range latencies {
					latencies[i] = latencies[i][:0]
				}
				before := server.cpu(b, client)
				b.ResetTimer()
				load(b.N)
				b.StopTimer()
				used := server.cpu(b, client) - before
				sorted := slices.Concat(latencies...)
				slices.Sort(sorted)
				b.ReportMetric(float64(b.N)/used.Seconds(), "req/cpu-s")
				b.ReportMetric(float64(sorted[len(sorted)*99/100].Microseconds())/1000, "p99-ms")
			})
		}
	}
}

type benchServerProcess struct {
	url   string
	roots *x509.CertPool
}

// startBenchServer runs a server in a process of its own until the benchmark
// ends.
func startBenchServer(b *testing.B, impl string) *benchServerProcess {
	b.Helper()
	dir := b.TempDir()
	ca, err := certs.NewCA(time.Now(), time.Hour)
	if err != nil {
		b.Fatal(err)
	}
	leaf, err := ca.IssueLeaf([]string{"127.0.0.1"}, time.Now(), time.Hour)
	if err != nil {
		b.Fatal(err)
	}
	if err := writeKeyPair(dir, leaf); err != nil {
		b.Fatal(err)
	}
	command := exec.CommandContext(b.Context(), os.Args[0], "-test.run=^TestServeForTheBenchmark$", "-test.v")
	command.Env = append(os.Environ(), benchServer+"="+impl, "ADMITKIT_BENCH_CERTS="+dir)
	stdin, err := command.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	stdout, err := command.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := command.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = stdin.Close() // then it ends
		_ = command.Wait()
	})
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca.Bundle())
	for lines := bufio.NewScanner(stdout); lines.Scan(); {
		if port, found := strings.CutPrefix(lines.Text(), "PORT="); found {
			return &benchServerProcess{url: "https://127.0.0.1:" + port, roots: roots}
		}
	}
	b.Fatal("the server did not start")
	return nil
}

func (s *benchServerProcess) client(connections int) *http.Client {
	return &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: s.roots}, MaxIdleConnsPerHost: connections, MaxConnsPerHost: connections,
	}}
}

func (s *benchServerProcess) send(b *testing.B, client *http.Client, body []byte) time.Duration {
	began := time.Now()
	r, err := http.NewRequestWithContext(b.Context(), http.MethodPost, s.url+benchPath+"?timeout=10s", bytes.NewReader(body))
	if err != nil {
		b.Error(err)
		return 0
	}
	r.Header.Set("Content-Type", "application/json")
	response, err := client.Do(r)
	if err != nil {
		b.Error(err)
		return 0
	}
	defer response.Body.Close()
	if n, err := io.Copy(io.Discard, response.Body); err != nil || n == 0 || response.StatusCode != http.StatusOK {
		b.Errorf("%d, %d bytes, %v", response.StatusCode, n, err)
	}
	return time.Since(began)
}

// cpu returns how much CPU time the server has used.
func (s *benchServerProcess) cpu(b *testing.B, client *http.Client) time.Duration {
	b.Helper()
	r, err := http.NewRequestWithContext(b.Context(), http.MethodGet, s.url+"/cpu", http.NoBody)
	if err != nil {
		b.Fatal(err)
	}
	response, err := client.Do(r)
	if err != nil {
		b.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		b.Fatal(err)
	}
	nanoseconds, err := strconv.ParseInt(string(text), 10, 64)
	if err != nil {
		b.Fatal(err)
	}
	return time.Duration(nanoseconds)
}

func TestServeForTheBenchmark(t *testing.T) {
	impl, dir := os.Getenv(benchServer), os.Getenv("ADMITKIT_BENCH_CERTS")
	if impl == "" {
		t.Skip("runs in a process of its own, for BenchmarkHTTPS")
	}
	ctrllog.SetLogger(logr.Discard())
	port, err := freeport.Find()
	if err != nil {
		t.Fatal(err)
	}
	var server ctrlwebhook.Server
	handlers := cases()["mutate"].admitkit
	certificate, key := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	if impl == "admitkit" {
		pair, err := tls.LoadX509KeyPair(certificate, key)
		if err != nil {
			t.Fatal(err)
		}
		server = NewServer(ServerOptions{Host: "127.0.0.1", Port: int(port), GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &pair, nil }})
	} else {
		server = ctrlwebhook.NewServer(ctrlwebhook.Options{Host: "127.0.0.1", Port: int(port), CertDir: dir})
		handlers = cases()["mutate"].controllerRuntime
	}
	server.Register("/cpu", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if _, err := fmt.Fprint(w, cpuTime(t).Nanoseconds()); err != nil {
			t.Error(err)
		}
	}))
	server.WebhookMux().Handle(benchPath, handlers[0]) // which counts already
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	go func() {
		for server.StartedChecker()(nil) != nil {
			time.Sleep(time.Millisecond)
		}
		fmt.Printf("\nPORT=%d\n", port)
	}()
	if err := server.Start(ctx); err != nil {
		t.Fatal(err)
	}
}

// writeKeyPair writes a certificate and its key to tls.crt and tls.key.
func writeKeyPair(dir string, pair *tls.Certificate) error {
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		return err
	}
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]})
	if err := os.WriteFile(filepath.Join(dir, "tls.crt"), certificate, 0o600); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "tls.key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}), 0o600)
}
