package egress_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/admitkit/admitkit/operator/egress"
)

// podIn is a Pod with one label, "" for none.
func podIn(namespace, label string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "p"}}
	if key, value, ok := strings.Cut(label, "="); ok {
		pod.Labels = map[string]string{key: value}
	}
	return pod
}

func TestANetworkPluginIsFoundByThePodsOfKubeSystem(t *testing.T) {
	for label, want := range map[string]string{
		"k8s-app=calico-node": "Calico", "k8s-app=cilium": "Cilium", "app=cilium": "Cilium", "name=weave-net": "Weave Net",
		"k8s-app=kube-router": "kube-router", "app.kubernetes.io/name=antrea-agent": "Antrea", "k8s-app=kindnet": "", "": "",
	} {
		enforced, reason, err := egress.Probe(t.Context(), fake.NewClientBuilder().WithObjects(podIn("kube-system", label)).Build())
		if err != nil || enforced != (want != "") || enforced && !strings.Contains(reason, "of "+want+",") || !enforced && !strings.Contains(reason, "install one") {
			t.Errorf("%q: %t, %q, %v", label, enforced, reason, err)
		}
	}
	if enforced, _, err := egress.Probe(t.Context(), fake.NewClientBuilder().WithObjects(podIn("other", "k8s-app=cilium")).Build()); enforced || err != nil {
		t.Errorf("a Pod of another namespace counts: %t, %v", enforced, err)
	}
}

// A probe reads one Pod of each kind, the first that fits ends it, and what fails says so.
func TestAProbeReadsAsLittleAsItCan(t *testing.T) {
	asked := 0
	broken := errors.New("forbidden")
	reader := fake.NewClientBuilder().WithObjects(podIn("kube-system", "k8s-app=calico-node")).WithInterceptorFuncs(interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			options := (&client.ListOptions{}).ApplyOptions(opts)
			if options.Limit != 1 || options.Namespace != "kube-system" {
				t.Errorf("it lists with %+v", options)
			}
			if asked++; asked > 1 {
				return broken
			}
			return c.List(ctx, list, opts...)
		},
	}).Build()
	clock := clocktesting.NewFakePassiveClock(time.Unix(1_900_000_000, 0))
	p := &egress.Prober{Mode: egress.ModeAuto, Reader: reader, Clock: clock}
	for range 2 { // the second is within the time for which a probe counts
		if enforced, _, err := p.Enforced(t.Context()); !enforced || err != nil || asked != 1 {
			t.Errorf("%t, %v, after %d lists", enforced, err, asked)
		}
	}
	clock.SetTime(clock.Now().Add(time.Minute))
	if enforced, _, err := p.Enforced(t.Context()); enforced || !errors.Is(err, broken) {
		t.Errorf("a probe that fails says %t, %v", enforced, err)
	}
	for mode, want := range map[egress.Mode]bool{egress.ModeOn: true, egress.ModeOff: false, egress.ModeNone: false} {
		enforced, reason, err := (&egress.Prober{Mode: mode}).Enforced(t.Context()) // it has nobody to ask
		if enforced != want || reason == "" || err != nil {
			t.Errorf("%q: %t, %q, %v", mode, enforced, reason, err)
		}
	}
}
