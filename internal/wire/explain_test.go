package wire_test

import (
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/admitkit/admitkit/internal/wire"
)

func TestAnErrorNamesTheFieldAndWhatItWants(t *testing.T) {
	const time, whole = "must be a time such as 2030-01-31T12:00:00Z", "must be a whole number that fits "
	for text, test := range map[string]struct {
		into runtime.Object
		want string
	}{
		`{"firstTimestamp":"tomorrow"}`:                   {&corev1.Event{}, "firstTimestamp: " + time},
		`{"status":{"startTime":7}}`:                      {&corev1.Pod{}, "status.startTime: " + time},
		`{"metadata":{"creationTimestamp":"now"}}`:        {&corev1.Pod{}, "metadata.creationTimestamp: " + time},
		`{"spec":{"volumes":[{"name":"a"},{"name":7}]}}`:  {&corev1.Pod{}, "spec.volumes[1].name: must be a string"},
		`{"spec":{"volumes":{}}}`:                         {&corev1.Pod{}, "spec.volumes: must be a list"},
		`{"spec":7}`:                                      {&corev1.Pod{}, "spec: must be an object with fields"},
		`{"spec":{"hostNetwork":"yes"}}`:                  {&corev1.Pod{}, "spec.hostNetwork: must be true or false"},
		`{"spec":{"priority":"high"}}`:                    {&corev1.Pod{}, "spec.priority: " + whole + "int32"},
		`{"spec":{"priority":99999999999}}`:               {&corev1.Pod{}, "spec.priority: " + whole + "int32"},
		`{"spec":{"overhead":{"example.com/gpu":"one"}}}`: {&corev1.Pod{}, "spec.overhead[example.com/gpu]: must be a quantity such as 500m or 2Gi"},
		`{"spec":{"overhead":{"cpu":"one"}}}`:             {&corev1.Pod{}, "spec.overhead.cpu: must be a quantity such as 500m or 2Gi"},
		`{"data":{"key":"s3cr3t!"}}`:                      {&corev1.Secret{}, "data.key: must be a string in base64"},
		`{"metadata":{"labels":["a"]}}`:                   {&corev1.Pod{}, "metadata.labels: must be an object with fields"},
		`{"metadata":{"annotations":{"a/b":{}}}}`:         {&corev1.Pod{}, "metadata.annotations[a/b]: must be a string"},
		`{"spec":{"anything":true}}`:                      {&own{}, "spec: no such thing"},
	} {
		err := wire.Decode([]byte(text), test.into)
		if field, ok := errors.AsType[*wire.FieldError](err); !ok || field.Error() != test.want {
			t.Errorf("%s: got %v, want %s", text, err, test.want)
		}
	}
	if err := wire.Decode([]byte(`{"spec":`), &corev1.Pod{}); err == nil || errors.As(err, new(*wire.FieldError)) {
		t.Errorf("of half an object: %v", err)
	}
}

// own decodes itself.
type own struct {
	corev1.Pod

	Spec particular `json:"spec"`
}

type particular struct{}

func (*particular) UnmarshalJSON([]byte) error { return errors.New("no such thing") }
