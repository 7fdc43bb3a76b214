package main

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/admitkit/admitkit/examples/alarm/v1"
	v2 "github.com/admitkit/admitkit/examples/alarm/v2"
	"github.com/admitkit/admitkit/testing/admit"
)

func TestNoVersionLosesAnything(t *testing.T) {
	named := metav1.ObjectMeta{Namespace: "default", Name: "early", Annotations: map[string]string{"a": "b"}}
	admit.RoundTrip(t, converter(),
		&v1.Alarm{ObjectMeta: named, Spec: v1.AlarmSpec{Time: "07:30", Text: "Get up"}},
		&v2.Alarm{ObjectMeta: named, Spec: v2.AlarmSpec{Hour: 23, Minute: 5, Message: "Sleep", Snooze: 10}},
	)
}

func TestATimeOfDayBecomesHourAndMinute(t *testing.T) {
	alarm := &v2.Alarm{}
	admit.Convert(t, converter(), &v1.Alarm{Spec: v1.AlarmSpec{Time: "07:30", Text: "Get up"}}, alarm)
	if want := (v2.AlarmSpec{Hour: 7, Minute: 30, Message: "Get up"}); alarm.Spec != want {
		t.Errorf("got %+v, want %+v", alarm.Spec, want)
	}
}
