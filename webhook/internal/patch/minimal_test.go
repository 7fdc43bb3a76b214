package patch

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// spec returns a Pod with this in its spec.
func spec(s string) string { return `{"metadata":{"name":"p"},"spec":{` + s + `}}` }

// on makes a mutation of any object of one of a type.
func on[T runtime.Object](mutate func(T)) func(runtime.Object) {
	return func(obj runtime.Object) { mutate(obj.(T)) }
}

func onPod(mutate func(*corev1.Pod)) func(runtime.Object) { return on(mutate) }

func onTree(mutate func(map[string]any)) func(runtime.Object) {
	return on(func(u *unstructured.Unstructured) { mutate(u.Object) })
}

// minimal is a mutation, and all the operations that its patch may have.
type minimal struct {
	raw     string
	into    runtime.Object // default: a Pod
	mutate  func(runtime.Object)
	options Options
	want    []string
}

func testMinimal(t *testing.T, cases map[string]minimal) {
	t.Helper()
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if c.into == nil {
				c.into = &corev1.Pod{}
			}
			before := decode(t, []byte(c.raw), c.into)
			after := before.DeepCopyObject()
			c.mutate(after)
			ops, err := Diff([]byte(c.raw), before, after, c.options)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, op := range ops {
				got = append(got, strings.TrimSpace(fmt.Sprintf("%s %s %s", op.Op, op.Path, op.Value)))
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("got\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(c.want, "\n\t"))
			}
			apply(t, []byte(c.raw), ops)
		})
	}
}

func first(pod *corev1.Pod) *corev1.Container { return &pod.Spec.Containers[0] }

func TestThePatchOfContainersIsMinimal(t *testing.T) {
	const three = `{"name":"a","x":1},{"name":"b","x":2},{"name":"c","x":3}`
	testMinimal(t, map[string]minimal{
		"a container at the front is one add": {
			raw: spec(`"containers":[` + three + `]`),
			mutate: onPod(func(p *corev1.Pod) {
				p.Spec.Containers = slices.Insert(p.Spec.Containers, 0, corev1.Container{Name: "n"})
			}),
			want: []string{`add /spec/containers/0 {"name":"n","resources":{}}`},
		},
		"a container that is removed is one remove": {
			raw:    spec(`"containers":[` + three + `]`),
			mutate: onPod(func(p *corev1.Pod) { p.Spec.Containers = slices.Delete(p.Spec.Containers, 1, 2) }),
			want:   []string{`remove /spec/containers/1`},
		},
		"a container that moves takes its unknown fields along": {
			raw: spec(`"containers":[` + three + `]`),
			mutate: onPod(func(p *corev1.Pod) {
				c := p.Spec.Containers
				c[0], c[1], c[2] = c[2], c[0], c[1]
				c[0].Image = "i"
			}),
			want: []string{`add /spec/containers/0 {"name":"c","x":3}`, `add /spec/containers/0/image "i"`, `remove /spec/containers/3`},
		},
		"a container that is replaced by another in its place is one replace": {
			raw:    spec(`"containers":[` + three + `]`),
			mutate: onPod(func(p *corev1.Pod) { p.Spec.Containers[1] = corev1.Container{Name: "n"} }),
			want:   []string{`replace /spec/containers/1 {"name":"n","resources":{}}`},
		},
	})
}

