package main

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/admitkit/admitkit/operator/cmd/kubectl-access/internal/cli"
	"github.com/admitkit/admitkit/operator/internal/session/sessionsapi"
)

const (
	liveID, endedID = "00000000000000000000000000000001", "00000000000000000000000000000002"
	cutID           = "00000000000000000000000000000003" // has no end
	castOfSession   = `{"version":3,"term":{"cols":80,"rows":24},"timestamp":1}
[0.000000,"o","pass\u001b[31mwo"]
[30.000000,"o","rd\u001b[0m\r\n"]
# {"name":"stdin"}
[0.100000,"m","not castOfSession: 5 bytes"]
[0.000000,"x","3"]
`
)

// sessionsServer answers as an API server with the API of sessions.
type sessionsServer struct {
	*httptest.Server
	mu      sync.Mutex
	deleted bool
	asked   []string
}

func newSessionsServer(t *testing.T) *sessionsServer {
	s := &sessionsServer{}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

func (s *sessionsServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, r.Method+" "+r.URL.RequestURI())
	rest, ok := strings.CutPrefix(r.URL.Path, "/apis/sessions.admitkit.dev/v1alpha1/")
	object := func(id string, state sessionsapi.State) sessionsapi.Session {
		return sessionsapi.Session{
			TypeMeta:   metav1.TypeMeta{APIVersion: sessionsapi.GroupVersion.String(), Kind: "Session"},
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: id, CreationTimestamp: metav1.NewTime(time.Now().Add(-time.Hour))},
			Spec:       sessionsapi.SessionSpec{User: "alice", Pod: "web"}, Status: sessionsapi.SessionStatus{State: state, Bytes: 42},
		}
	}
	send := func(code int, value any) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(value)
	}
	refuse := func(err *apierrors.StatusError) {
		err.ErrStatus.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
		send(int(err.ErrStatus.Code), err.ErrStatus)
	}
	resource := schema.GroupResource{Group: sessionsapi.GroupVersion.Group, Resource: sessionsapi.Resource}
	switch {
	case !ok:
		http.NotFound(w, r)
	case rest == "namespaces/shop/sessions" && r.URL.Query().Has("search"):
		send(200, sessionsapi.SessionSearch{Searched: 2, Incomplete: "the 3 oldest are not searched", Items: []sessionsapi.SessionHit{
			{Namespace: "shop", Session: endedID, User: "al\x1bice", Pod: "web", At: metav1.Duration{Duration: time.Minute}, Line: "the password"},
		}})
	case rest == "namespaces/shop/sessions" && r.URL.Query().Get("continue") == "":
		list := sessionsapi.SessionList{TypeMeta: metav1.TypeMeta{APIVersion: sessionsapi.GroupVersion.String(), Kind: "SessionList"}, Items: []sessionsapi.Session{object(liveID, sessionsapi.Live)}}
		list.Continue = "more"
		send(200, list)
	case rest == "namespaces/shop/sessions":
		send(200, sessionsapi.SessionList{TypeMeta: metav1.TypeMeta{APIVersion: sessionsapi.GroupVersion.String(), Kind: "SessionList"}, Items: []sessionsapi.Session{object(endedID, sessionsapi.Ended)}})
	case rest == "sessions":
		refuse(apierrors.NewForbidden(resource, "", errors.New(`User "bob" cannot list resource "sessions"`)))
	case r.Method == http.MethodDelete && strings.HasSuffix(rest, liveID):
		s.deleted = true
		send(200, metav1.Status{Status: metav1.StatusSuccess})
	case strings.HasSuffix(rest, "sessions/"+liveID):
		send(200, object(liveID, map[bool]sessionsapi.State{true: sessionsapi.Ended, false: sessionsapi.Live}[s.deleted]))
	case r.URL.Query().Get("as") == "seal":
		send(200, sessionsapi.SessionSeal{Valid: strings.Contains(rest, endedID), Reason: "it was changed", SHA256: "abc", Frames: 2})
	case rest == "namespaces/shop/sessions/"+endedID+"/log", rest == "watch/namespaces/shop/sessions/"+liveID+"/log":
		_, _ = io.WriteString(w, castOfSession)
	case rest == "namespaces/shop/sessions/"+cutID+"/log":
		_, _ = io.WriteString(w, `{"version":3,"term":{"cols":80,"rows":24},"timestamp":1}`+"\n"+`[0.000000,"o","so far\r\n"]`+"\n")
	case rest == "watch/namespaces/shop/sessions/"+endedID+"/log":
		refuse(apierrors.NewConflict(resource, endedID, errors.New("the session is Ended")))
	default:
		refuse(apierrors.NewNotFound(resource, "x"))
	}
}

