package sandbox_test

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/sandbox"
)

// All runs are there before their template is, which then starts them at once.
func TestManyRunsStartAtOnceAndRest(t *testing.T) {
	if testing.Short() {
		t.Skip("TestRuns has a run that rests")
	}
	const count = 300
	i := install(t, sandbox.Options{})
	for n := range count {
		testkit.Create(t, admin, run(i.here, fmt.Sprintf("many-%d", n), "many"))
	}
	phases := func(ctx context.Context, is func(*v1alpha1.SandboxRun) bool) (missing int, list v1alpha1.SandboxRunList, err error) {
		err = admin.List(ctx, &list, client.InNamespace(i.here))
		for n := range list.Items {
			if !is(&list.Items[n]) {
				missing++
			}
		}
		return missing, list, err
	}
	await := func(what string, is func(*v1alpha1.SandboxRun) bool) (list v1alpha1.SandboxRunList) {
		t.Helper()
		testkit.Succeeds(t, 5*time.Minute, what, func(ctx context.Context) error {
			missing, now, err := phases(ctx, is)
			if list = now; err == nil && missing > 0 {
				err = fmt.Errorf("%d are not", missing)
			}
			return err
		})
		return list
	}
	await("all wait", in(v1alpha1.SandboxPending))
	begun, heap, reconciled := time.Now(), heapMB(), reconciles(t)
	small := template(i.here, "many")
	testkit.Create(t, admin, small)
	await("all have started", func(run *v1alpha1.SandboxRun) bool { return run.Status.JobUID != "" })
	testkit.Figure("sandbox.start300_s", time.Since(begun).Seconds(), "s")
	before := map[string]string{}
	// The output is closed by another reconciler, after the run has ended.
	ended := await("all have succeeded, and show their output", func(run *v1alpha1.SandboxRun) bool {
		return run.Status.Phase == v1alpha1.SandboxSucceeded && run.Status.OutputClosed
	})
	for n := range ended.Items {
		before[ended.Items[n].Name] = ended.Items[n].ResourceVersion
	}
	time.Sleep(10 * time.Second) // at rest nothing happens, for which there is no event to wait
	writes := 0
	_, after, err := phases(t.Context(), in(v1alpha1.SandboxSucceeded))
	for n := range after.Items {
		if before[after.Items[n].Name] != after.Items[n].ResourceVersion {
			writes++
		}
	}
	testkit.Figure("sandbox.rest_writes", float64(writes), "writes")
	each := (reconciles(t) - reconciled) / count
	testkit.Figure("sandbox.reconciles_per_run", each, "reconciles")
	testkit.Figure("sandbox.heap_mb", heapMB()-heap, "MB") // of the sandbox, and of what this test has read
	if each < 1 {
		t.Errorf("%.1f reconciles for each run: they are not counted", each)
	}
	if err != nil || writes > 0 || len(after.Items) != count {
		t.Errorf("%v: %d of %d runs were written at rest", err, writes, len(after.Items))
	}
}

// reconciles counts what the reconciler of runs has done so far.
func reconciles(t *testing.T) (count float64) {
	t.Helper()
	families, err := metrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() != "controller_runtime_reconcile_total" {
			continue
		}
		for _, metric := range family.GetMetric() {
			for _, label := range metric.GetLabel() {
				if label.GetName() == "controller" && label.GetValue() == "sandboxruns" {
					count += metric.GetCounter().GetValue()
				}
			}
		}
	}
	return count
}

func heapMB() float64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return float64(stats.HeapAlloc) / 1e6
}
