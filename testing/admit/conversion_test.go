package admit_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/admitkit/admitkit/examples/alarm/v1"
	v2 "github.com/admitkit/admitkit/examples/alarm/v2"
	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/testing/admit"
)

func TestARoundTripThatLosesSomethingFails(t *testing.T) {
	forgets := extension.Converting("alarms.alarm.example.com", "v2", extension.Between("v1",
		func(from *v1.Alarm, to *v2.Alarm) error { to.Spec.Message = from.Spec.Text; return nil },
		func(from *v2.Alarm, to *v1.Alarm) error { to.Spec.Text = from.Spec.Message; return nil }))
	named := metav1.ObjectMeta{Name: "early"}
	v := &verdict{TB: t}
	admit.RoundTrip(v, forgets,
		&v2.Alarm{ObjectMeta: named, Spec: v2.AlarmSpec{Hour: 7, Minute: 30, Snooze: 5, Message: "Get up"}},
		&v1.Alarm{ObjectMeta: named, Spec: v1.AlarmSpec{Time: "07:30", Text: "Get up"}})
	if len(v.errors) != 2 || !strings.Contains(v.errors[0], "early is another one after it was v1") || !strings.Contains(v.errors[0], "Hour") || !strings.Contains(v.errors[1], "07:30") {
		t.Errorf("got the errors %q", v.errors)
	}
}

func TestARoundTripNeedsAValueInEachField(t *testing.T) {
	forgets := extension.Converting("alarms.alarm.example.com", "v2", extension.Between("v1",
		func(from *v1.Alarm, to *v2.Alarm) error { to.Spec.Message = from.Spec.Text; return nil },
		func(from *v2.Alarm, to *v1.Alarm) error { to.Spec.Text = from.Spec.Message; return nil }))
	v := &verdict{TB: t}
	text := v2.AlarmSpec{Message: "Get up"}
	admit.RoundTrip(v, forgets, &v2.Alarm{Spec: text}, &v2.Alarm{Spec: text}, &v1.Alarm{Spec: v1.AlarmSpec{Text: "Get up"}})
	if want := []string{
		"alarms.alarm.example.com: no object of version v2 has a value in spec.hour, spec.minute, spec.snooze: whether it is lost is not tested",
		"alarms.alarm.example.com: no object of version v1 has a value in spec.time: whether it is lost is not tested",
	}; !slices.Equal(v.errors, want) {
		t.Errorf("got the errors %q", v.errors)
	}
}

func TestARoundTripTakesObjectsWithoutAGoType(t *testing.T) {
	alarm := func(version string, spec map[string]any) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "alarm.example.com/" + version, "kind": "Alarm", "metadata": map[string]any{"name": "early"}, "spec": spec,
		}}
	}
	rename := func(from, to string) func(a, b *unstructured.Unstructured) error {
		return func(a, b *unstructured.Unstructured) error {
			if spec, has := a.Object["spec"].(map[string]any); has && spec[from] != nil {
				b.Object["spec"] = map[string]any{to: spec[from]}
			}
			return nil
		}
	}
	nothing := func(_, _ *unstructured.Unstructured) error { return nil }
	objects := []client.Object{alarm("v1", map[string]any{"text": "Get up"}), alarm("v2", map[string]any{"message": "Get up"}), alarm("v3", map[string]any{"note": "Get up"})}
	admit.RoundTrip(t, extension.Converting("alarms.alarm.example.com", "v2",
		extension.Between("v1", rename("text", "message"), rename("message", "text")),
		extension.Between("v3", rename("note", "message"), rename("message", "note"))), objects...)
	v := &verdict{TB: t}
	admit.RoundTrip(v, extension.Converting("alarms.alarm.example.com", "v2",
		extension.Between("v1", rename("text", "message"), rename("message", "text")),
		extension.Between("v3", nothing, nothing)), objects...)
	if len(v.errors) == 0 || !strings.Contains(strings.Join(v.errors, "\n"), "early is another one after it was v3") {
		t.Errorf("got the errors %q", v.errors)
	}
}

