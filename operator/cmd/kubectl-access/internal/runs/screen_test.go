package runs

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/cmd/kubectl-access/internal/cli"
)

func TestWhatARunWroteDoesNothingToTheTerminal(t *testing.T) {
	var out strings.Builder
	h := &runFlags{Base: &cli.Base{}}
	h.Out = &out
	f := &follower{Base: h.Base}
	run := &v1alpha1.SandboxRun{Status: v1alpha1.SandboxRunStatus{Phase: v1alpha1.SandboxSucceeded, Output: "done \x1b]0;owned\a"}}
	if err := h.ended(run, f); err != nil || strings.Contains(out.String(), "\x1b") || !strings.Contains(out.String(), "done") {
		t.Errorf("%v: %q", err, out.String())
	}
	run.Status.Phase = v1alpha1.SandboxFailed
	run.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionCompleted, Status: "True", Reason: "DeadlineExceeded", Message: "Job was active longer than specified deadline"}}
	if err := h.ended(run, f); err == nil || !strings.Contains(err.Error(), "DeadlineExceeded") {
		t.Errorf("%v", err)
	}
}
