package patch

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand"
	"reflect"
	"runtime/debug"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/randfill"
	"sigs.k8s.io/randfill/bytesource"

	"github.com/admitkit/admitkit/internal/wire"
)

// The property: a patch, applied to raw, gives the mutated object, and exactly
// those unknown fields whose surroundings were not removed, where they belong.
//
// Each case is a fuzzed Pod, as raw JSON with unknown fields in any struct,
// nulls and empty values that Go would omit, and without some that Go would
// write; and random edits, each done twice: to the Go value, and to a tree of
// raw that serves as the expectation.

func TestAPatchGivesTheMutatedObjectAndKeepsUnknownFields(t *testing.T) {
	cases := 100_000
	switch {
	case raceDetector():
		cases = 500
	case testing.Short():
		cases = 5_000
	}
	const editsOfOnePod = 10
	operations := 0
	for i := range cases / editsOfOnePod {
		g := newGenerator(rand.NewSource(int64(i)))
		raw := g.rawPod(t)
		before := decode(t, raw, &corev1.Pod{}).(*corev1.Pod)
		for range editsOfOnePod {
			operations += checkOnePatch(t, g, raw, before)
			if t.Failed() {
				t.Fatalf("seed %d", i)
			}
		}
	}
	if operations < cases {
		t.Errorf("%d cases made %d operations only", cases, operations)
	}
	fmt.Printf("FIGURE patch.property.cases=%d cases\n", cases)
}

// raceDetector reports whether the race detector is on. It makes a case ten times
// as long, and sees nothing: a case is one goroutine. `make test` runs this package
// without it, too.
func raceDetector() bool {
	info, _ := debug.ReadBuildInfo()
	return slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}

func FuzzPatch(f *testing.F) {
	for seed := range 16 {
		data := make([]byte, 4096)
		rand.New(rand.NewSource(int64(seed))).Read(data)
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		g := newGenerator(bytesource.New(data))
		raw := g.rawPod(t)
		checkOnePatch(t, g, raw, decode(t, raw, &corev1.Pod{}).(*corev1.Pod))
	})
}

// checkOnePatch mutates a copy of a Pod and returns how many operations that
// took.
func checkOnePatch(t *testing.T, g *generator, raw []byte, before *corev1.Pod) int {
	t.Helper()
	after := before.DeepCopy()
	base := CopyOf(after)
	defer base.Release()
	want := parse(t, raw)
	g.structural = g.oneIn(2)
	for range 1 + g.Intn(4) {
		want = g.edit(planOf(podType), reflect.ValueOf(after).Elem(), want)
	}
	document := Document{Text: checked(t, raw)}
	if g.oneIn(3) { // as if each list were long
		defer func(most int) { maxShifts = most }(maxShifts)
		maxShifts = -1
	}
	ops, err := document.Diff(base.Object, after)
	if err != nil {
		t.Fatal(err)
	}
	patched := apply(t, raw, ops)
	requireSame(t, patched, after)
	wantUnknown, gotUnknown := map[string]any{}, map[string]any{}
	unknownFields(planOf(podType), want, "", wantUnknown)
	unknownFields(planOf(podType), parse(t, patched), "", gotUnknown)
	if !reflect.DeepEqual(wantUnknown, gotUnknown) {
		t.Errorf("unknown fields:\ngot  %v\nwant %v", gotUnknown, wantUnknown)
	}
	if g.oneIn(4) {
		requireTreePatch(t, raw, patched)
	}
	if t.Failed() {
		t.Logf("raw %s\nafter %s\npatch %s", raw, encode(t, after), Append(nil, ops))
	}
	return len(ops)
}

