package webhook_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/webhook"
)

func TestAnExemptionLetsPassWhatItSaysAndNothingElse(t *testing.T) {
	now := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	deny := func(name string, modes ...extension.Mode) *extension.Handler {
		return extension.ValidatingFunc(func(context.Context, *corev1.Pod, *extension.Request) error { return extension.Deny("no") },
			extension.Scope{Name: name, Modes: modes})
	}
	update := func(r *admissionv1.AdmissionRequest) {
		r.Operation = admissionv1.Update
		r.OldObject.Raw = []byte(`{"apiVersion":"v1","kind":"Pod","metadata":{"labels":{"legacy":"no"}}}`)
	}
	for name, test := range map[string]struct {
		exemption webhook.Exemption
		request   func(*admissionv1.AdmissionRequest)
		exempt    bool
	}{
		"a namespace":                       {webhook.Exemption{Namespaces: []string{"b", "apps"}}, nil, true},
		"another namespace":                 {webhook.Exemption{Namespaces: []string{"app"}}, nil, false},
		"a user":                            {webhook.Exemption{Users: []string{"alice"}}, nil, true},
		"a group":                           {webhook.Exemption{Users: []string{"bob"}, Groups: []string{"dev"}}, nil, true},
		"another user":                      {webhook.Exemption{Users: []string{"bob"}, Groups: []string{"ops"}}, nil, false},
		"a name":                            {webhook.Exemption{Names: []string{"shop"}}, nil, true},
		"a pattern":                         {webhook.Exemption{Names: []string{"sh*"}}, nil, true},
		"another name":                      {webhook.Exemption{Names: []string{"sho", "hop*"}}, nil, false},
		"no name yet":                       {webhook.Exemption{Names: []string{"*"}}, func(r *admissionv1.AdmissionRequest) { r.Name = "" }, false},
		"labels":                            {webhook.Exemption{ObjectSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"legacy": "yes"}}}, nil, true},
		"labels that the object gets first": {webhook.Exemption{ObjectSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"legacy": "yes"}}}, update, false},
		"other labels":                      {webhook.Exemption{ObjectSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"legacy": "no"}}}, nil, false},
		"one condition of two":              {webhook.Exemption{Namespaces: []string{"apps"}, Users: []string{"bob"}}, nil, false},
		"another extension":                 {webhook.Exemption{Namespaces: []string{"apps"}, Extensions: []string{"other"}}, nil, false},
		"every extension":                   {webhook.Exemption{Namespaces: []string{"apps"}, Extensions: []string{"*"}}, nil, true},
		"what has ended":                    {webhook.Exemption{Namespaces: []string{"apps"}, Until: metav1.NewTime(now)}, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			x := test.exemption
			x.Name, x.Reason = "legacy", "until it is rewritten"
			if x.Until.IsZero() {
				x.Until = metav1.NewTime(now.Add(time.Second))
			}
			if x.Extensions == nil {
				x.Extensions = []string{"guard"}
			}
			handlers := []*extension.Handler{deny("guard")}
			exemptions := webhook.NewExemptions(clocktesting.NewFakePassiveClock(now))
			exemptions.Set([]webhook.Exemption{x})
			webhooks := grouped(t, handlers...)
			request := podRequest(admissionv1.Create)
			request.Object.Raw = []byte(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"shop","labels":{"legacy":"yes"}}}`)
			request.UserInfo.Username, request.UserInfo.Groups = "alice", []string{"dev"}
			if test.request != nil {
				test.request(request)
			}
			response := decided(t, request, send(t, request, webhooks[0].Handler(webhook.HandlerOptions{Exemptions: exemptions}), webhooks[0].Path()))
			if response.Allowed != test.exempt {
				t.Errorf("allowed: %v", response.Allowed)
			}
			if said := response.AuditAnnotations["guard.exempted"]; (said == "legacy: until it is rewritten") != test.exempt {
				t.Errorf("it says %q", said)
			}
		})
	}
	t.Run("nobody is exempt from a guard", func(t *testing.T) {
		exemptions := webhook.NewExemptions(clocktesting.NewFakePassiveClock(now))
		exemptions.Set([]webhook.Exemption{{Name: "all", Extensions: []string{"*"}, Namespaces: []string{"apps"}, Until: metav1.NewTime(now.Add(time.Hour)), Reason: "x"}})
		webhooks, request := grouped(t, deny("guard", extension.Enforce, extension.Enforce)), podRequest(admissionv1.Create)
		if decided(t, request, send(t, request, webhooks[0].Handler(webhook.HandlerOptions{Exemptions: exemptions}), webhooks[0].Path())).Allowed {
			t.Error("somebody is")
		}
	})
	t.Run("labels are decoded once for all exemptions", func(t *testing.T) {
		exemptions := webhook.NewExemptions(clocktesting.NewFakePassiveClock(now))
		other := webhook.Exemption{Name: "x", Extensions: []string{"*"}, ObjectSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"legacy": "no"}}, Until: metav1.NewTime(now.Add(time.Hour)), Reason: "x"}
		exemptions.Set(slices.Repeat([]webhook.Exemption{other}, 1000))
		webhooks := grouped(t, deny("guard"))
		handler, request := webhooks[0].Handler(webhook.HandlerOptions{Exemptions: exemptions}), podRequest(admissionv1.Create)
		if allocations := testing.AllocsPerRun(3, func() { send(t, request, handler, webhooks[0].Path()) }); allocations > 1000 {
			t.Errorf("a request takes %v allocations", allocations)
		}
	})
	t.Run("what is not complete is refused", func(t *testing.T) {
		err := webhook.CheckExemptions([]*extension.Handler{deny("guard", extension.Enforce), deny("labels")}, []webhook.Exemption{
			{Name: "A"},
			{Name: "b", Extensions: []string{"guard", "lables"}, ObjectSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Operator: "x"}}}},
			{Name: "b", Extensions: []string{"labels"}, ObjectSelector: &metav1.LabelSelector{}},
			{Namespaces: []string{"team-*"}, Users: []string{"system:*", ""}, Groups: []string{""}, Names: []string{"a*b"}},
		})
		for _, want := range []string{
			`[0].name: "A"`, `[0].extensions: required`, `[0].until: required: an exemption has an end`, `[0].reason: required`, `[0].namespaces: it has no condition`,
			`[1].extensions: no extension "lables" answers admissions; there are guard, labels`, `[1].objectSelector: `, `[2].name: "b" is there twice`, `[2].namespaces: it has no condition`,
			`[3].namespaces: "team-*": only names may be patterns`, `[3].users: "system:*": only names`, `[3].users: a value is empty`, `[3].groups: a value is empty`, `[3].names: "a*b": a * may only be at the end`,
		} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("not said: %s, but %v", want, err)
			}
		}
		err = webhook.CheckExemptions([]*extension.Handler{deny("guard", extension.Enforce)}, []webhook.Exemption{{Extensions: []string{"guard"}}})
		if err == nil || !strings.Contains(err.Error(), "[0].extensions: guard: it allows no exemption, since a right or a record depends on it") {
			t.Errorf("got %v", err)
		}
	})
}
