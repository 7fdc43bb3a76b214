package audit_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/extension/audit"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/testing/controlplane"
)

func (s *stage) touchedPodsAreEvicted(t *testing.T) {
	eve, err := s.AddUser("eve@example.com", "everybody")
	if err != nil {
		t.Fatal(err)
	}
	const delay = 4 * time.Second
	options := audit.Options{TouchedPods: &audit.TouchedPods{EvictAfter: delay}}
	stop := s.start(t, options, 2)
	for _, name := range []string{"late", "budget"} {
		s.deployment(t, "open", name)
	}
	s.apply(t, podNamed("shop", "bare"))
	s.running(t, "bare")
	one := intstr.FromInt32(1)
	budget := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "open", Name: "budget"},
		Spec:       policyv1.PodDisruptionBudgetSpec{MinAvailable: &one, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "budget"}}},
	}
	if err := s.admin.Create(t.Context(), budget); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the budget counts its Pod", func(ctx context.Context) bool {
		return s.admin.Get(ctx, client.ObjectKeyFromObject(budget), budget) == nil && budget.Status.CurrentHealthy == 1
	})
	web, late, limited := s.pod(t, "open"), s.podOf(t, "open", "late"), s.podOf(t, "open", "budget")

	// What only looks touches nothing.
	if output, err := s.kubectl(t, eve, "exec", "-n", "open", web.Name, "-c", "main", "--", "true"); err != nil {
		t.Fatal(output)
	}
	if _, touched := s.get(t, web).Labels[audit.LabelTouchedBy]; touched {
		t.Error("an exec without terminal and standard input touched its Pod")
	}
	if output, err := s.kubectl(t, eve, "annotate", "pod", "-n", "open", late.Name, audit.AnnotationEvictAfter+"=1h"); err != nil {
		t.Fatal(output)
	}
	touch := func(pod *corev1.Pod) *corev1.Pod {
		t.Helper()
		if output, err := s.kubectl(t, eve, "exec", "-i", "-n", pod.Namespace, pod.Name, "-c", "main", "--", "true"); err != nil {
			t.Fatal(output)
		}
		return s.get(t, pod)
	}
	s.nobodyMovesTheMark(t, eve, touch(late))
	touch(limited)
	bare := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "bare"}}
	touch(bare)
	deletions := s.watchPods(t)
	touched := touch(web)
	if touched.Labels[audit.LabelTouchedBy] != "eve-example.com" || touched.Annotations[audit.AnnotationTouchedBy] != "eve@example.com" {
		t.Errorf("the Pod does not say who touched it: %v %v", touched.Labels, touched.Annotations)
	}
	if !apiequality.Semantic.DeepEqual(touched.Spec, web.Spec) || !apiequality.Semantic.DeepEqual(touched.Status, web.Status) {
		t.Error("the mark changed more than labels and annotations")
	}
	if output, err := s.kubectl(t, nil, "get", "pods", "-A", "-l", audit.LabelTouchedBy, "-o", "name"); err != nil || !strings.Contains(output, web.Name) {
		t.Errorf("the label finds nothing: %v: %s", err, output)
	}

	lateness := s.evictedAt(t, deletions, web).Sub(dueAt(t, touched, delay))
	fmt.Printf("FIGURE audit.eviction_lateness_ms=%d ms\n", lateness.Milliseconds())
	if lateness < 0 || lateness > 3*time.Second {
		t.Errorf("evicted %s after its time", lateness)
	}
	for _, pod := range []*corev1.Pod{late, bare, limited} {
		if found := s.get(t, pod); !found.DeletionTimestamp.IsZero() {
			t.Errorf("Pod %s was evicted", pod.Name)
		}
	}
	s.event(t, limited, "EvictionPutOff")
	s.event(t, web, "TouchedPodEvicted")
	if err := s.admin.Delete(t.Context(), budget); err != nil {
		t.Fatal(err)
	}
	s.evictedAt(t, deletions, limited)

	// A restart loses nothing: the next manager reads the mark on the Pod.
	web = s.pod(t, "open")
	touched = touch(web)
	stop()
	if _, err := s.kubectl(t, nil, "annotate", "pod", "-n", "open", late.Name, audit.AnnotationEvictAfter+"=1s", "--overwrite"); err != nil {
		t.Fatal(err)
	}
	s.start(t, options, 1)
	if early := dueAt(t, touched, delay).Sub(s.evictedAt(t, deletions, web)); early > 0 {
		t.Errorf("evicted %s before its time after a restart", early)
	}
	s.evictedAt(t, deletions, late)
}

