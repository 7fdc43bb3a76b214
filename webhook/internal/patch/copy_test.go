package patch

import (
	"fmt"
	"math/rand"
	"reflect"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// Whatever a handler does to its object, the copy is what the object was, and so is
// the next copy, which is made of the same memory.
func TestACopyIsEqualToTheObjectAndNoHandlerReachesIt(t *testing.T) {
	cases := 20_000
	if testing.Short() {
		cases = 1_000
	}
	for i := range cases {
		g := newGenerator(rand.NewSource(int64(i)))
		var object runtime.Object
		switch i % 8 {
		case 0:
			object = &appsv1.Deployment{}
		case 1:
			object = &corev1.Secret{}
		case 2:
			object = &corev1.PersistentVolume{}
		case 3:
			object = &metav1.PartialObjectMetadata{}
		default:
			object = &corev1.Pod{}
		}
		g.filler.Fill(object)
		object.(metav1.Object).SetManagedFields(nil)
		want := object.DeepCopyObject()
		c := CopyOf(object)
		if !reflect.DeepEqual(c.Object, want) {
			t.Fatalf("seed %d: the copy of %s\nis %s", i, encode(t, want), encode(t, c.Object))
		}
		p, v := planOf(reflect.TypeOf(object).Elem()), reflect.ValueOf(object).Elem()
		g.structural = true
		for range 20 {
			g.overwrite(p, v)
		}
		if !reflect.DeepEqual(c.Object, want) {
			t.Fatalf("seed %d: the copy of %s\nbecame %s when the object became %s", i, encode(t, want), encode(t, c.Object), encode(t, object))
		}
		c.Release()
	}
	fmt.Printf("FIGURE patch.copy.cases=%d cases\n", cases)
}

// overwrite changes something that a value refers to, in place.
func (g *generator) overwrite(p *plan, v reflect.Value) {
	switch p.form {
	case pointerForm:
		if !v.IsNil() {
			g.overwrite(p.elem, v.Elem())
		}
	case structForm:
		var set []*field
		for _, f := range p.fields {
			if member, has := f.of(v); has && !member.IsZero() {
				set = append(set, f)
			}
		}
		if len(set) > 0 {
			f := set[g.Intn(len(set))]
			member, _ := f.of(v)
			g.overwrite(f.plan, member)
		}
	case listForm:
		if v.Len() > 0 {
			g.overwrite(p.elem, v.Index(g.Intn(v.Len())))
		}
	case mapForm:
		keys := v.MapKeys()
		if len(keys) == 0 {
			return
		}
		key := keys[g.Intn(len(keys))]
		if value := v.MapIndex(key); value.Kind() == reflect.Slice && value.Len() > 0 {
			value.Index(0).SetUint(value.Index(0).Uint() + 1)
			return
		}
		v.SetMapIndex(key, reflect.Value{})
	default:
		if v.Kind() == reflect.Slice && v.Len() > 0 && v.Index(0).CanUint() {
			v.Index(0).SetUint(v.Index(0).Uint() + 1)
			return
		}
		g.filler.Fill(v.Addr().Interface())
	}
}

// usedMemory returns the pieces that a copy uses.
func usedMemory(m *memory) (all []piece) {
	for _, p := range m.made {
		all = append(all, p.all[:p.used]...)
	}
	return all
}

func TestAReleasedCopyRefersToNothing(t *testing.T) {
	c := CopyOf(decode(t, realPod, &corev1.Pod{}))
	used := usedMemory(c.memory)
	if len(used) < 20 {
		t.Fatalf("a Pod is copied into %d pieces of memory", len(used))
	}
	c.Release()
	if c != (Copy{}) {
		t.Errorf("got %v", c)
	}
	for _, used := range used {
		switch piece := used.value; piece.Kind() {
		case reflect.Pointer:
			if !piece.Elem().IsZero() {
				t.Errorf("%s still refers to %v", piece.Type(), piece.Elem())
			}
		case reflect.Slice:
			for i := range piece.Cap() {
				if item := piece.Slice(0, piece.Cap()).Index(i); !item.IsZero() {
					t.Errorf("%s still has %v", piece.Type(), item)
				}
			}
		default:
			if piece.Len() != 0 {
				t.Errorf("%s still has %v", piece.Type(), piece)
			}
		}
	}
}

func TestAnObjectThatOnlyItselfCanCopyDoesSo(t *testing.T) {
	large := resource.MustParse("100000000000000000000") // behind a hidden pointer
	for name, object := range map[string]runtime.Object{
		"a tree":                    decode(t, realPod, &unstructured.Unstructured{}),
		"a value of type any":       &odd{Any: map[string]any{"a": "b"}},
		"a map of an unusual type":  &odd{ByNumber: map[int]inner{1: {V: 1}}},
		"an object in the object":   &appsv1.ControllerRevision{Data: runtime.RawExtension{Object: &corev1.Pod{}}},
		"a quantity beyond 64 bits": &corev1.Pod{Spec: corev1.PodSpec{Volumes: []corev1.Volume{{VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: &large}}}}}},
	} {
		c := CopyOf(object)
		if c.memory != nil {
			t.Errorf("%s is copied by plan", name)
		}
		if !reflect.DeepEqual(c.Object, object) {
			t.Errorf("%s became %v", name, c.Object)
		}
		c.Release()
	}
}

func TestTheMemoryOfALargeCopyIsNotKept(t *testing.T) {
	c := CopyOf(podOf(t, 1_000_000))
	m := c.memory
	if kept := len(usedMemory(m)); kept > 10_000 {
		t.Errorf("%d pieces are remembered", kept)
	}
	c.Release()
	if used := usedMemory(m); len(used) == 0 {
		t.Error("it was cleared for another copy")
	}
}

func TestCopiesAtTheSameTimeShareNothing(t *testing.T) {
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for size := range 50 {
				pod := podOf(t, 1000*(size%7))
				pod.Name = fmt.Sprint(i)
				c := CopyOf(pod)
				want := pod.DeepCopy()
				pod.Spec.Containers[0].Image, pod.Labels["app"], pod.CreationTimestamp = "other", "other", metav1.NewTime(time.Unix(0, 0))
				if !reflect.DeepEqual(c.Object, runtime.Object(want)) {
					t.Errorf("the copy became %v", c.Object)
				}
				c.Release()
			}
		})
	}
	all.Wait()
}
