package audit

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/audit/sink/auditevent"
)

func TestAFoldStandsForAsManyActsAsItCounts(t *testing.T) {
	at := time.Now()
	act := func(user, namespace string) *serverAct {
		return &serverAct{
			User: v1alpha1.AuditUser{Username: user}, ObjectRef: &serverRef{Resource: "pods", Subresource: "exec", Namespace: namespace, Name: "web"},
			Received: metav1.NewMicroTime(at), Annotations: map[string]string{"audit.admitkit.dev/audit.record": "folded"},
		}
	}
	event := &v1alpha1.AuditEvent{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{auditevent.LabelNamespace: "shop"}}}
	event.Spec.ID, event.Spec.Folded, event.Spec.Namespace, event.Spec.User.Username = "first", true, "shop", "alice"
	event.Spec.Time, event.Status.Count = metav1.NewMicroTime(at), 3
	k := &recorded{ids: map[string]bool{}}
	k.add(event)
	for i, want := range []struct {
		user, namespace string
		missing         bool
	}{{"bob", "shop", true}, {"alice", "bank", true}, {"alice", "shop", false}, {"alice", "shop", false}, {"alice", "shop", true}} {
		if got := k.lack(act(want.user, want.namespace)); (got != "") != want.missing {
			t.Errorf("%d: the act of %s in %s: %q", i, want.user, want.namespace, got)
		}
	}
}
