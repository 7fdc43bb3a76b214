package session_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/internal/session/collector"
	"github.com/admitkit/admitkit/operator/internal/session/protocol"
	"github.com/admitkit/admitkit/operator/session"
	"github.com/admitkit/admitkit/testing/controlplane"
)

// frontCA is the authority of the API server's front proxy.
type frontCA struct{ *testkit.ClientCA }

// aggregating returns a front proxy, and the flags of an API server that has it.
func aggregating(t *testing.T) (frontCA, map[string][]string) {
	t.Helper()
	front, dir := frontCA{testkit.NewClientCA(t)}, t.TempDir()
	front.Write(t, filepath.Join(dir, "ca.crt"))
	certificate, key := front.IssueFiles(t, dir, "front-proxy-client")
	return front, map[string][]string{
		"requestheader-client-ca-file": {filepath.Join(dir, "ca.crt")}, "requestheader-allowed-names": {"front-proxy-client"},
		"requestheader-username-headers": {"X-Remote-User"}, "requestheader-group-headers": {"X-Remote-Group"}, "requestheader-extra-headers-prefix": {"X-Remote-Extra-"},
		"proxy-client-cert-file": {certificate}, "proxy-client-key-file": {key},
	}
}

// reading is an installation whose sessions are read by the API server.
type reading struct {
	*installation
	folder collector.Folder
	front  frontCA
	// address is that of the port itself.
	address string
}

// readable starts an API server with an aggregation layer.
//
// The managers of managertest have a certificate for 127.0.0.1 alone, which is not the name
// that the API server asks for. If they are to be reached, it does not verify that.
func readable(t *testing.T, reached bool) *reading {
	t.Helper()
	front, flags := aggregating(t)
	c, err := newCluster(controlplane.Run(t, controlplane.Options{APIServerArgs: flags}))
	if err != nil {
		t.Fatal(err)
	}
	admin := testkit.Client(t, c.Admin(), scheme)
	r := &reading{front: front}
	namespace, home := testkit.Namespace(t, admin), testkit.Namespace(t, admin)
	i, folder := c.collecting(t, func(o *session.Options) {
		o.API, o.AuditObjects, o.ServiceName = true, true, "sessions"
		r.address = o.Collectors[0]
		// No kube-proxy runs here.
		registered := session.APIService(home, o.ServiceName, o.Port)
		if err := unstructured.SetNestedField(registered.Object, reached, "spec", "insecureSkipTLSVerify"); err != nil {
			t.Fatal(err)
		}
		testkit.Create(t, admin, registered, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: home, Name: o.ServiceName}, Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeExternalName, ExternalName: "localhost", Ports: []corev1.ServicePort{{Name: "sessions", Port: o.Port}},
		}})
	}, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "watched"}}, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: home}})
	r.installation, r.folder = i, folder
	if !reached {
		return r
	}
	testkit.Succeeds(t, time.Minute, "the API server reaches the replicas", func(context.Context) error {
		if answer := r.ask(r.alice, http.MethodGet, "/apis/sessions.admitkit.dev/v1alpha1"); answer.Code != http.StatusOK {
			return errors.New(answer.String())
		}
		return nil
	})
	return r
}

func (r *reading) ask(user *controlplane.User, method, path string, headers ...string) testkit.Answer {
	r.t.Helper()
	return testkit.Send(r.t, user, method, path, "", "", headers...)
}

// path returns that of what is in a namespace.
func path(namespace string, rest ...string) string {
	return "/apis/sessions.admitkit.dev/v1alpha1/namespaces/" + namespace + "/sessions" + strings.Join(rest, "")
}

// bind lets a user do something with sessions of a namespace.
func (r *reading) bind(name, namespace string, rules ...rbacv1.PolicyRule) *controlplane.User {
	r.t.Helper()
	user, err := r.AddUser(name)
	if err != nil {
		r.t.Fatal(err)
	}
	for i := range rules {
		rules[i].APIGroups = []string{"sessions.admitkit.dev"}
	}
	testkit.Grant(r.t, r.Admin, namespace, name, rules, name)
	return user
}

// printed records a session that prints something, and returns its ID.
func (r *reading) printed(pod *corev1.Pod, text string) string {
	r.t.Helper()
	ticket, conn, from := r.begin(pod)
	frames(r.t, conn, 2, protocol.Frame{Type: protocol.Output, At: time.Second, Data: []byte(text)},
		protocol.Frame{Type: protocol.Exit, At: 2 * time.Second, Data: marshal(r.t, protocol.End{Code: 3})})
	acknowledged(r.t, from, 3)
	return ticket.ID
}