func TestThePatchOfAListIsMinimal(t *testing.T) {
	testMinimal(t, map[string]minimal{
		"an env variable at the end is one add": {
			raw:    string(realPod),
			mutate: onPod(func(p *corev1.Pod) { first(p).Env = append(first(p).Env, corev1.EnvVar{Name: "A", Value: "<b>"}) }),
			want:   []string{`add /spec/containers/0/env/4 {"name":"A","value":"<b>"}`},
		},
		"the first env variable makes the list": {
			raw:    string(realPod),
			mutate: onPod(func(p *corev1.Pod) { p.Spec.Containers[1].Env = []corev1.EnvVar{{Name: "A"}} }),
			want:   []string{`add /spec/containers/1/env [{"name":"A"}]`},
		},
		"a mount is known by its path": {
			raw: string(realPod),
			mutate: onPod(func(p *corev1.Pod) {
				first(p).VolumeMounts = slices.Insert(first(p).VolumeMounts, 1, corev1.VolumeMount{Name: "tmp", MountPath: "/x"})
			}),
			want: []string{`add /spec/containers/0/volumeMounts/1 {"name":"tmp","mountPath":"/x"}`},
		},
		"of two ports with one number the right one goes": {
			raw: spec(`"containers":[{"name":"a","ports":[{"containerPort":70},{"containerPort":53,"protocol":"TCP"},{"containerPort":53,"protocol":"UDP"},{"containerPort":80}]}]`),
			mutate: onPod(func(p *corev1.Pod) {
				first(p).Ports = slices.Delete(first(p).Ports, 2, 3)
				first(p).Ports[0].ContainerPort, first(p).Ports[2].ContainerPort = 71, 81
			}),
			want: []string{
				`replace /spec/containers/0/ports/0 {"containerPort":71}`, `replace /spec/containers/0/ports/2 {"containerPort":81}`,
				`remove /spec/containers/0/ports/3`,
			},
		},
		"an item without a key that changed is changed in place": {
			raw:    spec(`"tolerations":[{"key":"a","x":1},{"key":"b","x":2}]`),
			mutate: onPod(func(p *corev1.Pod) { p.Spec.Tolerations[1].Effect = "NoExecute" }),
			want:   []string{`add /spec/tolerations/1/effect "NoExecute"`},
		},
		"an item without a key that is removed leaves the others alone": {
			raw:    spec(`"tolerations":[{"key":"a","x":1},{"key":"b","x":2},{"key":"c","x":3}]`),
			mutate: onPod(func(p *corev1.Pod) { p.Spec.Tolerations = p.Spec.Tolerations[1:] }),
			want:   []string{`remove /spec/tolerations/0`},
		},
		"an argument in the middle is one add": {
			raw:    string(realPod),
			mutate: onPod(func(p *corev1.Pod) { p.Spec.Containers[1].Args = slices.Insert(p.Spec.Containers[1].Args, 1, "-v") }),
			want:   []string{`add /spec/containers/1/args/1 "-v"`},
		},
		"arguments that are all new are said at once": {
			raw:    string(realPod),
			mutate: onPod(func(p *corev1.Pod) { p.Spec.Containers[1].Args = []string{"a", "b"} }),
			want:   []string{`replace /spec/containers/1/args ["a","b"]`},
		},
	})
}

