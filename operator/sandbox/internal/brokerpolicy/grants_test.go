package brokerpolicy

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

func TestPoliciesSayWhoGetsIntoRuns(t *testing.T) {
	policy := func(name string, runs v1alpha1.BrokerRuns) v1alpha1.BrokerPolicy {
		return v1alpha1.BrokerPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.BrokerPolicySpec{Runs: runs}}
	}
	open, shell, shut := policy("open", v1alpha1.BrokerRuns{Interact: true, Shell: true}), policy("shell", v1alpha1.BrokerRuns{Shell: true}), policy("shut", v1alpha1.BrokerRuns{})
	for sentence, test := range map[string]struct {
		mode v1alpha1.SandboxMode
		of   []v1alpha1.BrokerPolicy
		want string
	}{
		"no policy, anybody":           {v1alpha1.SandboxInteractive, nil, ""},
		"all of them must":             {v1alpha1.SandboxInteractive, []v1alpha1.BrokerPolicy{open, shut, shell}, "set spec.runs.interact in shut, shell"},
		"all of them do":               {v1alpha1.SandboxInteractive, []v1alpha1.BrokerPolicy{open}, ""},
		"Batch runs have another word": {v1alpha1.SandboxBatch, []v1alpha1.BrokerPolicy{shell, shut}, "set spec.runs.shell in shut"},
	} {
		t.Run(sentence, func(t *testing.T) {
			if got := ClosedBy(test.mode, "t", test.of); (test.want == "") != (got == "") || !strings.Contains(got, test.want) {
				t.Errorf("%q", got)
			}
		})
	}
}
