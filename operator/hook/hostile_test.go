package hook_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/admitkit/admitkit/internal/testkit"
)

func TestAHookThatChangesItsMindAtEachCallIsNoLoop(t *testing.T) {
	t.Parallel()
	running(t)
	for name, answer := range map[string]func(call string) object{
		"about the status":          func(call string) object { return object{"status": object{"call": call}} },
		"about a child":             func(call string) object { return object{"children": []any{configMap("x", object{"call": call})}} },
		"about a child that rolls":  func(call string) object { return object{"children": []any{configMap("x", object{"call": call})}} },
		"about the name of a child": func(call string) object { return object{"children": []any{configMap("x-"+call, nil)}} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			namespace := testkit.Namespace(t, admin)
			calls := 0
			h := serve(t, func(http.ResponseWriter, *request) any { calls++; return answer(fmt.Sprint(calls)) })
			method := "InPlace"
			if strings.HasSuffix(name, "rolls") {
				method = "RollingInPlace"
			}
			create(t, composite(namespace, object{"sync": at(h.URL)}, method))
			began := time.Now()
			create(t, thing(namespace, "a", object{"spec": object{}}))
			testkit.Within(t, 2*time.Minute, "it is left alone, and says so", func(context.Context) bool {
				told := fmt.Sprint(get(t, "metacontroller.k8s.io/v1alpha1", "CompositeController", "", namespace).Object["status"])
				return strings.Contains(told, "DoesNotConverge") && strings.Contains(told, "at each call")
			})
			// It can make 100 changes at once, and one each two seconds. A call makes at least half of one.
			if n, most := len(h.asked("")), 220+time.Since(began).Seconds(); float64(n) > most {
				t.Errorf("the hook was called %d times, more than %.0f", n, most)
			}
		})
	}
}

func TestTwoControllersThatUndoEachOtherAreNoLoop(t *testing.T) {
	t.Parallel()
	running(t)
	for kind, controller := range map[string]func(namespace, url, who string) object{
		"CompositeController": func(namespace, url, _ string) object { return composite(namespace, object{"sync": at(url)}, "") },
		"DecoratorController": func(namespace, url, _ string) object {
			return decorator(namespace, object{
				"resources": []any{object{"apiVersion": "example.com/v1", "resource": "things", "labelSelector": object{"matchLabels": object{"test": namespace}}}},
				"hooks":     object{"sync": at(url)},
			})
		},
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			namespace := testkit.Namespace(t, admin)
			var names []string
			var calls atomic.Int64
			for _, who := range []string{"one", "two"} {
				h := serve(t, func(http.ResponseWriter, *request) any {
					calls.Add(1)
					if kind == "DecoratorController" {
						return object{"labels": object{"who": who}}
					}
					return object{"status": object{"who": who}}
				})
				o := controller(namespace, h.URL, who)
				name := namespace + "-" + who
				o["metadata"].(object)["name"] = name
				create(t, o)
				condition(t, kind, name, "Ready", metav1.ConditionTrue, "")
				names = append(names, name)
			}
			create(t, thing(namespace, "a"))
			began := time.Now()
			testkit.Within(t, 2*time.Minute, "one of them is left alone, and says so", func(context.Context) bool {
				text := ""
				for _, name := range names {
					text += fmt.Sprint(get(t, "metacontroller.k8s.io/v1alpha1", kind, "", name).Object["status"])
				}
				return strings.Contains(text, "DoesNotConverge") && strings.Contains(text, "somebody else undoes what it wants")
			})
			// Each of them can make 100 changes at once, and one each two seconds. A call makes at least half of one.
			if n, most := calls.Load(), 440+2*time.Since(began).Seconds(); float64(n) > most {
				t.Errorf("the hooks were called %d times, more than %.0f", n, most)
			}
		})
	}
}

func TestThousandsOfTimesWakeAHookOnceASecond(t *testing.T) {
	t.Parallel()
	running(t)
	namespace := testkit.Namespace(t, admin)
	h := serve(t, func(http.ResponseWriter, *request) any { return object{} })
	create(t, composite(namespace, object{"sync": at(h.URL)}, "InPlace"))
	times := make([]any, 5000)
	begin := time.Now().Add(time.Second)
	for i := range times {
		times[i] = begin.Add(time.Duration(i) * time.Millisecond).UTC().Format(time.RFC3339Nano)
	}
	create(t, thing(namespace, "a", object{"spec": object{"times": times}}))
	time.Sleep(time.Until(begin.Add(3 * time.Second))) // a rate needs time
	testkit.Eventually(t, "the hook is called again", func(context.Context) bool { return len(h.asked("")) >= 2 })
	if n, took := len(h.asked("")), time.Since(begin); n > int(took.Seconds())+3 {
		t.Errorf("the hook was called %d times in %s", n, took)
	}
}

