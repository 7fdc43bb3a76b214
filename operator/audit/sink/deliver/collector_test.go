package deliver_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/admitkit/admitkit/internal/freeport"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/audit/internal/audittest"
	"github.com/admitkit/admitkit/operator/audit/sink"
	"github.com/admitkit/admitkit/operator/audit/sink/deliver"
)

// received returns how often each record is in the collector's file.
func received(t *testing.T, c *testkit.Collector) map[string]int {
	t.Helper()
	ids := map[string]int{}
	for _, line := range c.Received(t, "logs") {
		var request struct {
			ResourceLogs []struct {
				ScopeLogs []struct {
					LogRecords []struct {
						EventName  string
						Attributes []struct {
							Key   string
							Value struct{ StringValue string }
						}
					}
				}
			}
		}
		if err := json.Unmarshal([]byte(line), &request); err != nil {
			t.Fatalf("%v: %.200s", err, line)
		}
		for _, resource := range request.ResourceLogs {
			for _, scope := range resource.ScopeLogs {
				for _, record := range scope.LogRecords {
					if first := record.Attributes[0]; first.Key == "log.record.uid" && record.EventName == deliver.Event {
						ids[first.Value.StringValue]++
					}
				}
			}
		}
	}
	return ids
}

// Restarts of the collector, and one of the manager, while records are written.
func TestARealCollectorGetsEveryRecordWhileItRestarts(t *testing.T) {
	records, restarts := testkit.Long(10_000, 500), testkit.Long(5, 2)
	port, err := freeport.Find()
	if err != nil {
		t.Fatal(err)
	}
	collector := testkit.NewCollector(t, fmt.Sprintf("127.0.0.1:%d", port))
	collector.Start(t)
	options := deliver.OTLPOptions{Options: deliver.Options{URL: "http://" + collector.Address, Dir: t.TempDir(), MaxBackoff: 2 * time.Second}}
	logs := deliver.NewOTLP(options)
	stop := run(t, logs)
	lost := audittest.Metric(t, "admitkit_audit_lost_total", "otlp")
	busy := audittest.Metric(t, "admitkit_otlp_failures_total", "audit")

	for part := range restarts + 1 {
		writing := write(t, logs, part*records/(restarts+1), (part+1)*records/(restarts+1))
		if part < restarts {
			collector.Stop(t)
			collector.Start(t)
		}
		if err := writing.Wait(); err != nil {
			t.Fatal(err)
		}
		if part == restarts/2 {
			stop()
			logs = deliver.NewOTLP(options)
			stop = run(t, logs)
		}
	}
	testkit.Within(t, 5*time.Minute, "the queue is empty", func(context.Context) bool {
		return audittest.Metric(t, "admitkit_otlp_undelivered", "audit") == 0
	})
	collector.Stop(t)

	all := received(t, collector)
	twice := 0
	for _, times := range all {
		twice += times - 1
	}
	missing := records - len(all) + int(audittest.Metric(t, "admitkit_audit_lost_total", "otlp")-lost)
	testkit.Figure("otlp.records", float64(records), "")
	testkit.Figure("otlp.lost", float64(missing), "")
	testkit.Figure("otlp.twice", float64(twice), "")
	testkit.Figure("otlp.failures", audittest.Metric(t, "admitkit_otlp_failures_total", "audit")-busy, "")
	if missing != 0 {
		t.Errorf("%d of %d records are lost", missing, records)
	}
	if audittest.Metric(t, "admitkit_otlp_failures_total", "audit") == busy {
		t.Error("no request failed: the restarts were not seen")
	}
}

// write writes records as the lanes of audit do: several at a time.
func write(t *testing.T, logs sink.Sink, from, to int) *errgroup.Group {
	group := &errgroup.Group{}
	group.SetLimit(8)
	all := &errgroup.Group{}
	all.Go(func() error {
		for i := from; i < to; i++ {
			group.Go(func() error {
				return logs.Write(t.Context(), audittest.Record(fmt.Sprintf("record-%05d", i), time.Now()))
			})
		}
		return group.Wait()
	})
	return all
}