// nobodyMovesTheMark tries to keep a touched Pod for ever, as somebody who may patch
// Pods, and their status.
func (s *stage) nobodyMovesTheMark(t *testing.T, eve *controlplane.User, touched *corev1.Pod) {
	t.Helper()
	in := func(args ...string) []string { return append(args, "-n", touched.Namespace, touched.Name) }
	later := time.Now().Add(time.Second).UTC().Format(time.RFC3339Nano)
	for attempt, args := range map[string][]string{
		"to move its time":         append(in("annotate", "--overwrite", "pod"), audit.AnnotationTouchedAt+"="+later),
		"to remove its time":       append(in("annotate", "pod"), audit.AnnotationTouchedAt+"-"),
		"to blame somebody else":   append(in("annotate", "--overwrite", "pod"), audit.AnnotationTouchedBy+"=bob"),
		"to remove the mark":       append(in("label", "pod"), audit.LabelTouchedBy+"-"),
		"to move it by the status": append(in("patch", "pod"), "--subresource=status", "-p", `{"metadata":{"annotations":{"`+audit.AnnotationTouchedAt+`":"`+later+`"}}}`),
	} {
		user := eve
		if strings.Contains(attempt, "status") {
			user = nil
		}
		if output, err := s.kubectl(t, user, args...); err == nil || !strings.Contains(output, "was touched") {
			t.Errorf("somebody wants %s: %v: %s", attempt, err, output)
		}
	}
	if output, err := s.kubectl(t, eve, "exec", "-i", "-n", touched.Namespace, touched.Name, "-c", "main", "--", "true"); err != nil {
		t.Fatal(output)
	}
	if at := s.get(t, touched).Annotations[audit.AnnotationTouchedAt]; at != touched.Annotations[audit.AnnotationTouchedAt] {
		t.Errorf("another session moves the time of the first from %s to %s", touched.Annotations[audit.AnnotationTouchedAt], at)
	}
}

// dueAt is when a Pod is to be evicted.
func dueAt(t *testing.T, pod *corev1.Pod, delay time.Duration) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339Nano, pod.Annotations[audit.AnnotationTouchedAt])
	if err != nil {
		t.Fatal(err)
	}
	return at.Add(delay)
}

func (s *stage) get(t *testing.T, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	var found corev1.Pod
	if err := s.admin.Get(t.Context(), client.ObjectKeyFromObject(pod), &found); err != nil {
		t.Fatal(err)
	}
	return &found
}

// deletions tells when Pods began to go away.
type deletions struct {
	events <-chan watch.Event
	seen   map[string]time.Time
}

func (s *stage) watchPods(t *testing.T) *deletions {
	t.Helper()
	w, err := kubernetes.NewForConfigOrDie(s.Config()).CoreV1().Pods("").Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Stop)
	return &deletions{events: w.ResultChan(), seen: map[string]time.Time{}}
}

// evictedAt waits until a Pod goes away, and returns when it began to.
func (s *stage) evictedAt(t *testing.T, d *deletions, pod *corev1.Pod) time.Time {
	t.Helper()
	limit := time.After(time.Minute)
	for d.seen[pod.Name].IsZero() {
		select {
		case event := <-d.events:
			if found, ok := event.Object.(*corev1.Pod); ok && d.seen[found.Name].IsZero() && !found.DeletionTimestamp.IsZero() {
				d.seen[found.Name] = time.Now()
			}
		case <-limit:
			t.Fatalf("Pod %s was not evicted within a minute", pod.Name)
		}
	}
	return d.seen[pod.Name]
}

// event waits for an Event on a Pod.
func (s *stage) event(t *testing.T, pod *corev1.Pod, reason string) {
	t.Helper()
	testkit.Eventually(t, "there is an Event "+reason, func(ctx context.Context) bool {
		output, err := s.Kubectl(ctx, nil, "get", "events", "-n", pod.Namespace, "--field-selector", "reason="+reason+",involvedObject.name="+pod.Name, "-o", "name").CombinedOutput()
		return err == nil && len(output) > 0 && !strings.Contains(string(output), "No resources")
	})
}
