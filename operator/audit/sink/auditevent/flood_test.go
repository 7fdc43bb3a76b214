package auditevent

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/audit/internal/audittest"
)

func TestAFloodIsFoldedIntoOneAuditEventThatCounts(t *testing.T) {
	const after, total = 5, 30
	synctest.Test(t, func(t *testing.T) {
		e, ok := New(Options{FoldAfter: after}).(*events)
		if !ok {
			t.Fatal("the sink is of another type")
		}
		e.client = fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&v1alpha1.AuditEvent{}).Build()
		before := audittest.Metric(t, "admitkit_audit_folded_total")
		now := time.Now() // all of it is in one minute
		var done sync.WaitGroup
		for i := range total {
			done.Go(func() { // the acts of a flood wait for each other
				r := audittest.Record(fmt.Sprint("record-", i), now)
				r.Command = []string{"true", fmt.Sprint(i % 4)}
				if err := e.Write(t.Context(), r); err != nil {
					t.Error(err)
				}
			})
		}
		done.Wait()
		time.Sleep(2 * foldInterval) // what writes the flood ends when nothing waits
		var list v1alpha1.AuditEventList
		if err := e.client.List(t.Context(), &list); err != nil || len(list.Items) != after+1 {
			t.Fatalf("%d AuditEvents of %d execs, want %d: %v", len(list.Items), total, after+1, err)
		}
		var fold *v1alpha1.AuditEvent
		for i := range list.Items {
			if list.Items[i].Spec.Folded {
				fold = &list.Items[i]
			}
		}
		if fold == nil || fold.Labels[LabelFolded] != "true" || fold.Labels[LabelUser] != "alice" || fold.Labels[LabelNamespace] != "shop" {
			t.Fatalf("none says that it is folded: %+v", list.Items)
		}
		acts := int64(0)
		for _, act := range fold.Status.Acts {
			acts += act.Count
		}
		if s := fold.Status; s.Count != total-after || acts != total-after || len(s.Acts) != 4 || s.FirstTime == nil || s.LastTime == nil {
			t.Errorf("the fold says %+v", s)
		}
		if got := audittest.Metric(t, "admitkit_audit_folded_total") - before; got != total-after {
			t.Errorf("%v are counted as folded, want %d", got, total-after)
		}
	})
}
