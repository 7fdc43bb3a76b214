package sandbox_test

import (
	"bytes"
	"context"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/internal/sandbox/broker/protocol"
)

// listedNode is where Pods of runs whose names begin with it are.
const listedNode = "listed"

func naming(hosts ...string) *v1alpha1.SandboxEgress {
	e := &v1alpha1.SandboxEgress{}
	for _, host := range hosts {
		e.Hosts = append(e.Hosts, v1alpha1.EgressName{Host: host})
	}
	return e
}

// argument is that of a flag of the proxy of a Pod, "" if it has none.
func argument(pod *corev1.PodSpec, flag string) string {
	for _, c := range pod.InitContainers {
		for _, arg := range c.Args {
			if value, is := strings.CutPrefix(arg, "--"+flag+"="); is && c.Name == "egress-proxy" {
				return value
			}
		}
	}
	return ""
}

// listed has a run with names of its template alone, whose refusals are on record by way of the log of its proxy, and one
// whose template bounds what a policy allows.
func (l *leased) listed(t *testing.T) {
	long, bad := template(l.here, "long"), template(l.here, "bad")
	long.Spec.Egress, long.Spec.TimeoutSeconds = naming("api.example.com"), new(int64(604800))
	refused(t, admin.Create(t.Context(), long, client.DryRunAll), "spec.timeoutSeconds: 604800, and a run with egress.hosts has at most 169200")
	bad.Spec.Egress = naming("10.0.0.1")
	refused(t, admin.Create(t.Context(), bad, client.DryRunAll), `spec.egress.hosts[0].host: "10.0.0.1" is an address`)
	alone, bounded := template(l.here, "alone"), template(l.here, "bounded-1")
	alone.Spec.Egress, bounded.Spec.Egress = naming("api.example.com", "*.wild.example.com"), naming("narrow.example.com")
	testkit.Create(t, admin, alone, bounded, policyOf(l.here, "widening", "bounded-*"))
	k := testkit.NewKubelet(t, admin, listedNode)
	r := l.started(t, listedNode, "alone")
	pod := l.job(t, r).Spec.Template.Spec
	if e := r.Status.Egress; r.Status.Interception != v1alpha1.InterceptionTransparent || len(e.Hosts) != 2 || e.Broker != nil || argument(&pod, "broker-url") != "" ||
		argument(&pod, "hosts") != `[{"host":"api.example.com"},{"host":"*.wild.example.com"}]` {
		t.Errorf("%+v, %+v", e, pod.InitContainers)
	}
	if secret := l.secret(t, r, "-proxy"); len(secret.Data["tls.key"]) == 0 || len(secret.Data["broker-ca.crt"]) > 0 {
		t.Errorf("the Secret of the proxy has %d keys", len(secret.Data))
	}
	policy := &networkingv1.NetworkPolicy{}
	if err := admin.Get(t.Context(), client.ObjectKey{Namespace: l.here, Name: "sandbox-" + r.Name}, policy); err != nil || len(policy.Spec.Egress) != 2 {
		t.Errorf("%v: the Pod reaches %+v, want names and public addresses", err, policy.Spec.Egress)
	}
	l.refuses(t, k, "evil.example.com")
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}}
	testkit.ChangeStatus(t, admin, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: l.here, Name: r.Status.PodName}}, func(pod *corev1.Pod) {
		pod.Status.Phase = corev1.PodRunning
		pod.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "egress-proxy", State: running}}
	})
	l.refusalRecorded(t, r, "evil.example.com")
	l.refuses(t, k, "last.example.com")
	l.phase(t, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: l.here, Name: r.Status.PodName}}, corev1.PodSucceeded)
	l.refusalRecorded(t, r, "last.example.com")
	both := l.started(t, "bounded", "bounded-1")
	pod = l.job(t, both).Spec.Template.Spec
	if e := both.Status.Egress; len(e.Hosts) != 1 || e.Broker == nil || argument(&pod, "broker-url") == "" || argument(&pod, "hosts") != `[{"host":"narrow.example.com"}]` {
		t.Errorf("%+v, %+v", e, pod.InitContainers)
	}
}

// refuses has a line in the log of a proxy, which has refused a name.
func (l *leased) refuses(t *testing.T, k *testkit.Kubelet, host string) {
	t.Helper()
	var line bytes.Buffer
	at := time.Now().UTC()
	if err := protocol.LogReport(&line, protocol.Report{ID: host, Entries: []protocol.Reported{{Host: host, Port: 443, Reason: "no policy allows it", Count: 3, First: at, Last: at}}}); err != nil {
		t.Fatal(err)
	}
	k.Write(strings.TrimSpace(line.String()))
}

// refusalRecorded waits until it is on record that a name was refused.
func (l *leased) refusalRecorded(t *testing.T, of client.Object, host string) {
	t.Helper()
	testkit.Within(t, patience, "what the proxy refused is on record: "+host, func(context.Context) bool {
		l.kept.mu.Lock()
		defer l.kept.mu.Unlock()
		return slices.ContainsFunc(l.kept.kept, func(record extension.Record) bool {
			return record.Object.UID == of.GetUID() && record.Action == "egress-refused" && record.Denied && record.Pod.Name != "" && strings.Contains(record.Reason, "3 connections to "+strconv.Quote(host)+", port 443, were refused")
		})
	})
}
