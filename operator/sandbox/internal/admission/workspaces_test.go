package admission

import (
	"strings"
	"testing"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

func TestASeedThatReachesNoServerIsSaidToBeInVain(t *testing.T) {
	for sentence, test := range map[string]struct {
		egress *v1alpha1.SandboxEgress
		want   string
	}{
		"without egress":       {nil, "hosts: without egress"},
		"without names":        {&v1alpha1.SandboxEgress{Egress: v1alpha1.Egress{DNS: new(false), Internet: true}}, "dns: false"},
		"without a server":     {&v1alpha1.SandboxEgress{Egress: v1alpha1.Egress{}}, "hosts: the seed reaches no server"},
		"with the internet":    {&v1alpha1.SandboxEgress{Egress: v1alpha1.Egress{Internet: true}}, ""},
		"with some addresses":  {&v1alpha1.SandboxEgress{Egress: v1alpha1.Egress{DNS: new(true), CIDRs: []v1alpha1.EgressCIDR{{CIDR: "192.0.2.0/24"}}}}, ""},
		"with Pods of its own": {&v1alpha1.SandboxEgress{Egress: v1alpha1.Egress{Pods: []v1alpha1.EgressPods{{}}}}, ""},
	} {
		if got := strings.Join(unreached(test.egress), "; "); (got == "") != (test.want == "") || !strings.HasPrefix(got, test.want) {
			t.Errorf("%s: %q, want %q", sentence, got, test.want)
		}
	}
}
