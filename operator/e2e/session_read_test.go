//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/internal/session/collector"
	"github.com/admitkit/admitkit/operator/internal/session/protocol"
	"github.com/admitkit/admitkit/operator/internal/session/sessionsapi"
)

// newUserWith returns a user who may do something in a namespace, and nothing else. Tests may
// share one.
func newUserWith(t *testing.T, name, namespace string, rules ...rbacv1.PolicyRule) user {
	t.Helper()
	meta := metav1.ObjectMeta{Namespace: namespace, Name: name}
	for _, object := range []client.Object{
		&rbacv1.Role{ObjectMeta: meta, Rules: rules},
		&rbacv1.RoleBinding{
			ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
			Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: name}},
		},
	} {
		if err := client.IgnoreAlreadyExists(admin.Create(t.Context(), object)); err != nil {
			t.Fatal(err)
		}
	}
	return newUser(t, name)
}

func rule(group, resource string, verbs ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, Verbs: verbs}
}

// mayExec are the rights of who begins a session by rights of their own.
func mayExec() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{rule("", "pods", "get"), rule("", "pods/exec", "create")}
}

const sessionsGroup = "sessions.admitkit.dev"

// sessionOf returns the ID of the one session of a command in a Pod.
func sessionOf(t *testing.T, pod *corev1.Pod, command ...string) (id string) {
	t.Helper()
	testkit.Succeeds(t, time.Minute, "the session of "+pod.Name+" is recorded", func(context.Context) error {
		found := sessionsOf(t, pod, command...)
		if len(found) != 1 {
			return fmt.Errorf("%d are", len(found))
		}
		id = found[0]
		return nil
	})
	return id
}

// sealed waits until a recording is sealed: a short session's is once nobody can contest its ticket
// any more.
func sealed(t *testing.T, id string) (seal *collector.Seal, err error) {
	t.Helper()
	testkit.Eventually(t, "the recording is sealed", func(context.Context) bool {
		seal, err = recordings().Verify(id, sessionKey)
		return !errors.Is(err, collector.ErrNotSealed)
	})
	return seal, err
}

// sessionsOf returns the IDs of all sessions of a command in a Pod.
func sessionsOf(t *testing.T, pod *corev1.Pod, command ...string) (ids []string) {
	t.Helper()
	for id, valid := range sessionIDs(t) {
		redeemed, err := collector.ReadRedeemed(t.Context(), recordings(), id)
		if valid && err == nil && redeemed.Ticket.PodUID == string(pod.UID) && redeemed.Ticket.Command == protocol.Sum(command) {
			ids = append(ids, id)
		}
	}
	return ids
}

// sessions runs kubectl access sessions in the recorded namespace.
func (u user) sessions(t *testing.T, args ...string) (string, error) {
	t.Helper()
	return u.kubectl(t.Context(), append([]string{"access", "sessions", "--namespace", recorded}, args...)...)
}

