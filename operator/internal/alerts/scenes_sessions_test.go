package alerts

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/freeport"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/internal/session/collector"
	"github.com/admitkit/admitkit/operator/internal/session/protocol"
	"github.com/admitkit/admitkit/operator/session"
)

// What is in the folder of a program: recordings, and files that make something fail, or have
// it be later.
const (
	recordings    = "recordings"
	storageClosed = "storage-closed"
	storageBroken = "storage-broken"
	minutesLater  = "minutes-later"
)

// recording is the extension that records sessions, and evicts Pods.
func recording(s settings) *session.Session {
	return session.New(session.Options{
		Image: "example.com/session:1", KeyFolder: s.Folder, Location: "test://recordings/",
		Storage: func(context.Context) (collector.Storage, error) {
			if s.has(storageClosed) {
				return nil, errors.New("nobody answers")
			}
			return storage{collector.Folder(filepath.Join(s.Folder, recordings)), s}, nil
		},
		Port: s.Port, ServerName: "127.0.0.1", Collectors: []string{fmt.Sprintf("127.0.0.1:%d", s.Port)},
		Unrecorded: session.Open, Evict: true, Clock: clock{s},
		AuditObjects: true, // which nobody makes here
	})
}

func (s *settings) has(name string) bool {
	_, err := os.Stat(filepath.Join(s.Folder, name))
	return err == nil
}

// storage keeps nothing new while it is broken.
type storage struct {
	collector.Storage
	settings
}

func (s storage) Create(ctx context.Context, name string, content []byte) error {
	if s.has(storageBroken) {
		return errors.New("the disk is full")
	}
	return s.Storage.Create(ctx, name, content)
}

// clock may be some minutes ahead.
type clock struct{ settings }

func (c clock) Now() time.Time {
	if c.has(minutesLater) {
		return time.Now().Add(3 * time.Minute)
	}
	return time.Now()
}

func (c clock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

// recorder connects as the recorder of a Pod does.
type recorder struct {
	*stage
	key   protocol.Key
	pod   *corev1.Pod
	token string
	port  int32
}

// connect presents a new ticket, and returns the status of the answer.
func (r *recorder) connect() (status int, conn *tls.Conn, from *bufio.Reader) {
	r.Helper()
	ticket, err := r.key.Sign(&protocol.Ticket{
		ID: protocol.NewID(), Namespace: r.namespace, Pod: r.pod.Name, PodUID: string(r.pod.UID), Container: "web", User: "alice",
		Command: protocol.Sum([]string{"sh"}), Expires: time.Now().Add(protocol.Life).Unix(), Terms: protocol.Terms{Collectors: []string{"any"}},
	})
	if err != nil {
		r.Fatal(err)
	}
	testkit.Succeeds(r, time.Minute, "the collector listens", func(ctx context.Context) error {
		dialer := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13}}
		plain, err := dialer.DialContext(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", r.port))
		if err == nil {
			conn = plain.(*tls.Conn)
		}
		return err
	})
	r.Cleanup(func() { _ = conn.Close() })
	_, err = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: c\r\nConnection: Upgrade\r\nUpgrade: %s\r\nContent-Length: 0\r\nAuthorization: Bearer %s\r\n%s: %s\r\n%s: %s\r\n\r\n",
		protocol.Path, protocol.Upgrade, r.token, protocol.HeaderTicket, ticket, protocol.HeaderSecret, strings.Repeat("s", 64))
	if err != nil {
		r.Fatal(err)
	}
	from = bufio.NewReader(conn)
	response, err := http.ReadResponse(from, nil)
	if err != nil {
		r.Fatal(err)
	}
	_ = response.Body.Close()
	return response.StatusCode, conn, from
}

