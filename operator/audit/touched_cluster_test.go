package audit_test

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	policyv1 "k8s.io/api/policy/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/audit"
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
	s.create(t, "shop", "bare")
	one := intstr.FromInt32(1)
	budget := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "open", Name: "budget"},
		Spec:       policyv1.PodDisruptionBudgetSpec{MinAvailable: &one, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "budget"}}},
	}
	testkit.Create(t, s.admin, budget)
	testkit.Eventually(t, "the budget counts its Pod", func(ctx context.Context) bool {
		return s.admin.Get(ctx, client.ObjectKeyFromObject(budget), budget) == nil && budget.Status.CurrentHealthy == 1
	})
	web, late, limited := s.pod(t, "open"), s.podOf(t, "open", "late"), s.podOf(t, "open", "budget")

	// What only looks touches nothing.
	passes(t, "a look", s.exec(t, eve, "open", web.Name, "command=true"))
	if _, touched := s.get(t, web).Labels[audit.LabelTouchedBy]; touched {
		t.Error("an exec without terminal and standard input touched its Pod")
	}
	putOff := func(user *controlplane.User, after string) {
		t.Helper()
		passes(t, "to put the eviction off", s.send(t, user, "PATCH", "/api/v1/namespaces/open/pods/"+late.Name, testkit.AsMerge, `{"metadata":{"annotations":{"`+audit.AnnotationEvictAfter+`":"`+after+`"}}}`))
	}
	putOff(eve, "1h")
	touch := func(pod *corev1.Pod) *corev1.Pod {
		t.Helper()
		passes(t, "a session", s.exec(t, eve, pod.Namespace, pod.Name, "stdin=true&command=true"))
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
	var marked corev1.PodList
	if err := s.admin.List(t.Context(), &marked, client.HasLabels{audit.LabelTouchedBy}); err != nil || !slices.ContainsFunc(marked.Items, func(p corev1.Pod) bool { return p.UID == web.UID }) {
		t.Errorf("the label finds %d Pods: %v", len(marked.Items), err)
	}

	lateness := s.evictedAt(t, deletions, web).Sub(dueAt(t, touched, delay))
	testkit.Figure("audit.eviction_lateness_ms", testkit.Milliseconds(lateness), "ms")
	if lateness < 0 || !testing.Short() && lateness > 3*time.Second {
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
	// It is tried again after a while, or when the Pod changes.
	change := client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"annotations":{"example.com/changed":"yes"}}}`))
	if err := s.admin.Patch(t.Context(), limited, change); err != nil {
		t.Fatal(err)
	}
	s.evictedAt(t, deletions, limited)

	// A restart loses nothing: the next manager reads the mark on the Pod.
	web = s.pod(t, "open")
	touched = touch(web)
	stop()
	putOff(s.Admin(), "1s")
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
	path := "/api/v1/namespaces/" + touched.Namespace + "/pods/" + touched.Name
	annotation := func(key, value string) string { return `{"metadata":{"annotations":{"` + key + `":` + value + `}}}` }
	later := strconv.Quote(time.Now().Add(time.Second).UTC().Format(time.RFC3339Nano))
	for attempt, test := range map[string]struct {
		user        *controlplane.User
		path, patch string
	}{
		"to move its time":         {eve, path, annotation(audit.AnnotationTouchedAt, later)},
		"to remove its time":       {eve, path, annotation(audit.AnnotationTouchedAt, "null")},
		"to blame somebody else":   {eve, path, annotation(audit.AnnotationTouchedBy, `"bob"`)},
		"to remove the mark":       {eve, path, `{"metadata":{"labels":{"` + audit.LabelTouchedBy + `":null}}}`},
		"to move it by the status": {s.Admin(), path + "/status", annotation(audit.AnnotationTouchedAt, later)},
	} {
		if a := s.send(t, test.user, "PATCH", test.path, testkit.AsMerge, test.patch); a.Code < 300 || !strings.Contains(a.Body, "was touched") {
			t.Errorf("somebody wants %s: %s", attempt, a)
		}
	}
	passes(t, "another session", s.exec(t, eve, touched.Namespace, touched.Name, "stdin=true&command=true"))
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
		var list eventsv1.EventList
		return s.admin.List(ctx, &list, client.InNamespace(pod.Namespace)) == nil &&
			slices.ContainsFunc(list.Items, func(e eventsv1.Event) bool { return e.Reason == reason && e.Regarding.Name == pod.Name })
	})
}
