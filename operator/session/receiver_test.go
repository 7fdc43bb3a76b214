package session_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/extension/redact"
	"github.com/admitkit/admitkit/internal/freeport"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/audit"
	"github.com/admitkit/admitkit/operator/internal/session/collector"
	"github.com/admitkit/admitkit/operator/internal/session/protocol"
	"github.com/admitkit/admitkit/operator/session"
)

// collecting is an installation whose manager collects.
func collecting(t *testing.T, change func(*session.Options), before ...client.Object) (i *installation, folder collector.Folder) {
	t.Helper()
	return server.collecting(t, change, before...)
}

func (c *cluster) collecting(t *testing.T, change func(*session.Options), before ...client.Object) (i *installation, folder collector.Folder) {
	t.Helper()
	port := freeport.For(t)
	folder = collector.Folder(t.TempDir())
	return c.install(t, func(o *session.Options) {
		o.CAFile, o.Folder, o.Port, o.ServerName = "", string(folder), port, "127.0.0.1"
		o.Collectors = []string{fmt.Sprintf("127.0.0.1:%d", port)}
		if change != nil {
			change(o)
		}
	}, audit.Options{AccessRequests: true}, before...), folder
}

// token returns a token, bound to a Pod if there is one.
func (i *installation) token(pod *corev1.Pod, audience string) string {
	i.t.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: i.Namespace, Name: "default"}}
	if err := client.IgnoreAlreadyExists(i.Admin.Create(i.t.Context(), account)); err != nil {
		i.t.Fatal(err)
	}
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: []string{audience}}}
	if pod != nil {
		request.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}
	}
	if err := i.Admin.SubResource("token").Create(i.t.Context(), account, request); err != nil {
		i.t.Fatal(err)
	}
	return request.Status.Token
}

// ticketFor has alice run a command, and returns the ticket that the recorder would have.
func (i *installation) ticketFor(pod string, command ...string) (text string, ticket *protocol.Ticket) {
	i.t.Helper()
	testkit.Succeeds(i.t, time.Minute, "a command is recorded", func(context.Context) error { // a new kind is slow to be served
		answer, ran := i.exec(pod, nil, command...)
		var ok bool
		if text, _, ok = protocol.Split(ran); !ok || strings.Contains(answer.Body, "only allowed when it is recorded") {
			return fmt.Errorf("%s: runs %q", answer, ran)
		}
		return nil
	})
	ticket, err := protocol.Parse(text)
	if err != nil {
		i.t.Fatal(err)
	}
	return text, ticket
}

// connect connects as a recorder does, by what the ticket says. It returns the answer's
// status and text and, if that is 101, the connection.
func connect(t *testing.T, ticket *protocol.Ticket, text, token, secret string) (status int, said string, conn *tls.Conn, from *bufio.Reader) {
	t.Helper()
	roots := x509.NewCertPool()
	for _, der := range ticket.Terms.CA {
		ca, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		roots.AddCert(ca)
	}
	conn, err := tls.Dial("tcp", ticket.Terms.Collectors[0], &tls.Config{RootCAs: roots, ServerName: ticket.Terms.ServerName, MinVersion: tls.VersionTLS13})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_, err = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: c\r\nConnection: Upgrade\r\nUpgrade: %s\r\nContent-Length: 0\r\n%s%s: %s\r\n%s: %s\r\n\r\n",
		protocol.Path, protocol.Upgrade, map[bool]string{true: "Authorization: Bearer " + token + "\r\n"}[token != ""], protocol.HeaderTicket, text, protocol.HeaderSecret, secret)
	if err != nil {
		t.Fatal(err)
	}
	from = bufio.NewReader(conn)
	response, err := http.ReadResponse(from, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusSwitchingProtocols {
		body := make([]byte, 1<<10)
		n, _ := response.Body.Read(body)
		said = string(body[:n])
	}
	return response.StatusCode, said, conn, from
}

