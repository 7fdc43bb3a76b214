//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// Limits for how long an open session outlives its access. Whatever the Pod's grace
// period, kubelet gives every container at least 2 s before it kills it. A container
// ends sooner only if its first process ends on SIGTERM.
const (
	sessionLimit  = 2 * time.Second
	stubbornLimit = 4 * time.Second
)

// looseLimit is the limit of the short form, which does not measure. shortAccess is long enough
// for a session to begin meanwhile on a busy machine.
const (
	looseLimit  = 30 * time.Second
	shortAccess = "40s"
)

// shop is a namespace with a running workload and with templates of both kinds of
// access. The engineer alice may request access there, and nothing else.
type shop struct {
	namespace string
	alice     user
}

var (
	opened  *shop
	opening sync.Mutex
)

// openShop returns the shop. The first test that needs the shop creates it.
func openShop(t *testing.T) shop {
	t.Helper()
	opening.Lock()
	defer opening.Unlock()
	if opened == nil {
		s := newShop(t)
		opened = &s
	}
	return *opened
}

func newShop(t *testing.T) shop {
	t.Helper()
	shipped.installed(t)
	s := shop{namespace: namespace(t, "shop"), alice: newUser(t, "alice", "devs")}
	labels := map[string]string{"app": "web"}
	stubborn := restricted("sleep", "86400") // the first process of a container ignores signals that it does not handle
	config := v1alpha1.AccessConfig{AllowedGroups: []string{"devs"}, MaxDuration: "1h", MaxConcurrent: 100}
	evicting := config
	evicting.OnExpiry = v1alpha1.ExpiryEvict
	target := v1alpha1.ControllerTargetRef{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}
	meta := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Name: name, Namespace: s.namespace}
	}
	for _, object := range []client.Object{
		&rbacv1.Role{ObjectMeta: meta("access-requester"), Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{"admitkit.dev"}, Resources: []string{"podaccessrequests", "execaccessrequests"}, Verbs: []string{"create", "get", "list", "watch", "update", "patch", "delete"}},
			{APIGroups: []string{"admitkit.dev"}, Resources: []string{"podaccesstemplates", "execaccesstemplates"}, Verbs: []string{"get", "list"}},
		}},
		&rbacv1.RoleBinding{
			ObjectMeta: meta("engineers"), RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "access-requester"},
			Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: "devs"}},
		},
		&appsv1.Deployment{ObjectMeta: meta("web"), Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(1)), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: restricted("sh", "-c", "trap exit TERM; sleep 86400 & wait")},
		}},
		&v1alpha1.ExecAccessTemplate{ObjectMeta: meta("web"), Spec: v1alpha1.ExecAccessTemplateSpec{AccessConfig: config, ControllerTargetRef: target}},
		&v1alpha1.ExecAccessTemplate{ObjectMeta: meta("evicting"), Spec: v1alpha1.ExecAccessTemplateSpec{AccessConfig: evicting, ControllerTargetRef: target}},
		&v1alpha1.PodAccessTemplate{ObjectMeta: meta("debug"), Spec: v1alpha1.PodAccessTemplateSpec{AccessConfig: config, ControllerTargetRef: &target}},
		&v1alpha1.PodAccessTemplate{ObjectMeta: meta("stubborn"), Spec: v1alpha1.PodAccessTemplateSpec{AccessConfig: config, PodSpec: &stubborn}},
	} {
		if err := admin.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
	s.podOfWorkload(t)
	return s
}

// access requests access as alice and returns when it is ready.
func (s shop) access(t *testing.T, kind, template, duration string) v1alpha1.RequestStatus {
	t.Helper()
	output, err := s.alice.kubectl(t.Context(), "access", kind, template, "--namespace", s.namespace, "--duration", duration, "--reason", "e2e", "--output", "json")
	if err != nil {
		t.Fatal(err)
	}
	var request struct{ Status v1alpha1.RequestStatus }
	if err := json.Unmarshal([]byte(output), &request); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	if !request.Status.Ready || request.Status.PodName == "" {
		t.Fatalf("kubectl access %s %s: not ready: %s", kind, template, output)
	}
	return request.Status
}

// exec runs a command in a Pod as alice.
func (s shop) exec(ctx context.Context, pod string, args ...string) (string, error) {
	return s.alice.kubectl(ctx, append([]string{"exec", "--namespace", s.namespace, pod, "--"}, args...)...)
}

// mayNotExec fails the test unless RBAC refuses alice.
func (s shop) mayNotExec(t *testing.T, pod string) {
	t.Helper()
	output, err := s.exec(t.Context(), pod, "id")
	if err == nil {
		t.Errorf("alice ran a command in %s without access: %s", pod, output)
	} else if !strings.Contains(err.Error(), fmt.Sprintf("pods %q is forbidden", pod)) {
		t.Errorf("exec in %s without access failed with %v, want a forbidden Pod", pod, err)
	}
}

