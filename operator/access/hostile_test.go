package access_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/access/internal/command"
	"github.com/admitkit/admitkit/operator/access/internal/pod"
	"github.com/admitkit/admitkit/operator/access/internal/workload"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

type (
	object = map[string]any
	list   = []any
)

// repeat returns n items.
func repeat(n int, item func(i int) any) list {
	items := make(list, n)
	for i := range items {
		items[i] = item(i)
	}
	return items
}

// withCommand returns a spec with an access command.
func withCommand(text string) object {
	return object{"accessConfig": object{"accessCommand": text}, "controllerTargetRef": object{"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}}
}

// patched returns a spec with a JSON Patch.
func patched(operations ...any) object {
	spec := withCommand("")
	spec["controllerTargetMutationConfig"] = object{"patchSpecOperations": operations}
	return spec
}

func then(first any, more list) object { return patched(append(list{first}, more...)...) }

func op(operation, path string, more ...any) object {
	o := object{"op": operation, "path": path}
	for i := 0; i < len(more); i += 2 {
		o[more[i].(string)] = more[i+1]
	}
	return o
}

// own returns a spec with a Pod spec of its own, with one container that has a field.
func own(field string, value any) object {
	return object{"accessConfig": object{}, "podSpec": object{"containers": list{object{"name": "main", "image": "example.com/main", field: value}}}}
}

func nested(depth int) any {
	var value any = "end"
	for range depth {
		value = list{value}
	}
	return value
}

// hostile are specs of templates that would cost much, each in the nth size of 1 to 8.
var hostile = map[string]func(n int) object{
	"a text that doubles": func(n int) object {
		return withCommand(fmt.Sprintf(`{{$a := printf "%%%dd" 1}}`, n*100_000) + strings.Repeat(`{{$a = printf "%s%s" $a $a}}`, 10*n) + "{{$a}}")
	},
	"a loop": func(n int) object {
		return withCommand(fmt.Sprintf(`{{if .Metadata.UID}}{{range %d}}{{end}}{{end}}`, 9223372036854775807-n))
	},
	"nested conditions": func(n int) object {
		return withCommand(strings.Repeat("{{if 1}}", n*20) + strings.Repeat("{{end}}", n*20))
	},
	"nested parentheses": func(n int) object {
		return withCommand("{{" + strings.Repeat("(", n*200) + strings.Repeat(")", n*200) + "}}")
	},
	"a template that calls itself": func(n int) object {
		return withCommand(`{{define "a"}}` + strings.Repeat(`{{template "a"}}`, n) + `{{end}}{{template "a"}}`)
	},
	"a deep field": func(n int) object { return withCommand("{{" + strings.Repeat(".Metadata", n*50) + "}}") },
	"a huge width": func(n int) object { return withCommand(fmt.Sprintf(`{{ printf "%%%d00000000s" "x" }}`, n)) },
	"many fields":  func(n int) object { return withCommand(strings.Repeat("{{.Metadata.Name}}", n*20)) },
	"a long text":  func(n int) object { return withCommand(strings.Repeat("<", n*1000)) },
	"copies of all": func(n int) object {
		return patched(repeat(25*n, func(i int) any { return op("copy", fmt.Sprint("/spec/x", i), "from", "/spec") })...)
	},
	"copies of containers": func(n int) object {
		return patched(repeat(25*n, func(int) any { return op("copy", "/spec/containers/-", "from", "/spec/containers/0") })...)
	},
	"copies that double": func(n int) object {
		return then(op("add", "/spec/x", "value", strings.Repeat("<", n*1000)), repeat(30, func(int) any { return op("copy", "/spec/x/-", "from", "/spec") }))
	},
	"copies of much": func(n int) object {
		return then(op("add", "/metadata/annotations/a", "value", strings.Repeat("<", n*10_000)), repeat(200, func(i int) any {
			return op("copy", fmt.Sprint("/metadata/annotations/a", i), "from", "/metadata/annotations/a")
		}))
	},
	"thousands of operations": func(n int) object {
		return patched(repeat(1000*n, func(int) any { return op("test", "/kind", "value", "Pod") })...)
	},
	"deep pointers": func(n int) object {
		return patched(repeat(250, func(int) any {
			return op("move", "/spec"+strings.Repeat("/x", 50*n), "from", "/spec")
		})...)
	},
	"deep values": func(n int) object {
		deep := nested(500 * n)
		return then(op("add", "/spec/x", "value", deep), repeat(10, func(int) any { return op("test", "/spec/x", "value", deep) }))
	},
	"a long list that grows": func(n int) object {
		return then(op("add", "/spec/containers/0/args", "value", repeat(5000*n, func(int) any { return "" })),
			repeat(255, func(int) any { return op("add", "/spec/containers/0/args/0", "value", "") }))
	},
	"a large object that shrinks": func(n int) object {
		keys := object{}
		for i := range 1000 * n {
			keys[fmt.Sprint("k", i)] = ""
		}
		return then(op("add", "/metadata/annotations", "value", keys), repeat(255, func(i int) any { return op("remove", fmt.Sprint("/metadata/annotations/k", i)) }))
	},
	"a quantity from a patch": func(n int) object {
		return patched(op("add", "/spec/containers/0/resources/limits", "value", object{"cpu": fmt.Sprint("1e-", n, "00000000")}))
	},
	"a quantity from another field": func(n int) object {
		return patched(op("add", "/spec/containers/0/args", "value", list{fmt.Sprint("1e-", n, "00000000")}),
			op("add", "/spec/containers/0/resources/limits", "value", object{}),
			op("move", "/spec/containers/0/resources/limits/cpu", "from", "/spec/containers/0/args/0"))
	},
	"a quantity": func(n int) object {
		return own("resources", object{"limits": object{"cpu": fmt.Sprint("1e-", n, "00000000")}})
	},
	"a cap": func(n int) object {
		spec := own("tty", true)
		spec["maxMemory"] = fmt.Sprint("1e", n, "00000000")
		return spec
	},
	"a long quantity": func(n int) object {
		return own("resources", object{"requests": object{"memory": strings.Repeat("9", 10_000*n)}})
	},
	"much to merge": func(n int) object {
		spec := own("env", repeat(1000*n, func(i int) any { return object{"name": fmt.Sprint("a", i)} }))
		spec["controllerTargetMutationConfig"] = object{"env": repeat(1000*n, func(i int) any { return object{"name": fmt.Sprint("b", i)} })}
		return spec
	},
	"many containers": func(n int) object {
		spec := own("tty", true)
		spec["maxCpu"] = "1"
		spec["podSpec"].(object)["initContainers"] = repeat(500*n, func(i int) any {
			if i%2 == 0 {
				return object{"name": fmt.Sprint("a", i), "restartPolicy": "Always"}
			}
			return object{"name": fmt.Sprint("a", i)}
		})
		return spec
	},
	"much that is escaped": func(n int) object {
		return own("env", list{object{"name": "a", "value": strings.Repeat("<", 100_000*n)}})
	},
	"a long list": func(n int) object { return own("args", repeat(20_000*n, func(int) any { return "" })) },
	"a deep list": func(n int) object { return own("none", nested(1000*n)) },
}

// cost is what a manager spends while something happens.
func (p *process) cost(t *testing.T, happens func()) (took time.Duration, allocated float64) {
	t.Helper()
	const duration, memory = "admitkit_webhook_duration_seconds_sum", "go_memstats_alloc_bytes_total"
	before := p.scrape(t)
	happens()
	after := p.scrape(t)
	seconds := sum(t, after, duration) - sum(t, before, duration)
	return time.Duration(seconds * float64(time.Second)), sum(t, after, memory) - sum(t, before, memory)
}

func TestNoTemplateCostsMuch(t *testing.T) {
	namespace := testkit.ManagerNamespace(t, admin)
	deployment(t, namespace, "web", 1)
	p := startManagerProcess(t, namespace)
	// The short form runs beside others. Unbounded growth takes more than that, too.
	mostTime, mostMemory := testkit.Long(50*time.Millisecond, 10*time.Second), testkit.Long(10.0*(1<<20), 40*(1<<20))
	var tried, accepted int
	var slowest time.Duration
	var largest float64
	check := func(name string, cost func() (time.Duration, float64)) {
		took, allocated := cost()
		for range 2 { // the machine may be busy, and the manager has more to do
			if took > mostTime || allocated > mostMemory {
				again, less := cost()
				took, allocated = min(took, again), min(allocated, less)
			}
		}
		if took > mostTime || allocated > mostMemory {
			t.Errorf("%s takes %s and %.1f MB", name, took, allocated/(1<<20))
		}
		if took > slowest || allocated > largest {
			t.Logf("%s takes %s and %.1f MB", name, took, allocated/(1<<20))
		}
		slowest, largest = max(slowest, took), max(largest, allocated)
	}
	for name, spec := range hostile {
		for n := testkit.Long(1, 4); n <= 8; n += testkit.Long(1, 8) {
			tried++
			spec := spec(n)
			spec["accessConfig"].(object)["allowedGroups"] = list{"devs"}
			template := &unstructured.Unstructured{Object: object{"spec": spec}}
			template.SetAPIVersion("admitkit.dev/v1alpha1")
			template.SetKind("PodAccessTemplate")
			template.SetNamespace(namespace)
			template.SetName("hostile")
			var refusal error
			check(fmt.Sprintf("the admission of %s %d", name, n), func() (time.Duration, float64) {
				return p.cost(t, func() { refusal = admin.Create(t.Context(), template.DeepCopy(), client.DryRunAll) })
			})
			if refusal != nil {
				if strings.Contains(refusal.Error(), "deadline") {
					t.Errorf("%s %d hangs: %v", name, n, refusal)
				}
				continue
			}
			accepted++
			check(fmt.Sprintf("the use of %s %d", name, n), func() (time.Duration, float64) {
				took, allocated := testkit.Cost(use(t, namespace, template))
				return took, float64(allocated)
			})
		}
	}
	testkit.Figure("template.hostile", float64(tried), "templates")
	testkit.Figure("template.accepted", float64(accepted), "templates")
	testkit.Figure("template.worst_ms", testkit.Milliseconds(slowest), "ms")
	testkit.Figure("template.worst_mb", largest/(1<<20), "MB")
	if p.metric(t, "admitkit_admission_panics_total") > 0 {
		t.Error("the manager panics")
	}
}

// use returns what makes of a template what a request gets.
func use(t *testing.T, namespace string, content *unstructured.Unstructured) func() {
	t.Helper()
	raw, err := json.Marshal(content)
	if err != nil {
		t.Fatal(err)
	}
	var template v1alpha1.PodAccessTemplate
	if err := json.Unmarshal(raw, &template); err != nil {
		t.Fatal(err)
	}
	var target *workload.Workload
	if ref := template.Spec.ControllerTargetRef; ref != nil {
		if target, err = workload.Find(t.Context(), admin, namespace, *ref); err != nil {
			t.Fatal(err)
		}
	}
	return func() {
		made, err := pod.New(metav1.ObjectMeta{Name: "podaccess-a"}, &template, target, time.Hour)
		if err != nil {
			t.Errorf("it is admitted, but: %v", err)
			return
		}
		text, err := command.Parse(template.Spec.AccessConfig.AccessCommand)
		if err == nil {
			_, err = text.For(&made.ObjectMeta)
		}
		if err != nil {
			t.Errorf("it is admitted, but: %v", err)
		}
	}
}
