package access

import (
	"testing"
	"time"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/admitkit/admitkit/api/v1alpha1"
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
