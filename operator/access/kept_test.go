package access_test

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/testkit"
)

// Whoever may delete RoleBindings can do so in the foreground: one then stays in force for as
// long as something that it owns does, and no webhook is asked about a deletion.
func TestARoleBindingThatIsBeingDeletedEndsInTime(t *testing.T) {
	t.Parallel()
	c := newCastle(t)
	req := c.gets(t, alice, c.write(t, c.ada, "deployer"), "1h")
	soonCan(t, alice, c.namespace, "configmaps", true)
	c.keep(t, req)
	if gone(t, bindingOf(req)) || !canGet(t, alice, c.namespace, "configmaps") {
		t.Fatal("it does not stay: this would prove nothing")
	}
	notBefore(t, endsIn(t, alice, req, 2*time.Second), "alice has no role any more", func() bool { return !canGet(t, alice, c.namespace, "configmaps") })
	await(t, req, "says that it ended", func() bool { return fails(req, "AccessStillValid", "Expired") })
}

// keep deletes the RoleBinding of a request in the foreground, and has it own what does not go.
func (c *castle) keep(t *testing.T, req request) {
	t.Helper()
	binding := bindingOf(req)
	if err := admin.Get(t.Context(), client.ObjectKeyFromObject(binding), binding); err != nil {
		t.Fatal(err)
	}
	owned := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Namespace: c.namespace, Name: "kept-by-" + req.GetName(), Finalizers: []string{"example.com/keep"},
		OwnerReferences: []metav1.OwnerReference{{
			APIVersion: "rbac.authorization.k8s.io/v1", Kind: "RoleBinding", Name: binding.Name, UID: binding.UID, BlockOwnerDeletion: new(true),
		}},
	}}
	testkit.Create(t, admin, owned)
	t.Cleanup(func() {
		_ = admin.Patch(context.WithoutCancel(t.Context()), owned, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`)))
	})
	if err := admin.Delete(t.Context(), binding, client.PropagationPolicy(metav1.DeletePropagationForeground)); err != nil {
		t.Fatal(err)
	}
}
