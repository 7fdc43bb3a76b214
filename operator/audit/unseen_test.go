package audit_test

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/audit"
)

// TestAPodThatIsTooLargeToReadIsDeniedOnRecord has somebody hide a privileged Pod behind
// 1.45 MB that become more than 8 MiB on their way to the webhook.
func TestAPodThatIsTooLargeToReadIsDeniedOnRecord(t *testing.T) {
	t.Parallel()
	ns := testkit.ManagerNamespace(t, admin)
	kept := &memory{}
	start(t, ns, audit.Options{WithoutNodeProxy: true, Sinks: []audit.SinkOptions{{Sink: kept, FailurePolicy: audit.Open}}})
	user, err := testkit.NewClient(alice, scheme)
	if err != nil {
		t.Fatal(err)
	}
	err = user.Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "hidden", Namespace: ns},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "main", Image: "example.com/main:1", SecurityContext: &corev1.SecurityContext{Privileged: new(true)},
			Env: []corev1.EnvVar{{Name: "LARGE", Value: strings.Repeat("<", 1_450_000)}},
		}}},
	})
	if err == nil || !strings.Contains(err.Error(), "not let through unseen") {
		t.Errorf("it is created: %v", err)
	}
	var got []*v1alpha1.AuditRecord // an Open sink has it later
	testkit.Eventually(t, "it is on record", func(context.Context) bool { got = kept.of("alice"); return len(got) > 0 })
	if len(got) != 1 || got[0].Decision != v1alpha1.AuditDenied || got[0].Pod != "hidden" || got[0].Way != v1alpha1.WayPod || got[0].Rule != "too-large" {
		t.Errorf("on record are %+v", got)
	}
}
