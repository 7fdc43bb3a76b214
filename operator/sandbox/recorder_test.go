package sandbox

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// A recorder that reaches no collector ends each session after a while.
func TestARunSaysWhetherItsRecorderReachesACollector(t *testing.T) {
	recorded := &corev1.Pod{Spec: corev1.PodSpec{InitContainers: []corev1.Container{{Name: "admitkit-session", Image: "example.com/session:1"}, {Name: "egress-proxy"}}}}
	collector := &v1alpha1.EgressCollector{Namespace: "admitkit-system", Port: 8444}
	cidrs := v1alpha1.Egress{CIDRs: []v1alpha1.EgressCIDR{{CIDR: "192.0.2.0/24", Ports: []v1alpha1.EgressPort{{Port: 8444}}}}}
	for sentence, test := range map[string]struct {
		change func(*facts)
		status metav1.ConditionStatus
		text   string
	}{
		"the operator has named it":           {func(f *facts) { f.run.Status.Egress.Collector = collector }, metav1.ConditionTrue, "port 8444 of the Pods in namespace admitkit-system"},
		"nobody has":                          {func(*facts) {}, metav1.ConditionFalse, "NetworkPolicy sandbox-b keeps the recorder from it, and each session ends. Let the operator set --sandbox-collector-namespace"},
		"it may be where the template leads":  {func(f *facts) { f.run.Status.Egress.Egress = cidrs }, metav1.ConditionUnknown, "it may be where"},
		"nothing holds the Pod":               {func(f *facts) { f.run.Status.Egress.Policy = "" }, "", ""},
		"there is no recorder":                {func(f *facts) { f.pods = []*corev1.Pod{{}} }, "", ""},
		"the run has ended, and says no more": {terminal, "", ""},
	} {
		t.Run(sentence, func(t *testing.T) {
			trimmed, err := trimPod(recorded)
			if err != nil {
				t.Fatal(err)
			}
			d := decide(factsOf(t, func(f *facts) {
				f.pods = []*corev1.Pod{trimmed.(*corev1.Pod)}
				test.change(f)
			}), now)
			c := meta.FindStatusCondition(d.status.Conditions, v1alpha1.ConditionRecorderConnects)
			if c == nil && test.status != "" || c != nil && (c.Status != test.status || !strings.Contains(c.Message, test.text)) {
				t.Errorf("%+v", c)
			}
		})
	}
}

func TestTheCollectorIsCheckedAtTheStart(t *testing.T) {
	broker := BrokerOptions{Namespace: "leases", Image: "example.com/sandbox:1"}
	for want, options := range map[string]Options{
		"": {}, "Namespace: required with Port": {Collector: CollectorOptions{Port: 1}},
		`Namespace: "No" is not the name`:                   {Collector: CollectorOptions{Namespace: "No"}},
		`Namespace: "agents" is one in which runs run`:      {Collector: CollectorOptions{Namespace: "agents"}},
		"Port: 70000 is not from 1 to 65535":                {Collector: CollectorOptions{Namespace: "a", Port: 70000}},
		"Port: 8443 is for the proxies of runs alone":       {Collector: CollectorOptions{Namespace: "a", Port: 8443}, Broker: broker},
		"Port: 443 is for the proxies of runs alone, as 80": {Collector: CollectorOptions{Namespace: "a", Port: 443}, Broker: broker},
	} {
		of := New(options)
		err := of.options.checkCollector([]string{"agents"})
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	of := New(Options{Collector: CollectorOptions{Namespace: "a"}, Broker: broker})
	if err := of.options.checkCollector([]string{"agents"}); err != nil || of.options.collector().Port != 8444 || (&Options{}).collector() != nil {
		t.Errorf("%v, %+v", err, of.options.collector())
	}
}
