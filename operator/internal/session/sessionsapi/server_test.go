package sessionsapi_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	authorizationv1client "k8s.io/client-go/kubernetes/typed/authorization/v1"
	testclock "k8s.io/utils/clock/testing"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/internal/session/collector"
	"github.com/admitkit/admitkit/operator/internal/session/protocol"
	"github.com/admitkit/admitkit/operator/internal/session/sessionsapi"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// yes allows everything, but to users named tenant only in one namespace.
type yes struct {
	authorizationv1client.SubjectAccessReviewInterface
}

func (yes) Create(_ context.Context, review *authorizationv1.SubjectAccessReview, _ metav1.CreateOptions) (*authorizationv1.SubjectAccessReview, error) {
	review.Status.Allowed = !strings.HasPrefix(review.Spec.User, "tenant") || review.Spec.ResourceAttributes.Namespace != ""
	return review, nil
}

// shop is the only namespace, unless it is nil or cannot be read.
type shop struct {
	*corev1.Namespace
	failed error
	// held holds answers up, unless it is nil. asked is called before.
	held  chan struct{}
	asked func()
}

func (s *shop) Get(_ context.Context, name string, _ metav1.GetOptions) (*corev1.Namespace, error) {
	if s.held != nil {
		s.asked()
		<-s.held
	}
	switch {
	case s.failed != nil:
		return nil, s.failed
	case s.Namespace == nil || name != "shop":
		return nil, apierrors.NewNotFound(corev1.Resource("namespaces"), name)
	}
	return s.Namespace, nil
}

type forgets struct{}

func (forgets) Record(context.Context, extension.Record) error { return nil }

// served is a Server without an API server before it.
type served struct {
	t      *testing.T
	folder collector.Folder
	clock  *testclock.FakeClock
	ca     *testkit.ClientCA
	web    *httptest.Server
	key    protocol.Key
	shop   shop
}

func serve(t *testing.T) *served {
	s := &served{
		t: t, folder: collector.Folder(t.TempDir()), clock: testclock.NewFakeClock(time.Now()), ca: testkit.NewClientCA(t),
		key: protocol.Key{Current: bytes.Repeat([]byte("k"), 32)},
	}
	s.shop.Namespace = &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{UID: "first", CreationTimestamp: metav1.NewTime(s.clock.Now().Add(-24 * time.Hour))}}
	server := sessionsapi.New(sessionsapi.Options{
		Storage: s.folder, Key: func() (protocol.Key, error) { return s.key, nil }, End: func(context.Context, string, string) error { return nil },
		Recorder: forgets{}, Reviews: yes{}, Namespaces: &s.shop, Now: s.clock.Now, Log: zap.NewNop(),
		FrontProxy: func(context.Context) (map[string]string, error) {
			return map[string]string{
				"requestheader-client-ca-file":   string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.ca.Certificate.Raw})),
				"requestheader-username-headers": `["X-Remote-User"]`, "requestheader-allowed-names": "[]",
			}, nil
		},
	})
	s.web = httptest.NewUnstartedServer(server)
	s.web.TLS = &tls.Config{ClientAuth: tls.RequestClientCert, MinVersion: tls.VersionTLS13}
	s.web.StartTLS()
	t.Cleanup(s.web.Close)
	return s
}

// get asks as a user, by a connection of its own.
func (s *served) get(ctx context.Context, by *testkit.ClientCA, user, path string) *http.Response {
	s.t.Helper()
	transport := &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{
		Certificates: []tls.Certificate{*by.Issue(s.t, "front", x509.ExtKeyUsageClientAuth)}, InsecureSkipVerify: true, MinVersion: tls.VersionTLS13,
	}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.web.URL+"/apis/sessions.admitkit.dev/v1alpha1"+path, http.NoBody)
	if err != nil {
		s.t.Fatal(err)
	}
	request.Header.Set("X-Remote-User", user)
	response, err := transport.RoundTrip(request)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = response.Body.Close() })
	return response
}

// session stores a session that has not ended.
func (s *served) session(began time.Time, frames ...protocol.Frame) string {
	s.t.Helper()
	return s.sessionIn("first", began, frames...)
}