func TestAChildThatCannotGoIsACondition(t *testing.T) {
	t.Parallel()
	running(t)
	namespace := testkit.Namespace(t, admin)
	h := serve(t, func(http.ResponseWriter, *request) any {
		return object{"children": []any{configMap("x", object{"a": "b"})}}
	})
	create(t, composite(namespace, object{"sync": at(h.URL)}, "InPlace"))
	create(t, thing(namespace, "a"))
	testkit.Eventually(t, "the child is there", func(context.Context) bool { return data(t, namespace, "x") != nil })
	u := get(t, "v1", "ConfigMap", namespace, "x")
	u.SetFinalizers([]string{"example.com/others"})
	if err := admin.Update(t.Context(), u); err != nil {
		t.Fatal(err)
	}
	if err := admin.Delete(t.Context(), u); err != nil {
		t.Fatal(err)
	}
	condition(t, "CompositeController", namespace, "Converged", metav1.ConditionFalse, "Terminating", "example.com/others", "x")
	u = get(t, "v1", "ConfigMap", namespace, "x")
	u.SetFinalizers(nil)
	if err := admin.Update(t.Context(), u); err != nil {
		t.Fatal(err)
	}
	condition(t, "CompositeController", namespace, "Converged", metav1.ConditionTrue, "")
}

func TestAParentIsNotItsOwnChild(t *testing.T) {
	t.Parallel()
	running(t)
	namespace := testkit.Namespace(t, admin)
	h := serve(t, func(_ http.ResponseWriter, r *request) any {
		return object{"children": []any{}, "status": object{"seen": len(r.Children["Thing.example.com/v1"])}}
	})
	create(t, composite(namespace, object{"sync": at(h.URL)}, "", object{
		"generateSelector": false, "childResources": []any{object{"apiVersion": "example.com/v1", "resource": "things"}},
	}))
	// Its selector selects the parent itself.
	parent := create(t, thing(namespace, "a", object{"spec": object{"selector": object{"matchLabels": object{"test": namespace}}}}))
	status(t, namespace, "a", "seen", 0)
	if u := get(t, "example.com/v1", "Thing", namespace, "a"); u.GetUID() != parent.GetUID() || len(u.GetOwnerReferences()) > 0 {
		t.Errorf("the parent was made its own child: %v", u.Object["metadata"])
	}
}

func TestAControllerThatIsDeletedDuringACallEnds(t *testing.T) {
	t.Parallel()
	running(t)
	namespace := testkit.Namespace(t, admin)
	asked, ended := make(chan struct{}, 1), make(chan struct{}, 1)
	h := serve(t, func(_ http.ResponseWriter, r *request) any {
		asked <- struct{}{}
		select {
		case <-r.ended: // with its controller
		case <-t.Context().Done():
		}
		ended <- struct{}{}
		return object{"children": []any{configMap("late", nil)}}
	})
	controller := create(t, composite(namespace, object{"sync": at(h.URL)}, "InPlace"))
	create(t, thing(namespace, "a"))
	<-asked
	if err := admin.Delete(t.Context(), controller); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Fatal("the call goes on")
	}
	time.Sleep(500 * time.Millisecond) // nothing happens: there is no event to wait for
	if get(t, "v1", "ConfigMap", namespace, "late") != nil {
		t.Error("a controller that is no more has made a child")
	}
}

// deep is an object with a field that makes it that many levels deep.
func deep(levels int) object {
	inner := object{}
	for range levels - 2 {
		inner = object{"a": inner}
	}
	return inner
}

