package main

import (
	"context"
	"fmt"
	"os"
	"runtime/debug"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.uber.org/zap"

	"github.com/admitkit/admitkit/extension/deliver"
	"github.com/admitkit/admitkit/manager"
)

// tracing sends spans to a collector, if the flags name one.
type tracing struct {
	collector deliver.OTLPOptions
	ratio     float64
	// serves is set for the subcommands that answer admissions. The others have no spans, and
	// may not have the files of the endpoint.
	serves bool

	flags *pflag.FlagSet
	// What follows is set by start.
	err      error
	log      *zap.SugaredLogger
	provider *sdktrace.TracerProvider
}

func (t *tracing) part() part {
	return part{
		bind: t.bind, on: func() bool { return true }, // check knows better
		options: map[string]string{"traces: ": tracesPrefix},
		enabled: "tracing.endpoint",
		values:  map[string]string{"otlp-traces-endpoint": "tracing.endpoint", "otlp-traces-insecure": "tracing.insecure", "otlp-traces-ratio": "tracing.ratio"},
	}
}

func (t *tracing) bind(flags *pflag.FlagSet) {
	t.flags = flags
	bindCollector(flags, tracesPrefix, "a span of each admission and of each extension in it", &t.collector)
	flags.Float64Var(&t.ratio, tracesPrefix+"-ratio", 1, "share of the admissions with spans, from 0 to 1, where the API server does not say which to trace")
}

// check names the flag that is wrong.
func (t *tracing) check() error {
	if err := checkCollector(t.flags, tracesPrefix, "traces", &t.collector, "ratio"); err != nil {
		return err
	}
	if !(t.ratio >= 0 && t.ratio <= 1) {
		return fmt.Errorf("--%s-ratio: %v must be from 0 to 1", tracesPrefix, t.ratio)
	}
	return t.err
}

// start is called with the options of the manager, before they are used. check reports
// what goes wrong.
func (t *tracing) start(options *manager.Options) {
	if !t.serves || t.collector.URL == "" || t.collector.Validate() != nil || t.provider != nil {
		return
	}
	t.collector.Name = "traces"
	exporter, err := otlptrace.New(context.Background(), deliver.NewSpans(t.collector))
	if err != nil {
		t.err = fmt.Errorf("traces: %w", err)
		return
	}
	t.log = options.Logger
	// The SDK logs by itself what it cannot export; a trace that is lost harms nobody.
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		if t.log != nil {
			t.log.Warnw("spans not delivered", "error", err)
		}
	}))
	t.provider = sdktrace.NewTracerProvider(
		sdktrace.WithBatcher(exporter),
		sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(t.ratio))),
		sdktrace.WithResource(ofThisProcess()),
	)
	options.Serving.TracerProvider = t.provider
}

// ofThisProcess are the attributes of the operator. OTEL_RESOURCE_ATTRIBUTES and
// OTEL_SERVICE_NAME in the environment win.
func ofThisProcess() *resource.Resource {
	attributes := []attribute.KeyValue{attribute.String("service.name", "admitkit")}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		attributes = append(attributes, attribute.String("service.version", info.Main.Version))
	}
	if host, err := os.Hostname(); err == nil {
		attributes = append(attributes, attribute.String("service.instance.id", host))
	}
	merged, err := resource.Merge(resource.NewSchemaless(attributes...), resource.Environment())
	if err != nil { // two schemas: ours has none
		return resource.NewSchemaless(attributes...)
	}
	return merged
}

// lastSpans bounds the export at the end.
const lastSpans = 5 * time.Second

// stop exports the spans that wait. It runs after the drain, whose requests have spans.
func (t *tracing) stop(ctx context.Context) {
	if t.provider == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastSpans)
	defer cancel()
	if err := t.provider.Shutdown(ctx); err != nil && t.log != nil {
		t.log.Warnw("spans not delivered", "error", err)
	}
}

// wrap tells which subcommand runs, and stops the traces at its end.
func (t *tracing) wrap(root *cobra.Command) {
	for _, sub := range root.Commands() {
		run := sub.RunE
		sub.RunE = func(cmd *cobra.Command, args []string) error {
			t.serves = cmd.Name() == "start" || cmd.Name() == "serve"
			defer t.stop(cmd.Context())
			return run(cmd, args)
		}
	}
}
