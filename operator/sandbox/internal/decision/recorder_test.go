package decision

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/sandbox/internal/facts"
)

// A recorder that reaches no collector ends each session after a while.
func TestARunSaysWhetherItsRecorderReachesACollector(t *testing.T) {
	recorded := &corev1.Pod{Spec: corev1.PodSpec{InitContainers: []corev1.Container{{Name: "admitkit-session", Image: "example.com/session:1"}, {Name: "egress-proxy"}}}}
	collector := &v1alpha1.EgressCollector{Namespace: "admitkit-system", Port: 8444}
	cidrs := v1alpha1.Egress{CIDRs: []v1alpha1.EgressCIDR{{CIDR: "192.0.2.0/24", Ports: []v1alpha1.EgressPort{{Port: 8444}}}}}
	for sentence, test := range map[string]struct {
		change func(*facts.Facts)
		status metav1.ConditionStatus
		text   string
	}{
		"the operator has named it":           {func(f *facts.Facts) { f.Run.Status.Egress.Collector = collector }, metav1.ConditionTrue, "port 8444 of the Pods in namespace admitkit-system"},
		"nobody has":                          {func(*facts.Facts) {}, metav1.ConditionFalse, "NetworkPolicy sandbox-b keeps the recorder from it, and each session ends. Let the operator set --sandbox-collector-namespace"},
		"it may be where the template leads":  {func(f *facts.Facts) { f.Run.Status.Egress.Egress = cidrs }, metav1.ConditionUnknown, "it may be where"},
		"nothing holds the Pod":               {func(f *facts.Facts) { f.Run.Status.Egress.Policy = "" }, "", ""},
		"there is no recorder":                {func(f *facts.Facts) { f.Pods = []*corev1.Pod{{}} }, "", ""},
		"the run has ended, and says no more": {terminal, "", ""},
	} {
		t.Run(sentence, func(t *testing.T) {
			trimmed, err := facts.TrimPod(recorded)
			if err != nil {
				t.Fatal(err)
			}
			d := Of(factsOf(t, func(f *facts.Facts) {
				f.Pods = []*corev1.Pod{trimmed.(*corev1.Pod)}
				test.change(f)
			}), now)
			c := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.ConditionRecorderConnects)
			if c == nil && test.status != "" || c != nil && (c.Status != test.status || !strings.Contains(c.Message, test.text)) {
				t.Errorf("%+v", c)
			}
		})
	}
}
