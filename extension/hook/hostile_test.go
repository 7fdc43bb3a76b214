package hook_test

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/internal/testkit"
)

func TestAHookThatReturnsTheParentItselfChangesNothing(t *testing.T) {
	t.Parallel()
	running(t)
	namespace := testkit.Namespace(t, admin)
	h := serve(t, func(http.ResponseWriter, *request) any {
		return object{"children": []any{named("example.com/v1", "Thing", namespace, "a", object{"spec": "hook's"})}}
	})
	things := []any{object{"apiVersion": "example.com/v1", "resource": "things", "updateStrategy": object{"method": "Recreate"}}}
	create(t, composite(namespace, object{"sync": at(h.URL)}, "Recreate", object{"childResources": things}))
	parent := create(t, thing(namespace, "a", object{"spec": "mine"}))
	condition(t, "CompositeController", namespace, "Converged", metav1.ConditionFalse, "", "the parent itself", "a")
	if now := get(t, "example.com/v1", "Thing", namespace, "a"); now == nil || now.GetUID() != parent.GetUID() || now.Object["spec"] != "mine" || len(now.GetOwnerReferences()) != 0 {
		t.Errorf("the parent is %v now", now)
	}
}

func TestAHookThatWantsSomethingElseEachTimeIsNotCalledForEver(t *testing.T) {
	t.Parallel()
	running(t)
	namespace := testkit.Namespace(t, admin)
	calls := 0
	h := serve(t, func(http.ResponseWriter, *request) any {
		calls++ // one parent is worked on by one worker
		return object{"children": []any{configMap("x", object{"call": fmt.Sprint(calls)})}}
	})
	create(t, composite(namespace, object{"sync": at(h.URL)}, "InPlace"))
	create(t, thing(namespace, "a"))
	condition(t, "CompositeController", namespace, "Converged", metav1.ConditionFalse, "DoesNotConverge", "something else of its children at each call")
	before := len(h.asked(""))
	time.Sleep(2 * time.Second) // that nothing happens has no event
	if after := len(h.asked("")); before > 30 || after != before {
		t.Errorf("it was called %d times, and %d times in the two seconds after", before, after-before)
	}
}

func TestThousandsOfTimesInAParentCallItsHookOnceASecond(t *testing.T) {
	t.Parallel()
	running(t)
	namespace := testkit.Namespace(t, admin)
	h := serve(t, func(http.ResponseWriter, *request) any { return object{"children": []any{}} })
	create(t, composite(namespace, object{"sync": at(h.URL)}, "InPlace"))
	var times []any
	from := time.Now().Add(time.Second)
	for i := range 2000 {
		times = append(times, from.Add(time.Duration(i)*time.Millisecond).UTC().Format(time.RFC3339Nano))
	}
	create(t, thing(namespace, "a", object{"spec": object{"times": times}}))
	testkit.Eventually(t, "the last time has come", func(context.Context) bool {
		asked := len(h.asked(""))
		return time.Since(from) > 4*time.Second && asked > 1
	})
	if asked := len(h.asked("")); asked > 8 {
		t.Errorf("it was called %d times for 2000 times within two seconds", asked)
	}
}

func TestAChildThatOthersFinalizeIsNamedWhileItsNameIsTaken(t *testing.T) {
	t.Parallel()
	running(t)
	namespace := testkit.Namespace(t, admin)
	value := "1"
	h := serve(t, func(_ http.ResponseWriter, r *request) any {
		spec, _ := r.Parent["spec"].(string)
		return object{"children": []any{configMap("x", object{"v": spec + value})}}
	})
	create(t, composite(namespace, object{"sync": at(h.URL)}, "Recreate"))
	create(t, thing(namespace, "a", object{"spec": "a"}))
	testkit.Eventually(t, "the child is there", func(context.Context) bool { return data(t, namespace, "x")["v"] == "a1" })
	child := get(t, "v1", "ConfigMap", namespace, "x")
	child.SetFinalizers([]string{"example.com/slow"})
	if err := admin.Update(t.Context(), child); err != nil {
		t.Fatal(err)
	}
	parent := get(t, "example.com/v1", "Thing", namespace, "a")
	parent.Object["spec"] = "b"
	if err := admin.Update(t.Context(), parent); err != nil {
		t.Fatal(err)
	}
	condition(t, "CompositeController", namespace, "Converged", metav1.ConditionFalse, "Terminating", "x", "example.com/slow")
	child = get(t, "v1", "ConfigMap", namespace, "x")
	child.SetFinalizers(nil)
	if err := admin.Update(t.Context(), child); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "it is made anew", func(context.Context) bool { return data(t, namespace, "x")["v"] == "b1" })
}