// podOfWorkload waits until the Deployment web has one running Pod and returns its
// name. After an eviction, this is the next Pod.
func (s shop) podOfWorkload(t *testing.T) (name string) {
	t.Helper()
	testkit.Succeeds(t, time.Minute, "one Pod of the workload runs", func(ctx context.Context) error {
		pods, err := clientset.CoreV1().Pods(s.namespace).List(ctx, metav1.ListOptions{LabelSelector: "app=web"})
		if err != nil {
			return err
		}
		if len(pods.Items) != 1 || pods.Items[0].Status.Phase != corev1.PodRunning || pods.Items[0].DeletionTimestamp != nil {
			return fmt.Errorf("%d Pods", len(pods.Items))
		}
		name = pods.Items[0].Name
		return nil
	})
	return name
}

func TestAnExecIsRecordedWithItsCommandAndItsAccess(t *testing.T) {
	parallel(t)
	s := openShop(t)
	s.mayNotExec(t, s.podOfWorkload(t))
	pod := s.access(t, "exec", "web", "5m").PodName
	script := "echo $((6 * 7)) in $(hostname)"
	output, err := s.exec(t.Context(), pod, "sh", "-c", script)
	if err != nil {
		t.Fatal(err)
	}
	if want := "42 in " + pod + "\n"; output != want {
		t.Errorf("the command in the container printed %q, want %q", output, want)
	}
	testkit.Succeeds(t, time.Minute, "the session is on record", func(ctx context.Context) error {
		var records v1alpha1.AuditEventList
		if err := admin.List(ctx, &records); err != nil {
			return err
		}
		for _, record := range records.Items {
			r := record.Spec.AuditRecord
			if r.Namespace == s.namespace && r.Pod == pod && r.User.Username == "alice" && slices.Equal(r.Command, []string{"sh", "-c", script}) && r.AccessRequest != nil {
				return nil
			}
		}
		return fmt.Errorf("none of %d records", len(records.Items))
	})
	testkit.Succeeds(t, time.Minute, "the Event is on the Pod", func(ctx context.Context) error {
		var events eventsv1.EventList
		if err := admin.List(ctx, &events, client.InNamespace(s.namespace)); err != nil {
			return err
		}
		for _, event := range events.Items {
			if event.Reason == "PodExec" && strings.Contains(event.Note, "6 * 7") {
				return nil
			}
		}
		return fmt.Errorf("none of %d Events", len(events.Items))
	})
	// The administrator finds the record with the plugin.
	if output, err := command(t.Context(), adminKubeconfig, "kubectl", "access", "audit", "--namespace", s.namespace, "--user", "alice", "--pod", pod); err != nil || !strings.Contains(output, "6 * 7") {
		t.Errorf("kubectl access audit: %v: %s", err, output)
	}
}

func TestAPodThatNamesATemplateIsMutatedAndRuns(t *testing.T) {
	parallel(t)
	s := openShop(t)
	spec := restricted("sleep", "86400")
	spec.TerminationGracePeriodSeconds = new(int64(60))
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "named", Namespace: s.namespace, Annotations: map[string]string{"admitkit.dev/access-template": "debug"}}, Spec: spec}
	if err := admin.Create(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	if pod.Spec.RestartPolicy != corev1.RestartPolicyNever || *pod.Spec.TerminationGracePeriodSeconds != 1 || pod.Spec.ActiveDeadlineSeconds == nil {
		t.Errorf("the Pod is not an access Pod: restartPolicy %s, grace period %d s, deadline %v", pod.Spec.RestartPolicy, *pod.Spec.TerminationGracePeriodSeconds, pod.Spec.ActiveDeadlineSeconds)
	}
	testkit.Succeeds(t, time.Minute, "the Pod runs", running(client.ObjectKeyFromObject(pod)))
}

func TestAPodOfAUsersOwnIsStampedInItsNamespaceAndNowhereElse(t *testing.T) {
	parallel(t)
	watched := namespace(t, one.name)
	one.alone(t)
	for _, in := range []string{watched, namespace(t, "elsewhere")} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "printer", Namespace: in}, Spec: restricted("sh", "-c", "echo STAMP_1=$STAMP_1; sleep 86400")}
		if err := admin.Create(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
		testkit.Succeeds(t, time.Minute, "the Pod runs", running(client.ObjectKeyFromObject(pod)))
		want := "STAMP_1=\n"
		if in == watched {
			want = "STAMP_1=stamped\n"
		}
		testkit.Succeeds(t, time.Minute, "the container has printed its variable", func(ctx context.Context) error {
			log, err := clientset.CoreV1().Pods(in).GetLogs("printer", &corev1.PodLogOptions{}).DoRaw(ctx)
			if err == nil && string(log) != want {
				err = fmt.Errorf("in %s it printed %q, want %q", in, log, want)
			}
			return err
		})
	}
}

