package admit_test

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

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
	old := &v1.Alarm{ObjectMeta: named, Spec: v1.AlarmSpec{Text: "Get up"}}
	admit.RoundTrip(v, forgets, &v2.Alarm{ObjectMeta: named, Spec: v2.AlarmSpec{Hour: 7, Message: "Get up"}}, old)
	if len(v.errors) != 1 || !strings.Contains(v.errors[0], "early is another one after it was v1") || !strings.Contains(v.errors[0], "Hour") {
		t.Errorf("got the errors %q", v.errors)
	}
	admit.RoundTrip(t, forgets, &v2.Alarm{ObjectMeta: named, Spec: v2.AlarmSpec{Message: "Get up"}}, old)
}

func TestARoundTripNeedsAnObjectOfEachVersion(t *testing.T) {
	forgets := extension.Converting("alarms.alarm.example.com", "v2", extension.Between("v1",
		func(*v1.Alarm, *v2.Alarm) error { return nil }, func(*v2.Alarm, *v1.Alarm) error { return nil }))
	v := &verdict{TB: t}
	admit.RoundTrip(v, forgets, &v2.Alarm{ObjectMeta: metav1.ObjectMeta{Name: "early"}})
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
	admit.RoundTrip(v, strict, &v1.Alarm{ObjectMeta: named, Spec: v1.AlarmSpec{Text: "Get up"}}, &v2.Alarm{ObjectMeta: named, Spec: v2.AlarmSpec{Message: "Get up"}})
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
