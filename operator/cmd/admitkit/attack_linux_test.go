package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/admitkit/admitkit/internal/freeport"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/testing/controlplane"
)

// TestNoExecPassesUnrecordedWhileThePortIsAttacked has those who reach the port of an
// operator with 256 MiB of memory try to occupy everything that it has, and in the short
// form stall a hundred connections. Its failure policy is Ignore, so that an exec of which
// it does not hear in time would pass.
func TestNoExecPassesUnrecordedWhileThePortIsAttacked(t *testing.T) {
	if testing.Short() {
		t.Parallel()
	}
	// The short form runs the test's own binary, which may have the race detector.
	limit := testkit.NewCgroup(t, testkit.Long(256<<20, 1<<30))
	cluster := controlplane.Run(t, controlplane.Options{})
	config := rest.CopyConfig(cluster.Config())
	config.QPS = -1
	clientset := kubernetes.NewForConfigOrDie(config)
	dir := t.TempDir()
	binary, file := os.Args[0], filepath.Join(dir, "audit.jsonl")
	if !testing.Short() {
		binary = filepath.Join(dir, "admitkit")
		if err := testkit.Build(t.Context(), binary, "."); err != nil {
			t.Fatal(err)
		}
	}
	program := limit.Command(binary, "start", "--namespace=default", "--host=127.0.0.1", fmt.Sprintf("--port=%d", freeport.For(t)),
		"--kubeconfig="+cluster.Admin().KubeConfig, "--health-address=", "--metrics-address=", "--drain-period=10ms",
		"--audit-log=false", "--audit-event=false", "--audit-file="+file)
	program.Env = append(os.Environ(), asProgram+"=yes")
	server := testkit.Run(t, program)
	exec := func(ctx context.Context, pod string) error {
		return clientset.CoreV1().RESTClient().Post().Namespace(metav1.NamespaceDefault).Resource("pods").Name(pod).SubResource("exec").
			Param("command", "true").Param("stdout", "true").Do(ctx).Error()
	}
	testkit.Eventually(t, "execs are recorded", func(ctx context.Context) bool {
		_ = exec(ctx, "probe") // there is no such Pod
		return recorded(t, file)["probe"] > 0
	})
	configuration, err := clientset.AdmissionregistrationV1().ValidatingWebhookConfigurations().Get(t.Context(), "admitkit.default", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	target, err := url.Parse(*configuration.Webhooks[0].ClientConfig.URL)
	if err != nil {
		t.Fatal(err)
	}
	attack := &testkit.Attack{Address: target.Host, Path: target.Path}
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	if testing.Short() {
		for i := range 100 {
			attack.Go(func() { attack.Stall(ctx, i%len(testkit.StallPoints)) })
		}
	} else {
		attack.Begin(ctx)
	}
	var execs sync.WaitGroup
	var refused atomic.Int64
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	sent := 0
	for ; ctx.Err() == nil && sent < testkit.Long(math.MaxInt, 20); sent++ {
		pod := fmt.Sprintf("real-%d", sent)
		execs.Go(func() {
			patience, stop := context.WithTimeout(context.WithoutCancel(ctx), 15*time.Second)
			defer stop()
			// After its admission the API server looks for the Pod, and there is none.
			if err := exec(patience, pod); !apierrors.IsNotFound(err) {
				refused.Add(1)
				t.Logf("refused: %v", err)
			}
		})
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
	}
	execs.Wait()
	stop()
	attack.Wait()
	server.Stop(t) // and writes what waits for the file
	records, unrecorded := recorded(t, file), 0
	for i := range sent {
		if records[fmt.Sprintf("real-%d", i)] == 0 {
			unrecorded++
		}
	}
	t.Logf("%d execs; attackers made %s", sent, attack)
	testkit.Figure("attack.unrecorded", float64(unrecorded), "execs")
	testkit.Figure("attack.refused", float64(refused.Load()), "execs")
	testkit.Figure("attack.rss_mb", float64(limit.Peak(t))/(1<<20), "MiB")
	if unrecorded > 0 || refused.Load() > 0 {
		t.Errorf("of %d execs %d are unrecorded, and %d refused", sent, unrecorded, refused.Load())
	}
	if kills := limit.Killed(t); kills > 0 {
		t.Errorf("the kernel killed the operator, which ran out of memory: %d times", kills)
	}
}

// recorded counts the records of each Pod in a file of the audit.
func recorded(t *testing.T, file string) map[string]int {
	t.Helper()
	pods := map[string]int{}
	f, err := os.Open(file)
	if err != nil {
		return pods // not yet
	}
	defer f.Close()
	lines := bufio.NewReader(f)
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			return pods // the last line may be unfinished
		}
		var record struct {
			Way, Pod string
		}
		if err := json.Unmarshal([]byte(line), &record); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if strings.HasSuffix(record.Way, "/exec") {
			pods[record.Pod]++
		}
	}
}
