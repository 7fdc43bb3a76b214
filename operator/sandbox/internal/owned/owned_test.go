package owned

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// The UID alone says nothing: whoever makes an object writes its owners.
func TestAnObjectIsOfItsControllerByKindAndUID(t *testing.T) {
	run := &v1alpha1.SandboxRun{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b", UID: "u"}}
	for sentence, test := range map[string]struct {
		change func(*metav1.OwnerReference)
		is     bool
	}{
		"ours":              {func(*metav1.OwnerReference) {}, true},
		"of a later API":    {func(o *metav1.OwnerReference) { o.APIVersion = "admitkit.dev/v1" }, true},
		"of another kind":   {func(o *metav1.OwnerReference) { o.Kind = "Workspace" }, false},
		"of another group":  {func(o *metav1.OwnerReference) { o.APIVersion = "example.com/v1alpha1" }, false},
		"of no controller":  {func(o *metav1.OwnerReference) { o.Controller = nil }, false},
		"of an earlier run": {func(o *metav1.OwnerReference) { o.UID = "before" }, false},
	} {
		owner := ByRun(run)
		test.change(&owner)
		if is := Is(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{owner}}}, ByRun(run)); is != test.is {
			t.Errorf("%s: %v", sentence, is)
		}
	}
}