// begin begins a session.
func (r *reading) begin(pod *corev1.Pod) (*protocol.Ticket, *tls.Conn, *bufio.Reader) {
	r.t.Helper()
	text, ticket := r.ticketFor(pod.Name, "id")
	status, said, conn, from := connect(r.t, ticket, text, r.token(pod, session.Audience), strings.Repeat("s", 64))
	if status != http.StatusSwitchingProtocols {
		r.t.Fatalf("%d %s", status, said)
	}
	frames(r.t, conn, 1, protocol.Frame{Type: protocol.Begin, Data: marshal(r.t, protocol.Head{Time: time.Now(), Command: []string{"id"}, Terminal: true})})
	acknowledged(r.t, from, 1)
	return ticket, conn, from
}

// beginAt begins a session with another collector.
func (r *reading) beginAt(at http.Handler, pod *corev1.Pod) (*protocol.Ticket, net.Conn, *bufio.Reader) {
	r.t.Helper()
	web := httptest.NewServer(at)
	r.t.Cleanup(web.Close)
	text, ticket := r.ticketFor(pod.Name, "id")
	conn, err := net.Dial("tcp", web.Listener.Addr().String())
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = conn.Close() })
	if _, err := fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: c\r\nConnection: Upgrade\r\nUpgrade: %s\r\nAuthorization: Bearer x\r\n%s: %s\r\n%s: %s\r\n\r\n",
		protocol.Path, protocol.Upgrade, protocol.HeaderTicket, text, protocol.HeaderSecret, strings.Repeat("s", 64)); err != nil {
		r.t.Fatal(err)
	}
	from := bufio.NewReader(conn)
	response, err := http.ReadResponse(from, nil)
	if err != nil || response.StatusCode != http.StatusSwitchingProtocols {
		r.t.Fatalf("%+v, %v", response, err)
	}
	_ = response.Body.Close()
	frames(r.t, conn, 1, protocol.Frame{Type: protocol.Begin, Data: marshal(r.t, protocol.Head{Time: time.Now(), Command: []string{"id"}, Terminal: true})})
	acknowledged(r.t, from, 1)
	return ticket, conn, from
}

func frames(t *testing.T, conn io.Writer, seq uint64, all ...protocol.Frame) {
	t.Helper()
	for n, f := range all {
		f.Seq = seq + uint64(n)
		if _, err := conn.Write(f.Append(nil)); err != nil {
			t.Fatal(err)
		}
	}
}

func acknowledged(t *testing.T, from *bufio.Reader, seq uint64) {
	t.Helper()
	for {
		f, err := protocol.Read(from)
		if err != nil {
			t.Fatal(err)
		}
		if f.Type == protocol.Ack && f.Seq >= seq {
			return
		}
	}
}

// only returns the record of an action.
func (r *reading) only(action string) *v1alpha1.AuditRecord {
	r.sink.mu.Lock()
	defer r.sink.mu.Unlock()
	for _, record := range slices.Backward(r.sink.records) {
		if record.Verb == action {
			return record
		}
	}
	return nil
}

// The parts share an API server, which has one APIService of sessions.
func TestSessionsAreReadByTheAPIServer(t *testing.T) {
	t.Parallel()
	r := readable(t, true)
	r.rightsCount(t)
	r.onlyTheFrontProxySaysWhoAsks(t)
	r.followedFromAnotherReplica(t)
}

