package access_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// endings notes when RoleBindings come and go.
type endings struct {
	mu       sync.Mutex
	made     map[string]bool
	gone     map[string]time.Time
	requests map[string]*v1alpha1.ExecAccessRequest
}

// watchEndings watches the RoleBindings of a namespace until the test ends.
func watchEndings(t *testing.T, namespace string) *endings {
	t.Helper()
	e := &endings{made: map[string]bool{}, gone: map[string]time.Time{}, requests: map[string]*v1alpha1.ExecAccessRequest{}}
	w, err := admin.Watch(t.Context(), &rbacv1.RoleBindingList{}, client.InNamespace(namespace))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Stop)
	go func() {
		for event := range w.ResultChan() {
			now := time.Now()
			binding, ok := event.Object.(*rbacv1.RoleBinding)
			if !ok {
				continue
			}
			if !strings.HasPrefix(binding.Name, "execaccess-") {
				continue
			}
			e.mu.Lock()
			if event.Type == watch.Deleted {
				e.gone[binding.Name] = now
			} else {
				e.made[binding.Name] = true
			}
			e.mu.Unlock()
		}
	}()
	return e
}

func (e *endings) counts() (made, gone int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.made), len(e.gone)
}

// ask makes n requests whose access ends between from and from+window, at whole
// seconds, as people ask.
func (e *endings) ask(t *testing.T, namespace string, n int, from time.Time, window time.Duration) {
	t.Helper()
	engineers := team(t, n)
	group, ctx := errgroup.WithContext(t.Context())
	group.SetLimit(8)
	for i := range n {
		group.Go(func() error {
			end := from.Add(time.Duration(i) * window / time.Duration(n))
			req := execRequest(namespace, fmt.Sprintf("r-%d", i), "web")
			req.Spec.Duration = time.Until(end).Truncate(time.Second).String()
			if err := engineers[i%len(engineers)].Create(ctx, req); err != nil {
				return err
			}
			e.mu.Lock()
			defer e.mu.Unlock()
			e.requests["execaccess-"+req.Name] = req
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
}

// team returns as many engineers as may have n requests open by one template.
func team(t *testing.T, n int) []client.Client {
	t.Helper()
	var engineers []client.Client
	for i := range n/50 + 1 {
		config := rest.CopyConfig(cluster.Config())
		config.Impersonate = rest.ImpersonationConfig{UserName: fmt.Sprintf("engineer-%d", i), Groups: []string{"devs", "engineers"}}
		c, err := client.New(config, client.Options{Scheme: scheme, Mapper: admin.RESTMapper()})
		if err != nil {
			t.Fatal(err)
		}
		engineers = append(engineers, c)
	}
	return engineers
}

// lateness returns how much later than its end, or than since, each grant was
// gone.
func (e *endings) lateness(t *testing.T, since time.Time) []time.Duration {
	t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	var late []time.Duration
	for name, req := range e.requests {
		duration, err := time.ParseDuration(req.Spec.Duration)
		if err != nil {
			t.Fatal(err)
		}
		end := req.CreationTimestamp.Add(duration)
		gone, ok := e.gone[name]
		if !ok {
			t.Fatalf("%s is still there", name)
		}
		if early := end.Sub(gone); early > 0 {
			t.Errorf("%s ended %s early", name, early)
		}
		if end.Before(since) {
			end = since
		}
		late = append(late, gone.Sub(end))
	}
	return late
}

func TestAccessEndsOnTime(t *testing.T) {
	testkit.OnlyLong(t) // TestNoAccessOutlivesItsEndWhateverBreaks is short
	namespace := testkit.ManagerNamespace(t, admin)
	deployment(t, namespace, "web", 2)
	startManagerProcess(t, namespace)
	testkit.Create(t, admin, execTemplate(namespace, "web", ref("Deployment", "web"), "devs"))
	const n, lead, window = 2000, 3 * time.Minute, time.Minute
	e := watchEndings(t, namespace)
	from := time.Now().Add(lead).Truncate(time.Second)
	e.ask(t, namespace, n, from, window)
	testkit.Within(t, time.Until(from), "all are granted before the first ends", func(context.Context) bool {
		made, _ := e.counts()
		return made == n
	})
	testkit.Within(t, time.Until(from)+window+30*time.Second, "all have ended", func(context.Context) bool {
		_, gone := e.counts()
		return gone == n
	})
	late := e.lateness(t, time.Time{})
	p99 := testkit.Percentile(late, .99)
	testkit.Figure("expiry.grants", n, "grants")
	testkit.Figure("expiry.p50_ms", testkit.Milliseconds(testkit.Percentile(late, .5)), "ms")
	testkit.Figure("expiry.p99_ms", testkit.Milliseconds(p99), "ms")
	testkit.Figure("expiry.max_ms", testkit.Milliseconds(slices.Max(late)), "ms")
	if p99 > 500*time.Millisecond {
		t.Errorf("p99 of the lateness is %s", p99)
	}
}

func TestAccessEndsSoonAfterTheManagerLeadsAgain(t *testing.T) {
	testkit.OnlyLong(t) // TestNoAccessOutlivesItsEndWhateverBreaks is short
	namespace := testkit.ManagerNamespace(t, admin)
	deployment(t, namespace, "web", 2)
	killed := startManagerProcess(t, namespace)
	testkit.Create(t, admin, execTemplate(namespace, "web", ref("Deployment", "web"), "devs"))
	const n, lead, window = 2000, 3 * time.Minute, time.Minute
	e := watchEndings(t, namespace)
	from := time.Now().Add(lead).Truncate(time.Second)
	e.ask(t, namespace, n, from, window)
	testkit.Within(t, time.Until(from), "all are granted before the first ends", func(context.Context) bool {
		made, _ := e.counts()
		return made == n
	})
	testkit.Within(t, time.Until(from.Add(window)), "half of them have ended", func(context.Context) bool {
		_, gone := e.counts()
		return gone >= n/2
	})
	killed.Kill()
	// The lease of a killed manager lasts for some seconds more.
	options := killed.options
	options.Metrics = ""
	again := startProcess(t, options)
	again.awaitLead(t)
	testkit.Within(t, time.Until(from)+window+30*time.Second, "all have ended", func(context.Context) bool {
		_, gone := e.counts()
		return gone == n
	})
	latest := slices.Max(e.lateness(t, again.leads))
	testkit.Figure("expiry.restart_max_s", latest.Seconds(), "s")
	if latest > 2*time.Second {
		t.Errorf("the last ended %s after the manager led again, or after its end", latest)
	}
}

func TestARequestIsReadyWithinASecond(t *testing.T) {
	testkit.OnlyLong(t) // all others wait until requests are ready
	namespace := testkit.ManagerNamespace(t, admin)
	deployment(t, namespace, "web", 2)
	startManagerProcess(t, namespace)
	testkit.Create(t, admin, execTemplate(namespace, "web", ref("Deployment", "web"), "devs"))
	const n = 500
	var mu sync.Mutex
	ready := map[string]time.Time{}
	w, err := admin.Watch(t.Context(), &v1alpha1.ExecAccessRequestList{}, client.InNamespace(namespace))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Stop)
	go func() {
		for event := range w.ResultChan() {
			now := time.Now()
			if req, ok := event.Object.(*v1alpha1.ExecAccessRequest); ok && req.Status.Ready {
				mu.Lock()
				if ready[req.Name].IsZero() {
					ready[req.Name] = now
				}
				mu.Unlock()
			}
		}
	}()
	engineers := team(t, n)
	took := make([]time.Duration, 0, n)
	for i := range n {
		asked := time.Now()
		req := execRequest(namespace, fmt.Sprintf("r-%d", i), "web")
		testkit.Create(t, engineers[i%len(engineers)], req)
		testkit.Within(t, 10*time.Second, req.Name+" is ready", func(context.Context) bool {
			mu.Lock()
			defer mu.Unlock()
			if at := ready[req.Name]; !at.IsZero() {
				took = append(took, at.Sub(asked))
				return true
			}
			return false
		})
	}
	p99 := testkit.Percentile(took, .99)
	testkit.Figure("ready.p50_ms", testkit.Milliseconds(testkit.Percentile(took, .5)), "ms")
	testkit.Figure("ready.p99_ms", testkit.Milliseconds(p99), "ms")
	if p99 > time.Second {
		t.Errorf("p99 from request to Ready is %s", p99)
	}
}

// The short form, beside other tests, shows that nothing is done; the long form measures.
func TestLiveGrantsCostNothingWhileNothingChanges(t *testing.T) {
	if testing.Short() {
		t.Parallel()
	}
	namespace := testkit.ManagerNamespace(t, admin)
	deployment(t, namespace, "web", 2)
	p := startManagerProcess(t, namespace)
	template := execTemplate(namespace, "web", ref("Deployment", "web"), "devs")
	testkit.Create(t, admin, template)
	n, period := testkit.Long(5000, 8), testkit.Long(time.Minute, 2*time.Second)
	empty := p.resident(t)
	e := watchEndings(t, namespace)
	e.ask(t, namespace, n, time.Now().Add(time.Hour), time.Minute)
	reconciles := func() float64 { return p.metric(t, "controller_runtime_reconcile_total") }
	var cpu float64
	testkit.Within(t, 10*time.Minute, "all are granted, and nothing happens for a while", func(ctx context.Context) bool {
		if made, _ := e.counts(); made < n {
			return false
		}
		before := reconciles()
		cpu = p.metric(t, "process_cpu_seconds_total")
		select {
		case <-time.After(period): // that nothing happens takes time to see
		case <-ctx.Done():
		}
		cpu = p.metric(t, "process_cpu_seconds_total") - cpu
		return reconciles() == before
	})
	resident := p.resident(t)
	testkit.Figure("grants5000.rss_mb", resident, "MB")
	testkit.Figure("grants5000.delta_mb", resident-empty, "MB")
	testkit.Figure("grants5000.cpu_percent", 100*cpu/period.Seconds(), "%")
	testkit.Figure("grants5000.reconciles_per_min", 0, "1/min") // or there was no such period
	if live := p.metric(t, "admitkit_access_grants"); live != float64(n) {
		t.Errorf("the metric says %.0f grants are live, want %d", live, n)
	}
}

func TestMemoryDoesNotGrowWithTheCluster(t *testing.T) {
	testkit.OnlyLong(t) // few Pods take less than the noise
	namespace := testkit.ManagerNamespace(t, admin)
	deployment(t, namespace, "web", 1)
	p := startManagerProcess(t, namespace)
	testkit.Create(t, admin, execTemplate(namespace, "web", ref("Deployment", "web"), "devs"))
	granted(t, alice, execRequest(namespace, "warm-up", "web"))
	before := p.resident(t)
	const n = 20000
	group, ctx := errgroup.WithContext(t.Context())
	group.SetLimit(16)
	for i := range n {
		group.Go(func() error {
			return admin.Create(ctx, &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("foreign-%d", i), Labels: map[string]string{"app": "foreign"}},
				Spec: corev1.PodSpec{
					SchedulerName: "nobody",
					Containers:    []corev1.Container{{Name: "main", Image: "example.com/foreign:1", Env: []corev1.EnvVar{{Name: "A", Value: "some value"}}}},
				},
			})
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	granted(t, alice, execRequest(namespace, "among-others", "web"))
	delta := p.resident(t) - before
	testkit.Figure("foreign20000.delta_mb", delta, "MB")
	if delta > 10 {
		t.Errorf("%d foreign Pods add %.1f MB", n, delta)
	}
}
