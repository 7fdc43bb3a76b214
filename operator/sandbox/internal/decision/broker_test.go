package decision

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/internal/sandbox/broker/protocol"
	"github.com/admitkit/admitkit/operator/sandbox/internal/conditions"
	"github.com/admitkit/admitkit/operator/sandbox/internal/credentials"
	"github.com/admitkit/admitkit/operator/sandbox/internal/facts"
	"github.com/admitkit/admitkit/operator/sandbox/internal/workload"
)

func TestARunWaitsForABrokerThatFailsAndFailsIfItIsRefused(t *testing.T) {
	for sentence, test := range map[string]struct {
		err       error
		condition string
		fatal     bool
	}{
		"nobody answers":              {errors.New("connection refused"), v1alpha1.ConditionBrokerReady, false},
		"the broker cannot record":    {&protocol.Error{Code: protocol.CodeAuditUnavailable}, v1alpha1.ConditionBrokerReady, false},
		"the pool is empty":           {&protocol.Error{Code: protocol.CodePoolExhausted}, v1alpha1.ConditionBrokerReady, false},
		"there is no such credential": {fmt.Errorf("credential a: %w", &protocol.Error{Code: protocol.CodeCredentialNotFound}), v1alpha1.ConditionCredentialsReady, true},
		"no policy applies any more":  {&protocol.Error{Code: protocol.CodePolicyMissing}, v1alpha1.ConditionCredentialsReady, true},
	} {
		of := (*conditions.Obstacle)(nil)
		if !errors.As(credentials.Obstacle(test.err), &of) || of.Condition != test.condition || of.Fatal != test.fatal || of.Poll == test.fatal {
			t.Errorf("%s: %+v", sentence, of)
			continue
		}
		f := factsOf(t, func(f *facts.Facts) { f.Job, f.Run.Status.JobUID, f.Plan, f.Unproxied = nil, "", &workload.Plan{}, of })
		f.Run.Status.Phase = ""
		if d := Of(f, now); (d.Status.Phase == v1alpha1.SandboxFailed) != test.fatal || !test.fatal && (!d.Poll || d.Status.Phase != v1alpha1.SandboxPending) {
			t.Errorf("%s: %+v", sentence, d.Status)
		}
	}
	if facts.PollAfter > 10*time.Second {
		t.Errorf("a broker is asked again only after %s", facts.PollAfter)
	}
}