func (r *reading) rightsCount(t *testing.T) {
	t.Helper()
	web := r.pod("web")
	id := r.printed(web, "the pass\x1b[31mword\x1b[0m is here\r\n")
	namespace := &corev1.Namespace{}
	if err := r.Admin.Get(t.Context(), client.ObjectKey{Name: r.Namespace}, namespace); err != nil {
		t.Fatal(err)
	}
	if redeemed, err := r.folder.Redeemed(id); err != nil || redeemed.NamespaceUID != string(namespace.UID) {
		t.Errorf("the recording is from %+v: %v", redeemed, err)
	}
	mine := func(rest ...string) string { return path(r.Namespace, rest...) }
	sessions, logs := []string{"sessions"}, []string{"sessions/log"}
	nobody := r.bind("nobody", r.Namespace)
	lists := r.bind("lists", r.Namespace, rbacv1.PolicyRule{Resources: sessions, Verbs: []string{"get", "list"}})
	reads := r.bind("reads", r.Namespace, rbacv1.PolicyRule{Resources: sessions, Verbs: []string{"list"}}, rbacv1.PolicyRule{Resources: logs, Verbs: []string{"get"}})
	one := r.bind("one", r.Namespace, rbacv1.PolicyRule{Resources: logs, Verbs: []string{"get"}, ResourceNames: []string{id}},
		rbacv1.PolicyRule{Resources: sessions, Verbs: []string{"list"}, ResourceNames: []string{id}})
	elsewhere := testkit.Namespace(t, r.Admin)
	other := r.bind("other", elsewhere, rbacv1.PolicyRule{Resources: append(sessions, logs...), Verbs: []string{"get", "list", "watch", "delete"}})
	second := r.printed(web, "nothing\r\n")
	testkit.Eventually(t, "RBAC knows the last role", func(context.Context) bool { return r.ask(other, http.MethodGet, path(elsewhere)).Code == http.StatusOK })
	for _, test := range []struct {
		what   string
		user   *controlplane.User
		method string
		path   string
		code   int
		has    string
	}{
		{"without rights, a list", nobody, "GET", mine(), 403, "cannot list resource"},
		{"without rights, a session", nobody, "GET", mine("/", id), 403, "cannot get resource"},
		{"without rights, a recording", nobody, "GET", mine("/", id, "/log"), 403, "sessions/log"},
		{"a list", lists, "GET", mine(), 200, id},
		{"a session", lists, "GET", mine("/", id), 200, `"state":"Ended"`},
		{"a list does not read", lists, "GET", mine("/", id, "/log"), 403, ""},
		{"a list does not follow", lists, "GET", strings.Replace(mine("/", id, "/log"), "/namespaces/", "/watch/namespaces/", 1), 403, ""},
		{"a list does not search", lists, "GET", mine("?search=word"), 403, "cannot get resource"},
		{"a list does not end", lists, "DELETE", mine("/", id), 403, ""},
		{"all namespaces", lists, "GET", "/apis/sessions.admitkit.dev/v1alpha1/sessions", 403, ""},
		{"a recording", reads, "GET", mine("/", id, "/log"), 200, `is here`},
		{"frames", reads, "GET", mine("/", id, "/log?as=frames"), 200, `"command":["id"]`},
		{"a seal", reads, "GET", mine("/", id, "/log?as=seal"), 200, `"valid":true`},
		{"a form that there is not", reads, "GET", mine("/", id, "/log?as=gif"), 400, "must be cast, frames or seal"},
		{"a search across escapes", reads, "GET", mine("?search=password"), 200, `"line":"the password is here"`},
		{"a recording by its name", one, "GET", mine("/", id, "/log"), 200, "is here"},
		{"a list of one name", one, "GET", mine("?fieldSelector=metadata.name%3D", id), 200, id},
		{"another name", one, "GET", mine("/", second, "/log"), 403, ""},
		{"a search with a right by name", one, "GET", mine("?search=x&fieldSelector=metadata.name%3D", id), 403, ""},
		{"another namespace has it not", other, "GET", path(elsewhere, "/", id), 404, "not found"},
		{"nor its recording", other, "GET", path(elsewhere, "/", id, "/log"), 404, "not found"},
		{"nor can it be ended from there", other, "DELETE", path(elsewhere, "/", id), 404, "not found"},
		{"one that is not there", other, "GET", path(elsewhere, "/", protocol.NewID()), 404, "not found"},
		{"an ID that is none", r.alice, "GET", mine("/..%2f", id), 404, "nothing at this path"},
		{"one that has ended", r.alice, "DELETE", mine("/", id), 409, "deleted by retention only"},
		{"all at once", r.alice, "DELETE", mine(), 405, ""},
		{"a change", r.alice, "PUT", mine("/", id), 405, ""},
		{"a watch of all", r.alice, "GET", mine("?watch=true"), 405, ""},
		{"a selector that there is not", r.alice, "GET", mine("?fieldSelector=spec.color%3Dred"), 400, "must be one of"},
		{"a page", r.alice, "GET", mine("?limit=1"), 200, `"continue":"`},
		{"sessions of a user", r.alice, "GET", mine("?fieldSelector=spec.user%3Dbob"), 200, `"items":[]`},
	} {
		if answer := r.ask(test.user, test.method, test.path); answer.Code != test.code || !strings.Contains(answer.Body, test.has) {
			t.Errorf("%s: %s", test.what, answer)
		}
	}
	var table metav1.Table
	answer := r.ask(lists, http.MethodGet, mine(), "Accept", "application/json;as=Table;v=v1;g=meta.k8s.io,application/json")
	if err := json.Unmarshal([]byte(answer.Body), &table); err != nil || len(table.Rows) != 2 || table.Rows[0].Cells[0] != second || table.Rows[1].Cells[1] != "alice" {
		t.Errorf("the table: %v, %s", err, answer)
	}
	testkit.Succeeds(t, time.Minute, "kubectl get sessions prints them", func(ctx context.Context) error { // discovery follows within seconds
		kubectl, err := r.Kubectl(ctx, lists, "get", "sessions", "-n", r.Namespace).CombinedOutput()
		if err != nil || !strings.Contains(string(kubectl), id) || !strings.Contains(string(kubectl), "STATE") {
			return fmt.Errorf("%w: %s", err, kubectl)
		}
		return nil
	})
	if record := r.only("read"); record == nil || record.Object.Name != id || record.Namespace != r.Namespace || record.Pod != "web" {
		t.Errorf("the record of reading is %+v", record)
	}
	if record := r.only("searched"); record == nil || record.User.Username != "reads" || !strings.Contains(record.Reason, `for "password"`) {
		t.Errorf("the record of the search is %+v", record)
	}
	r.sink.fail(errors.New("the disk is full"))
	if answer := r.ask(reads, http.MethodGet, mine("/", id, "/log")); answer.Code != http.StatusServiceUnavailable || !strings.Contains(answer.Body, "would not be on record") || strings.Contains(answer.Body, "is here") {
		t.Errorf("nobody records who reads: %s", answer)
	}
	r.sink.fail(nil)
	discovered := r.ask(r.alice, http.MethodGet, "/apis/sessions.admitkit.dev/v1alpha1")
	if strings.Contains(discovered.Body, `"delete`) {
		t.Errorf("whoever deletes a namespace would end its sessions, and wait for ever: %s", discovered)
	}
}

