package otlp_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/afero"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/log"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	"go.uber.org/zap"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/admitkit/admitkit/extension/otlp"
	"github.com/admitkit/admitkit/internal/testkit"
)

// quick are options with short pauses.
func quick(name, url, dir string) otlp.LogOptions {
	return otlp.LogOptions{Name: name, Endpoint: otlp.Endpoint{URL: url}, Dir: dir, Backoff: time.Millisecond, MaxBackoff: 5 * time.Millisecond}
}

func TestARecordArrivesWithEachKindOfValue(t *testing.T) {
	c := newCollector(t)
	logs := otlp.NewLogs(otlp.LogOptions{
		Name: "shape", Endpoint: otlp.Endpoint{URL: c.URL}, Resource: map[string]string{"k8s.cluster.name": "prod"},
	})
	var r log.Record
	at := time.Unix(1_700_000_000, 123)
	r.SetTimestamp(at)
	r.SetEventName("test.event")
	r.SetSeverity(log.SeverityWarn)
	r.SetSeverityText("WARN")
	r.SetBody(attribute.StringValue("not UTF-8: \xff"))
	r.AddAttributes(
		attribute.Bool("bool", true), attribute.Int("int", -7), attribute.Float64("float", 0.5), attribute.StringSlice("texts", []string{"a", "b"}),
		attribute.Int64Slice("ints", []int64{1, 2}), attribute.KeyValue{Key: "map", Value: attribute.MapValue(attribute.String("in", "side"))},
	)
	if err := logs.Send(t.Context(), "id-1", r); err != nil {
		t.Fatal(err)
	}
	resource := c.requests[0].ResourceLogs[0]
	got := map[string]string{}
	for _, pair := range slices.Concat(resource.Resource.Attributes, resource.ScopeLogs[0].LogRecords[0].Attributes) {
		got[pair.Key] = jsonOf(t, pair.Value)
	}
	delete(got, "service.instance.id")
	for key, want := range map[string]string{
		"service.name": `{"stringValue":"admitkit"}`, "k8s.cluster.name": `{"stringValue":"prod"}`, "log.record.uid": `{"stringValue":"id-1"}`,
		"bool": `{"boolValue":true}`, "int": `{"intValue":"-7"}`, "float": `{"doubleValue":0.5}`,
		"texts": `{"arrayValue":{"values":[{"stringValue":"a"},{"stringValue":"b"}]}}`,
		"ints":  `{"arrayValue":{"values":[{"intValue":"1"},{"intValue":"2"}]}}`,
		"map":   `{"kvlistValue":{"values":[{"key":"in","value":{"stringValue":"side"}}]}}`,
	} {
		if got[key] != want {
			t.Errorf("%s is %s, want %s", key, got[key], want)
		}
		delete(got, key)
	}
	record := resource.ScopeLogs[0].LogRecords[0]
	if len(got) > 0 || record.EventName != "test.event" || record.SeverityNumber != 13 || record.SeverityText != "WARN" ||
		record.TimeUnixNano != uint64(at.UnixNano()) || record.ObservedTimeUnixNano != record.TimeUnixNano || record.Body.GetStringValue() != "not UTF-8: \uFFFD" {
		t.Errorf("got %v, and more attributes: %v", record, got)
	}
}

func jsonOf(t *testing.T, value *commonpb.AnyValue) string {
	t.Helper()
	text, err := protojson.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(string(text), " ", "")
}

func TestWithoutAQueueARecordIsTakenWhenTheCollectorHasIt(t *testing.T) {
	c := newCollector(t)
	logs := otlp.NewLogs(quick("direct", c.URL, ""))
	send(t, logs, "1")
	if got := c.ids(); len(got) != 1 || got[0] != "1" {
		t.Errorf("the collector has %v", got)
	}
	for want, answer := range map[string]func(http.ResponseWriter, *http.Request, []string) bool{
		"503": status(http.StatusServiceUnavailable), "401 Unauthorized; check the token": status(http.StatusUnauthorized),
		"receives no OTLP over HTTP at /v1/logs": status(http.StatusNotFound), "rejected the record: no such tenant": partially(1, "no such tenant"),
	} {
		c.set(answer)
		if err := logs.Send(t.Context(), "2", record("2")); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error with %q", err, want)
		}
	}
	if got := metric(t, "admitkit_otlp_rejected_total", "direct"); got != 1 {
		t.Errorf("%v records are counted as rejected, want 1", got)
	}
}

