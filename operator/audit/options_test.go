package audit_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/audit"
	"github.com/admitkit/admitkit/operator/audit/sink"
	"github.com/admitkit/admitkit/operator/audit/sink/auditevent"
	"github.com/admitkit/admitkit/operator/audit/sink/deliver"
	"github.com/admitkit/admitkit/testing/fakes"
)

// sinkFunc is a sink of the test's own.
type sinkFunc struct {
	name string
	do   func(context.Context, *v1alpha1.AuditRecord) error
}

func (s sinkFunc) Name() string { return s.name }
func (s sinkFunc) Write(ctx context.Context, r *v1alpha1.AuditRecord) error {
	return s.do(ctx, r)
}

func TestWrongOptionsAreNamed(t *testing.T) {
	log := sink.NewLog()
	of := func(sinks ...audit.SinkOptions) audit.Options { return audit.Options{Sinks: sinks} }
	for want, options := range map[string]audit.Options{
		"Required and Sinks":            {Required: true, Sinks: []audit.SinkOptions{{Sink: log}}},
		`ClusterName "a b" (3 bytes)`:   {ClusterName: "a b"},
		"(254 bytes): it must have at":  {ClusterName: strings.Repeat("x", 254)},
		"ImageUpdaters[1] is empty":     {ImageUpdaters: []string{"updater", ""}},
		"Sinks[0]: Sink is missing":     of(audit.SinkOptions{}),
		`another sink is named "log"`:   of(audit.SinkOptions{Sink: log}, audit.SinkOptions{Sink: sink.NewLog()}),
		`FailurePolicy of sink log`:     of(audit.SinkOptions{Sink: log, FailurePolicy: "Fail"}),
		"Timeout of sink log is 9s":     of(audit.SinkOptions{Sink: log, Timeout: 9 * time.Second}),
		"QueueLength of sink log is -1": of(audit.SinkOptions{Sink: log, QueueLength: -1}),
		`the sink's name "a b"`:         of(audit.SinkOptions{Sink: sinkFunc{name: "a b"}}),
		"sink file: Path is missing":    of(audit.SinkOptions{Sink: sink.NewFile(sink.FileOptions{})}),
		"must be https":                 of(audit.SinkOptions{Sink: deliver.NewCloudEvents(deliver.EventOptions{Options: deliver.Options{URL: "http://collector.example.com"}})}),
		"sink auditevent: Retention":    of(audit.SinkOptions{Sink: auditevent.New(auditevent.Options{Retention: -1})}),
	} {
		if _, err := audit.New(options).Parts(fakes.NewManager()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

func TestOptionsThatCannotBeMeantAreRefusedByName(t *testing.T) {
	for want, options := range map[string]audit.Options{
		"Enforcement.Namespaces[0]":  {Enforcement: &audit.Enforcement{Namespaces: []string{"Shop"}}},
		"Enforcement.Commands[0]":    {Enforcement: &audit.Enforcement{Commands: []audit.Command{{}}}},
		"Enforcement.ExemptUsers[0]": {Enforcement: &audit.Enforcement{ExemptUsers: []string{""}}},
		`Redact: pattern "("`:        {Redact: []string{"("}},
		"Redact: an empty pattern":   {Redact: []string{""}},
		"TouchedPods.EvictAfter":     {TouchedPods: &audit.TouchedPods{EvictAfter: -1}},
		"TouchedPods.MaxEvictAfter":  {TouchedPods: &audit.TouchedPods{EvictAfter: 2, MaxEvictAfter: 1}},
	} {
		if _, err := audit.New(options).Parts(fakes.NewManager()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want an error that names %s, got %v", want, err)
		}
	}
}
