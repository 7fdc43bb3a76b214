package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/propagation"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/admitkit/admitkit/internal/freeport"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/manager/command"
)

// traced starts the traces of an operator with these flags.
func traced(t *testing.T, args ...string) (*operator, *manager.Options, *observer.ObservedLogs) {
	t.Helper()
	o := newOperator()
	if err := o.cmd.ParseFlags(args); err != nil {
		t.Fatal(err)
	}
	core, lines := observer.New(zap.InfoLevel)
	options := &manager.Options{Logger: zap.New(core).Sugar()}
	o.tracing.serves = true
	o.tracing.start(options)
	if err := o.tracing.check(); err != nil {
		t.Fatal(err)
	}
	return o, options, lines
}

// span makes a span as a request with this traceparent does.
func span(options *manager.Options, traceparent string) {
	ctx := propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier{"traceparent": traceparent})
	_, s := options.Serving.TracerProvider.Tracer("test").Start(ctx, "admission")
	s.End()
}

// Of the caller's trace, and sampled or not.
const (
	sampled   = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	unsampled = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
)

func TestSpansAreSentBeforeTheOperatorEnds(t *testing.T) {
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "k8s.cluster.name=prod")
	requests := make(chan *tracepb.TracesData, 10)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		request := &tracepb.TracesData{}
		if err == nil {
			err = proto.Unmarshal(body, request)
		}
		if err != nil || r.URL.Path != "/v1/traces" || r.Header.Get("Authorization") != "Bearer s3cr3t" {
			t.Errorf("%v, at %s", err, r.URL.Path)
		}
		requests <- request
	}))
	t.Cleanup(server.Close)
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("s3cr3t\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	o, options, _ := traced(t, "--otlp-traces-endpoint="+server.URL, "--otlp-traces-token-file="+token, "--otlp-traces-ratio=0")
	span(options, sampled)
	span(options, unsampled)
	span(options, "")
	o.tracing.stop(t.Context())
	select {
	case request := <-requests:
		var attributes []string
		for _, pair := range request.ResourceSpans[0].Resource.Attributes {
			attributes = append(attributes, pair.Key+"="+pair.Value.GetStringValue())
		}
		spans := request.ResourceSpans[0].ScopeSpans[0].Spans
		if len(spans) != 1 || fmt.Sprintf("%x %x", spans[0].TraceId, spans[0].ParentSpanId) != "0af7651916cd43dd8448eb211c80319c b7ad6b7169203331" {
			t.Errorf("got %v, want only the span below the caller's that is sampled", spans)
		}
		if !slices.Contains(attributes, "service.name=admitkit") || !slices.Contains(attributes, "k8s.cluster.name=prod") {
			t.Errorf("the resource has %q", attributes)
		}
	default:
		t.Fatal("nothing was sent when stop returned")
	}
}

func TestSpansThatNobodyTakesAreSaidAndCountedButHoldNobodyUp(t *testing.T) {
	o, options, lines := traced(t, "--otlp-traces-endpoint=http://127.0.0.1:1")
	before := counted(t, "admitkit_otlp_failures_total")
	span(options, "")
	o.tracing.stop(t.Context())
	if lines.FilterMessage("spans not delivered").Len() == 0 {
		t.Errorf("the log has %v", lines.All())
	}
	if counted(t, "admitkit_otlp_failures_total") == before {
		t.Error("the failure is not counted")
	}
}

func TestFlagsOfACollectorThatAreWrongAreNamed(t *testing.T) {
	config := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(config, []byte(`{"clusters":[{"name":"a","cluster":{"server":"https://127.0.0.1:1"}}],"contexts":[{"name":"a","context":{"cluster":"a"}}],"current-context":"a"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{
		"--otlp-traces-endpoint=http://collector:4318":                                 `--otlp-traces-endpoint "http://collector:4318" must be https, or http on this machine; set --otlp-traces-insecure`,
		"--otlp-traces-endpoint=https://x --otlp-traces-token-file=/none":              "--otlp-traces-token-file: open /none",
		"--otlp-traces-endpoint=https://x --otlp-traces-ratio=2":                       "--otlp-traces-ratio: 2 must be from 0 to 1",
		"--otlp-traces-ratio=0.5":                                                      "--otlp-traces-ratio has no effect without --otlp-traces-endpoint",
		"--otlp-traces-insecure":                                                       "--otlp-traces-insecure has no effect without --otlp-traces-endpoint",
		"--audit-otlp-dir=/queue":                                                      "--audit-otlp-dir has no effect without --audit-otlp-endpoint",
		"--audit-otlp-ca-file=/ca":                                                     "--audit-otlp-ca-file has no effect without --audit-otlp-endpoint",
		"--audit-otlp-endpoint=collector":                                              `--audit-otlp-endpoint "collector" must be such as`,
		"--audit-otlp-endpoint=http://collector:4318":                                  `--audit-otlp-endpoint "http://collector:4318" must be https, or http on this machine; set --audit-otlp-insecure`,
		"--audit=false --access --access-namespaces=a --audit-otlp-endpoint=https://x": "--audit-otlp-endpoint has no effect with --audit=false",
	} {
		cmd := newOperator().cmd
		cmd.SetArgs(append([]string{"serve", "--service-name=a", "--webhook-namespace=a", "--kubeconfig=" + config}, strings.Fields(args)...))
		if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), want) || command.ExitCode(err) != 2 {
			t.Errorf("%s: got %v, want %s", args, err, want)
		}
	}
}

// Who writes the manifests does not have the files of the Pods.
func TestManifestsNeedNoFilesOfACollector(t *testing.T) {
	o := newOperator()
	var out bytes.Buffer
	o.cmd.SetOut(&out)
	o.cmd.SetArgs([]string{
		"manifests", "--image=x", "--webhook-namespace=admitkit-system", "--leaf-secret-name=", "--otlp-traces-endpoint=https://x", "--otlp-traces-token-file=/none",
		"--audit-otlp-endpoint=https://x", "--audit-otlp-ca-file=/none",
	})
	if err := o.cmd.ExecuteContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, flag := range []string{"--otlp-traces-token-file=/none", "--audit-otlp-ca-file=/none"} {
		if !strings.Contains(out.String(), flag) {
			t.Errorf("the Pods do not have %s", flag)
		}
	}
}

func TestARealCollectorGetsTheSpans(t *testing.T) {
	port, err := freeport.Find()
	if err != nil {
		t.Fatal(err)
	}
	collector := testkit.NewCollector(t, fmt.Sprintf("127.0.0.1:%d", port))
	collector.Start(t)
	o, options, lines := traced(t, "--otlp-traces-endpoint=http://"+collector.Address)
	for range 1000 {
		span(options, sampled)
	}
	o.tracing.stop(t.Context())
	collector.Stop(t)
	got := strings.Count(strings.Join(collector.Received(t, "traces"), "\n"), `"traceId":"0af7651916cd43dd8448eb211c80319c"`)
	testkit.Figure("otlp.spans", float64(got), "")
	if got != 1000 || lines.Len() > 0 {
		t.Errorf("the collector has %d spans, want 1000; the log has %v", got, lines.All())
	}
}

// counted returns the sum of a counter.
func counted(t *testing.T, name string) (sum float64) {
	t.Helper()
	families, err := metrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			if family.GetName() == name {
				sum += m.GetCounter().GetValue()
			}
		}
	}
	return sum
}