// checked returns a document as the scan of a review does.
func checked(t *testing.T, raw []byte) wire.Text {
	t.Helper()
	s := wire.NewScanner(raw)
	text, err := s.Checked()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// requireTreePatch compares two documents without a Go type, where nothing is
// unknown.
func requireTreePatch(t *testing.T, raw, want []byte) {
	t.Helper()
	ops, err := Diff(raw, decode(t, raw, &unstructured.Unstructured{}), decode(t, want, &unstructured.Unstructured{}), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if got := apply(t, raw, ops); !reflect.DeepEqual(parse(t, got), parse(t, want)) {
		t.Errorf("as a tree:\nraw %s\ngot  %s\nwant %s\npatch %s", raw, got, want, Append(nil, ops))
	}
}

var podType = reflect.TypeFor[corev1.Pod]()

// generator makes Pods and edits of a source of randomness.
type generator struct {
	*rand.Rand
	filler *randfill.Filler
	serial int
	// structural is whether lists without a key get their items added, removed
	// and moved, or changed. Of both at once nobody can say which item is which.
	structural bool
}

func newGenerator(source rand.Source) *generator {
	g := &generator{Rand: rand.New(source)}
	g.filler = randfill.New().RandSource(source).NilChance(0.85).NumElements(1, 3).MaxDepth(12).Funcs(
		func(s *string, _ randfill.Continue) { *s = g.text() },
		func(q *resource.Quantity, _ randfill.Continue) {
			*q = resource.MustParse([]string{"1500m", "1Gi", "0", "9223372036854775807", "100000000000000000000", "1e3"}[g.Intn(6)])
		},
		func(p *intstr.IntOrString, _ randfill.Continue) {
			*p = intstr.FromInt32(g.Int31())
			if g.oneIn(2) {
				*p = intstr.FromString(g.text())
			}
		},
		func(t *metav1.Time, _ randfill.Continue) { *t = metav1.NewTime(time.Unix(g.Int63n(1<<32), 0).UTC()) },
		func(t *metav1.MicroTime, _ randfill.Continue) {
			*t = metav1.NewMicroTime(time.UnixMicro(g.Int63n(1 << 50)).UTC())
		},
		func(f *metav1.FieldsV1, _ randfill.Continue) { f.SetRawString(`{"f:spec":{}}`) },
		func(o *metav1.TypeMeta, _ randfill.Continue) { *o = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"} },
	)
	return g
}

func (g *generator) oneIn(n int) bool { return g.Intn(n) == 0 }

func (g *generator) text() string {
	g.serial++
	return fmt.Sprintf("%s%d", []string{"", "a/b", "~", "é", "<&>", "\"\\\n", "~1/", "\u2028", "😀"}[g.Intn(9)], g.serial)
}

// rawPod returns a Pod as JSON that an API server of another version may send.
func (g *generator) rawPod(t testing.TB) []byte {
	pod := &corev1.Pod{}
	g.filler.Fill(pod)
	pod.ManagedFields = nil
	for range 3 { // a Pod has more containers than chance gives it
		var c corev1.Container
		g.filler.Fill(&c)
		pod.Spec.Containers = append(pod.Spec.Containers, c)
	}
	g.tellApart(planOf(podType), reflect.ValueOf(pod).Elem())
	return encode(t, g.age(planOf(podType), parse(t, encode(t, pod))))
}

// tellApart removes items that look like another one in the list: of twins
// nobody can say which one went.
func (g *generator) tellApart(p *plan, v reflect.Value) {
	switch p.form {
	case pointerForm:
		if !v.IsNil() {
			g.tellApart(p.elem, v.Elem())
		}
	case structForm:
		for _, f := range p.fields {
			if member, has := f.of(v); has {
				g.tellApart(f.plan, member)
			}
		}
	case listForm:
		seen := map[string]bool{}
		kept := reflect.MakeSlice(v.Type(), 0, v.Len())
		for i := range v.Len() {
			g.tellApart(p.elem, v.Index(i))
			if id := g.itemID(p, v.Index(i)); !seen[id] {
				seen[id] = true
				kept = reflect.Append(kept, v.Index(i))
			}
		}
		if !v.IsNil() {
			v.Set(kept)
		}
	}
}

func (g *generator) itemID(p *plan, item reflect.Value) string {
	if p.key != nil {
		item, _ = p.key.of(item)
	}
	id, _ := json.Marshal(item.Interface())
	return string(id)
}

// age makes of what Go writes what another version may have written.
func (g *generator) age(p *plan, tree any) any {
	switch tree := tree.(type) {
	case map[string]any:
		if p.form == pointerForm {
			p = p.elem
		}
		if p.form != structForm {
			return tree
		}
		for _, f := range p.fields {
			value, has := tree[f.Name]
			switch {
			case f.Name == "apiVersion" || f.Name == "kind":
			case has && isZero(value) && f.plan.form != pointerForm && g.oneIn(2):
				delete(tree, f.Name)
			case has:
				tree[f.Name] = g.age(f.plan, value)
			case g.oneIn(20):
				tree[f.Name] = nil
			case g.oneIn(20) && f.plan.form == listForm:
				tree[f.Name] = []any{}
			case g.oneIn(20) && f.plan.form == mapForm:
				tree[f.Name] = map[string]any{}
			}
		}
		if g.oneIn(3) {
			g.serial++
			tree[fmt.Sprintf("x~/\"é%d", g.Intn(3))] = []any{g.serial, map[string]any{"name": "n"}, 9007199254740993, nil}
		}
	case []any:
		for i := range tree {
			tree[i] = g.age(p.elem, tree[i])
		}
	}
	return tree
}

func isZero(tree any) bool {
	switch tree := tree.(type) {
	case map[string]any:
		return len(tree) == 0
	case []any:
		return len(tree) == 0
	}
	return tree == nil || tree == "" || tree == false || tree == json.Number("0")
}

// edit changes something at or below a value, and returns what that makes of
// the tree of it: nil when it is gone.
func (g *generator) edit(p *plan, v reflect.Value, tree any) any {
	switch p.form {
	case pointerForm:
		switch {
		case v.IsNil() || p.elem.form != structForm:
			v.Set(reflect.New(v.Type().Elem()))
			return g.refill(p, v)
		case g.oneIn(5):
			v.SetZero()
			return nil
		}
		return g.edit(p.elem, v.Elem(), tree)
	case structForm:
		return g.editStruct(p, v, tree)
	case mapForm:
		return g.editMap(v)
	case listForm:
		return g.editList(p, v, tree)
	}
	return g.refill(p, v)
}

// refill gives a value new content. A flag set to what it was is an edit too.
func (g *generator) refill(p *plan, v reflect.Value) any {
	g.filler.Fill(v.Addr().Interface())
	g.tellApart(p, v)
	return g.treeOf(v)
}

func (g *generator) treeOf(v reflect.Value) any {
	encoded, err := json.Marshal(v.Interface())
	if err != nil {
		panic(err)
	}
	var tree any
	if err := decodeTree(encoded, &tree); err != nil {
		panic(err)
	}
	return tree
}

func (g *generator) editStruct(p *plan, v reflect.Value, tree any) any {
	object, isObject := tree.(map[string]any)
	if !isObject {
		object = map[string]any{}
	}
	f := p.fields[g.Intn(len(p.fields))]
	for range 4 { // rather what is there than what could be
		if member, has := f.of(v); has && !member.IsZero() {
			break
		}
		f = p.fields[g.Intn(len(p.fields))]
	}
	member, _ := f.of(v)
	if f.Name == "managedFields" || f.Name == "kind" {
		return tree
	}
	object[f.Name] = g.edit(f.plan, member, object[f.Name])
	return object
}

func (g *generator) editMap(v reflect.Value) any {
	keys := v.MapKeys()
	slices.SortFunc(keys, func(a, b reflect.Value) int { return slices.Compare([]byte(a.String()), []byte(b.String())) })
	switch {
	case v.IsNil() || g.oneIn(10):
		v.Set(reflect.MakeMap(v.Type()))
	case g.oneIn(10):
		v.SetZero()
		return nil
	case len(keys) > 0 && g.oneIn(3):
		v.SetMapIndex(keys[g.Intn(len(keys))], reflect.Value{})
		return g.treeOf(v)
	}
	key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem())
	key.SetString(g.text())
	if len(keys) > 0 && g.oneIn(2) {
		key = keys[g.Intn(len(keys))]
	}
	g.filler.Fill(value.Interface())
	v.SetMapIndex(key, value.Elem())
	return g.treeOf(v)
}

func (g *generator) editList(p *plan, v reflect.Value, tree any) any {
	items, _ := tree.([]any)
	items = slices.Clone(items)
	n := v.Len()
	if p.key == nil && !g.structural && p.elem.form == structForm {
		if n == 0 {
			return tree
		}
		i := g.Intn(n)
		items[i] = g.touch(p.elem, v.Index(i), items[i])
		return items
	}
	switch g.Intn(6) {
	case 0: // remove
		if n > 0 {
			i := g.Intn(n)
			v.Set(reflect.AppendSlice(v.Slice3(0, i, i), v.Slice(i+1, n)))
			return slices.Delete(items, i, i+1)
		}
	case 1: // move
		if n > 1 {
			i, j := g.Intn(n), g.Intn(n)
			reflect.Swapper(v.Interface())(i, j)
			items[i], items[j] = items[j], items[i]
			return items
		}
	case 2: // clear
		if g.oneIn(3) {
			v.SetZero()
			return nil
		}
	case 3, 4: // change
		if n > 0 && p.key != nil {
			i := g.Intn(n)
			return g.editItem(p, v, items, i)
		}
	}
	item := reflect.New(v.Type().Elem())
	g.filler.Fill(item.Interface())
	g.tellApart(p.elem, item.Elem())
	i := g.Intn(n + 1)
	// Twins are not to be told apart, see tellApart.
	grown := reflect.MakeSlice(v.Type(), 0, n+1)
	grown = reflect.AppendSlice(grown, v.Slice(0, i))
	grown = reflect.Append(grown, item.Elem())
	grown = reflect.AppendSlice(grown, v.Slice(i, n))
	v.Set(grown)
	return slices.Insert(items, i, g.treeOf(item.Elem()))
}

// editItem changes an item of a keyed list, but not its key: with another key
// it is another item.
func (g *generator) editItem(p *plan, v reflect.Value, items []any, i int) any {
	key, _ := p.key.of(v.Index(i))
	was := reflect.New(key.Type()).Elem()
	was.Set(key)
	items[i] = g.edit(p.elem, v.Index(i), items[i])
	key.Set(was)
	items[i].(map[string]any)[p.key.Name] = g.treeOf(key)
	return items
}

// touch changes strings and numbers of an item to what no other item has.
func (g *generator) touch(p *plan, v reflect.Value, tree any) any {
	object, isObject := tree.(map[string]any)
	if !isObject {
		object = map[string]any{}
	}
	for _, f := range p.fields {
		member, has := f.of(v)
		switch {
		case !has:
		case member.Kind() == reflect.String && f.plan.form == leaf:
			member.SetString(g.text())
			object[f.Name] = g.treeOf(member)
		case member.Kind() == reflect.Pointer && !member.IsNil() && f.plan.elem != nil && f.plan.elem.form == structForm:
			object[f.Name] = g.touch(f.plan.elem, member.Elem(), object[f.Name])
		}
	}
	return object
}

// unknownFields collects what is not in the plan, by its path.
func unknownFields(p *plan, tree any, path string, into map[string]any) {
	if p.form == pointerForm {
		p = p.elem
	}
	switch tree := tree.(type) {
	case map[string]any:
		if p.form != structForm {
			return
		}
		for name, value := range tree {
			i := slices.IndexFunc(p.fields, func(f *field) bool { return f.Name == name })
			if i < 0 {
				into[path+"/"+name] = value
				continue
			}
			unknownFields(p.fields[i].plan, value, path+"/"+name, into)
		}
	case []any:
		if p.form != listForm {
			return
		}
		for i := range tree {
			unknownFields(p.elem, tree[i], fmt.Sprintf("%s/%d", path, i), into)
		}
	}
}

func parse(t testing.TB, raw []byte) any {
	t.Helper()
	var tree any
	if err := decodeTree(raw, &tree); err != nil {
		t.Fatalf("%v\n%s", err, raw)
	}
	return tree
}

func encode(t testing.TB, v any) []byte {
	t.Helper()
	encoded, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return encoded
}

// requireSame requires that a document is a Pod, as Go writes it.
func requireSame(t testing.TB, document []byte, want *corev1.Pod) {
	t.Helper()
	g, w := encode(t, decode(t, document, &corev1.Pod{})), encode(t, want)
	if string(g) != string(w) {
		t.Errorf("got  %s\nwant %s", g, w)
	}
}

// decodeTree decodes JSON with its numbers as they are written.
func decodeTree(raw []byte, into *any) error {
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	return decoder.Decode(into)
}

func TestAPatchOfALongListTakesTheAPIServerLittleTime(t *testing.T) {
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main"}}}}
	for i := range 40_000 {
		pod.Spec.Containers[0].Env = append(pod.Spec.Containers[0].Env, corev1.EnvVar{Name: fmt.Sprintf("V%d", i), Value: "x"})
	}
	raw := encode(t, pod)
	after := pod.DeepCopy()
	after.Spec.Containers[0].Env = slices.DeleteFunc(after.Spec.Containers[0].Env, func(e corev1.EnvVar) bool { return e.Name[len(e.Name)-1]%2 == 0 })
	document := Document{Text: checked(t, raw)}
	ops, err := document.Diff(pod, after)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	requireSame(t, apply(t, raw, ops), after)
	// With an operation for each, they would be 20,000.
	if took := time.Since(began); took > 10*time.Second || len(ops) != 1 {
		t.Errorf("%d operations, which take %s", len(ops), took)
	}
}
