package patch

import (
	"encoding/json"
	"fmt"
	"math/rand"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func TestTwinsOfOneKeyKeepTheirOwnUnknownFields(t *testing.T) {
	const tcp, udp = `{"containerPort":53,"protocol":"TCP","x":1}`, `{"containerPort":53,"protocol":"UDP","x":2}`
	both := spec(`"containers":[{"name":"dns","ports":[` + tcp + `,` + udp + `]}]`)
	ports := func(mutate func(p []corev1.ContainerPort) []corev1.ContainerPort) func(pod *corev1.Pod) {
		return func(pod *corev1.Pod) { first(pod).Ports = mutate(first(pod).Ports) }
	}
	testMinimal(t, map[string]minimal{
		"ports that change places take them along": {
			raw: both,
			mutate: onPod(ports(func(p []corev1.ContainerPort) []corev1.ContainerPort {
				return []corev1.ContainerPort{p[1], p[0]}
			})),
			want: []string{`remove /spec/containers/0/ports/0`, `add /spec/containers/0/ports/1 ` + tcp},
		},
		"a port that is removed takes only its own": {
			raw: both,
			mutate: onPod(ports(func(p []corev1.ContainerPort) []corev1.ContainerPort {
				p[0].Name = "dns"
				return p[:1]
			})),
			want: []string{`add /spec/containers/0/ports/0/name "dns"`, `remove /spec/containers/0/ports/1`},
		},
		"a port is known by its protocol when the names change places": {
			raw: spec(`"containers":[{"name":"dns","ports":[{"name":"a","containerPort":53,"protocol":"TCP","x":1},{"name":"b","containerPort":53,"protocol":"UDP","x":2}]}]`),
			mutate: onPod(ports(func(p []corev1.ContainerPort) []corev1.ContainerPort {
				p[0].Name, p[1].Name = p[1].Name, p[0].Name
				return p
			})),
			want: []string{`replace /spec/containers/0/ports/0/name "b"`, `replace /spec/containers/0/ports/1/name "a"`},
		},
		"a twin that is new has none": {
			raw: spec(`"containers":[{"name":"dns","ports":[` + udp + `]}]`),
			mutate: onPod(ports(func(p []corev1.ContainerPort) []corev1.ContainerPort {
				p[0].Name = "dns"
				return []corev1.ContainerPort{{ContainerPort: 53, Protocol: corev1.ProtocolTCP}, p[0]}
			})),
			want: []string{`add /spec/containers/0/ports/0 {"containerPort":53,"protocol":"TCP"}`, `add /spec/containers/0/ports/1/name "dns"`},
		},
		"twins without a Go type are told apart by what else they have": {
			raw:  `{"spec":{"list":[{"name":"a","kind":"A","x":1},{"name":"a","kind":"B","x":2}]}}`,
			into: &unstructured.Unstructured{},
			mutate: onTree(func(tree map[string]any) {
				list := tree["spec"].(map[string]any)["list"].([]any)
				delete(list[0].(map[string]any), "x")
				slices.Reverse(list)
			}),
			want: []string{`remove /spec/list/0`, `add /spec/list/1 {"name":"a","kind":"A","x":1}`, `remove /spec/list/1/x`},
		},
	})
}

func TestPortsKeepTheirUnknownFieldsWhateverAHandlerDoesToTheList(t *testing.T) {
	random := rand.New(rand.NewSource(1))
	protocols := []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP}
	type id struct {
		port     int32
		protocol corev1.Protocol
	}
	cases := 20_000
	if testing.Short() {
		cases = 2_000
	}
	for n := range cases {
		before := &corev1.Pod{}
		before.Spec.Containers = []corev1.Container{{Name: "c"}}
		marks := map[id]float64{}
		var list []any
		for i := range int32(6) {
			port := corev1.ContainerPort{Name: fmt.Sprintf("n%d", random.Intn(3)), ContainerPort: 53 + i/3, Protocol: protocols[i%3]}
			if random.Intn(3) == 0 {
				continue
			}
			first(before).Ports = append(first(before).Ports, port)
			marks[id{port.ContainerPort, port.Protocol}] = float64(n*10 + int(i))
			list = append(list, map[string]any{"name": port.Name, "containerPort": port.ContainerPort, "protocol": port.Protocol, "x": n*10 + int(i)})
		}
		if list == nil {
			continue
		}
		raw := encode(t, map[string]any{"spec": map[string]any{"containers": []any{map[string]any{"name": "c", "ports": list}}}})
		after := before.DeepCopy()
		ports := first(after).Ports
		random.Shuffle(len(ports), func(i, j int) { ports[i], ports[j] = ports[j], ports[i] })
		for i := range ports {
			if random.Intn(2) == 0 {
				ports[i].Name = fmt.Sprintf("n%d", random.Intn(3))
			}
		}
		first(after).Ports = ports[:1+random.Intn(len(ports))]
		ops, err := Diff(raw, before, after, Options{})
		if err != nil {
			t.Fatal(err)
		}
		var got struct {
			Spec struct {
				Containers []struct {
					Ports []struct {
						corev1.ContainerPort
						X float64
					}
				}
			}
		}
		patched := apply(t, raw, ops)
		if err := json.Unmarshal(patched, &got); err != nil {
			t.Fatal(err)
		}
		for i, port := range got.Spec.Containers[0].Ports {
			if port.ContainerPort != first(after).Ports[i] || port.X != marks[id{port.ContainerPort.ContainerPort, port.Protocol}] {
				t.Fatalf("case %d: %s\nbecame %s\nby %s", n, raw, patched, Append(nil, ops))
			}
		}
	}
}
