package manager_test

import (
	"context"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/manager"
)

type idleWatcher struct{}

func (idleWatcher) Handle(context.Context, extension.Manager, watch.Event) {}

func TestTheShortFormsOfEiriniXAddAndListExtensions(t *testing.T) {
	r := newManager(t, manager.Options{Namespace: newNamespace(t)})
	r.AddWatcher(idleWatcher{})
	r.AddReconciler(stubborn{})
	if len(r.ListWatchers()) != 1 || len(r.ListReconcilers()) != 1 || r.GetManagerOptions().OperatorFingerprint != "admitkit" {
		t.Errorf("got %v, %v, %+v", r.ListWatchers(), r.ListReconcilers(), r.GetManagerOptions())
	}
}

func TestAConfigurationThatEiriniXHasLeftIsReportedAtTheStart(t *testing.T) {
	namespace := newNamespace(t)
	old := &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "eirini-x-mutating-hook"}}
	configurations := clientset.AdmissionregistrationV1().MutatingWebhookConfigurations()
	if _, err := configurations.Create(t.Context(), old, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = configurations.Delete(context.WithoutCancel(t.Context()), old.Name, metav1.DeleteOptions{})
	})
	r := start(t, manager.Options{Namespace: namespace, OperatorFingerprint: "eirini-x"}, mark("a", extension.Scope{}))
	if r.logs.FilterMessageSnippet("EiriniX has left a webhook configuration").Len() != 1 {
		t.Error("nobody is warned")
	}
}
