package hook_test

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/internal/hook/compose"
)

// lasting is a hook whose children last until a time; "" is for ever.
func lasting(until string) func(http.ResponseWriter, *request) any {
	return func(http.ResponseWriter, *request) any {
		children := []any{configMap("child", object{"a": "b"})}
		answer := object{"children": children, "attachments": children}
		if until != "" {
			answer["validUntil"] = until
		}
		return answer
	}
}

func inSeconds(n int) (at time.Time, text string) {
	at = time.Now().Add(time.Duration(n) * time.Second).Truncate(time.Second)
	return at, at.UTC().Format(time.RFC3339)
}

func fails(w http.ResponseWriter, _ *request) any {
	http.Error(w, "no", http.StatusInternalServerError)
	return nil
}

func TestValidUntil(t *testing.T) {
	for sentence, test := range map[string]struct {
		methods []string
		test    func(*testing.T, string, *hooks)
	}{
		"the children go at the time although the hook hangs, and come back with its next answer": {[]string{"OnDelete", "decorator"}, endsWithoutItsHook},
		"a child keeps its time although somebody takes its label away":                           {[]string{"InPlace"}, keepsItsLabel},
		"a time that is put off is written, calls no hook, and makes no child anew":               {[]string{"OnDelete", "Recreate", "InPlace", "RollingInPlace"}, putsOff},
		"an object of somebody else with the label stays":                                         {[]string{"OnDelete"}, leavesOthers},
		"what is no time is an error of the hook":                                                 {[]string{"OnDelete"}, wantsATime},
	} {
		for _, method := range test.methods {
			t.Run(sentence+", by "+method, func(t *testing.T) {
				t.Parallel()
				running(t)
				covers(t, "validUntil")
				namespace := testkit.Namespace(t, admin)
				h := serve(t, lasting(""))
				if method == "decorator" {
					create(t, decorator(namespace, object{
						"resources":   []any{object{"apiVersion": "example.com/v1", "resource": "things", "labelSelector": object{"matchLabels": object{"test": namespace}}}},
						"attachments": []any{object{"apiVersion": "v1", "resource": "configmaps"}},
						"hooks":       object{"sync": at(h.URL)},
					}))
				} else {
					create(t, composite(namespace, object{"sync": at(h.URL)}, method))
				}
				test.test(t, namespace, h)
			})
		}
	}
}

func labelOf(t *testing.T, namespace string) string {
	child := get(t, "v1", "ConfigMap", namespace, "child")
	if child == nil {
		return "there is no child"
	}
	return child.GetLabels()[compose.LabelValidUntil]
}

func hasLabel(t *testing.T, namespace string, until time.Time) {
	t.Helper()
	want := ""
	if !until.IsZero() {
		want = until.UTC().Format("20060102T150405Z")
	}
	testkit.Eventually(t, "the child says until when it is", func(context.Context) bool { return labelOf(t, namespace) == want })
}

func gone(t *testing.T, namespace string, until time.Time) {
	t.Helper()
	testkit.Eventually(t, "the child goes", func(context.Context) bool { return get(t, "v1", "ConfigMap", namespace, "child") == nil })
	if early := time.Until(until); early > 0 {
		t.Errorf("it went %s early", early)
	}
}

func endsWithoutItsHook(t *testing.T, namespace string, h *hooks) {
	until, text := inSeconds(5)
	h.change(lasting(text))
	parent := create(t, thing(namespace, "a"))
	hasLabel(t, namespace, until)
	h.change(func(_ http.ResponseWriter, r *request) any { <-r.ended; return nil })
	poke(t, parent)
	gone(t, namespace, until)
	next, text := inSeconds(3600)
	h.change(lasting(text))
	hasLabel(t, namespace, next)
	h.change(lasting(""))
	poke(t, parent)
	hasLabel(t, namespace, time.Time{})
}

// poke changes a parent.
func poke(t *testing.T, parent client.Object) {
	t.Helper()
	patch := fmt.Appendf(nil, `{"metadata": {"annotations": {"poked": %q}}}`, time.Now())
	if err := admin.Patch(t.Context(), parent, client.RawPatch(types.MergePatchType, patch)); err != nil {
		t.Fatal(err)
	}
}

func keepsItsLabel(t *testing.T, namespace string, h *hooks) {
	until, text := inSeconds(6)
	h.change(lasting(text))
	parent := create(t, thing(namespace, "a"))
	hasLabel(t, namespace, until)
	h.change(fails)
	poke(t, parent)
	for _, label := range []string{"null", `"20990101T000000Z"`} {
		patch := fmt.Appendf(nil, `{"metadata": {"labels": {%q: %s}}}`, compose.LabelValidUntil, label)
		child := get(t, "v1", "ConfigMap", namespace, "child")
		if child == nil {
			break // a busy machine
		}
		if err := admin.Patch(t.Context(), child, client.RawPatch(types.MergePatchType, patch)); client.IgnoreNotFound(err) != nil {
			t.Fatal(err)
		}
	}
	gone(t, namespace, until)
}

func putsOff(t *testing.T, namespace string, h *hooks) {
	until, text := inSeconds(3600)
	h.change(lasting(text))
	parent := create(t, thing(namespace, "a"))
	hasLabel(t, namespace, until)
	condition(t, "CompositeController", namespace, "Converged", metav1.ConditionTrue, "AsWanted")
	uid := get(t, "v1", "ConfigMap", namespace, "child").GetUID()
	// Each answer is valid for another hour: its own label must not call it again.
	h.change(func(w http.ResponseWriter, r *request) any {
		return lasting(time.Now().Add(time.Hour).UTC().Format(time.RFC3339Nano))(w, r)
	})
	calls := len(h.asked(""))
	poke(t, parent)
	testkit.Eventually(t, "the child has another time", func(context.Context) bool {
		return labelOf(t, namespace) != until.UTC().Format("20060102T150405Z")
	})
	label := labelOf(t, namespace)
	time.Sleep(testkit.Long(5*time.Second, time.Second)) // that nothing happens takes time to see
	if now := labelOf(t, namespace); now != label {
		t.Errorf("the time was put off again, from %s to %s", label, now)
	}
	if more := len(h.asked("")) - calls; more > 3 { // the poke, and what the status makes of it
		t.Errorf("the hook was called %d times", more)
	}
	if now := get(t, "v1", "ConfigMap", namespace, "child").GetUID(); now != uid {
		t.Error("the child was made anew")
	}
}

func leavesOthers(t *testing.T, namespace string, h *hooks) {
	other := configMap("other", object{})
	other["metadata"] = object{"name": "other", "namespace": namespace, "labels": object{compose.LabelValidUntil: "20200101T000000Z"}}
	create(t, other)
	until, text := inSeconds(3)
	h.change(lasting(text))
	create(t, thing(namespace, "a"))
	hasLabel(t, namespace, until)
	h.change(fails)
	gone(t, namespace, until)
	if get(t, "v1", "ConfigMap", namespace, "other") == nil {
		t.Error("it is gone")
	}
}

func wantsATime(t *testing.T, namespace string, h *hooks) {
	h.change(lasting("tomorrow"))
	create(t, thing(namespace, "a"))
	condition(t, "CompositeController", namespace, "Converged", metav1.ConditionFalse, "HookFailed", `validUntil: "tomorrow" is no time in RFC 3339`)
}
