package testkit

import (
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Change changes an object. It cannot conflict with what others write to it meanwhile: a merge patch has no resource version.
func Change[T client.Object](t testing.TB, c client.Client, object T, change func(T)) {
	t.Helper()
	before := client.MergeFrom(object.DeepCopyObject().(client.Object))
	change(object)
	if err := c.Patch(t.Context(), object, before); err != nil {
		t.Fatalf("changing %T %s: %v", object, client.ObjectKeyFromObject(object), err)
	}
}

// ChangeStatus is Change for the status, as a kubelet does it.
func ChangeStatus[T client.Object](t testing.TB, c client.Client, object T, change func(T)) {
	t.Helper()
	before := client.MergeFrom(object.DeepCopyObject().(client.Object))
	change(object)
	if err := c.Status().Patch(t.Context(), object, before); err != nil {
		t.Fatalf("changing the status of %T %s: %v", object, client.ObjectKeyFromObject(object), err)
	}
}
