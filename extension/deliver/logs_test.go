package deliver_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/log"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	"go.uber.org/zap"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/admitkit/admitkit/extension/deliver"
	"github.com/admitkit/admitkit/internal/testkit"
)

func TestARecordArrivesWithEachKindOfValue(t *testing.T) {
	c := newReceiver(t)
	logs := deliver.NewLogs(deliver.OTLPOptions{
		Options: deliver.Options{Name: "shape", URL: c.URL}, Resource: map[string]string{"k8s.cluster.name": "prod"},
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

func TestWhatACollectorRejectsOfARequestIsLostAndNotSentAgain(t *testing.T) {
	c := newReceiver(t)
	options := quick("partial", c.URL, t.TempDir())
	lost := make(chan []byte, 10)
	options.Rejected = func(item []byte) { lost <- item }
	c.set(partially(2, "too old"))
	logs := newLogs(options)
	send(t, logs, "1", "2", "3")
	stop, lines := run(t, logs)
	for range 2 {
		if item := <-lost; item != nil {
			t.Errorf("%q is lost, and the collector did not say which", item)
		}
	}
	c.set(nil)
	send(t, logs, "4")
	c.awaitAll(t, 4)
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

func TestARequestHasNoMoreThanItsSizeButARecordAtLeast(t *testing.T) {
	c := newReceiver(t)
	logs := newLogs(quick("large", c.URL, t.TempDir()))
	large := strings.Repeat("x", deliver.MaxRecord-1000)
	for i := range 5 {
		if err := logs.Send(t.Context(), fmt.Sprint(i), record(large)); err != nil {
			t.Fatal(err)
		}
	}
	if err := logs.Send(t.Context(), "6", record(large+large)); err == nil || !strings.Contains(err.Error(), "too large; the limit is 2097152") {
		t.Errorf("got %v, want that the record is too large", err)
	}
	run(t, logs)
	c.awaitAll(t, 5)
	for _, request := range c.requests {
		if n := len(idsOf(request)); n > 2 {
			t.Errorf("a request has %d records of 2 MB", n)
		}
	}
}

func TestACollectorThatAsksForAPauseGetsIt(t *testing.T) {
	c := newReceiver(t)
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
	logs := newLogs(options)
	send(t, logs, "1")
	run(t, logs)
	c.awaitAll(t, 1)
	if waited := second.Sub(first); waited < time.Second {
		t.Errorf("it was asked again after %s, want a second", waited)
	}
}
