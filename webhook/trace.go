package webhook

import (
	"context"
	"net/http"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	admissionv1 "k8s.io/api/admission/v1"
)

// tracer makes spans. Without a provider it makes none, at no cost.
type tracer struct{ trace.Tracer }

func newTracer(provider trace.TracerProvider) tracer {
	if provider == nil {
		return tracer{}
	}
	return tracer{provider.Tracer("github.com/admitkit/admitkit/webhook")}
}

// span is a span, or nothing without a provider.
type span struct{ trace.Span }

// start begins the span of an extension.
func (t tracer) start(ctx context.Context, extension string) (context.Context, span) {
	if t.Tracer == nil {
		return ctx, span{}
	}
	ctx, s := t.Start(ctx, "extension "+extension)
	return ctx, span{s}
}

// end ends the span of an extension.
func (s span) end(result result, err error) {
	if s.Span == nil {
		return
	}
	s.SetAttributes(attribute.Stringer("admission.result", result))
	s.fail(err)
	s.End()
}

// receive begins the span of a request, as a child of the API server's span if it
// sends one (W3C Trace Context).
func (t tracer) receive(ctx context.Context, r *http.Request, name string) (context.Context, span) {
	if t.Tracer == nil {
		return ctx, span{}
	}
	ctx = propagation.TraceContext{}.Extract(ctx, propagation.HeaderCarrier(r.Header))
	ctx, s := t.Start(ctx, name, trace.WithSpanKind(trace.SpanKindServer))
	return ctx, span{s}
}

// describe adds the attributes of the request to its span.
func (s span) describe(request *admissionv1.AdmissionRequest) {
	if s.Span == nil {
		return
	}
	s.SetAttributes(
		attribute.String("admission.uid", string(request.UID)), attribute.String("admission.operation", string(request.Operation)),
		attribute.String("admission.resource", request.Resource.Resource), attribute.String("admission.subresource", request.SubResource),
		attribute.String("admission.namespace", request.Namespace), attribute.String("admission.name", request.Name),
	)
}

// answer ends the span of a request.
func (s span) answer(code int, err error) {
	if s.Span == nil {
		return
	}
	s.SetAttributes(attribute.Int("http.response.status_code", code))
	s.fail(err)
	s.End()
}

func (s span) fail(err error) {
	if err != nil {
		s.RecordError(err)
		s.SetStatus(codes.Error, err.Error())
	}
}