func TestARoundTripNeedsAnObjectOfEachVersion(t *testing.T) {
	keeps := extension.Converting("alarms.alarm.example.com", "v2", extension.Between("v1",
		func(from *v1.Alarm, to *v2.Alarm) error { return json.Unmarshal([]byte(from.Spec.Text), &to.Spec) },
		func(from *v2.Alarm, to *v1.Alarm) error {
			text, err := json.Marshal(from.Spec)
			to.Spec.Text = string(text)
			return err
		}))
	v := &verdict{TB: t}
	admit.RoundTrip(v, keeps, &v2.Alarm{Spec: v2.AlarmSpec{Hour: 7, Minute: 30, Snooze: 5, Message: "Get up"}})
	if want := []string{"alarms.alarm.example.com: no object is of version v1: what it loses is not tested"}; !slices.Equal(v.errors, want) {
		t.Errorf("got %q, want %q", v.errors, want)
	}
}

func TestAConverterThatWantsWholeObjectsFails(t *testing.T) {
	strict := extension.Converting("alarms.alarm.example.com", "v2", extension.Between("v1",
		func(from *v1.Alarm, to *v2.Alarm) error {
			if from.Spec.Text == "" {
				return errors.New("spec.text: required")
			}
			to.Spec.Message = from.Spec.Text
			return nil
		},
		func(from *v2.Alarm, to *v1.Alarm) error { to.Spec.Text = from.Spec.Message; return nil }))
	v := &verdict{TB: t}
	named := metav1.ObjectMeta{Name: "early"}
	admit.RoundTrip(v, strict, &v1.Alarm{ObjectMeta: named, Spec: v1.AlarmSpec{Text: "Get up"}})
	v.errors = slices.DeleteFunc(v.errors, func(text string) bool { return strings.Contains(text, "not tested") })
	if len(v.errors) != 2 || !strings.Contains(v.errors[0], "without spec: ") || !strings.Contains(v.errors[1], "without spec.text: from v1 to v2") {
		t.Errorf("got the errors %q", v.errors)
	}
}

func TestAnObjectOfAnotherVersionIsConvertedForTheExtension(t *testing.T) {
	converter := extension.Converting("alarms.alarm.example.com", "v2", extension.Between("v1",
		func(from *v1.Alarm, to *v2.Alarm) error { to.Spec.Message = from.Spec.Text; return nil },
		func(from *v2.Alarm, to *v1.Alarm) error { to.Spec.Text = from.Spec.Message; return nil }))
	scope := extension.Scope{
		Rules:           extension.Resources("alarm.example.com", "v2", []string{"alarms"}, "CREATE", "UPDATE"),
		MatchConditions: []admissionregistrationv1.MatchCondition{{Name: "converted", Expression: "object.spec.message == 'get up' && request.kind.version == 'v2' && request.requestKind.version == 'v1'"}},
	}
	shout := extension.MutatingFunc(func(_ context.Context, alarm *unstructured.Unstructured, req *extension.Request) error {
		if req.Kind.Version != "v2" || req.RequestKind.Version != "v1" {
			t.Errorf("the kind is %v, the client's %v", req.Kind, req.RequestKind)
		}
		message, _, err := unstructured.NestedString(alarm.Object, "spec", "message")
		if err != nil {
			return err
		}
		return unstructured.SetNestedField(alarm.Object, strings.ToUpper(message), "spec", "message")
	}, scope)
	early := func(text string) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "alarm.example.com/v1", "kind": "Alarm", "metadata": map[string]any{"name": "early"}, "spec": map[string]any{"text": text},
		}}
	}
	client := admit.New(t, converter, shout)
	if result := client.Create(early("sleep")); len(result.Called) > 0 {
		t.Errorf("called, although its match condition is false: %+v", result)
	}
	for verb, result := range map[string]*admit.Result{"CREATE": client.Create(early("get up")), "UPDATE": client.Update(early("sleep"), early("get up"))} {
		got, _ := result.Object.(*unstructured.Unstructured)
		if !result.Allowed || got.GetAPIVersion() != "alarm.example.com/v1" || !reflect.DeepEqual(got.Object["spec"], map[string]any{"text": "GET UP", "time": ""}) {
			t.Errorf("%s: got %+v, %v", verb, result, got)
		}
	}
}

func TestAConversionIsToAnotherVersion(t *testing.T) {
	same := extension.Converting("alarms.alarm.example.com", "v2", extension.Between("v1",
		func(_ *v1.Alarm, _ *v2.Alarm) error { return nil },
		func(_ *v2.Alarm, _ *v1.Alarm) error { return nil }))
	defer func() {
		if said := fmt.Sprint(recover()); !strings.Contains(said, "both objects are of version v1, which no API server converts") {
			t.Error(said)
		}
	}()
	admit.Convert(fatal{t}, same, &v1.Alarm{}, &v1.Alarm{})
}
