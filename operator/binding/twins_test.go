package binding_test

import (
	"context"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/freeport"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/access"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/binding"
)

// Leases are no locks: a leader that was paused may act for a moment beside the next.
func TestTwoManagersThatBothLeadGrantOnceAndRest(t *testing.T) {
	const in = "twins"
	testkit.Create(t, admin, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: in}}, role(in, "deployer"), role(in, "reader"))
	first := startKillable(t, binding.Options{BindableRoles: []string{in + "/deployer"}}, &access.Options{Namespaces: []string{in}, Roles: []string{in + "/reader"}})
	second := *first
	second.options.Port = freeport.For(t)
	second.start(t)
	defer second.stop()
	events, err := admin.Watch(t.Context(), &rbacv1.RoleBindingList{}, client.InNamespace(in))
	if err != nil {
		t.Fatal(err)
	}
	defer events.Stop()

	template := &v1alpha1.RoleAccessTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: in, Name: "reader"}, Spec: v1alpha1.RoleAccessTemplateSpec{
		AccessConfig: v1alpha1.AccessConfig{AllowedGroups: []string{"system:authenticated"}, DefaultDuration: "1h", MaxDuration: "1h"},
		RoleRef:      v1alpha1.AccessRoleRef{Kind: "Role", Name: "reader"},
	}}
	request := &v1alpha1.RoleAccessRequest{ObjectMeta: metav1.ObjectMeta{Namespace: in, Name: "once"}}
	request.Spec.TemplateName, request.Spec.Reason = template.Name, "ticket 7"
	object := transient(in, "once", "Role", "deployer", time.Hour)
	testkit.Create(t, admin, template, request, object)
	await(t, object, v1alpha1.BindingActive)
	testkit.Eventually(t, "the request is granted", func(ctx context.Context) bool {
		return admin.Get(ctx, client.ObjectKeyFromObject(request), request) == nil && request.Status.Ready
	})
	seen, ends := map[string][]watch.EventType{}, map[string]time.Time{}
	follow := func(until <-chan time.Time, enough func() bool) {
		for !enough() {
			select {
			case event := <-events.ResultChan():
				name := event.Object.(*rbacv1.RoleBinding).Name
				seen[name] = append(seen[name], event.Type)
				if late := time.Since(ends[name]); event.Type == watch.Deleted && (late < -50*time.Millisecond || late > testkit.Long(2*time.Second, patience)) {
					t.Errorf("RoleBinding %s ended %s late", name, late)
				}
			case <-until:
				return
			}
		}
	}
	never := func() bool { return false }
	// Both have done what there was to do if neither writes for a while.
	for was := int64(-1); was != first.writes.Load(); {
		was = first.writes.Load()
		follow(time.After(500*time.Millisecond), never)
	}
	before := first.writes.Load()
	follow(time.After(testkit.Long(time.Minute, 2*time.Second)), never) // that nothing happens takes time to see
	testkit.Figure("binding.twins_rest_writes", float64(first.writes.Load()-before), "writes")
	if written := first.writes.Load() - before; written != 0 {
		t.Errorf("two managers wrote %d times at rest", written)
	}
	ends[object.Name] = endsIn(t, admin, object, 4*time.Second)
	lasts := time.Since(request.CreationTimestamp.Time).Truncate(time.Second) + 4*time.Second
	change := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"duration":"`+lasts.String()+`"}}`))
	if err := admin.Patch(t.Context(), request, change); err != nil {
		t.Fatal(err)
	}
	ends["roleaccess-once"] = request.CreationTimestamp.Add(lasts)
	follow(time.After(patience), func() bool {
		return slices.Contains(seen[object.Name], watch.Deleted) && slices.Contains(seen["roleaccess-once"], watch.Deleted)
	})
	follow(time.After(time.Second), never) // the same
	for name := range ends {
		if got := seen[name]; len(got) != 2 || got[0] != watch.Added || got[1] != watch.Deleted {
			t.Errorf("RoleBinding %s: %v, want one that was added and deleted", name, got)
		}
	}
	if len(seen) != len(ends) {
		t.Errorf("the RoleBindings are %v", seen)
	}
}

// What one manager has begun another ends, which knows of it from the API server alone.
func TestABindingEndsAfterTheManagerWasKilled(t *testing.T) {
	const in = "killed"
	testkit.Create(t, admin, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: in}}, role(in, "deployer"))
	k := startKillable(t, binding.Options{BindableRoles: []string{in + "/deployer"}}, nil)
	object := transient(in, "once", "Role", "deployer", time.Hour)
	testkit.Create(t, admin, object)
	await(t, object, v1alpha1.BindingActive)
	b, err := bindingOf(t, object)
	if err != nil {
		t.Fatal(err)
	}
	k.kill()
	k.start(t)
	end := endsIn(t, admin, object, 3*time.Second)
	gone(t, b)
	if early := time.Until(end); early > time.Second {
		t.Errorf("it ended %s early", early)
	}
	if _, err := bindingOf(t, object); !apierrors.IsNotFound(err) {
		t.Errorf("there is a binding: %v", err)
	}
}
