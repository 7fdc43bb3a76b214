package webhook_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/admitkit/admitkit/internal/freeport"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/testing/controlplane"
)

// memoryLimit is that of the chart.
const memoryLimit = 256 << 20

// attacked is a user's operator that runs as in the chart's Pod, on a real API server.
type attacked struct {
	clientset kubernetes.Interface
	run       func() *testkit.Process
	cgroup    *testkit.Cgroup
}

func newAttacked(t *testing.T) *attacked {
	t.Helper()
	limit := testkit.NewCgroup(t, memoryLimit)
	cluster := controlplane.Run(t, controlplane.Options{})
	binary := os.Getenv("ADMITKIT_ATTACKED") // another version, to compare
	if binary == "" {
		binary = filepath.Join(t.TempDir(), "sample")
		if err := testkit.Build(t.Context(), binary, "../internal/testkit/sample"); err != nil {
			t.Fatal(err)
		}
	}
	port := freeport.For(t)
	return &attacked{clientset: kubernetes.NewForConfigOrDie(cluster.Config()), cgroup: limit, run: func() *testkit.Process {
		return testkit.Run(t, limit.Command(binary, "start", "--namespace=default", "--host=127.0.0.1", fmt.Sprintf("--port=%d", port),
			"--kubeconfig="+cluster.Admin().KubeConfig, "--health-address=", "--metrics-address=", "--drain-period=10ms"))
	}}
}

// start starts the operator and returns an attack on it.
func (a *attacked) start(t *testing.T) (*testkit.Process, *testkit.Attack) {
	t.Helper()
	server := a.run()
	testkit.Eventually(t, "the server answers", func(ctx context.Context) bool { return a.admission(ctx) == nil })
	config, err := a.clientset.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(t.Context(), "sample.default", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	target, err := url.Parse(*config.Webhooks[0].ClientConfig.URL)
	if err != nil {
		t.Fatal(err)
	}
	return server, &testkit.Attack{Address: target.Host, Path: target.Path}
}

// admission has the API server send one admission.
func (a *attacked) admission(ctx context.Context) error {
	pod, err := a.clientset.CoreV1().Pods(metav1.NamespaceDefault).Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "real-"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "example.com/main:1"}}},
	}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err == nil && pod.Annotations["sample.admitkit.dev/stamp-1"] == "" {
		return errors.New("the Pod is not stamped")
	}
	return err
}

// TestWhatAStalledConnectionTakes prints what docs/operations.md says, the kernel's part
// included.
func TestWhatAStalledConnectionTakes(t *testing.T) {
	testkit.OnlyLong(t)
	a := newAttacked(t)
	take := func(name string, connections int, stall func(*testkit.Attack, context.Context)) {
		server, attack := a.start(t) // another one may have memory that it does not use any more
		ctx, stop := context.WithCancel(t.Context())
		before := a.cgroup.Usage(t)
		for range connections {
			attack.Go(func() { stall(attack, ctx) })
		}
		time.Sleep(3 * time.Second) // they have arrived, and the first deadline is not over
		testkit.Figure(name, float64(a.cgroup.Usage(t)-before)/float64(connections)/1024, "KiB")
		stop()
		attack.Wait()
		server.Stop(t)
	}
	for point, name := range testkit.StallPoints {
		take("engine.conn_"+name+"_kb", 400, func(a *testkit.Attack, ctx context.Context) { a.Stall(ctx, point) })
	}
}

// TestAServerUnderAttackAnswersEveryRealAdmission has those who reach the port of a
// server with 256 MiB of memory try to occupy everything that it has, from three
// addresses. Meanwhile a real API server sends 20 admissions a second.
func TestAServerUnderAttackAnswersEveryRealAdmission(t *testing.T) {
	testkit.OnlyLong(t) // what it withstands by itself is in limits_test.go and memory_test.go
	attacked := newAttacked(t)
	server, attack := attacked.start(t)
	if !server.Output.HasLine("the memory of this process is limited", strconv.Itoa(memoryLimit / 5 * 4)[:6]) {
		t.Error("the program does not know its memory limit")
	}
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	attack.Begin(ctx)
	var admissions sync.WaitGroup
	var sent, failed atomic.Int64
	var slowest atomic.Int64
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for ctx.Err() == nil {
		admissions.Go(func() {
			began := time.Now()
			patience, stop := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
			defer stop()
			if err := attacked.admission(patience); err != nil {
				failed.Add(1)
				t.Logf("after %s: %v", time.Since(began), err)
			}
			sent.Add(1)
			for took := int64(time.Since(began)); ; {
				if before := slowest.Load(); before >= took || slowest.CompareAndSwap(before, took) {
					break
				}
			}
		})
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
	}
	admissions.Wait()
	attack.Wait()
	t.Logf("%d real admissions, the slowest in %s; attackers made %s", sent.Load(), time.Duration(slowest.Load()), attack)
	testkit.Figure("engine.stall_failed", float64(failed.Load()), "requests")
	testkit.Figure("engine.peak_mb", float64(attacked.cgroup.Peak(t))/(1<<20), "MiB")
	if failed.Load() > 0 {
		t.Errorf("%d of %d real admissions failed", failed.Load(), sent.Load())
	}
	if kills := attacked.cgroup.Killed(t); kills > 0 {
		t.Errorf("the kernel killed the server, which ran out of memory: %d times", kills)
	}
	if attack.Connections.Load() < 5000 {
		t.Errorf("the attack was too weak")
	}
	server.Stop(t)
}
