package access

import (
	"testing"

	"github.com/admitkit/admitkit/operator/access/internal/decision"
	"github.com/admitkit/admitkit/operator/access/internal/factstest"
	"github.com/admitkit/admitkit/operator/access/internal/grant"
	"github.com/admitkit/admitkit/operator/access/internal/rules"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

func TestAGrantWhoseRoleOrPodIsGoneHasEnded(t *testing.T) {
	for sentence, c := range map[string]struct {
		granted bool
		refusal *rules.Refusal
		ends    bool
	}{
		"the role was deleted":                  {true, rules.LostRole(grant.Choice{Role: "Role", Name: "deployer"}, "is gone"), true},
		"the Pod was deleted":                   {true, rules.LostPod("pod", rules.PodGone), true},
		"the author may get the right back":     {true, rules.Refuse(v1alpha1.ReasonRoleNotAllowed, "no bind"), false},
		"what was never granted ends in no way": {false, rules.LostRole(grant.Choice{Role: "Role", Name: "deployer"}, "is gone"), false},
	} {
		f := factstest.About(grant.RoleAccess)
		before := decision.NewStatus(f.Request, f.End)
		if c.granted {
			before.Granted("run")
		} else {
			before.Refused(rules.Refuse(v1alpha1.ReasonRoleNotAllowed, "no bind"))
		}
		before.Settle()
		*f.Request.GetRequestStatus() = before.RequestStatus
		now := decision.NewStatus(f.Request, f.End)
		now.Refused(c.refusal)
		records := decision.Records(f, decision.Decision{Status: now})
		now.Settle()
		steps := stepsOf(f.Kind, f.Request, f.Request.GetRequestStatus(), now)
		if told := len(records) == 1 && records[0].Action == grant.ActionEnded && records[0].Reason == c.refusal.Message; told != c.ends {
			t.Errorf("%s: recorded are %+v", sentence, records)
		}
		if told := len(steps) == 1 && steps[0].Step == grant.ActionEnded; told != c.ends {
			t.Errorf("%s: notified is %+v", sentence, steps)
		}
	}
}
