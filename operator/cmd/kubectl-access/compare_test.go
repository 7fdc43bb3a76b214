package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/cmd/kubectl-access/internal/cli"
)

// runningPod makes a Pod that alice may exec into.
func runningPod(t *testing.T, namespace string) string {
	t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "web-", Namespace: namespace},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "example.com/web"}}},
	}
	if err := admin.Create(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the Pod runs", func(ctx context.Context) bool {
		return admin.Get(ctx, client.ObjectKeyFromObject(pod), pod) == nil && pod.Status.Phase == corev1.PodRunning
	})
	return pod.Name
}

func TestTheAuditLogOfTheAPIServerShowsWhatHasNoRecord(t *testing.T) {
	t.Parallel()
	since := time.Now().Add(-time.Second).UTC().Format(time.RFC3339)
	execIn := func(namespace, pod, word string) {
		t.Helper()
		if output, err := cluster.Kubectl(t.Context(), nil, "exec", "-n", namespace, pod, "--", "true", word).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, output)
		}
	}
	compare := func(file, namespace, pod string, code int, words ...string) outcome {
		t.Helper()
		return kubectlAccess(t, nil, "audit", "--compare", file, "-n", namespace, "--pod", pod, "--since", since).expect(t, code, words...)
	}
	seen, unseen := runningPod(t, namespace), runningPod(t, metav1.NamespaceDefault)
	execIn(namespace, seen, "seen")
	testkit.Eventually(t, "the sink, which is Open, has the record", func(context.Context) bool {
		return strings.Contains(kubectlAccess(t, nil, "audit", "-n", namespace, "--pod", seen).stdout, "true seen")
	})
	compare(auditLog, namespace, seen, 0, "1 acts in namespace "+namespace+", and each has a record")

	// No webhook is registered there.
	execIn(metav1.NamespaceDefault, unseen, "unseen")
	o := compare(auditLog, metav1.NamespaceDefault, unseen, cli.CodeError, "1 of 1 acts", "no record")
	if !strings.Contains(o.stdout, "true unseen") || !strings.Contains(o.stdout, "the API server did not ask admitkit") {
		t.Errorf("the list has %s", o.stdout)
	}

	// The record of the first exec is lost.
	log, err := os.ReadFile(auditLog)
	if err != nil {
		t.Fatal(err)
	}
	lost := filepath.Join(t.TempDir(), "audit.log")
	if err := os.WriteFile(lost, append(regexp.MustCompile(`record":"[0-9a-f-]+"`).ReplaceAll(log, []byte(`record":"lost"`)), "{"...), 0o600); err != nil {
		t.Fatal(err)
	}
	o = compare(lost, namespace, seen, cli.CodeError, "1 of 1 acts", "is not complete yet")
	if !strings.Contains(o.stdout, "its record is lost, or was deleted") {
		t.Errorf("the list has %s", o.stdout)
	}

	// The act of the record never was, in an hour that the log covers.
	event := func(of time.Duration) string {
		return fmt.Sprintf("{\"requestReceivedTimestamp\":%q}\n", time.Now().Add(of).UTC().Format(metav1.RFC3339Micro))
	}
	without := event(-time.Hour)
	for line := range strings.Lines(string(log)) {
		if !strings.Contains(line, seen) && strings.HasSuffix(line, "\n") {
			without += line
		}
	}
	if err := os.WriteFile(lost, []byte(without+event(time.Hour)), 0o600); err != nil {
		t.Fatal(err)
	}
	o = compare(lost, namespace, seen, cli.CodeError, "1 records in namespace "+namespace, "somebody has forged them")
	if !strings.Contains(o.stdout, "true seen") {
		t.Errorf("the list has %s", o.stdout)
	}
	if err := os.WriteFile(lost, []byte("{}\nno event\n{}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	compare(lost, namespace, seen, cli.CodeUsage, "line 2 is not an event")
	compare("/no/such/file", namespace, seen, cli.CodeUsage, "/no/such/file")
	kubectlAccess(t, nil, "audit", "--compare", auditLog, "-w").expect(t, cli.CodeUsage, "--watch")
}