func TestTheQueueOutlivesTheCollectorAndTheProcess(t *testing.T) {
	c := newCollector(t)
	c.set(status(http.StatusServiceUnavailable))
	options := quick("queue", c.URL, t.TempDir())
	options.BatchSize = 10
	first := otlp.NewLogs(options)
	stop, _ := run(t, first)
	var want []string
	for i := range 25 {
		want = append(want, fmt.Sprintf("%03d", i))
	}
	send(t, first, want...)
	send(t, first, "024") // a retry of the API server's
	stop()
	if got := c.ids(); len(got) != 0 {
		t.Fatalf("the collector is down and has %v", got)
	}
	if got := metric(t, "admitkit_otlp_undelivered", "queue"); got != 25 {
		t.Errorf("%v records are undelivered, want 25", got)
	}
	second := otlp.NewLogs(options)
	run(t, second)
	send(t, second, "025")
	c.set(nil)
	c.awaitRecords(t, 26)
	c.await(t, "the last record is there", func() bool { return slices.Contains(c.ids(), "025") })
	if got := firsts(c.ids()); !slices.Equal(got, append(want, "025")) {
		t.Errorf("want each, in order, got %v", got)
	}
	if len(c.requests) >= 26 {
		t.Errorf("%d requests for 26 records: those that wait should go together", len(c.requests))
	}
	if metric(t, "admitkit_otlp_failures_total", "queue", "busy") == 0 {
		t.Error("the failures are not counted")
	}
}

// firsts leaves out what came before: the collector may still be reading a request that
// was given up when the sender stopped.
func firsts(ids []string) (firsts []string) {
	for _, id := range ids {
		if !slices.Contains(firsts, id) {
			firsts = append(firsts, id)
		}
	}
	return firsts
}

func TestWhatACollectorRejectsOfARequestIsLostAndNotSentAgain(t *testing.T) {
	c := newCollector(t)
	options := quick("partial", c.URL, t.TempDir())
	lost := make(chan int64, 10)
	options.Rejected = func(n int64) { lost <- n }
	c.set(partially(2, "too old"))
	logs := otlp.NewLogs(options)
	send(t, logs, "1", "2", "3")
	stop, lines := run(t, logs)
	if got := <-lost; got != 2 {
		t.Errorf("%d are lost, want 2", got)
	}
	c.set(nil)
	send(t, logs, "4")
	c.awaitRecords(t, 4)
	testkit.Eventually(t, "the queue is empty", func(context.Context) bool { return metric(t, "admitkit_otlp_undelivered", "partial") == 0 })
	stop()
	if got := c.ids(); !slices.Equal(got, []string{"1", "2", "3", "4"}) {
		t.Errorf("sent %v", got)
	}
	said := lines.FilterMessage("records lost: the collector rejects them").FilterLevelExact(zap.ErrorLevel).All()
	if len(said) != 1 || said[0].ContextMap()["message"] != "too old" || fmt.Sprint(said[0].ContextMap()["among"]) != "[1 2 3]" {
		t.Errorf("the log has %v", lines.All())
	}
	if got := metric(t, "admitkit_otlp_rejected_total", "partial"); got != 2 {
		t.Errorf("%v are counted as rejected, want 2", got)
	}
}

func TestARecordThatTheCollectorRejectsHoldsUpNoOther(t *testing.T) {
	c := newCollector(t)
	c.set(func(w http.ResponseWriter, _ *http.Request, ids []string) bool {
		if slices.Contains(ids, "bad") {
			w.WriteHeader(http.StatusBadRequest)
			return false
		}
		return true
	})
	options := quick("rejecting", c.URL, t.TempDir())
	var lost int64
	options.Rejected = func(n int64) { lost += n }
	logs := otlp.NewLogs(options)
	send(t, logs, "1", "bad", "2")
	stop, lines := run(t, logs)
	testkit.Eventually(t, "the queue is empty", func(context.Context) bool { return metric(t, "admitkit_otlp_undelivered", "rejecting") == 0 })
	stop()
	if got := c.ids(); !slices.Equal(got, []string{"1", "2"}) || lost != 1 {
		t.Errorf("the collector has %v, and %d are lost", got, lost)
	}
	said := lines.FilterMessage("record lost: the collector rejects it").All()
	if len(said) != 1 || said[0].ContextMap()["id"] != "bad" || said[0].ContextMap()["record"] != "body of bad" {
		t.Errorf("the log has %v", lines.All())
	}
}

