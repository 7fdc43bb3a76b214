package patches

import (
	"encoding/json"
	"fmt"
	"math/rand"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
)

// source makes random objects and patches.
type source struct{ *rand.Rand }

func (s source) oneIn(n int) bool { return s.Intn(n) == 0 }

func pick[T any](s source, from ...T) T { return from[s.Intn(len(from))] }

// texts are keys and values with all that JSON and JSON pointers treat specially.
var texts = []string{"a", "b", "app", "a/b", "m~n", "~1", "~0", "-", "-1", "0", "1", "x y", "<&>", "é", "😀", "\u2028", "\"", "\\", "\n", "admitkit.dev/x"}

func (s source) text() string { return pick(s, texts...) }

func (s source) labels() map[string]string {
	if s.oneIn(3) {
		return nil
	}
	labels := map[string]string{}
	for range s.Intn(4) {
		labels[s.text()] = s.text()
	}
	return labels
}

func (s source) pod() *corev1.Pod {
	pod := &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: "shop", Namespace: "apps", Labels: s.labels(), Annotations: s.labels()},
	}
	for i := range s.Intn(4) {
		c := corev1.Container{Name: fmt.Sprint("c", i), Image: s.text()}
		for range s.Intn(4) {
			c.Args = append(c.Args, s.text())
			c.Env = append(c.Env, corev1.EnvVar{Name: s.text(), Value: s.text()})
		}
		if s.oneIn(2) {
			c.Ports = []corev1.ContainerPort{{ContainerPort: 53, Protocol: "TCP"}, {ContainerPort: 53, Protocol: "UDP"}}
			c.Resources.Limits = corev1.ResourceList{"cpu": resource.MustParse(pick(s, "1", "500m", "100000000000000000000"))}
		}
		pod.Spec.Containers = append(pod.Spec.Containers, c)
	}
	if s.oneIn(2) {
		pod.Spec.TerminationGracePeriodSeconds = new(pick(s, int64(0), 30, 9007199254740993, 9223372036854775807))
		pod.Spec.Tolerations = []corev1.Toleration{{Key: s.text()}, {Operator: "Exists"}}
	}
	return pod
}

func (s source) operation() admission.Operation {
	switch n := s.Intn(100); {
	case n < 3:
		return admission.Delete
	case n < 10:
		return admission.Update
	}
	return admission.Create
}

// patcher makes patches for a document.
type patcher struct {
	source
	paths  []string          // of all values in the document
	values []json.RawMessage // at these paths
}

func newPatcher(s source, document []byte) *patcher {
	p := &patcher{source: s}
	var tree any
	decoder := json.NewDecoder(strings.NewReader(string(document)))
	decoder.UseNumber()
	if err := decoder.Decode(&tree); err != nil {
		panic(err)
	}
	p.collect("", tree)
	return p
}

func (p *patcher) collect(path string, value any) {
	text, _ := json.Marshal(value)
	p.paths, p.values = append(p.paths, path), append(p.values, text)
	switch value := value.(type) {
	case map[string]any:
		keys := make([]string, 0, len(value))
		for key := range value {
			keys = append(keys, key)
		}
		slices.Sort(keys)
		for _, key := range keys {
			p.collect(path+"/"+escape(key), value[key])
		}
	case []any:
		for i, item := range value {
			p.collect(path+"/"+strconv.Itoa(i), item)
		}
	}
}

var escaper = strings.NewReplacer("~", "~0", "/", "~1")

func escape(key string) string { return escaper.Replace(key) }

// path returns a JSON pointer, usually to something that is there.
func (p *patcher) path() string {
	path := pick(p.source, p.paths...)
	parent := path[:max(strings.LastIndexByte(path, '/'), 0)]
	switch p.Intn(40) {
	case 0:
		return path + "/" + escape(p.text())
	case 1:
		return path + "/" + p.text()
	case 2, 3:
		return parent + "/-"
	case 4, 5:
		return parent + "/" + pick(p.source, "-1", "-2", "-3", "-5", "0", "1", "2", "7", "01", "+1", "1e0", "99999999999999999999", "0x1", " 1", "--1")
	case 6:
		return parent + "/" + escape(p.text())
	case 7:
		return pick(p.source, "", "/", "//", "x", "x/y", "/~", "/~2", "/metadata/~", "/metadata//", "/spec/containers/0/", "/é", "metadata/name")
	case 8:
		return "/metadata/annotations/" + escape(p.text())
	case 9:
		return "/spec/containers/-"
	}
	return path
}

