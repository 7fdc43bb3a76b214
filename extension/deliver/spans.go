package deliver

import (
	"context"
	"fmt"

	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// Spans sends spans. It is a Client of go.opentelemetry.io/otel/exporters/otlp/otlptrace:
//
//	exporter, err := otlptrace.New(ctx, deliver.NewSpans(options))
//
// The clients of opentelemetry-go link gRPC, with which a program is twice as large.
type Spans struct{ sender *Sender }

// NewSpans returns a sender of spans. [OTLPOptions.Validate] reports invalid options. Those
// about a queue have no effect: the exporter batches spans, and drops what it cannot send.
func NewSpans(options OTLPOptions) *Spans { return &Spans{options.sender("/v1/traces", nil)} }

// Start reads the files of the credentials. Its error names the option of one that is wrong.
func (s *Spans) Start(context.Context) error { return s.sender.open() }

// Stop closes the connections.
func (s *Spans) Stop(context.Context) error {
	s.sender.remote.Close()
	return nil
}

// UploadTraces sends spans. TracesData is ExportTraceServiceRequest on the wire.
func (s *Spans) UploadTraces(ctx context.Context, spans []*tracepb.ResourceSpans) error {
	request, err := proto.Marshal(&tracepb.TracesData{ResourceSpans: spans})
	if err != nil {
		return err
	}
	said, err := s.sender.post(ctx, request)
	if err == nil && said != (answer{}) {
		err = fmt.Errorf("the collector rejected %d spans: %s", said.rejected, said.message)
	}
	return err
}