// sessionIn is session in the namespace with a UID.
func (s *served) sessionIn(uid string, began time.Time, frames ...protocol.Frame) string {
	s.t.Helper()
	id := protocol.NewID()
	text, err := json.Marshal(collector.Redeemed{At: began, NamespaceUID: uid, Ticket: protocol.Ticket{ID: id, Namespace: "shop", Pod: "web", PodUID: "u", Container: "c", User: "alice"}})
	if err != nil {
		s.t.Fatal(err)
	}
	if err := s.folder.Create(s.t.Context(), id+"/session.json", text); err != nil {
		s.t.Fatal(err)
	}
	part, err := s.folder.Part(s.t.Context(), id, 1)
	if err != nil {
		s.t.Fatal(err)
	}
	head, _ := json.Marshal(protocol.Head{Time: began, Command: []string{"id"}})
	content := (&protocol.Frame{Type: protocol.Begin, Seq: 1, Data: head}).Append(nil)
	for _, frame := range frames {
		content = frame.Append(content)
	}
	if err := part.Append(s.t.Context(), content); err != nil {
		s.t.Fatal(err)
	}
	if err := part.Close(); err != nil {
		s.t.Fatal(err)
	}
	return id
}

func TestAnAuthorityThatRotatesIsReadAnew(t *testing.T) {
	s := serve(t)
	old := s.ca
	is := func(what string, by *testkit.ClientCA, code int) {
		t.Helper()
		if response := s.get(t.Context(), by, "alice", ""); response.StatusCode != code { //nolint:bodyclose // get has it closed
			t.Errorf("%s: %s", what, response.Status)
		}
	}
	is("the authority", old, 200)
	s.ca = testkit.NewClientCA(t)
	is("the next one, which is not asked for so soon", s.ca, 401)
	s.clock.Step(10 * time.Second)
	is("the one before, which is believed for a minute", old, 200)
	is("the next one", s.ca, 200)
	is("the one before", old, 401)
}

func TestReadersAreBounded(t *testing.T) {
	s := serve(t)
	id := s.session(s.clock.Now())
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	watch := "/watch/namespaces/shop/sessions/" + id + "/log"
	for range 4 {
		s.watch(ctx, "alice", watch)
	}
	refused := func(what, user, path, why string) {
		t.Helper()
		response := s.get(ctx, s.ca, user, path) //nolint:bodyclose // get has it closed
		if text, _ := io.ReadAll(response.Body); response.StatusCode != http.StatusTooManyRequests || response.Header.Get("Retry-After") == "" || !strings.Contains(string(text), why) {
			t.Errorf("%s: %s %s", what, response.Status, text)
		}
	}
	refused("the fifth of a user", "alice", watch, "4 requests of alice read recordings at a time")
	refused("a search", "alice", "/namespaces/shop/sessions?search=x", "4 requests of alice read recordings at a time")
	refused("a seal", "alice", "/namespaces/shop/sessions/"+id+"/log?as=seal", "4 requests of alice read recordings at a time")
	if response := s.get(ctx, s.ca, "alice", "/namespaces/shop/sessions"); response.StatusCode != http.StatusOK { //nolint:bodyclose // get has it closed
		t.Errorf("who reads may list: %s", response.Status)
	}
	for n := range 8 { // each has two of four
		s.watch(ctx, fmt.Sprintf("system:serviceaccount:tenant:robot-%d", n/2), watch)
	}
	refused("the ninth of a namespace", "system:serviceaccount:tenant:robot-9", watch, "8 requests of the ServiceAccounts of namespace tenant read recordings at a time")
	s.watch(ctx, "system:serviceaccount:tenant-2:robot", watch)
	if response := s.get(ctx, s.ca, "bob", watch); response.StatusCode != http.StatusOK { //nolint:bodyclose // get has it closed
		t.Errorf("another user: %s", response.Status)
	}
	cancel()
	testkit.Eventually(t, "who leaves makes room", func(ctx context.Context) bool {
		return s.get(ctx, s.ca, "alice", "/namespaces/shop/sessions/"+id+"/log").StatusCode == http.StatusOK //nolint:bodyclose // get has it closed
	})
}

// watch follows a session, and returns when that has begun.
func (s *served) watch(ctx context.Context, user, path string) {
	s.t.Helper()
	response := s.get(ctx, s.ca, user, path) //nolint:bodyclose // get has it closed
	if line, err := bufio.NewReader(response.Body).ReadString('\n'); err != nil || !strings.Contains(line, `"version":3`) {
		s.t.Fatalf("%s: %s %q %v", user, response.Status, line, err)
	}
}