// value returns JSON.
func (p *patcher) value() string {
	if p.oneIn(3) {
		return string(pick(p.source, p.values...))
	}
	return pick(p.source, "null", "true", "0", "-1", "1.5", "1e400", "1E2", "9223372036854775807", "9223372036854775808", "-0", `""`, `"x"`, `"<&>"`,
		"\"\u2028\"", `"\u003c"`, `"\ud800"`, "[]", "{}", "[null]", "[[]]", `{"a":null}`, `{"a":{"b":[1,{"c":null}]}}`, `{"name":"new"}`, `[{"name":"n","image":"i"}]`,
		`{"a":"1","a":"2"}`, ` { "a" : "b" } `, "[1, 2]", `{"name":"n","env":[{"name":"A","value":"<"}]}`, `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"shop"}}`)
}

// harmless returns a place in a Pod, and a value that may be there.
func (p *patcher) harmless() (path, value string) {
	switch p.Intn(6) {
	case 0:
		return "/metadata/" + pick(p.source, "labels", "annotations"), pick(p.source, "{}", "null", `{"a":"b"}`, `{"<&>":"\u003c"}`)
	case 1:
		return "/metadata/new", p.value()
	case 2:
		return "/spec/containers/" + pick(p.source, "-", "-1", "0", "1"), pick(p.source, `{"name":"new"}`, `{"name":"x","env":[{"name":"A"}]}`, "{}")
	case 3:
		return "/metadata/name", quote(p.text())
	}
	return "/metadata/" + pick(p.source, "labels", "annotations") + "/" + escape(p.text()), pick(p.source, `"x"`, `"<&>"`, `"\u003c"`, "null")
}

// operation returns the JSON of an operation, which is usually one.
func (p *patcher) operation() string {
	op := pick(p.source, "add", "add", "add", "replace", "replace", "remove", "remove", "test", "test", "copy", "copy", "move", "move")
	path, value := p.path(), p.value()
	switch i := p.Intn(len(p.paths)); {
	case op == "test" && !p.oneIn(4), op == "replace" && p.oneIn(3):
		path, value = p.paths[i], string(p.values[i]) // right
	case op != "test" && !p.oneIn(4):
		path, value = p.harmless()
	}
	members := []string{`"op":` + quote(op), `"path":` + quote(path)}
	switch op {
	case "add", "replace", "test":
		members = append(members, `"value":`+value)
	case "copy", "move":
		members = append(members, `"from":`+quote(p.path()))
	}
	if p.oneIn(25) {
		i := p.Intn(len(members))
		switch p.Intn(6) {
		case 0:
			members = slices.Delete(members, i, i+1)
		case 1:
			members[i] = strings.ToUpper(members[i])
		case 2:
			members[i] = members[i][:strings.IndexByte(members[i], ':')+1] + pick(p.source, "null", "5", "[]", `"spam"`)
		case 3:
			members = append(members, members[i][:strings.IndexByte(members[i], ':')+1]+p.value())
		case 4:
			members = append(members, `"value":`+value, `"from":`+quote(p.path()))
		case 5:
			return pick(p.source, "null", "[]", "5", `"x"`, "{}")
		}
	}
	p.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
	return "{" + strings.Join(members, pick(p.source, ",", ", ", "\n,\t")) + "}"
}

func quote(text string) string {
	quoted, _ := json.Marshal(text)
	return string(quoted)
}

// patch returns the text of a patch, which is usually one.
func (p *patcher) patch() string {
	if p.oneIn(60) {
		return pick(p.source, "", "null", "[]", " [ ] ", "{}", "5", `"x"`, "[", "[null]", "[[]]", "[]]", "\r\n[]\r\n", "[{}]", "\ufeff[]", `[{"op":"test"}]`)
	}
	operations := make([]string, 1+p.Intn(1+p.Intn(5)))
	for i := range operations {
		operations[i] = p.operation()
	}
	return pick(p.source, "", " ", "\r\n\t") + "[" + strings.Join(operations, ",") + "]" + pick(p.source, "", "\n")
}