func TestARequestHasNoMoreThanItsSizeButARecordAtLeast(t *testing.T) {
	c := newCollector(t)
	logs := otlp.NewLogs(quick("large", c.URL, t.TempDir()))
	large := strings.Repeat("x", otlp.MaxRecord-1000)
	for i := range 5 {
		if err := logs.Send(t.Context(), fmt.Sprint(i), record(large)); err != nil {
			t.Fatal(err)
		}
	}
	if err := logs.Send(t.Context(), "6", record(large+large)); err == nil || !strings.Contains(err.Error(), "too large; the limit is 2097152") {
		t.Errorf("got %v, want that the record is too large", err)
	}
	run(t, logs)
	c.awaitRecords(t, 5)
	for _, request := range c.requests {
		if n := len(idsOf(request)); n > 2 {
			t.Errorf("a request has %d records of 2 MB", n)
		}
	}
}

func TestAQueueThatIsFullTakesNoMore(t *testing.T) {
	options := quick("full", "http://127.0.0.1:1", "/queue")
	options.MaxQueued, options.Fs = 2, afero.NewMemMapFs()
	logs := otlp.NewLogs(options)
	send(t, logs, "1", "2")
	if err := logs.Send(t.Context(), "3", record("3")); err == nil || !strings.Contains(err.Error(), "the queue is full") {
		t.Errorf("got %v, want that the queue is full", err)
	}
}

func TestACollectorThatAsksForAPauseGetsIt(t *testing.T) {
	c := newCollector(t)
	var first, second time.Time
	c.set(func(w http.ResponseWriter, _ *http.Request, _ []string) bool {
		if first.IsZero() {
			first = time.Now()
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusTooManyRequests)
			return false
		}
		second = time.Now()
		return true
	})
	options := quick("pause", c.URL, t.TempDir())
	options.MaxBackoff = time.Hour
	logs := otlp.NewLogs(options)
	send(t, logs, "1")
	run(t, logs)
	c.awaitRecords(t, 1)
	if waited := second.Sub(first); waited < time.Second {
		t.Errorf("it was asked again after %s, want a second", waited)
	}
}

func TestWrongOptionsAreNamed(t *testing.T) {
	many := map[string]string{}
	for i := range 33 {
		many[fmt.Sprint(i)] = "x"
	}
	const url = "https://collector:4318"
	for want, options := range map[string]otlp.LogOptions{
		"Endpoint: URL is missing":                       {Name: "x"},
		"Endpoint: URL cannot be parsed":                 {Name: "x", Endpoint: otlp.Endpoint{URL: "https://x:s3cr3t@%"}},
		`Endpoint: URL "collector:4318" must be such as`: {Name: "x", Endpoint: otlp.Endpoint{URL: "collector:4318"}},
		"must not have a query":                          {Name: "x", Endpoint: otlp.Endpoint{URL: url + "?key=s3cr3t"}},
		"CertFile and KeyFile must be set together":      {Name: "x", Endpoint: otlp.Endpoint{URL: url, KeyFile: "k"}},
		"Timeout -1ns must be positive":                  {Name: "x", Endpoint: otlp.Endpoint{URL: url, Timeout: -1}},
		"CAFile and CertFile have no effect by http":     {Name: "x", Endpoint: otlp.Endpoint{URL: "http://127.0.0.1", CAFile: "ca"}},
		"set Insecure to send by http":                   {Name: "x", Endpoint: otlp.Endpoint{URL: "http://collector:4318"}},
		"could read the credentials":                     {Name: "x", Endpoint: otlp.Endpoint{URL: "http://x:s3cr3t@collector:4318", Insecure: true}},
		"Name is missing":                                {Endpoint: otlp.Endpoint{URL: url}},
		"MaxQueued, BatchSize and Backoff":               {Name: "x", Endpoint: otlp.Endpoint{URL: url}, MaxQueued: -1},
		"Resource has 33 attributes; it can have 32":     {Name: "x", Endpoint: otlp.Endpoint{URL: url}, Resource: many},
		`Resource: the attribute "a"`:                    {Name: "x", Endpoint: otlp.Endpoint{URL: url}, Resource: map[string]string{"a": strings.Repeat("b", 1024)}},
	} {
		if err := otlp.NewLogs(options).Validate(); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3cr3t") {
			t.Errorf("got %v, want an error with %q", err, want)
		}
	}
	for _, endpoint := range []otlp.Endpoint{{URL: url}, {URL: "http://localhost:4318"}, {URL: "http://collector:4318", Insecure: true}, {URL: url + "/v1/logs/"}} {
		if err := otlp.NewLogs(otlp.LogOptions{Name: "x", Endpoint: endpoint}).Validate(); err != nil {
			t.Errorf("%s: %v", endpoint.URL, err)
		}
	}
}
