package workload

import (
	"strings"
	"testing"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

func TestLimitsAreDecidedOnceAndOnlyMadeLess(t *testing.T) {
	template, err := limitsOf(nil, &v1alpha1.InteractiveLimits{IdleSeconds: new(int64(600)), MaxLifetimeSeconds: new(int64(3600))}, false, "interactive")
	if err != nil {
		t.Fatal(err)
	}
	p := &Plan{Interactive: template, Timeout: 5}
	of, err := p.With(&v1alpha1.SandboxRunSpec{Mode: v1alpha1.SandboxInteractive, Interactive: &v1alpha1.InteractiveLimits{IdleSeconds: new(int64(60))}})
	if err != nil || *of.Interactive.IdleSeconds != 60 || of.Timeout != 3600 || *template.IdleSeconds != 600 {
		t.Errorf("%v: %+v, %+v", err, of, template)
	}
	if pod := of.podOf(&v1alpha1.SandboxRun{}); !pod.Containers[0].Stdin || !pod.Containers[0].TTY {
		t.Error("nothing waits in an Interactive run")
	}
	if of, err = p.With(&v1alpha1.SandboxRunSpec{}); err != nil || of.Interactive != nil || of.Timeout != 5 {
		t.Errorf("Batch: %v: %+v", err, of)
	}
	for want, spec := range map[string]v1alpha1.SandboxRunSpec{
		"interactive.idleSeconds: 601 is more than the 600": {Interactive: &v1alpha1.InteractiveLimits{IdleSeconds: new(int64(601))}},
		"timeoutSeconds: an Interactive run has none":       {TimeoutSeconds: new(int64(1))},
		"retries: an Interactive run is not tried again":    {Retries: 1},
	} {
		spec.Mode = v1alpha1.SandboxInteractive
		if _, err := p.With(&spec); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	base := &v1alpha1.SandboxRunTemplateSpec{Image: "a"}
	if _, err := Of(&v1alpha1.SandboxRunTemplateSpec{BaseTemplateRef: &v1alpha1.SandboxBase{}, Interactive: &v1alpha1.InteractiveLimits{}}, base); err == nil {
		t.Error("a template is for Interactive runs, and its base is not")
	}
}