func TestTheManagerTakesARecordingFromItsPodAlone(t *testing.T) {
	i, folder := collecting(t, func(o *session.Options) {
		o.AuditObjects = true
		keeps := collector.Folder(o.Folder)
		o.Folder, o.Location = "", "s3://recordings/a/"
		o.Storage = func(context.Context) (collector.Storage, error) { return keeps, nil }
	})
	web, other := i.pod("web"), i.pod("other")
	text, ticket := i.ticketFor("web", "id")
	mine, secret := i.token(web, session.Audience), strings.Repeat("s", 64)
	for _, test := range []struct {
		what, ticket, token string
		status              int
		why                 string
	}{
		{"no token", text, "", 401, "no token"},
		{"a token that nobody has signed", text, mine[:len(mine)-6] + "AAAAAA", 401, "not valid"},
		{"the token of another Pod", text, i.token(other, session.Audience), 403, "another Pod"},
		{"a token of another audience", text, i.token(web, "https://kubernetes.default.svc"), 401, "not valid"},
		{"a token of no Pod", text, i.token(nil, session.Audience), 401, "not that of a Pod"},
		{"a ticket that nobody has signed", text[:len(text)-6] + "AAAAAA", mine, 403, "not signed"},
	} {
		if status, said, _, _ := connect(t, ticket, test.ticket, test.token, secret); status != test.status || !strings.Contains(said, test.why) {
			t.Errorf("%s: %d %s", test.what, status, said)
		}
	}
	status, said, conn, from := connect(t, ticket, text, mine, secret)
	if status != http.StatusSwitchingProtocols {
		t.Fatalf("%d %s", status, said)
	}
	if status, said, _, _ := connect(t, ticket, text, mine, strings.Repeat("x", 64)); status != http.StatusConflict || !strings.Contains(said, "was redeemed") {
		t.Errorf("the ticket a second time: %d %s", status, said)
	}
	// Whoever has the ticket and the token cannot invent what was done.
	for what, first := range map[string]protocol.Frame{
		"another command": {Type: protocol.Begin, Seq: 1, Data: marshal(t, protocol.Head{Time: time.Now(), Command: []string{"true"}})},
		"no command":      {Type: protocol.Output, Seq: 1, Data: []byte("invented")},
		"a mark":          {Type: protocol.Mark, Data: []byte("{}")},
	} {
		if _, err := conn.Write(first.Append(nil)); err != nil {
			t.Fatal(err)
		}
		if answer, err := protocol.Read(from); err == nil && answer.Type != protocol.Until {
			t.Errorf("%s is answered by %+v", what, answer)
		}
		if status, said, conn, from = connect(t, ticket, text, mine, secret); status != http.StatusSwitchingProtocols {
			t.Fatalf("%d %s", status, said)
		}
	}
	send(t, conn, from)
	reader := testkit.Client(t, server.Admin(), scheme)
	seal, err := folder.Verify(ticket.ID, i.key)
	if err != nil {
		t.Fatal(err)
	}
	var event v1alpha1.AuditEvent
	if err := reader.Get(t.Context(), client.ObjectKey{Name: ticket.ID}, &event); err != nil {
		t.Fatal(err)
	}
	s := event.Status.Session
	if s == nil || s.SHA256 != seal.SHA256 || s.ExitCode != 3 || s.Frames != 2 || s.Duration.Duration != time.Second || s.Location != "s3://recordings/a/"+ticket.ID || s.EndTime.IsZero() {
		t.Fatalf("the AuditEvent has %+v", s)
	}
	// What is on record stays, even if somebody has the rights to change it.
	event.Status.Session.ExitCode = 0
	if err := reader.Status().Update(t.Context(), &event); err == nil || !strings.Contains(err.Error(), "only admitkit") {
		t.Errorf("somebody else changes the record: %v", err)
	}
	unseen := i.token(web, session.Audience) // the API server remembers for 10 s that a token was valid
	if err := i.Admin.Delete(t.Context(), web, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	testkit.Succeeds(t, time.Minute, "the token of a Pod that is gone is refused", func(context.Context) error {
		if status, said, _, _ := connect(t, ticket, text, unseen, secret); status != http.StatusUnauthorized {
			return fmt.Errorf("%d %s", status, said)
		}
		return nil
	})
}

func TestASessionThatGoesOnAfterItsEndIsNotedAndOldRecordingsAreDeleted(t *testing.T) {
	t.Parallel()
	old := protocol.NewID()
	i, folder := collecting(t, func(o *session.Options) {
		o.Unrecorded, o.Max, o.Idle = session.Open, time.Second, time.Minute
		long := time.Now().Add(-session.DefaultRetention - time.Hour)
		file := filepath.Join(o.Folder, old, "session.json")
		if err := errors.Join(os.Mkdir(filepath.Dir(file), 0o700), os.WriteFile(file, []byte("{}"), 0o600), os.Chtimes(file, long, long)); err != nil {
			t.Fatal(err)
		}
	})
	web := i.pod("web")
	text, ticket := i.ticketFor("web", "id")
	if ticket.Terms.Max != 1 || ticket.Terms.Idle != 60 {
		t.Errorf("the ticket says %+v", ticket.Terms)
	}
	status, said, conn, from := connect(t, ticket, text, i.token(web, session.Audience), strings.Repeat("s", 64))
	if status != http.StatusSwitchingProtocols {
		t.Fatalf("%d %s", status, said)
	}
	if f, err := protocol.Read(from); err != nil || f.Type != protocol.Until && f.Type != protocol.Stop {
		t.Errorf("the recorder gets frame %v: %v", f.Type, err)
	}
	var event eventsv1.Event
	testkit.Succeeds(t, time.Minute, "the Pod has an Event", func(ctx context.Context) error {
		if _, err := conn.Write((&protocol.Frame{Type: protocol.Alive}).Append(nil)); err != nil { // one that is silent is disconnected
			return err
		}
		return i.Admin.Get(ctx, client.ObjectKey{Namespace: i.Namespace, Name: "session." + ticket.ID + ".overdue"}, &event)
	})
	if event.Reason != "SessionNoted" || event.Regarding.UID != web.UID || !strings.Contains(event.Note, "alice: the session had to end") {
		t.Errorf("the Event is %+v", event)
	}
	if ids, err := folder.Sessions(t.Context()); err != nil || !slices.Equal(ids, []string{ticket.ID}) {
		t.Errorf("there are recordings of %v: %v", ids, err)
	}
	send(t, conn, from)
}

func TestARecordingHasNoSecretsThatTheRecordHasNot(t *testing.T) {
	redactor, err := redact.New(redact.Default...)
	if err != nil {
		t.Fatal(err)
	}
	i, folder := collecting(t, func(o *session.Options) { o.AuditObjects, o.Redact = true, redactor })
	web := i.pod("web")
	command := []string{"mysql", "--password", "hunter2", "-e", "SET PASSWORD='hunter2'", "TOKEN=hunter2"}
	text, ticket := i.ticketFor("web", command...)
	status, said, conn, from := connect(t, ticket, text, i.token(web, session.Audience), strings.Repeat("s", 64))
	if status != http.StatusSwitchingProtocols {
		t.Fatalf("%d %s", status, said)
	}
	sendAll(t, conn, from,
		protocol.Frame{Type: protocol.Begin, Data: marshal(t, protocol.Head{Time: time.Now(), Command: command, Terminal: true})},
		protocol.Frame{Type: protocol.Output, Data: []byte("$ export API_KEY=hunter2\r\n")},
		protocol.Frame{Type: protocol.Input, Data: []byte("curl -H 'Authorization: Bearer hunter2' x\r")},
		protocol.Frame{Type: protocol.Exit, At: time.Second, Data: marshal(t, protocol.End{})},
	)
	var head protocol.Head
	var seen strings.Builder
	err = folder.Frames(ticket.ID, func(f *protocol.Frame) error {
		_, _ = seen.Write(f.Data)
		if f.Type == protocol.Begin {
			return json.Unmarshal(f.Data, &head)
		}
		return nil
	})
	if err != nil || strings.Contains(seen.String(), "hunter2") || !strings.Contains(seen.String(), "API_KEY=REDACTED\r\n") || !strings.Contains(seen.String(), "Bearer REDACTED") {
		t.Errorf("the recording has %s: %v", seen.String(), err)
	}
	if _, err := folder.Verify(ticket.ID, i.key); err != nil {
		t.Error(err)
	}
	var event v1alpha1.AuditEvent
	if err := testkit.Client(t, server.Admin(), scheme).Get(t.Context(), client.ObjectKey{Name: ticket.ID}, &event); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(event.Spec.Command, head.Command) || slices.Equal(head.Command, command) {
		t.Errorf("the recording is of %q, the record of %q", head.Command, event.Spec.Command)
	}
	if s := event.Status.Session; s == nil || !strings.HasSuffix(s.Location, ticket.ID) {
		t.Errorf("the AuditEvent has %+v", s)
	}
}

// send sends a whole session, and waits until it is stored.
func send(t *testing.T, conn *tls.Conn, from *bufio.Reader) {
	t.Helper()
	sendAll(t, conn, from,
		protocol.Frame{Type: protocol.Begin, Data: marshal(t, protocol.Head{Time: time.Now(), Command: []string{"id"}})},
		protocol.Frame{Type: protocol.Exit, At: time.Second, Data: marshal(t, protocol.End{Code: 3})},
	)
}

func sendAll(t *testing.T, conn *tls.Conn, from *bufio.Reader, frames ...protocol.Frame) {
	t.Helper()
	for n, f := range frames {
		f.Seq = uint64(n + 1)
		if _, err := conn.Write(f.Append(nil)); err != nil {
			t.Fatal(err)
		}
	}
	for {
		f, err := protocol.Read(from)
		if err != nil {
			t.Fatal(err)
		}
		if f.Type == protocol.Ack && f.Seq == uint64(len(frames)) {
			return
		}
	}
}

func marshal(t *testing.T, value any) []byte {
	t.Helper()
	text, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return text
}
