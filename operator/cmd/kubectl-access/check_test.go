package main

import (
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

func TestARequestSaysForWhichCheckItWaits(t *testing.T) {
	const waiting = "waiting for the check change-windows"
	for reason, hope := range map[string]bool{v1alpha1.ReasonWaiting: true, v1alpha1.ReasonCheckFailed: true, v1alpha1.ReasonCheckReplaced: false} {
		req := &v1alpha1.ExecAccessRequest{}
		for condition, holds := range map[string]metav1.ConditionStatus{
			v1alpha1.ConditionTargetTemplateExists: metav1.ConditionTrue, v1alpha1.ConditionAccessDurationsValid: metav1.ConditionTrue,
			v1alpha1.ConditionChecked: metav1.ConditionFalse, v1alpha1.ConditionAccessResourcesCreated: metav1.ConditionFalse,
		} {
			meta.SetStatusCondition(&req.Status.Conditions, metav1.Condition{Type: condition, Status: holds, Reason: reason, Message: waiting})
		}
		if got := stage(req); got != waiting+" ("+reason+")" {
			t.Errorf("%s: it says %q", reason, got)
		}
		if err := hopeless(t.Context(), admin, req); (err == nil) != hope {
			t.Errorf("%s: %v", reason, err)
		}
	}
	req := &v1alpha1.ExecAccessRequest{}
	req.Status.Check = &v1alpha1.CheckResult{Name: "change-windows", Decision: v1alpha1.CheckDeny, Message: "none is open", Time: metav1.NewTime(time.Unix(0, 0))}
	if told := strings.Join(story(req), "\n"); !strings.Contains(told, "the check change-windows denied it  none is open") {
		t.Errorf("the story is %q", told)
	}
}

func TestTemplatesSayWhatARequestNeeds(t *testing.T) {
	for want, config := range map[string]v1alpha1.AccessConfig{
		"":                        {Approval: &v1alpha1.Approval{}},
		"1 approval":              {Approval: &v1alpha1.Approval{Required: 1}},
		"2 approvals, check itsm": {Approval: &v1alpha1.Approval{Required: 2}, Check: "itsm"},
	} {
		if got := needs(&config); got != want {
			t.Errorf("it needs %q, want %q", got, want)
		}
	}
}

func TestTemplatesSayWhenSessionsEnd(t *testing.T) {
	for want, limited := range map[string]*v1alpha1.SessionLimits{
		"": nil, "idle 15m": {IdleTimeout: "15m"}, "max 2h": {MaxLength: "2h"}, "idle 15m, max 2h": {IdleTimeout: "15m", MaxLength: "2h"},
	} {
		if got := limits(&v1alpha1.AccessConfig{Session: limited}); got != want {
			t.Errorf("sessions are limited to %q, want %q", got, want)
		}
	}
}

func TestAChangeOfTheDurationCountsFromWhatACheckAllowed(t *testing.T) {
	for allowed, want := range map[int64]time.Duration{0: time.Hour, 1800: 30 * time.Minute, 7200: time.Hour} {
		req := &v1alpha1.RoleAccessRequest{}
		req.Spec.Duration = "1h"
		req.Status.Check = &v1alpha1.CheckResult{Decision: v1alpha1.CheckAllow, MaxDurationSeconds: allowed}
		if got, err := lasts(req); got != want || err != nil {
			t.Errorf("allowed for %ds: access lasts %s, %v; want %s", allowed, got, err, want)
		}
	}
}

func TestNothingIsLeftOfARoleThatIsGone(t *testing.T) {
	req := &v1alpha1.RoleAccessRequest{}
	req.Status.ExpiresAt = &metav1.Time{Time: time.Now().Add(time.Hour)}
	for reason, ended := range map[string]bool{v1alpha1.ReasonRoleLost: true, v1alpha1.ReasonPodGone: true, v1alpha1.ReasonRoleNotAllowed: false} {
		req.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionAccessResourcesCreated, Status: metav1.ConditionFalse, Reason: reason}}
		if got := left(req); (got == "ended") != ended {
			t.Errorf("%s: %q is left", reason, got)
		}
	}
}
