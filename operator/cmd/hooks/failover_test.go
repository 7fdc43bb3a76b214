package main

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/testkit"
)

// elects lets the program elect a leader.
const elects = `
{apiVersion: v1, kind: Namespace, metadata: {name: hooks-system}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: hooks-election, namespace: hooks-system}
rules:
- {apiGroups: [coordination.k8s.io], resources: [leases], verbs: [create, get, update]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: hooks-election, namespace: hooks-system}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: hooks-election}
subjects: [{kind: ServiceAccount, namespace: hooks-system, name: hooks}]
`

func TestAnEndIsKeptWhileTheLeaderChanges(t *testing.T) {
	example(t)
	apply(t, elects)
	replica := func() *testkit.Process {
		return testkit.Run(t, testkit.Again(t, asProgram, "yes", "reconcile", "--kubeconfig="+operator.KubeConfig, "--webhook-namespace=hooks-system", "--fingerprint=failover",
			"--leader-election", "--health-address=", "--metrics-address=", "--drain-period=0s", "--hooks-namespaces=transient-binding", bindingKinds))
	}
	leads := func(after string) (holder string) {
		t.Helper()
		testkit.Succeeds(t, time.Minute, "somebody leads", func(ctx context.Context) error {
			var lease coordinationv1.Lease
			if err := admin.Get(ctx, client.ObjectKey{Namespace: "hooks-system", Name: "failover.hooks-system"}, &lease); err != nil {
				return err
			}
			if lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity == "" || *lease.Spec.HolderIdentity == after {
				return errors.New("nobody new")
			}
			holder = *lease.Spec.HolderIdentity
			return nil
		})
		return holder
	}
	waits := func(p *testkit.Process) {
		t.Helper()
		testkit.Within(t, time.Minute, "the other waits for the Lease", func(context.Context) bool {
			return strings.Contains(strings.ToLower(p.Output.String()), "attempting to acquire leader lease")
		})
	}
	events, err := admin.Watch(t.Context(), &rbacv1.RoleBindingList{}, client.InNamespace("apps"))
	if err != nil {
		t.Fatal(err)
	}
	defer events.Stop()
	late := func(name string, until time.Time) time.Duration {
		t.Helper()
		for limit := time.After(time.Minute); ; {
			select {
			case event := <-events.ResultChan():
				if b, ok := event.Object.(*rbacv1.RoleBinding); ok && b.Name == name && event.Type == watch.Deleted {
					return time.Since(until)
				}
			case <-limit:
				t.Fatalf("%s is still there", name)
			}
		}
	}
	first := replica()
	holder := leads("")
	second := replica()
	waits(second)
	binding, until := bound(t, "graceful", 3*time.Second)
	began := time.Now()
	first.Stop(t)
	stopped := late(binding.Name, until)
	leads(holder)
	t.Logf("stopped: %s late; the process ended and the other led after %s", stopped, time.Since(began))
	third := replica()
	waits(third)
	binding, until = bound(t, "killed", 3*time.Second)
	second.Kill()
	killed := late(binding.Name, until)
	t.Logf("killed: %s late", killed)
	worst := max(stopped, killed)
	testkit.Figure("hook.failover_s", worst.Seconds(), "s")
	if min(stopped, killed) < 0 || worst > 10*time.Second {
		t.Errorf("the bindings went %s and %s after their end", stopped, killed)
	}
}