// sessions runs the plugin.
func (s *sessionsServer) sessions(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	o := kubectlAccess(t, nobody, append([]string{"sessions", "--server", s.URL, "-n", "shop"}, args...)...)
	return o.stdout, o.stderr, o.code
}

func TestSessionsAreListedReplayedSearchedAndEnded(t *testing.T) {
	t.Parallel()
	s := newSessionsServer(t)
	for _, test := range []struct {
		args     string
		code     int
		out, err string
	}{
		{"list", 0, liveID, ""},
		{"list", 0, endedID, ""}, // of the second page
		{"list -o json", 0, `"kind": "List"`, ""},
		{"list --since 2h", 0, liveID, ""},
		{"list --since 30m", 0, "", "no such sessions found in namespace shop"},
		{"list --until 30m", 0, liveID, ""},
		{"list --until 2h", 0, "", "no such sessions found"},
		{"list --since yesterday", cli.CodeUsage, "", "--since"},
		{"stop " + liveID, cli.CodeUsage, "", `unknown command "stop"`},
		{"", 0, "Available Commands", ""},
		{"list -A", cli.CodeRefused, "", `cannot list resource "sessions"`},
		{"replay --speed 1000 " + endedID, 0, "pass\x1b[31mword\x1b[0m\r\n", "ended with exit code 3"},
		{"replay --idle-limit 1ms " + endedID, 0, "rd\x1b[0m", "not castOfSession: 5 bytes"},
		{"replay --text " + endedID, 0, "password\n", "stdin"},
		{"replay --speed 0 " + endedID, cli.CodeUsage, "", "--speed"},
		{"replay --text --speed 2 " + endedID, cli.CodeUsage, "", "--text prints at once"},
		{"replay", cli.CodeUsage, "", "ID is missing"},
		{"replay web", cli.CodeUsage, "", "is no ID of a session"},
		{"replay 0000000000000000000000000000000f", cli.CodeNotFound, "", "list -A"},
		{"replay --text session.sessions.admitkit.dev/" + endedID, 0, "password\n", ""}, // as list -o name has it
		{"replay --text " + cutID, 0, "so far\n", "the recording has no end"},
		{"watch " + endedID, cli.CodeError, "", "sessions replay " + endedID},
		{"watch --text " + liveID, 0, "password\n", ""},
		{"export " + endedID, 0, castOfSession, ""},
		{"search password", 0, endedID + ` al`, "warning: the 3 oldest"},
		{"verify " + endedID, 0, "abc", ""},
		{"verify " + liveID, cli.CodeError, "", "it was changed"},
		{"end " + liveID, 0, "", "has ended"},
		{"end " + endedID, cli.CodeNotFound, "", "not found"},
	} {
		out, errOut, code := s.sessions(t, strings.Fields(test.args)...)
		if code != test.code || !strings.Contains(out, test.out) || !strings.Contains(errOut, test.err) {
			t.Errorf("sessions %s: %d\n%s\n%s", test.args, code, out, errOut)
		}
		if strings.HasPrefix(test.args, "search") && strings.Contains(out, "\x1b") {
			t.Errorf("a name controls the terminal: %q", out)
		}
	}
	for _, name := range []string{"watch", "replay", "export", "verify", "end"} {
		kubectlAccess(t, nobody, "__complete", "sessions", "--server", s.URL, "-n", "shop", name, "").expect(t, 0, liveID+"\talice in web\n")
	}
	file := filepath.Join(t.TempDir(), "session.cast")
	for _, want := range []int{0, cli.CodeError} { // the second time it is there
		if _, errOut, code := s.sessions(t, "export", endedID, "-o", file); code != want {
			t.Errorf("%d %s", code, errOut)
		}
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != castOfSession {
		t.Errorf("the file has %q, %v", text, err)
	}
	if out, _, _ := s.sessions(t, "list", "--live", "--user", "system:a,b=c"); !strings.Contains(out, liveID) {
		t.Error(out)
	}
	if asked := strings.Join(s.asked, "\n"); !strings.Contains(asked, `status.state%3DLive%2Cspec.user%3Dsystem%3Aa%5C%2Cb%5C%3Dc`) {
		t.Errorf("it asks\n%s", asked)
	}
	none := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(none.Close)
	if _, errOut, code := (&sessionsServer{Server: none}).sessions(t, "list"); code != cli.CodeNotFound || !strings.Contains(errOut, "--sessions-api") {
		t.Errorf("a cluster without the API: %d %s", code, errOut)
	}
}