// record sends a whole session, of which something was not recorded.
func (r *recorder) record() {
	r.Helper()
	status, conn, from := r.connect()
	if status != http.StatusSwitchingProtocols {
		r.Fatalf("the recorder is refused: %d", status)
	}
	frames := []protocol.Frame{
		{Type: protocol.Begin, Data: marshal(r, protocol.Head{Time: time.Now(), Command: []string{"sh"}})},
		{Type: protocol.Gap, Data: []byte("1000 bytes are not recorded: no collector was reached")},
		{Type: protocol.Exit, At: time.Second, Data: marshal(r, protocol.End{})},
	}
	for n := range frames {
		frames[n].Seq = uint64(n + 1)
		if _, err := conn.Write(frames[n].Append(nil)); err != nil {
			r.Fatal(err)
		}
	}
	for {
		frame, err := protocol.Read(from)
		if err != nil {
			r.Fatal(err)
		}
		if frame.Type == protocol.Ack && frame.Seq == uint64(len(frames)) {
			return
		}
	}
}

func marshal(t testing.TB, value any) []byte {
	t.Helper()
	text, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// token returns one of the ServiceAccount default, bound to a Pod if there is one.
func token(s *stage, namespace, audience string, pod *corev1.Pod) string {
	s.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "default"}}
	testkit.Create(s, admin, account)
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: []string{audience}}}
	if pod != nil {
		request.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}
	}
	if err := admin.SubResource("token").Create(s.Context(), account, request); err != nil {
		s.Fatal(err)
	}
	return request.Status.Token
}

// guarded makes a Pod that runs, and that nobody may evict.
func guarded(s *stage) *corev1.Pod {
	s.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "web", Labels: map[string]string{"app": "web"}},
		Spec:       corev1.PodSpec{ServiceAccountName: "default", Containers: []corev1.Container{{Name: "web", Image: "example.com/web:1"}}},
	}
	one := intstr.FromInt32(1)
	budget := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "web"},
		Spec:       policyv1.PodDisruptionBudgetSpec{MinAvailable: &one, Selector: &metav1.LabelSelector{MatchLabels: pod.Labels}},
	}
	testkit.Create(s, admin, pod, budget)
	pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}} // the budget does not keep others
	budget.Status = policyv1.PodDisruptionBudgetStatus{ObservedGeneration: budget.Generation, ExpectedPods: 1, CurrentHealthy: 1, DesiredHealthy: 1}
	for _, object := range []client.Object{pod, budget} { // as their controllers do
		if err := admin.Status().Update(s.Context(), object); err != nil {
			s.Fatal(err)
		}
	}
	return pod
}

func unrecorded(s *stage) {
	key := protocol.Key{Current: bytes.Repeat([]byte("k"), protocol.MinKey)}
	with := settings{Extensions: "session", Folder: s.TempDir(), Port: freeport.For(s)}
	file(s, with.Folder, "key", key.Current)
	if err := os.Mkdir(filepath.Join(with.Folder, recordings), 0o700); err != nil {
		s.Fatal(err)
	}
	s.start(with)
	testkit.Within(s, time.Minute, "the storage is open", func(context.Context) bool { return s.now()["admitkit_session_storage_open"] == "1" })
	s.scrape()
	pod := guarded(s)
	r := &recorder{s, key, pod, token(s, s.namespace, session.Audience, pod), with.Port}
	if status, _, _ := r.connect(); status != http.StatusSwitchingProtocols { // and says nothing
		s.Fatalf("the recorder is refused: %d", status)
	}
	s.exec("web")
	r.record()
	s.until(`admitkit_session_evictions_total\{result="refused"`)
	s.until("admitkit_session_unreported_total") // once the recording is sealed
	file(s, with.Folder, storageBroken, nil)
	for range 5 {
		r.connect()
	}
	file(s, with.Folder, minutesLater, nil)
	s.until(`admitkit_session_unredeemed_total\{result="never-began"`)
	s.scrape()
	s.kill()
	file(s, with.Folder, storageClosed, nil)
	s.start(with)
	testkit.Within(s, time.Minute, "the storage is not open", func(context.Context) bool { return s.now()["admitkit_session_storage_open"] == "0" })
	s.scrape()
}
