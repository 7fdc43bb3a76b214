package binding_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/admitkit/admitkit/internal/freeport"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/operator/access"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/binding"
)

// killable is a manager whose connection can be cut: from then on nothing that it does
// reaches the API server, as if it had been killed.
type killable struct {
	options manager.Options
	binding binding.Options
	access  *access.Options // nil for none
	dead    *atomic.Bool
	writes  *atomic.Int64
	stop    func()
}

type cut struct {
	next   http.RoundTripper
	dead   *atomic.Bool
	writes *atomic.Int64 // of bindings and of our objects
}

func (c cut) RoundTrip(req *http.Request) (*http.Response, error) {
	if c.dead.Load() {
		return nil, errors.New("the manager was killed")
	}
	if req.Method != http.MethodGet && (strings.Contains(req.URL.Path, "/admitkit.dev/") || strings.Contains(req.URL.Path, "rolebindings")) {
		c.writes.Add(1)
	}
	return c.next.RoundTrip(req)
}

// startKillable registers the webhooks, and runs the manager until the test ends.
func startKillable(t *testing.T, o binding.Options, with *access.Options) *killable {
	t.Helper()
	logger, _ := testkit.Logger(t)
	k := &killable{binding: o, access: with, writes: &atomic.Int64{}, options: manager.Options{
		OperatorFingerprint: "admitkit", Namespaces: []string{testkit.Namespace(t, admin)}, Host: "127.0.0.1", Port: freeport.For(t),
		Serving: manager.ServingOptions{DrainPeriod: new(time.Duration)}, Logger: logger, RESTConfig: server.Config(),
	}}
	registrar := k.newManager(t, k.options)
	if err := registrar.RegisterExtensions(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := registrar.UnregisterExtensions(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	k.start(t)
	t.Cleanup(func() { k.stop() })
	return k
}

func (k *killable) newManager(t *testing.T, options manager.Options) *manager.Manager {
	t.Helper()
	mgr, err := manager.New(options)
	if err == nil {
		err = mgr.AddExtension(binding.New(k.binding))
	}
	if err == nil && k.access != nil {
		err = mgr.AddExtension(access.New(*k.access))
	}
	if err != nil {
		t.Fatal(err)
	}
	return mgr
}

func (k *killable) start(t *testing.T) {
	t.Helper()
	dead, options := &atomic.Bool{}, k.options
	options.RegisterWebHook, options.RESTConfig = new(bool), rest.CopyConfig(k.options.RESTConfig)
	options.RESTConfig.Wrap(func(next http.RoundTripper) http.RoundTripper { return cut{next, dead, k.writes} })
	mgr := k.newManager(t, options)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	k.dead, k.stop = dead, sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil { // one that was killed says that it lost its connection
			t.Log(err)
		}
	})
	select {
	case <-mgr.Ready():
	case err := <-done:
		t.Fatalf("the manager stopped at start: %v", err)
	}
}

// kill cuts the manager off, and returns when it is gone.
func (k *killable) kill() {
	k.dead.Store(true)
	k.stop()
}

// lateness is how late bindings began and ended, as a watch sees it.
type lateness struct{ starts, ends []time.Duration }

// measure makes transient bindings that begin within span and last for a window, and calls
// meanwhile in the middle of span.
func measure(t *testing.T, namespace string, count int, lead, span, window time.Duration, meanwhile func()) lateness {
	t.Helper()
	events, err := admin.Watch(t.Context(), &rbacv1.RoleBindingList{}, client.InNamespace(namespace), client.HasLabels{v1alpha1.LabelManagedBy})
	if err != nil {
		t.Fatal(err)
	}
	defer events.Stop()
	begin, due := second(lead), map[string]*v1alpha1.TransientRoleBinding{}
	var group sync.WaitGroup
	errs, slots := make([]error, count), make(chan struct{}, 8)
	for n := range count {
		object := transient(namespace, fmt.Sprintf("timed-%d", n), "Role", "deployer", 0)
		object.Spec.ValidFrom = new(metav1.NewTime(begin.Add(span * time.Duration(n) / time.Duration(count)).Truncate(time.Second)))
		object.Spec.ValidUntil = metav1.NewTime(object.Spec.ValidFrom.Add(window).Truncate(time.Second))
		due[object.Name] = object.DeepCopy()
		group.Go(func() {
			slots <- struct{}{}
			errs[n] = admin.Create(t.Context(), object)
			<-slots
		})
	}
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	if late := time.Since(begin.Time); late > 0 {
		t.Logf("the machine is loaded: the objects were there %s after the first beginning", late)
	}
	middle := time.AfterFunc(time.Until(begin.Add(span/2)), meanwhile)
	defer middle.Stop()
	var seen lateness
	limit := time.After(lead + span + window + patience)
	for len(seen.ends) < count {
		select {
		case event := <-events.ResultChan():
			b, ok := event.Object.(*rbacv1.RoleBinding)
			if !ok || due[b.Name] == nil {
				continue
			}
			now, spec := time.Now(), due[b.Name].Spec
			switch event.Type {
			case watch.Added:
				seen.starts = append(seen.starts, now.Sub(spec.ValidFrom.Time))
			case watch.Deleted:
				seen.ends = append(seen.ends, now.Sub(spec.ValidUntil.Time))
			}
		case <-limit:
			t.Fatalf("of %d bindings %d began and %d ended", count, len(seen.starts), len(seen.ends))
		}
	}
	if len(seen.starts) != count {
		t.Errorf("%d bindings were made for %d objects", len(seen.starts), count)
	}
	for _, late := range append(seen.starts, seen.ends...) {
		if late < -50*time.Millisecond { // the clock is the API server's, by whole seconds corrected
			t.Errorf("a binding began or ended %s early", -late)
		}
	}
	return seen
}