func TestRecordingsAreReadThroughTheAPIServerByThoseWhoMay(t *testing.T) {
	parallel(t)
	needsRecordings(t)
	for _, name := range []string{plain, recorded} {
		if err := makeNamespace(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	pod := sessionPod(t, recorded, "read", func(*corev1.PodSpec) {})
	carol := newUserWith(t, "carol", recorded, mayExec()...)
	auditor := newUserWith(t, "auditor", recorded, rule(sessionsGroup, "sessions", "get", "list"), rule(sessionsGroup, "sessions/log", "get", "watch"))
	operator := newUserWith(t, "operator", recorded, rule(sessionsGroup, "sessions", "get", "list", "delete"))
	stranger := newUserWith(t, "stranger", plain, rule(sessionsGroup, "*", "get", "list", "watch", "delete"))

	command := script("echo needle-$((6 * 7)); exec cat")
	session := carol.enter(t, pod.Name, command...)
	session.expect("needle-42")
	id := sessionOf(t, pod, command...)
	testkit.Succeeds(t, time.Minute, "the session is live in a list", func(context.Context) error {
		out, err := auditor.sessions(t, "list", "--live")
		if err == nil && (!strings.Contains(out, id) || !strings.Contains(out, "carol")) {
			err = errors.New(out)
		}
		return err
	})
	if out, err := auditor.kubectl(t.Context(), "get", "sessions", "--namespace", recorded, id); err != nil || !strings.Contains(out, "Live") {
		t.Errorf("kubectl get sessions: %v: %s", err, out)
	}
	watch := testkit.Run(t, auditor.kubectlBy("true", "access", "sessions", "--namespace", recorded, "watch", id))
	watch.Await(t, "needle-42")
	session.send("typed later\n")
	watch.Await(t, "typed later")

	// What else is refused, operator/session tries at its API.
	if out, err := operator.sessions(t, "replay", id); err == nil || !strings.Contains(err.Error(), "sessions/log") || strings.Contains(out, "needle") {
		t.Errorf("a user who lists reads: %v: %s", err, out)
	}
	if out, err := stranger.kubectl(t.Context(), "access", "sessions", "--namespace", plain, "replay", id); err == nil || !strings.Contains(err.Error(), "not found") {
		t.Errorf("a session of another namespace: %v: %s", err, out)
	}

	if out, err := operator.sessions(t, "end", id); err != nil {
		t.Errorf("end: %v: %s", err, out)
	}
	if got := session.end(); got.code != 137 || !strings.Contains(string(got.stderr)+string(got.stdout), "it was ended by operator") {
		t.Errorf("the session ended with %d: %s%s", got.code, brief(got.stdout), brief(got.stderr))
	}
	watch.Await(t, "[the session ended with exit code 137]")
	if err := watch.Wait(); err != nil {
		t.Errorf("watch: %v", err)
	}
	if left := leftProcesses(t, pod.Name); left != 0 {
		t.Errorf("%d processes are left", left)
	}
	if _, err := sealed(t, id); err != nil {
		t.Fatal(err)
	}
	readsWhatIsThere(t, auditor, id)
	readingsAreOnRecord(t, id)
}

// readsWhatIsThere reads the recording of a session that has ended, in all ways.
func readsWhatIsThere(t *testing.T, auditor user, id string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "session.cast")
	for _, way := range []struct {
		args []string
		has  string
	}{
		{[]string{"replay", id, "--text"}, "needle-42\ntyped later\n"},
		{[]string{"replay", id, "--speed", "50", "--idle-limit", "100ms"}, "typed later\r\n"},
		{[]string{"search", "typed la"}, "typed later"},
		{[]string{"verify", id}, "yes"},
		{[]string{"list", "--user", "carol", "--output", "wide"}, "it was ended by operator"},
		{[]string{"export", id, "--output", file}, ""},
	} {
		if out, err := auditor.sessions(t, way.args...); err != nil || !strings.Contains(out, way.has) {
			t.Errorf("%s: %v: %s", way.args, err, out)
		}
	}
	cast, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	header, _, _ := bytes.Cut(cast, []byte("\n"))
	var version struct{ Version int }
	if err := json.Unmarshal(header, &version); err != nil || version.Version != 3 || !bytes.Contains(cast, []byte("needle-42")) {
		t.Errorf("the exported file begins with %s, %v", header, err)
	}
	changed(t, id, func() {
		if out, err := auditor.sessions(t, "verify", id); err == nil || !strings.Contains(err.Error(), collector.ErrChanged.Error()) {
			t.Errorf("verify of a recording that was changed: %v: %s", err, out)
		}
	})
}

// changed changes a byte of a recording on the node meanwhile.
func changed(t *testing.T, id string, meanwhile func()) {
	t.Helper()
	parts, err := filepath.Glob(filepath.Join(string(recordings()), id, "*.part"))
	if err != nil || len(parts) == 0 {
		t.Fatalf("%d parts, %v", len(parts), err)
	}
	before, err := os.ReadFile(parts[0])
	if err != nil {
		t.Fatal(err)
	}
	after := bytes.Replace(before, []byte("needle"), []byte("noodle"), 1)
	if bytes.Equal(before, after) {
		t.Fatal("nothing to change")
	}
	if err := os.WriteFile(parts[0], after, 0o600); err != nil {
		t.Fatal(err)
	}
	meanwhile()
	if err := os.WriteFile(parts[0], before, 0o600); err != nil {
		t.Fatal(err)
	}
}

// readingsAreOnRecord checks that it is on record who read, followed, searched and ended.
func readingsAreOnRecord(t *testing.T, id string) {
	t.Helper()
	var events v1alpha1.AuditEventList
	if err := admin.List(t.Context(), &events); err != nil {
		t.Fatal(err)
	}
	for _, want := range []struct{ by, action string }{{"auditor", "read"}, {"auditor", "watched"}, {"auditor", "searched"}, {"operator", "ended"}} {
		if !slices.ContainsFunc(events.Items, func(e v1alpha1.AuditEvent) bool {
			r := &e.Spec.AuditRecord
			return r.User.Username == want.by && r.Verb == want.action && r.Namespace == recorded && (want.action == "searched" || r.Object != nil && r.Object.Name == id)
		}) {
			t.Errorf("it is not on record that %s has %s", want.by, want.action)
		}
	}
}

// apiService returns the APIService of sessions.
func apiService(ctx context.Context) (*unstructured.Unstructured, error) {
	found := &unstructured.Unstructured{}
	found.SetGroupVersionKind(schema.GroupVersionKind{Group: "apiregistration.k8s.io", Version: "v1", Kind: "APIService"})
	err := admin.Get(ctx, types.NamespacedName{Name: sessionsapi.GroupVersion.Version + "." + sessionsapi.GroupVersion.Group}, found)
	return found, err
}

// availability is what the APIService of sessions says about that.
func availability(ctx context.Context) string {
	service, err := apiService(ctx)
	if err != nil {
		return err.Error()
	}
	conditions, _, _ := unstructured.NestedSlice(service.Object, "status", "conditions")
	return fmt.Sprint(conditions)
}

// The API server must know whom it asks: it names the users.
func TestTheAPIServerVerifiesWhomItAsksAboutSessions(t *testing.T) {
	testkit.OnlyLong(t)
	needsRecordings(t)
	ask := func(ctx context.Context) error {
		_, err := command(ctx, adminKubeconfig, "kubectl", "get", "--raw", "/apis/"+sessionsapi.GroupVersion.String())
		return err
	}
	testkit.Succeeds(t, time.Minute, "the API server reaches the replicas", ask)
	service, err := apiService(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	bundle, _, _ := unstructured.NestedString(service.Object, "spec", "caBundle")
	if insecure, _, _ := unstructured.NestedBool(service.Object, "spec", "insecureSkipTLSVerify"); insecure || bundle == "" {
		t.Fatalf("the API server does not verify whom it asks: %v", service.Object["spec"])
	}
	stranger := base64.StdEncoding.EncodeToString(strangersCA(t))
	// The replicas look every 10 s: they may repair it before the question arrives.
	testkit.Succeeds(t, time.Minute, "with the CA of somebody else it does not ask", func(ctx context.Context) error {
		patch := fmt.Sprintf(`{"spec":{"caBundle":%q}}`, stranger)
		if err := admin.Patch(ctx, service, client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
			return err
		}
		for deadline := time.Now().Add(3 * time.Second); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
			// Who finds it out first is who asks, or what looks whether the API is available.
			if err := ask(ctx); err != nil && (strings.Contains(err.Error(), "x509") || strings.Contains(availability(ctx), "x509")) {
				return nil
			}
		}
		return errors.New("it asks")
	})
	began := time.Now()
	testkit.Succeeds(t, time.Minute, "the replicas repair it", func(ctx context.Context) error {
		now, err := apiService(ctx)
		if err != nil {
			return err
		}
		if is, _, _ := unstructured.NestedString(now.Object, "spec", "caBundle"); is != bundle {
			return errors.New("it is still that of somebody else")
		}
		return ask(ctx)
	})
	testkit.Figure("session.api_repair_s", time.Since(began).Seconds(), "s")
}

// strangersCA returns the certificate of an authority that signs nothing here.
func strangersCA(t *testing.T) []byte {
	t.Helper()
	file := filepath.Join(t.TempDir(), "ca.crt")
	testkit.NewClientCA(t).Write(t, file)
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return text
}