func TestListsAreBounded(t *testing.T) {
	s := serve(t)
	id := s.session(s.clock.Now())
	s.shop.held = make(chan struct{})
	entered := make(chan struct{}, 100)
	s.shop.asked = func() { entered <- struct{}{} }
	answered := make(chan int, 100)
	ask := func(user, path string) {
		go func() { answered <- s.get(t.Context(), s.ca, user, path).StatusCode }() //nolint:bodyclose // get has it closed
		<-entered
	}
	for n := range 16 {
		ask(fmt.Sprintf("system:serviceaccount:tenant:robot-%d", n/4), "/namespaces/shop/sessions"+[]string{"", "/" + id}[n%2])
	}
	for range 8 {
		ask("alice", "/namespaces/shop/sessions")
	}
	for user, why := range map[string]string{
		"system:serviceaccount:tenant:robot-9": "16 requests of the ServiceAccounts of namespace tenant list sessions at a time",
		"alice":                                "8 requests of alice list sessions at a time",
	} {
		for _, path := range []string{"", "/" + id} {
			response := s.get(t.Context(), s.ca, user, "/namespaces/shop/sessions"+path) //nolint:bodyclose // get has it closed
			if text, _ := io.ReadAll(response.Body); response.StatusCode != http.StatusTooManyRequests || response.Header.Get("Retry-After") != "1" || !strings.Contains(string(text), why) {
				t.Errorf("%s: %s %s", user, response.Status, text)
			}
		}
	}
	close(s.shop.held)
	for range 16 + 8 {
		if code := <-answered; code != http.StatusOK {
			t.Errorf("who asked in time gets %d", code)
		}
	}
}