func TestTheFiguresOfTransientBindings(t *testing.T) {
	testkit.OnlyLong(t) // TestTransientBindings and the tests of two managers are short
	const count, span, lead = 2000, time.Minute, time.Minute
	var namespaces, roles []string
	for n := range 200 {
		name := fmt.Sprintf("figures-%d", n)
		testkit.Create(t, admin, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, role(name, "deployer"))
		namespaces, roles = append(namespaces, name), append(roles, name+"/deployer")
	}
	testkit.Create(t, admin, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "figures"}})
	k := startKillable(t, binding.Options{BindableRoles: roles, BindableClusterWide: []string{"figures"}}, nil)

	seen := measure(t, namespaces[0], count, lead, span, 30*time.Second, func() {})
	testkit.Figure("binding.start_p50_ms", testkit.Milliseconds(testkit.Percentile(seen.starts, .5)), "ms")
	testkit.Figure("binding.start_p99_ms", testkit.Milliseconds(testkit.Percentile(seen.starts, .99)), "ms")
	testkit.Figure("binding.end_p50_ms", testkit.Milliseconds(testkit.Percentile(seen.ends, .5)), "ms")
	testkit.Figure("binding.end_p99_ms", testkit.Milliseconds(testkit.Percentile(seen.ends, .99)), "ms")

	restarted := make(chan struct{})
	seen = measure(t, namespaces[1], count, lead, span, time.Minute, func() {
		defer close(restarted)
		k.kill()
		k.start(t)
	})
	<-restarted
	testkit.Figure("binding.restart_max_s", max(slices.Max(seen.starts), slices.Max(seen.ends)).Seconds(), "s")

	atRest(t, namespaces)
	with := heap()
	k.stop()
	testkit.Figure("binding.rest_heap_mb", (with-heap())/1e6, "MB")
}

// heap returns how many bytes the process holds.
func heap() float64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return float64(stats.HeapAlloc)
}

// atRest makes many bindings that live for long, and counts what is written about them.
func atRest(t *testing.T, namespaces []string) {
	t.Helper()
	const inEach, across = 95, 1000
	var objects []client.Object
	for _, namespace := range namespaces {
		for n := range inEach {
			objects = append(objects, transient(namespace, fmt.Sprintf("rests-%d", n), "Role", "deployer", 3*time.Hour))
		}
	}
	for n := range across {
		objects = append(objects, wide(fmt.Sprintf("rests-%d", n), "figures", 3*time.Hour))
	}
	work := make(chan client.Object)
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for object := range work {
				if err := admin.Create(t.Context(), object); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for _, object := range objects {
		work <- object
	}
	close(work)
	group.Wait()
	for _, object := range objects {
		await(t, object.(v1alpha1.TransientBinding), v1alpha1.BindingActive)
	}
	var before float64
	testkit.Within(t, patience, "the manager rests", func(context.Context) bool {
		was := before
		before = reconciles(t)
		return was == before
	})
	writes := make(chan string, 1000)
	for _, list := range []client.ObjectList{
		&v1alpha1.TransientRoleBindingList{}, &v1alpha1.TransientClusterRoleBindingList{}, &rbacv1.RoleBindingList{}, &rbacv1.ClusterRoleBindingList{},
	} {
		if err := admin.List(t.Context(), list); err != nil {
			t.Fatal(err)
		}
		events, err := admin.Watch(t.Context(), list, &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: list.GetResourceVersion()}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(events.Stop)
		go func() {
			for event := range events.ResultChan() {
				writes <- fmt.Sprintf("%s %T", event.Type, event.Object)
			}
		}()
	}
	<-time.After(time.Minute)
	written := len(writes)
	for range written {
		t.Error(<-writes)
	}
	if after := reconciles(t); after != before {
		t.Errorf("%v reconciles at rest", after-before)
	}
	testkit.Figure("binding.rest_live", float64(len(objects)), "objects")
	testkit.Figure("binding.rest_writes", float64(written), "writes")
	for _, object := range objects[len(objects)-across:] {
		if err := admin.Delete(t.Context(), object); err != nil {
			t.Error(err)
		}
	}
}

// reconciles returns how many the process has done, of whatever it reconciles.
func reconciles(t *testing.T) (sum float64) {
	t.Helper()
	families, err := metrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() == "controller_runtime_reconcile_total" {
			for _, metric := range family.GetMetric() {
				sum += metric.GetCounter().GetValue()
			}
		}
	}
	return sum
}
