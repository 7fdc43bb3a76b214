//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// endLimit is how long a session on a terminal may outlive its access: the client must hear
// of it, too.
const endLimit = 2 * time.Second

// guest may request access in the recorded namespace, and nothing else there.
func guest(t *testing.T) user {
	t.Helper()
	if err := makeNamespace(t.Context(), recorded); err != nil {
		t.Fatal(err)
	}
	return newUserWith(t, "guest", recorded,
		rule("admitkit.dev", "execaccessrequests", "create", "get", "list", "watch", "update", "patch", "delete"),
		rule("admitkit.dev", "podaccessrequests", "create", "get", "list", "watch", "update", "patch", "delete"),
		rule("admitkit.dev", "execaccesstemplates", "get", "list"), rule("admitkit.dev", "podaccesstemplates", "get", "list"))
}

// granted is a request that was granted.
type granted struct {
	by   user
	name string
	pod  string
}

// ask requests access, and returns when it is ready.
func (u user) ask(t *testing.T, kind, template, duration string) granted {
	t.Helper()
	out, err := u.kubectl(t.Context(), "access", kind, template, "--namespace", recorded, "--duration", duration, "--reason", "e2e", "--output", "json")
	if err != nil {
		t.Fatal(err)
	}
	var request struct {
		Metadata metav1.ObjectMeta
		Status   v1alpha1.RequestStatus
	}
	if err := json.Unmarshal([]byte(out), &request); err != nil || !request.Status.Ready {
		t.Fatalf("kubectl access %s %s: %v: %s", kind, template, err, out)
	}
	return granted{u, request.Metadata.Name, request.Status.PodName}
}

// end returns when access ends.
func (g granted) end(t *testing.T) time.Time {
	t.Helper()
	var request v1alpha1.ExecAccessRequest
	if err := admin.Get(t.Context(), client.ObjectKey{Namespace: recorded, Name: g.name}, &request); err != nil {
		t.Fatal(err)
	}
	end, err := v1alpha1.EndOf(&request)
	if err != nil {
		t.Fatal(err)
	}
	return end
}

// shorten has access end in that time.
func (g granted) shorten(t *testing.T, left time.Duration) {
	t.Helper()
	by := time.Until(g.end(t)).Truncate(time.Second) - left
	if _, err := g.by.kubectl(t.Context(), "access", "extend", "--namespace", recorded, g.name, "-"+by.String()); err != nil {
		t.Fatal(err)
	}
}