func TestAListHasPagesAndSaysWhatItLacks(t *testing.T) {
	s := serve(t)
	want := []string{s.session(s.clock.Now().Add(-time.Hour)), s.session(s.clock.Now().Add(-time.Minute)), s.session(s.clock.Now())}
	broken := s.session(s.clock.Now())
	if err := os.WriteFile(filepath.Join(string(s.folder), broken, "session.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	var got []string
	for next, pages := "", 0; pages < 5; pages++ {
		response := s.get(t.Context(), s.ca, "alice", "/sessions?limit=2&continue="+next) //nolint:bodyclose // get has it closed
		if warning := response.Header.Get("Warning"); !strings.Contains(warning, "1 sessions could not be read") {
			t.Errorf("it warns %q", warning)
		}
		var list sessionsapi.SessionList
		if err := json.NewDecoder(response.Body).Decode(&list); err != nil {
			t.Fatal(err)
		}
		for _, session := range list.Items {
			got = append(got, session.Name)
		}
		if next = list.Continue; next == "" {
			break
		}
	}
	if fmt.Sprint(got) != fmt.Sprint([]string{want[2], want[1], want[0]}) {
		t.Errorf("got %q, want %q, the newest first", got, want)
	}
}

func TestARecordingThatBreaksOffIsNotTakenForAWholeOne(t *testing.T) {
	s := serve(t)
	large := protocol.Frame{Type: protocol.Output, Seq: 2, Data: bytes.Repeat([]byte("x"), 32<<10)}
	gone := protocol.Frame{Type: protocol.Output, Seq: 9, Data: []byte("y")}
	response := s.get(t.Context(), s.ca, "alice", "/namespaces/shop/sessions/"+s.session(s.clock.Now(), large, gone)+"/log") //nolint:bodyclose // get has it closed
	if _, err := io.ReadAll(response.Body); err == nil || response.StatusCode != http.StatusOK {
		t.Errorf("%s, %v", response.Status, err)
	}
	response = s.get(t.Context(), s.ca, "alice", "/namespaces/shop/sessions/"+s.session(s.clock.Now(), gone)+"/log") //nolint:bodyclose // get has it closed
	if text, err := io.ReadAll(response.Body); err != nil || response.StatusCode != http.StatusServiceUnavailable || !strings.Contains(string(text), "frame 2 is missing") {
		t.Errorf("%s %s, %v", response.Status, text, err)
	}
}

func TestASearchSaysWhatItHasNotSearched(t *testing.T) {
	s := serve(t)
	line := []byte(strings.Repeat("secret\n", 20))
	for range 11 {
		s.session(s.clock.Now(), protocol.Frame{Type: protocol.Output, Seq: 2, Data: line})
	}
	var found sessionsapi.SessionSearch
	if err := json.NewDecoder(s.get(t.Context(), s.ca, "alice", "/namespaces/shop/sessions?search=secret").Body).Decode(&found); err != nil { //nolint:bodyclose // get has it closed
		t.Fatal(err)
	}
	if len(found.Items) != 100 || !strings.Contains(found.Incomplete, "of 11 sessions are not searched") {
		t.Errorf("%d lines, %q", len(found.Items), found.Incomplete)
	}
}

func TestANamespaceThatIsMadeAgainDoesNotShowTheSessionsOfTheFirst(t *testing.T) {
	s := serve(t)
	now := s.clock.Now()
	printed := protocol.Frame{Type: protocol.Output, Seq: 2, Data: []byte("secret\n")}
	second := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{UID: "second", CreationTimestamp: metav1.NewTime(now.Add(-time.Minute))}}
	first := s.sessionIn("first", now.Add(-30*time.Second), printed) // whatever the clocks say
	before := s.sessionIn("", now.Add(-time.Hour), printed)          // recorded before the UID was kept
	own, unknown := s.sessionIn("second", now.Add(-2*time.Minute), printed), s.sessionIn("", now, printed)
	for what, there := range map[string]struct {
		namespace *corev1.Namespace
		failed    error
		shown     []string
		code      int // of a list in the namespace
	}{
		"the namespace was made again": {second, nil, []string{own, unknown}, http.StatusOK},
		"there is no namespace":        {nil, nil, nil, http.StatusOK},
		"it cannot be read":            {second, errors.New("forbidden"), nil, http.StatusServiceUnavailable},
	} {
		s.shop.Namespace, s.shop.failed = there.namespace, there.failed
		for _, id := range []string{first, before, own, unknown} {
			code := there.code
			if code == http.StatusOK && !slices.Contains(there.shown, id) {
				code = http.StatusNotFound
			}
			for _, path := range []string{"/namespaces/shop/sessions/" + id, "/namespaces/shop/sessions/" + id + "/log", "/namespaces/shop/sessions/" + id + "/log?as=seal"} {
				if response := s.get(t.Context(), s.ca, "tenant", path); response.StatusCode != code { //nolint:bodyclose // get has it closed
					t.Errorf("%s: the tenant at %s: %s instead of %d", what, path, response.Status, code)
				}
				if response := s.get(t.Context(), s.ca, "auditor", path); response.StatusCode != http.StatusOK { //nolint:bodyclose // get has it closed
					t.Errorf("%s: the auditor at %s: %s", what, path, response.Status)
				}
			}
		}
		for user, wanted := range map[string][]string{"tenant": there.shown, "auditor": {first, before, own, unknown}} {
			list, search := s.ids(user)
			slices.Sort(wanted)
			if !slices.Equal(list, wanted) || !slices.Equal(search, wanted) {
				t.Errorf("%s: %s lists %q and finds %q, want %q", what, user, list, search, wanted)
			}
		}
		if response := s.get(t.Context(), s.ca, "tenant", "/namespaces/shop/sessions"); response.StatusCode != there.code { //nolint:bodyclose // get has it closed
			t.Errorf("%s: the list of the tenant: %s", what, response.Status)
		}
	}
}

// ids returns the sessions of the namespace that a user lists, and those in which they find
// something.
func (s *served) ids(user string) (listed, found []string) {
	s.t.Helper()
	var list sessionsapi.SessionList
	var search sessionsapi.SessionSearch
	if err := json.NewDecoder(s.get(s.t.Context(), s.ca, user, "/namespaces/shop/sessions").Body).Decode(&list); err != nil { //nolint:bodyclose // get has it closed
		s.t.Fatal(err)
	}
	if err := json.NewDecoder(s.get(s.t.Context(), s.ca, user, "/namespaces/shop/sessions?search=secret").Body).Decode(&search); err != nil { //nolint:bodyclose // get has it closed
		s.t.Fatal(err)
	}
	for _, item := range list.Items {
		listed = append(listed, item.Name)
	}
	for _, item := range search.Items {
		found = append(found, item.Session)
	}
	slices.Sort(listed)
	slices.Sort(found)
	return listed, found
}
