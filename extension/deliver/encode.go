package deliver

import (
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/log"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	logspb "go.opentelemetry.io/proto/otlp/logs/v1"
	"google.golang.org/protobuf/proto"
)

// uid is the attribute by which a receiver recognizes a record that it has already:
// https://opentelemetry.io/docs/specs/semconv/general/logs/.
const uid = "log.record.uid"

// recordOf returns a record as it is on the wire.
func recordOf(id string, r *log.Record) *logspb.LogRecord {
	record := &logspb.LogRecord{
		TimeUnixNano: nanoseconds(r.Timestamp()), ObservedTimeUnixNano: nanoseconds(r.ObservedTimestamp()),
		SeverityNumber: logspb.SeverityNumber(r.Severity()), //nolint:gosec // the same numbers
		SeverityText:   valid(r.SeverityText()), EventName: valid(r.EventName()), Body: valueOf(r.Body()),
		Attributes: []*commonpb.KeyValue{{Key: uid, Value: text(id)}},
	}
	if record.ObservedTimeUnixNano == 0 {
		record.ObservedTimeUnixNano = record.TimeUnixNano
	}
	for pair := range r.WalkAttributes {
		record.Attributes = append(record.Attributes, &commonpb.KeyValue{Key: valid(string(pair.Key)), Value: valueOf(pair.Value)})
	}
	return record
}

func nanoseconds(t time.Time) uint64 {
	if t.IsZero() {
		return 0
	}
	return uint64(max(0, t.UnixNano()))
}

// valid returns text that protobuf accepts.
func valid(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

func text(s string) *commonpb.AnyValue {
	return &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: valid(s)}}
}

func valueOf(v attribute.Value) *commonpb.AnyValue {
	switch v.Type() {
	case attribute.EMPTY:
		return nil
	case attribute.BOOL:
		return &commonpb.AnyValue{Value: &commonpb.AnyValue_BoolValue{BoolValue: v.AsBool()}}
	case attribute.INT64:
		return &commonpb.AnyValue{Value: &commonpb.AnyValue_IntValue{IntValue: v.AsInt64()}}
	case attribute.FLOAT64:
		return &commonpb.AnyValue{Value: &commonpb.AnyValue_DoubleValue{DoubleValue: v.AsFloat64()}}
	case attribute.STRING:
		return text(v.AsString())
	case attribute.BYTESLICE:
		return &commonpb.AnyValue{Value: &commonpb.AnyValue_BytesValue{BytesValue: v.AsByteSlice()}}
	case attribute.STRINGSLICE:
		return listOf(v.AsStringSlice(), attribute.StringValue)
	case attribute.BOOLSLICE:
		return listOf(v.AsBoolSlice(), attribute.BoolValue)
	case attribute.INT64SLICE:
		return listOf(v.AsInt64Slice(), attribute.Int64Value)
	case attribute.FLOAT64SLICE:
		return listOf(v.AsFloat64Slice(), attribute.Float64Value)
	case attribute.SLICE:
		return listOf(v.AsSlice(), func(v attribute.Value) attribute.Value { return v })
	case attribute.MAP:
		list := &commonpb.KeyValueList{}
		for _, pair := range v.AsMap() {
			list.Values = append(list.Values, &commonpb.KeyValue{Key: valid(string(pair.Key)), Value: valueOf(pair.Value)})
		}
		return &commonpb.AnyValue{Value: &commonpb.AnyValue_KvlistValue{KvlistValue: list}}
	}
	return text(v.String()) // a type that is newer than this
}

func listOf[T any](values []T, value func(T) attribute.Value) *commonpb.AnyValue {
	list := &commonpb.ArrayValue{}
	for _, v := range values {
		list.Values = append(list.Values, valueOf(value(v)))
	}
	return &commonpb.AnyValue{Value: &commonpb.AnyValue_ArrayValue{ArrayValue: list}}
}

// describeRecord says in the log which record it is, as far as it can be read.
func describeRecord(item []byte) (id, text string) {
	var record logspb.LogRecord
	_ = proto.Unmarshal(item, &record)
	for _, attribute := range record.Attributes {
		if attribute.Key == uid && id == "" {
			id = attribute.Value.GetStringValue()
		}
	}
	return id, record.Body.GetStringValue()
}
