package main

import (
	"context"
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/testing/controlplane"
	"github.com/admitkit/admitkit/testing/managertest"
)

// In an installation of three processes the server, which others can reach, may create a Secret but
// not read one.
func TestTheServerMakesAKeyAndTheReconcilerDeletesItEachWithItsOwnRights(t *testing.T) {
	cluster := controlplane.Run(t, controlplane.Options{})
	installed := managertest.Run(t, cluster, managertest.Options{Name: "ssh"}, func(mgr *manager.Manager) error {
		return errors.Join(mgr.AddExtension(SSH{}), mgr.AddExtension(&Cleanup{patience: 3 * time.Second}))
	})
	keys := func(ctx context.Context) (list corev1.SecretList) {
		if err := installed.Admin.List(ctx, &list, client.InNamespace(installed.Namespace), client.HasLabels{keyLabel}); err != nil {
			t.Error(err)
		}
		return list
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: installed.Namespace, GenerateName: "dora-", Labels: map[string]string{extension.LabelSourceType: "APP"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: "registry.example.com/dora:1"}}},
	}
	testkit.Create(t, installed.Admin, pod)
	if key := keys(t.Context()); len(key.Items) != 1 || key.Items[0].Name != pod.Labels[keyLabel] {
		t.Errorf("the Pod names the key %q; there are %v", pod.Labels[keyLabel], key.Items)
	}
	theirs := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: installed.Namespace, Name: "theirs"}}
	liar := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: installed.Namespace, Name: "liar", Labels: map[string]string{keyLabel: theirs.Name}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: "registry.example.com/dora:1"}}},
	}
	testkit.Create(t, installed.Admin, theirs, liar)
	for _, gone := range []*corev1.Pod{liar, pod} {
		if err := installed.Admin.Delete(t.Context(), gone, client.GracePeriodSeconds(0)); err != nil {
			t.Fatal(err)
		}
	}
	testkit.Eventually(t, "the key goes with its Pod", func(ctx context.Context) bool { return len(keys(ctx).Items) == 0 })
	if err := installed.Admin.Get(t.Context(), client.ObjectKeyFromObject(theirs), theirs); err != nil || !theirs.DeletionTimestamp.IsZero() {
		t.Errorf("a Secret that a Pod names, and that is none of its own keys, is deleted: %v", err)
	}
}