func (r *reading) onlyTheFrontProxySaysWhoAsks(t *testing.T) {
	t.Helper()
	id := r.printed(r.pod("proxied"), "secret\r\n")
	stranger := testkit.NewClientCA(t)
	for what, test := range map[string]struct {
		certificate *tls.Certificate
		code        int
	}{
		"nobody":                      {nil, 401},
		"somebody of another CA":      {stranger.Issue(t, "front-proxy-client", x509.ExtKeyUsageClientAuth), 401},
		"another client of the CA":    {r.front.Issue(t, "kubelet", x509.ExtKeyUsageClientAuth), 401},
		"a server of the CA":          {r.front.Issue(t, "front-proxy-client", x509.ExtKeyUsageServerAuth), 401},
		"the front proxy":             {r.front.Issue(t, "front-proxy-client", x509.ExtKeyUsageClientAuth), 200},
		"the front proxy, for a user": {r.front.Issue(t, "front-proxy-client", x509.ExtKeyUsageClientAuth), 403},
	} {
		config := &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13}
		if test.certificate != nil {
			config.Certificates = []tls.Certificate{*test.certificate}
		}
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+r.address+path(r.Namespace, "/", id, "/log"), http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("X-Remote-User", "alice")
		if test.code != http.StatusForbidden {
			request.Header.Set("X-Remote-Group", "system:masters")
		}
		transport := &http.Transport{TLSClientConfig: config}
		response, err := transport.RoundTrip(request)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		body, err := io.ReadAll(response.Body)
		_ = response.Body.Close()
		transport.CloseIdleConnections()
		if err != nil || response.StatusCode != test.code || strings.Contains(string(body), "secret") != (test.code == http.StatusOK) {
			t.Errorf("%s: %d %s, %v", what, response.StatusCode, body, err)
		}
	}
	// The API server asks for this each minute, and is no recorder that is refused.
	front := r.front.Issue(t, "front-proxy-client", x509.ExtKeyUsageClientAuth)
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{*front}}}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+r.address+"/openapi/v3", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("X-Remote-User", "system:aggregator")
	response, err := transport.RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(response.Body)
	if _ = response.Body.Close(); err != nil || response.StatusCode != http.StatusNotFound || !strings.Contains(string(body), `"kind":"Status"`) {
		t.Errorf("the API server asks for what is not there: %d %s, %v", response.StatusCode, body, err)
	}
}

