package binding_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/api/v1alpha1"
	"github.com/admitkit/admitkit/extension/access"
	"github.com/admitkit/admitkit/extension/binding"
	"github.com/admitkit/admitkit/internal/freeport"
	"github.com/admitkit/admitkit/internal/testkit"
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

	const lasts = 8 * time.Second
	template := &v1alpha1.RoleAccessTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: in, Name: "reader"}, Spec: v1alpha1.RoleAccessTemplateSpec{
		AccessConfig: v1alpha1.AccessConfig{AllowedGroups: []string{"system:authenticated"}, DefaultDuration: lasts.String(), MaxDuration: lasts.String()},
		RoleRef:      v1alpha1.AccessRoleRef{Kind: "Role", Name: "reader"},
	}}
	request := &v1alpha1.RoleAccessRequest{ObjectMeta: metav1.ObjectMeta{Namespace: in, Name: "once"}}
	request.Spec.TemplateName, request.Spec.Reason = template.Name, "ticket 7"
	object := transient(in, "once", "Role", "deployer", lasts)
	testkit.Create(t, admin, template, request, object)
	ends := map[string]time.Time{object.Name: object.Spec.ValidUntil.Time, "roleaccess-once": request.CreationTimestamp.Add(lasts)}
	await(t, object, v1alpha1.BindingActive)
	seen := map[string][]watch.EventType{}
	follow := func(until <-chan time.Time) {
		for {
			select {
			case event := <-events.ResultChan():
				name := event.Object.(*rbacv1.RoleBinding).Name
				seen[name] = append(seen[name], event.Type)
				if late := time.Since(ends[name]); event.Type == watch.Deleted && (late < -50*time.Millisecond || late > 2*time.Second) {
					t.Errorf("RoleBinding %s ended %s late", name, late)
				}
			case <-until:
				return
			}
		}
	}
	for was := int64(-1); was != first.writes.Load(); {
		was = first.writes.Load()
		follow(time.After(500 * time.Millisecond))
	}
	before := first.writes.Load()
	follow(time.After(time.Until(object.Spec.ValidUntil.Add(-2 * time.Second))))
	testkit.Figure("binding.twins_rest_writes", float64(first.writes.Load()-before), "writes")
	if written := first.writes.Load() - before; written != 0 {
		t.Errorf("two managers wrote %d times at rest", written)
	}
	follow(time.After(time.Until(object.Spec.ValidUntil.Add(3 * time.Second))))
	for name := range ends {
		if got := seen[name]; len(got) != 2 || got[0] != watch.Added || got[1] != watch.Deleted {
			t.Errorf("RoleBinding %s: %v, want one that was added and deleted", name, got)
		}
	}
	if len(seen) != len(ends) {
		t.Errorf("the RoleBindings are %v", seen)
	}
}
