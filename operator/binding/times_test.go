package binding_test

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// A time that the API server takes for a date-time, and Go does not read, ends every list
// of its kind, and with it the grants of everybody: 2030-01-01t00:00:00z was one.
func TestNoTimeThatIsStoredKeepsTheOthersFromBeingRead(t *testing.T) {
	namespace := testkit.Namespace(t, admin)
	kept := transient(namespace, "kept", "Role", "deployer", 0)
	kept.Spec.Author = author(t, admin) // the policy of an earlier test may be there, and no webhook is
	testkit.Create(t, admin, kept)
	for _, odd := range []string{
		"2030-01-01T23:59:60Z", "2030-01-01t00:00:00z", "2030-01-01 00:00:00Z", "2030-01-01T00:00:00,5Z", "2030-01-01T00:00:00+24:00", "2030-01-01T00:00:00.0000000000000000001Z",
		"0000-01-01T00:00:00Z", "0001-01-01T00:00:00Z", "-001-01-01T00:00:00Z", "10000-01-01T00:00:00Z", "9999-12-31T23:59:59-23:59", "1969-12-31T23:59:59Z",
	} {
		for _, patch := range []string{
			`{"spec":{"validFrom":%q}}`, `{"spec":{"validUntil":%q}}`, `{"status":{"beganAt":%q}}`, `{"status":{"endedAt":%q}}`,
			`{"status":{"conditions":[{"type":"Effective","status":"True","reason":"A","message":"","lastTransitionTime":%q}]}}`,
		} {
			stored := storeTime(t, namespace, fmt.Sprintf(patch, odd))
			var all v1alpha1.TransientRoleBindingList
			if err := admin.List(t.Context(), &all, client.InNamespace(namespace)); err != nil {
				t.Errorf(patch+": it is stored (%v), and then nobody reads the others: %v", odd, stored, err)
			}
			if err := admin.Delete(t.Context(), transient(namespace, "odd", "Role", "deployer", 0)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// storeTime makes an object with a patch, of its spec or its status.
func storeTime(t *testing.T, namespace, patch string) error {
	t.Helper()
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("TransientRoleBinding"))
	if err := admin.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "kept"}, object); err != nil {
		t.Fatal(err)
	}
	spec := object.Object["spec"]
	object.Object = map[string]any{"apiVersion": object.GetAPIVersion(), "kind": object.GetKind(), "metadata": map[string]any{"namespace": namespace, "name": "odd"}, "spec": spec}
	change := client.RawPatch("application/merge-patch+json", []byte(patch))
	if err := admin.Create(t.Context(), object); err != nil {
		t.Fatal(err)
	}
	if patch[2:6] == "spec" {
		return admin.Patch(t.Context(), object, change)
	}
	return admin.Status().Patch(t.Context(), object, change)
}
