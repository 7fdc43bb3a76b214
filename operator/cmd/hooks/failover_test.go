package main

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/manager"
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

func TestHooksGoOnWhenTheirLeaseWasLost(t *testing.T) {
	testkit.OnlyLong(t) // a leader tries for 10 s to keep its Lease
	example(t)
	apply(t, elects)
	p := newProgram()
	if err := p.cmd.ParseFlags([]string{bindingKinds, "--hooks-namespaces=transient-binding"}); err != nil {
		t.Fatal(err)
	}
	logger, logs := testkit.Logger(t)
	mgr, err := manager.New(manager.Options{
		OperatorFingerprint: "lost", Host: "127.0.0.1", WebhookNamespace: "hooks-system", RESTConfig: operator.Config, Logger: logger,
		Serving: manager.ServingOptions{DrainPeriod: new(time.Duration)}, RegisterWebHook: new(bool), Watching: manager.WatchingOptions{LeaderElection: true},
	})
	if err == nil {
		err = p.addTo(mgr)
	}
	if err != nil {
		t.Fatal(err)
	}
	testkit.Start(t, mgr) // Reconcile would end, for the kubelet to start it again
	bound(t, "before", time.Hour)
	taken := false
	testkit.Eventually(t, "the Lease is lost", func(ctx context.Context) bool {
		lease := &coordinationv1.Lease{}
		if err := admin.Get(ctx, client.ObjectKey{Namespace: "hooks-system", Name: "lost.hooks-system"}, lease); err != nil {
			return false
		}
		if !taken { // its holder may renew it meanwhile
			other, now, seconds := "somebody-else", metav1.NowMicro(), int32(15)
			lease.Spec.HolderIdentity, lease.Spec.RenewTime, lease.Spec.LeaseDurationSeconds = &other, &now, &seconds
			taken = admin.Update(ctx, lease) == nil
		}
		return logs.FilterMessage("leader election failed").Len() > 0
	})
	bound(t, "after", time.Hour)
	restarted, until := bound(t, "ends", 3*time.Second)
	policyIs(t, "package controller {")
	unbound(t, restarted, until)
}