func (r *reading) followedFromAnotherReplica(t *testing.T) {
	t.Helper()
	web := r.pod("followed")
	// The session is with another replica, which shares the folder.
	away := collector.New(collector.Options{
		Storage: r.folder, Settle: 1, Key: func() (protocol.Key, error) { return r.key, nil },
		Identify: func(context.Context, string) (string, error) { return string(web.UID), nil },
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{}, 2)
	report := func(err error) { t.Errorf("the other replica: %v", err) }
	go func() { away.Run(ctx, report); done <- struct{}{} }()
	go func() { away.Announce(ctx, report); done <- struct{}{} }()
	t.Cleanup(func() { cancel(); <-done; <-done })
	ticket, conn, from := r.beginAt(away, web)
	follows := r.bind("follows", r.Namespace, rbacv1.PolicyRule{Resources: []string{"sessions/log"}, Verbs: []string{"watch"}}, rbacv1.PolicyRule{Resources: []string{"sessions"}, Verbs: []string{"get", "delete"}})
	testkit.Eventually(t, "the session is live", func(context.Context) bool {
		return strings.Contains(r.ask(follows, http.MethodGet, path(r.Namespace, "/", ticket.ID)).Body, `"state":"Live"`)
	})
	watch := r.Kubectl(t.Context(), follows, "get", "--raw", strings.Replace(path(r.Namespace, "/", ticket.ID, "/log"), "/namespaces/", "/watch/namespaces/", 1))
	watched := testkit.Run(t, watch)
	watched.Await(t, `{"version":3`)
	frames(t, conn, 2, protocol.Frame{Type: protocol.Output, At: time.Second, Data: []byte("one more\r\n")})
	if line := watched.Await(t, `[1.000000,"o"`); !strings.Contains(line, "one more") {
		t.Errorf("it sees %s", line)
	}
	if record := r.only("watched"); record == nil || record.User.Username != "follows" || record.Object.Name != ticket.ID {
		t.Errorf("the record is %+v", record)
	}
	if answer := r.ask(follows, http.MethodDelete, path(r.Namespace, "/", ticket.ID, "?dryRun=All")); answer.Code != http.StatusOK || r.only("ended") != nil {
		t.Errorf("a dry run: %s, %+v", answer, r.only("ended"))
	}
	if answer := r.ask(follows, http.MethodDelete, path(r.Namespace, "/", ticket.ID)); answer.Code != http.StatusOK {
		t.Fatal(answer)
	}
	for {
		f, err := protocol.Read(from)
		if err != nil {
			t.Fatal(err)
		}
		if f.Type == protocol.Stop {
			if string(f.Data) != "it was ended by follows" {
				t.Errorf("the user hears %q", f.Data)
			}
			break
		}
	}
	frames(t, conn, 3, protocol.Frame{Type: protocol.Exit, At: 2 * time.Second, Data: marshal(t, protocol.End{Code: 137, Reason: "it was ended by follows"})})
	acknowledged(t, from, 3)
	watched.Await(t, `[1.000000,"x","137"]`)
	if err := watched.Wait(); err != nil {
		t.Error(err)
	}
	if record := r.only("ended"); record == nil || record.User.Username != "follows" {
		t.Errorf("the record is %+v", record)
	}
	answer := r.ask(follows, http.MethodGet, path(r.Namespace, "/", ticket.ID))
	if !strings.Contains(answer.Body, `"state":"Ended"`) || !strings.Contains(answer.Body, `"exitCode":137`) {
		t.Errorf("it is %s", answer)
	}
}

func TestTheAPIServiceHasTheCAAndGoesWithTheInstallation(t *testing.T) {
	t.Parallel()
	r := readable(t, false)
	service := session.APIService("", "", 0)
	key := client.ObjectKeyFromObject(service)
	first := ""
	testkit.Succeeds(t, time.Minute, "it has a caBundle", func(ctx context.Context) error {
		err := r.Admin.Get(ctx, key, service)
		if first, _, _ = unstructured.NestedString(service.Object, "spec", "caBundle"); first == "" && err == nil {
			err = errors.New("there is none")
		}
		return err
	})
	testkit.Change(t, r.Admin, service, func(service *unstructured.Unstructured) {
		if err := unstructured.SetNestedField(service.Object, "", "spec", "caBundle"); err != nil {
			t.Fatal(err)
		}
	})
	testkit.Succeeds(t, time.Minute, "the caBundle is there again", func(ctx context.Context) error {
		if err := r.Admin.Get(ctx, key, service); err != nil {
			return err
		}
		if now, _, _ := unstructured.NestedString(service.Object, "spec", "caBundle"); now != first {
			return fmt.Errorf("it is %q", now)
		}
		return nil
	})
	r.Stop()
	if err := r.Admin.Get(t.Context(), key, service); client.IgnoreNotFound(err) != nil || err == nil {
		t.Errorf("after unregister: %v", err)
	}
}
