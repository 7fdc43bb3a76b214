package wire

import (
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	jsonv1 "github.com/go-json-experiment/json/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// FieldError says which field of an object does not fit its Go type. It holds the value,
// which may be a secret, only if the error of a type that decodes itself does.
type FieldError struct {
	// Path is the field's, such as spec.subjects[0].name.
	Path string
	// Want says what the field must be.
	Want string
	err  error
}

// Error implements error.
func (e *FieldError) Error() string { return e.Path + ": " + e.Want }

// Unwrap returns the error of the decoder.
func (e *FieldError) Unwrap() error { return e.err }

// explain returns err with the field that it is about. It decodes again, because the
// errors of encoding/json have no path where a type decodes itself, as times do.
func explain(raw []byte, into runtime.Object, err error) error {
	if reflect.TypeOf(into).Kind() != reflect.Pointer {
		return err
	}
	again := reflect.New(reflect.TypeOf(into).Elem()).Interface()
	detailed := json.Unmarshal(raw, again, asAPIMachinery, jsonv1.ReportErrorsWithLegacySemantics(false))
	semantic, ok := errors.AsType[*json.SemanticError](detailed)
	if !ok || semantic.JSONPointer == "" {
		return err
	}
	return &FieldError{Path: pathOf(semantic.JSONPointer), Want: wantOf(semantic), err: err}
}

// pathOf writes a JSON pointer as the API server writes paths.
func pathOf(pointer jsontext.Pointer) string {
	var path strings.Builder
	for token := range pointer.Tokens() {
		_, notIndex := strconv.Atoi(token)
		switch {
		case notIndex == nil || strings.ContainsAny(token, "./"):
			_, _ = fmt.Fprintf(&path, "[%s]", token)
		case path.Len() > 0:
			_, _ = path.WriteString("." + token)
		default:
			_, _ = path.WriteString(token)
		}
	}
	return path.String()
}

// wants has what types want that decode themselves.
var wants = map[reflect.Type]string{
	reflect.TypeFor[metav1.Time]():        "must be a time such as 2030-01-31T12:00:00Z",
	reflect.TypeFor[metav1.MicroTime]():   "must be a time such as 2030-01-31T12:00:00.000000Z",
	reflect.TypeFor[metav1.Duration]():    "must be a duration such as 90m or 48h; hours are the largest unit",
	reflect.TypeFor[resource.Quantity]():  "must be a quantity such as 500m or 2Gi",
	reflect.TypeFor[intstr.IntOrString](): "must be a number or a string",
}

func wantOf(failure *json.SemanticError) string {
	t := failure.GoType
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t == nil {
		return "has a value that cannot be decoded"
	}
	if want, known := wants[t]; known {
		return want
	}
	if decodesItself := reflect.PointerTo(t).Implements(reflect.TypeFor[jsonv1.Unmarshaler]()); decodesItself && failure.Err != nil {
		return failure.Err.Error()
	}
	return wantOfKind(t)
}

func wantOfKind(t reflect.Type) string {
	switch kind := t.Kind(); kind {
	case reflect.String:
		return "must be a string"
	case reflect.Bool:
		return "must be true or false"
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64, reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return fmt.Sprintf("must be a whole number that fits %s", kind)
	case reflect.Float32, reflect.Float64:
		return "must be a number"
	case reflect.Slice, reflect.Array:
		if t.Elem().Kind() == reflect.Uint8 {
			return "must be a string in base64"
		}
		return "must be a list"
	case reflect.Map, reflect.Struct:
		return "must be an object with fields"
	default:
		return "has a value that cannot be decoded"
	}
}