func TestASessionEndsWithItsGrantAndThePodStays(t *testing.T) {
	parallel(t)
	needsRecordings(t)
	alice := guest(t)
	pod := sessionPod(t, recorded, "granted", func(*corev1.PodSpec) {})
	if err := admin.Create(t.Context(), &v1alpha1.ExecAccessTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: recorded, Name: "granted"}, Spec: v1alpha1.ExecAccessTemplateSpec{
		AccessConfig:        v1alpha1.AccessConfig{AllowedUsers: []string{"guest"}, MaxDuration: "1h", MaxConcurrent: 10, OnExpiry: v1alpha1.ExpiryEndSession},
		ControllerTargetRef: v1alpha1.ControllerTargetRef{APIVersion: "v1", Kind: "Pod", Name: pod.Name},
	}}); err != nil {
		t.Fatal(err)
	}
	var slowest time.Duration
	for _, way := range []struct {
		name, why string
		end       func(*testing.T, granted, *kubectlClient) time.Time
	}{
		{"at its second, after two warnings", " ends", func(t *testing.T, g granted, session *kubectlClient) time.Time {
			session.expect("This session ends in 5 minutes: access by request " + g.name + " ends.")
			g.shorten(t, 65*time.Second)
			session.expect("This session ends in 1 minute: access by request " + g.name + " ends.")
			g.shorten(t, 5*time.Second)
			return g.end(t)
		}},
		{"when it is revoked", " was revoked", func(t *testing.T, g granted, _ *kubectlClient) time.Time {
			if _, err := g.by.kubectl(t.Context(), "access", "revoke", "--namespace", recorded, g.name); err != nil {
				t.Fatal(err)
			}
			return time.Now()
		}},
		{"when its request is deleted", " was ", // what is gone may be the RoleBinding first
			func(t *testing.T, g granted, _ *kubectlClient) time.Time {
				if _, err := g.by.kubectl(t.Context(), "delete", "execaccessrequest", "--namespace", recorded, g.name, "--wait=false"); err != nil {
					t.Fatal(err)
				}
				return time.Now()
			}},
	} {
		t.Run(way.name, func(t *testing.T) {
			g := alice.ask(t, "exec", "granted", "5m10s")
			command := script("trap '' TERM HUP INT; setsid sleep 9999 & nohup sleep 9999 >/dev/null 2>&1 & echo ready for " + g.name + "; while :; do sleep 1; done")
			session := alice.enter(t, g.pod, command...)
			session.expect("ready for " + g.name)
			id := sessionOf(t, pod, command...)
			end := way.end(t, g, session)
			got := session.end()
			late := time.Since(end)
			if slowest = max(slowest, late); late < 0 || late > testkit.Long(endLimit, looseLimit) {
				t.Errorf("the session ended %s after its access", late)
			}
			why := "access by request " + g.name + way.why
			if said := string(got.stdout) + string(got.stderr); got.code != 137 || !strings.Contains(said, "the session was ended: access by request "+g.name) {
				t.Errorf("it ended with %d: %q", got.code, said)
			}
			endedBecause(t, id, g.name, why)
			testkit.Succeeds(t, time.Minute, "no other session begins", func(ctx context.Context) error {
				if out, err := alice.kubectl(ctx, "exec", "--namespace", recorded, g.pod, "--", "id"); err == nil || !strings.Contains(err.Error(), "forbidden") {
					return errors.Join(errors.New(out), err)
				}
				return nil
			})
			if left := leftProcesses(t, pod.Name); left != 0 {
				t.Errorf("%d processes are left", left)
			}
		})
	}
	testkit.Figure("session.grant_end_s", slowest.Seconds(), "s")
	now, err := clientset.CoreV1().Pods(recorded).Get(t.Context(), pod.Name, metav1.GetOptions{})
	if err != nil || now.UID != pod.UID || now.DeletionTimestamp != nil || now.Status.ContainerStatuses[0].RestartCount != 0 {
		t.Errorf("the Pod has not stayed: %v: %+v", err, now.Status)
	}
}

// endedBecause checks what is on record about the end of a session. Without the name of a request it may be of none.
func endedBecause(t *testing.T, id, request, why string) {
	t.Helper()
	testkit.Succeeds(t, time.Minute, "it is on record why the session ended", func(ctx context.Context) error {
		var event v1alpha1.AuditEvent
		if err := admin.Get(ctx, client.ObjectKey{Name: id}, &event); err != nil {
			return err
		}
		if by := event.Spec.AccessRequest; request != "" && (by == nil || by.Name != request) {
			t.Errorf("the AuditEvent has the request %+v", by)
		}
		switch s := event.Status.Session; {
		case s == nil:
			return errors.New("the AuditEvent has no session")
		case s.ExitCode != 137 || s.LeftProcesses != 0 || !strings.HasPrefix(s.Reason, why):
			return fmt.Errorf("it is %+v", s)
		}
		return nil
	})
	if _, err := sealed(t, id); err != nil {
		t.Error(err)
	}
}

func TestASessionInAnAccessPodEndsWithItsRequest(t *testing.T) {
	parallel(t)
	needsRecordings(t)
	alice := guest(t)
	spec := restricted("sleep", "86400")
	if err := admin.Create(t.Context(), &v1alpha1.PodAccessTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: recorded, Name: "debug"}, Spec: v1alpha1.PodAccessTemplateSpec{
		AccessConfig: v1alpha1.AccessConfig{AllowedUsers: []string{"guest"}, MaxDuration: "1h", MaxConcurrent: 10}, PodSpec: &spec,
	}}); err != nil {
		t.Fatal(err)
	}
	g := alice.ask(t, "pod", "debug", shortAccess)
	pod, err := clientset.CoreV1().Pods(recorded).Get(t.Context(), g.pod, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	command := script("echo ready; exec cat")
	session := alice.enter(t, g.pod, command...)
	session.expect("ready")
	id := sessionOf(t, pod, command...)
	if got := session.end(); got.code == 0 {
		t.Errorf("it ended with 0: %q", got.stdout)
	}
	// The recorder says so, or who sees that its Pod is deleted.
	endedBecause(t, id, g.name, "access by request "+g.name)
}