func TestARegistrarApartFromTheServersRegistersForThem(t *testing.T) {
	testkit.OnlyLong(t)
	for _, r := range []release{stays, runsOnce} {
		watched := r.watched()
		r.installed(t)
		pod, err := clientset.CoreV1().Pods(watched).Create(t.Context(), gated(), metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if !stamped(pod, 1) {
			t.Errorf("%s: the Pod has the annotations %v", r.name, pod.Annotations)
		}
		replicas, err := r.replicas(t.Context())
		if err != nil || len(replicas) != 2 {
			t.Fatalf("%s: %d replicas serve, %v", r.name, len(replicas), err)
		}
		configuration, err := configurationOf(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		may := func(account string) string {
			as := fmt.Sprintf("--as=system:serviceaccount:%s:%s", r.namespace(), account)
			answer, _ := command(t.Context(), adminKubeconfig, "kubectl", "auth", "can-i", "update", "mutatingwebhookconfigurations/"+configuration.Name, as) // "no" is an error, too
			return strings.TrimSpace(answer)
		}
		if answer := may(replicas[0].Spec.ServiceAccountName); answer != "no" {
			t.Errorf("%s: may a server write its webhook configuration? %s", r.name, answer)
		}
		if answer := may(stays.name + "-admitkit-registrar"); r.name == stays.name && answer != "yes" {
			t.Errorf("%s: may the registrar write its webhook configuration? %s", r.name, answer)
		}
	}
}

func TestAnOpenSessionEndsWhenAccessDoes(t *testing.T) {
	parallel(t)
	s := openShop(t)
	for _, way := range []struct {
		kind, template, figure string
		limit                  time.Duration
	}{
		{"pod", "debug", "session.end_s", sessionLimit},
		{"pod", "stubborn", "session.stubborn_end_s", stubbornLimit},
		{"exec", "evicting", "session.evict_s", stubbornLimit},
	} {
		t.Run(way.figure, func(t *testing.T) {
			t.Parallel()
			var slowest time.Duration
			for range testkit.Long(3, 1) {
				status := s.access(t, way.kind, way.template, shortAccess)
				session := s.enter(t, status.PodName)
				if way.kind == "pod" { // whose kubelet would not shorten that time for minutes
					err := clientset.CoreV1().Pods(s.namespace).Delete(t.Context(), status.PodName, metav1.DeleteOptions{GracePeriodSeconds: new(int64(86400))})
					if !apierrors.IsForbidden(err) {
						t.Errorf("somebody lets the Pod end a day later: %v", err)
					}
				}
				slowest = max(slowest, session.ended(t, status.ExpiresAt.Time))
				pod := status.PodName
				if way.kind == "exec" { // the Pod was evicted, and access does not extend to its successor
					pod = s.podOfWorkload(t)
				}
				s.mayNotExec(t, pod)
			}
			testkit.Figure(way.figure, slowest.Seconds(), "s")
			if limit := testkit.Long(way.limit, looseLimit); slowest > limit {
				t.Errorf("a session outlived its access by %s, want at most %s", slowest, limit)
			}
		})
	}
}

// session is a command that alice runs in a Pod for as long as she can. done
// receives the time when it ended.
type session struct{ done chan time.Time }

// enter begins a session and returns when the command runs in the container.
func (s shop) enter(t *testing.T, pod string) session {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "kubectl", "exec", "--namespace", s.namespace, pod, "--", "sh", "-c", "trap '' TERM HUP; echo begun; while true; do sleep 1; done")
	cmd.Env = append(os.Environ(), "KUBECONFIG="+s.alice.kubeconfig)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	begun := make([]byte, len("begun\n"))
	if _, err := stdout.Read(begun); err != nil {
		t.Fatalf("the session did not begin: %v", errors.Join(err, cmd.Wait()))
	}
	entered := session{make(chan time.Time, 1)}
	go func() {
		_ = cmd.Wait() // kubectl fails, because the other side ends the session
		entered.done <- time.Now()
	}()
	return entered
}

// ended waits for the end of the session and returns how long after the end of
// access it came. It must not come before.
func (s session) ended(t *testing.T, end time.Time) time.Duration {
	t.Helper()
	select {
	case at := <-s.done:
		if at.Before(end) {
			t.Fatalf("the session ended %s before access did", end.Sub(at))
		}
		return at.Sub(end)
	case <-time.After(max(time.Until(end), 0) + 2*time.Minute):
		t.Fatal("the session still runs long after the end of access")
		return 0
	}
}

func running(key types.NamespacedName) func(context.Context) error {
	return func(ctx context.Context) error {
		pod, err := clientset.CoreV1().Pods(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
		if err == nil && pod.Status.Phase != corev1.PodRunning {
			err = fmt.Errorf("the Pod is %s", pod.Status.Phase)
		}
		return err
	}
}