func TestThePatchOfMapsAndStructsIsMinimal(t *testing.T) {
	testMinimal(t, map[string]minimal{
		"a first annotation makes the map": {
			raw:    spec(``),
			mutate: onPod(func(p *corev1.Pod) { p.Annotations = map[string]string{"a/b": "c"} }),
			want:   []string{`add /metadata/annotations {"a/b":"c"}`},
		},
		"a key of a map is escaped": {
			raw: `{"metadata":{"annotations":{"a/b~c":"1","<\u0026>":"2","é":"3"}}}`,
			mutate: onPod(func(p *corev1.Pod) {
				p.Annotations["a/b~c"], p.Annotations["<&>"] = "x", "y\"\n"
				delete(p.Annotations, "é")
			}),
			want: []string{`replace /metadata/annotations/<&> "y\"\n"`, `replace /metadata/annotations/a~1b~0c "x"`, `remove /metadata/annotations/é`},
		},
		"the last entry that goes takes the map with it": {
			raw:    `{"metadata":{"labels":{"a":"b"}}}`,
			mutate: onPod(func(p *corev1.Pod) { delete(p.Labels, "a") }),
			want:   []string{`remove /metadata/labels`},
		},
		"what Go writes out and raw does not have is added": {
			raw: spec(`"containers":[{"name":"a"}]`),
			mutate: onPod(func(p *corev1.Pod) {
				first(p).Resources.Limits = corev1.ResourceList{"cpu": resource.MustParse("1500m")}
				p.Status.Phase = "Running"
			}),
			want: []string{`add /spec/containers/0/resources {"limits":{"cpu":"1500m"}}`, `add /status {"phase":"Running"}`},
		},
		"a template that raw does not have is added without the null of its containers": {
			raw:  `{"metadata":{"name":"d"},"spec":{}}`,
			into: &appsv1.Deployment{},
			mutate: on(func(d *appsv1.Deployment) {
				d.Spec.Template.Labels = map[string]string{"a": "b"}
				d.Spec.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{}
			}),
			want: []string{`add /spec/template {"metadata":{"labels":{"a":"b"}}}`, `add /spec/strategy {"rollingUpdate":{}}`},
		},
		"a struct that raw does not have is not added for a change that JSON does not show": {
			raw:    `{"metadata":{"name":"d"},"spec":{}}`,
			into:   &appsv1.Deployment{},
			mutate: on(func(d *appsv1.Deployment) { d.Spec.Template.Labels = map[string]string{} }),
		},
		"a null in raw is replaced": {
			raw: `{"metadata":{"labels":null},"spec":{"containers":null,"securityContext":null,"nodeName":null},"status":null}`,
			mutate: onPod(func(p *corev1.Pod) {
				p.Labels = map[string]string{"a": "b"}
				p.Spec.Containers = []corev1.Container{{Name: "c"}}
				p.Spec.SecurityContext = &corev1.PodSecurityContext{}
				p.Spec.NodeName = "n"
				p.Status.Phase = "Running"
			}),
			want: []string{
				`replace /metadata/labels {"a":"b"}`, `replace /spec/containers [{"name":"c","resources":{}}]`,
				`replace /spec/nodeName "n"`, `replace /spec/securityContext {}`, `replace /status {"phase":"Running"}`,
			},
		},
		"what is omitted before and after needs no operation": {
			raw: spec(`"nodeName":"","volumes":[],"hostNetwork":false`),
			mutate: onPod(func(p *corev1.Pod) {
				p.Spec.Volumes, p.Spec.InitContainers = nil, []corev1.Container{}
				p.Labels = map[string]string{}
				p.Spec.NodeSelector = map[string]string{}
			}),
		},
		"a pointer that is cleared removes what it pointed to": {
			raw:    spec(`"securityContext":{"runAsUser":1,"x":1}`),
			mutate: onPod(func(p *corev1.Pod) { p.Spec.SecurityContext = nil }),
			want:   []string{`remove /spec/securityContext`},
		},
		"a struct that becomes zero keeps its unknown fields": {
			raw:    `{"spec":{"template":{"metadata":{"labels":{"a":"b"},"x":1},"spec":{"containers":null}}}}`,
			into:   &appsv1.Deployment{},
			mutate: on(func(d *appsv1.Deployment) { d.Spec.Template.Labels = nil }),
			want:   []string{`remove /spec/template/metadata/labels`},
		},
	})
}