func TestWhatIsNestedTooDeepIsAConditionAndWrittenNowhere(t *testing.T) {
	t.Parallel()
	running(t)
	namespace := testkit.Namespace(t, admin)
	h := serve(t, func(_ http.ResponseWriter, r *request) any {
		if r.Parent["metadata"].(object)["name"] == "asks" {
			return object{"status": object{"a": deep(600)}}
		}
		return object{"status": object{"called": true}}
	})
	create(t, composite(namespace, object{"sync": at(h.URL)}, ""))
	// What an API server does with 9,900 levels, the most that it takes, grows with their square.
	create(t, thing(namespace, "deep", object{"spec": deep(testkit.Long(9900, 2000))}))
	condition(t, "CompositeController", namespace, "Converged", metav1.ConditionFalse, "Failed", namespace+"/deep", "the parent, a child or a related object is nested deeper than 500 levels")
	create(t, thing(namespace, "asks"))
	condition(t, "CompositeController", namespace, "Converged", metav1.ConditionFalse, "HookFailed", namespace+"/asks", "the response is nested deeper than 500 levels")
	create(t, thing(namespace, "good"))
	status(t, namespace, "good", "called", true)
	if p := get(t, "example.com/v1", "Thing", namespace, "asks"); p.Object["status"] != nil {
		t.Errorf("it has the status %.100v", p.Object["status"])
	}
}

func TestAPanicEndsTheSyncOfOneParentAndNotTheProgram(t *testing.T) {
	t.Parallel()
	running(t)
	namespace := testkit.Namespace(t, admin)
	create(t, composite(namespace, object{"sync": object{"rego": object{"inline": "panics"}}}, ""))
	create(t, thing(namespace, "a"))
	condition(t, "CompositeController", namespace, "Converged", metav1.ConditionFalse, "Failed", "panic: the compiler has a bug")
	u := get(t, "metacontroller.k8s.io/v1alpha1", "CompositeController", "", namespace)
	_ = unstructured.SetNestedField(u.Object, `{"status":{"by":"policy"}}`, "spec", "hooks", "sync", "rego", "inline")
	if err := admin.Update(t.Context(), u); err != nil {
		t.Fatal(err)
	}
	status(t, namespace, "a", "by", "policy")
}

// A hook that hangs, of a controller with more parents than workers, beside one that works.
func TestAHookThatHangsDoesNotSlowAnotherDown(t *testing.T) {
	testkit.OnlyLong(t) // that it does not stop another one is TestAHookThatFailsChangesNothingAndHoldsUpNoOther
	running(t)
	namespace, hanging := testkit.Namespace(t, admin), testkit.Namespace(t, admin)
	h := serve(t, func(_ http.ResponseWriter, r *request) any { return object{"status": object{"spec": r.Parent["spec"]}} })
	create(t, composite(namespace, object{"sync": at(h.URL)}, "InPlace"))
	create(t, thing(namespace, "a", object{"spec": "0"}))
	status(t, namespace, "a", "spec", "0")
	const rounds = 300
	measure := func(from int) (took []time.Duration) {
		for i := from; i < from+rounds; i++ {
			want, began := fmt.Sprint(i), time.Now()
			patchThing(t, namespace, "a", fmt.Sprintf(`{"spec":%q}`, want))
			for {
				got, _, _ := unstructured.NestedString(get(t, "example.com/v1", "Thing", namespace, "a").Object, "status", "spec")
				if got == want {
					break
				}
				if time.Since(began) > waitABit {
					t.Fatal("the hook that works is not called")
				}
			}
			took = append(took, time.Since(began))
		}
		return took
	}
	alone := measure(1)
	release := make(chan struct{})
	hangs := serve(t, func(http.ResponseWriter, *request) any { <-release; return nil })
	t.Cleanup(func() { close(release) })
	create(t, composite(hanging, object{"sync": at(hangs.URL)}, "InPlace"))
	for i := range 20 {
		create(t, thing(hanging, fmt.Sprint("a", i)))
	}
	testkit.Eventually(t, "it hangs", func(context.Context) bool { return len(hangs.asked("")) >= 5 })
	beside := measure(1 + rounds)
	p50 := [2]float64{testkit.Milliseconds(testkit.Percentile(alone, .5)), testkit.Milliseconds(testkit.Percentile(beside, .5))}
	testkit.Figure("hook.alone_p50_ms", p50[0], "ms")
	testkit.Figure("hook.beside_hanging_p50_ms", p50[1], "ms")
	testkit.Figure("hook.hang_ratio", p50[1]/p50[0], "times")
	if p50[1] > 3*p50[0]+50 {
		t.Errorf("a hook that hangs slows another down: %.1f ms, alone %.1f ms", p50[1], p50[0])
	}
}
