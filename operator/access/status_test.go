package access

import (
	"testing"
	"time"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

func TestAStatusThatSaysTheSameStaysTheSame(t *testing.T) {
	end := time.Now().Truncate(time.Second)
	for sentence, say := range map[string]func(*state){
		"ended":        func(s *state) { s.ended(end, end, nil) },
		"the Pod gone": func(s *state) { s.granted("run"); s.refused(lostPod("pod", podGone)) },
		"granted":      func(s *state) { s.choose(choice{name: "pod", uid: "1"}); s.granted("run") },
		"refused": func(s *state) {
			s.refused(refuse(v1alpha1.ReasonDurationTooLong, "too long").about(v1alpha1.ConditionAccessDurationsValid))
		},
	} {
		t.Run(sentence, func(t *testing.T) {
			req := &v1alpha1.ExecAccessRequest{}
			first := newState(req, end)
			say(first)
			first.settle()
			req.Status = first.RequestStatus
			for i := range req.Status.Conditions { // as the API server stores times
				c := &req.Status.Conditions[i]
				c.LastTransitionTime = c.LastTransitionTime.Rfc3339Copy()
			}
			again := newState(req, end)
			say(again)
			again.settle()
			if !apiequality.Semantic.DeepEqual(req.Status, again.RequestStatus) {
				t.Errorf("it was %+v and is %+v", req.Status, again.RequestStatus)
			}
			if sentence == "ended" && !meta.IsStatusConditionFalse(again.Conditions, v1alpha1.ConditionAccessStillValid) {
				t.Error("it has not ended")
			}
		})
	}
}

func TestAGrantWhoseRoleOrPodIsGoneHasEnded(t *testing.T) {
	for sentence, c := range map[string]struct {
		granted bool
		refusal *refusal
		ends    bool
	}{
		"the role was deleted":                  {true, lostRole(choice{role: "Role", name: "deployer"}, "is gone"), true},
		"the Pod was deleted":                   {true, lostPod("pod", podGone), true},
		"the author may get the right back":     {true, refuse(v1alpha1.ReasonRoleNotAllowed, "no bind"), false},
		"what was never granted ends in no way": {false, lostRole(choice{role: "Role", name: "deployer"}, "is gone"), false},
	} {
		f := about(roleAccess)
		before := newState(f.request, f.end)
		if c.granted {
			before.granted("run")
		} else {
			before.refused(refuse(v1alpha1.ReasonRoleNotAllowed, "no bind"))
		}
		before.settle()
		*f.request.GetRequestStatus() = before.RequestStatus
		now := newState(f.request, f.end)
		now.refused(c.refusal)
		records := f.records(decision{status: now})
		now.settle()
		steps := f.kind.steps(f.request, f.request.GetRequestStatus(), now)
		if told := len(records) == 1 && records[0].Action == actionEnded && records[0].Reason == c.refusal.message; told != c.ends {
			t.Errorf("%s: recorded are %+v", sentence, records)
		}
		if told := len(steps) == 1 && steps[0].Step == actionEnded; told != c.ends {
			t.Errorf("%s: notified is %+v", sentence, steps)
		}
	}
}

func TestAMoveOfTheEndIsToldAlthoughTheStatusMissedTheOneBefore(t *testing.T) {
	half := time.Now().Truncate(time.Second)
	threeQuarters := half.Add(15 * time.Minute)
	for sentence, c := range map[string]struct {
		last       move
		status, to time.Time
		told       bool
	}{
		"the first":                     {move{}, half, threeQuarters, true},
		"none":                          {move{}, half, half, false},
		"back, and the status was late": {move{half, threeQuarters}, half, half, true},
		"the same, and it was late":     {move{half, threeQuarters}, half, threeQuarters, false},
		"back, after the status":        {move{half, threeQuarters}, threeQuarters, half, true},
		"none, after the status":        {move{half, threeQuarters}, threeQuarters, threeQuarters, false},
	} {
		t.Run(sentence, func(t *testing.T) {
			f := about(execAccess)
			f.lastMove = c.last
			f.request.GetRequestStatus().ExpiresAt = &metav1.Time{Time: c.status}
			s := newState(f.request, f.end)
			s.ExpiresAt = &metav1.Time{Time: c.to}
			if told := len(f.moved(s)) == 1; told != c.told {
				t.Errorf("told: %v", told)
			}
		})
	}
}