func TestThePatchOfAValueIsMinimal(t *testing.T) {
	testMinimal(t, map[string]minimal{
		"an integer above 2^53 is exact": {
			raw: spec(`"terminationGracePeriodSeconds":9007199254740993,"activeDeadlineSeconds":1`),
			mutate: onPod(func(p *corev1.Pod) {
				*p.Spec.TerminationGracePeriodSeconds++
				*p.Spec.ActiveDeadlineSeconds = 9223372036854775807
			}),
			want: []string{`replace /spec/terminationGracePeriodSeconds 9007199254740994`, `replace /spec/activeDeadlineSeconds 9223372036854775807`},
		},
		"a quantity that was only read needs no operation": {
			raw: string(realPod),
			mutate: onPod(func(p *corev1.Pod) {
				cpu := first(p).Resources.Limits["cpu"]
				_ = cpu.String()
				first(p).Resources.Limits["cpu"] = cpu
				first(p).Resources.Requests["cpu"] = resource.MustParse("0.1")
				first(p).LivenessProbe.HTTPGet.Port = intstr.FromInt32(80)
			}),
			want: []string{`replace /spec/containers/0/livenessProbe/httpGet/port 80`},
		},
		"a time is a string": {
			raw: string(realPod),
			mutate: onPod(func(p *corev1.Pod) {
				p.CreationTimestamp = metav1.NewTime(p.CreationTimestamp.In(time.FixedZone("x", 3600)))
				at := metav1.NewTime(time.Unix(0, 0))
				p.DeletionTimestamp = &at
			}),
			want: []string{`add /metadata/deletionTimestamp "1970-01-01T00:00:00Z"`},
		},
		"bytes are base64": {
			raw:    `{"data":{"a":"AQ==","b":"AQ=="}}`,
			into:   &corev1.Secret{},
			mutate: on(func(s *corev1.Secret) { s.Data["b"] = []byte{2} }),
			want:   []string{`replace /data/b "Ag=="`},
		},
		"no bytes are null, empty bytes are not": {
			raw:    `{"data":{"a":null,"b":""}}`,
			into:   &corev1.Secret{},
			mutate: on(func(s *corev1.Secret) { s.Data["a"], s.Data["b"] = []byte{}, nil }),
			want:   []string{`replace /data/a ""`, `replace /data/b null`},
		},
	})
}

func TestThePatchOfAnObjectIsMinimal(t *testing.T) {
	testMinimal(t, map[string]minimal{
		"an object that did not change needs no operation": {
			raw: string(realPod), mutate: onPod(func(*corev1.Pod) {}),
		},
		"managedFields are none of a handler's business": {
			raw:    string(realPod),
			mutate: onPod(func(p *corev1.Pod) { p.ManagedFields = nil }),
		},
		"the status is left out when asked": {
			raw:     string(realPod),
			mutate:  onPod(func(p *corev1.Pod) { p.Status.Phase, p.Spec.Hostname = "Running", "h" }),
			options: Options{IgnoreStatus: true},
			want:    []string{`add /spec/hostname "h"`},
		},
		"an object without a Go type is compared as the tree that it is": {
			raw:  `{"kind":"K","metadata":{"managedFields":[1],"labels":{"a":"b"}},"spec":{"n":9007199254740993,"f":1.5,"list":[{"name":"a"},{"name":"b","v":1}],"conditions":[{"type":"A"},{"type":"B","s":1}],"plain":[1,"a",null]}}`,
			into: &unstructured.Unstructured{},
			mutate: onTree(func(tree map[string]any) {
				unstructured.RemoveNestedField(tree, "metadata", "managedFields")
				s := tree["spec"].(map[string]any)
				s["n"] = s["n"].(int64) + 1
				s["f"] = 2.5
				s["list"] = append([]any{map[string]any{"name": "z"}}, s["list"].([]any)...)
				s["list"].([]any)[2].(map[string]any)["v"] = int64(2)
				s["conditions"] = s["conditions"].([]any)[1:]
				s["plain"] = append(s["plain"].([]any), true)
				s["new"] = map[string]any{}
			}),
			want: []string{
				`remove /spec/conditions/0`, `replace /spec/f 2.5`, `add /spec/list/0 {"name":"z"}`, `replace /spec/list/2/v 2`,
				`replace /spec/n 9007199254740994`, `add /spec/new {}`, `add /spec/plain/3 true`,
			},
		},
		"of an object of which only the metadata is decoded, the rest stays": {
			raw:    string(realPod),
			into:   &metav1.PartialObjectMetadata{},
			mutate: on(func(m *metav1.PartialObjectMetadata) { m.Labels["a"] = "b" }),
			want:   []string{`add /metadata/labels/a "b"`},
		},
	})
}
