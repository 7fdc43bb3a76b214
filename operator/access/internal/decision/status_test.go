package decision

import (
	"testing"
	"time"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/operator/access/internal/facts"
	"github.com/admitkit/admitkit/operator/access/internal/factstest"
	"github.com/admitkit/admitkit/operator/access/internal/grant"
	"github.com/admitkit/admitkit/operator/access/internal/rules"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

func TestAStatusThatSaysTheSameStaysTheSame(t *testing.T) {
	end := time.Now().Truncate(time.Second)
	for sentence, say := range map[string]func(*Status){
		"ended":        func(s *Status) { s.ended(end, end, nil) },
		"the Pod gone": func(s *Status) { s.Granted("run"); s.Refused(rules.LostPod("pod", rules.PodGone)) },
		"granted":      func(s *Status) { s.Choose(grant.Choice{Name: "pod", UID: "1"}); s.Granted("run") },
		"refused": func(s *Status) {
			s.Refused(rules.Refuse(v1alpha1.ReasonDurationTooLong, "too long").About(v1alpha1.ConditionAccessDurationsValid))
		},
	} {
		t.Run(sentence, func(t *testing.T) {
			req := &v1alpha1.ExecAccessRequest{}
			first := NewStatus(req, end)
			say(first)
			first.Settle()
			req.Status = first.RequestStatus
			for i := range req.Status.Conditions { // as the API server stores times
				c := &req.Status.Conditions[i]
				c.LastTransitionTime = c.LastTransitionTime.Rfc3339Copy()
			}
			again := NewStatus(req, end)
			say(again)
			again.Settle()
			if !apiequality.Semantic.DeepEqual(req.Status, again.RequestStatus) {
				t.Errorf("it was %+v and is %+v", req.Status, again.RequestStatus)
			}
			if sentence == "ended" && !meta.IsStatusConditionFalse(again.Conditions, v1alpha1.ConditionAccessStillValid) {
				t.Error("it has not ended")
			}
		})
	}
}

func TestAMoveOfTheEndIsToldAlthoughTheStatusMissedTheOneBefore(t *testing.T) {
	half := time.Now().Truncate(time.Second)
	threeQuarters := half.Add(15 * time.Minute)
	for sentence, c := range map[string]struct {
		last       facts.Move
		status, to time.Time
		told       bool
	}{
		"the first":                     {facts.Move{}, half, threeQuarters, true},
		"none":                          {facts.Move{}, half, half, false},
		"back, and the status was late": {facts.Move{From: half, To: threeQuarters}, half, half, true},
		"the same, and it was late":     {facts.Move{From: half, To: threeQuarters}, half, threeQuarters, false},
		"back, after the status":        {facts.Move{From: half, To: threeQuarters}, threeQuarters, half, true},
		"none, after the status":        {facts.Move{From: half, To: threeQuarters}, threeQuarters, threeQuarters, false},
	} {
		t.Run(sentence, func(t *testing.T) {
			f := factstest.About(grant.ExecAccess)
			f.LastMove = c.last
			f.Request.GetRequestStatus().ExpiresAt = &metav1.Time{Time: c.status}
			s := NewStatus(f.Request, f.End)
			s.ExpiresAt = &metav1.Time{Time: c.to}
			if told := len(decider{f}.moved(s)) == 1; told != c.told {
				t.Errorf("told: %v", told)
			}
		})
	}
}
