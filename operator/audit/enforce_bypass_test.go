package audit_test

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/audit/internal/enforce"
	"github.com/admitkit/admitkit/testing/controlplane"
)

const (
	overSPDY      = "Connection: Upgrade\nUpgrade: SPDY/3.1\nX-Stream-Protocol-Version: v4.channel.k8s.io"
	overWebSocket = "Connection: Upgrade\nUpgrade: websocket\nSec-WebSocket-Version: 13\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\nSec-WebSocket-Protocol: v5.channel.k8s.io"
)

// raw sends a request over a connection of its own, as it is written, and
// returns the answer's status and body.
func (s *stage) raw(t *testing.T, user *controlplane.User, request string) (int, string) {
	t.Helper()
	config, err := rest.TLSConfigFor(user.Config)
	if err != nil {
		t.Fatal(err)
	}
	config.NextProtos = []string{"http/1.1"}
	server, err := url.Parse(user.Config.Host)
	if err != nil {
		t.Fatal(err)
	}
	connection, err := (&tls.Dialer{Config: config}).DialContext(t.Context(), "tcp", server.Host)
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	if err := connection.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	head, body, _ := strings.Cut(request, "\n\n")
	head = strings.ReplaceAll(head, "\n", "\r\n") + "\r\nHost: " + server.Host + "\r\n\r\n" + body
	if _, err := io.WriteString(connection, head); err != nil {
		t.Fatal(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(connection), nil)
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close()
	if response.StatusCode == http.StatusSwitchingProtocols {
		return response.StatusCode, ""
	}
	answer, _ := io.ReadAll(io.LimitReader(response.Body, 1<<16))
	return response.StatusCode, string(answer)
}

func (s *stage) nobodyPassesByHTTP(t *testing.T, pod string) {
	s.create(t, "shop", pod)
	exec := "/api/v1/namespaces/shop/pods/" + pod + "/exec?command=true&stdout=true"
	// The same requests pass for who is exempt: they are refused for no other
	// reason.
	for name, headers := range map[string]string{"SPDY": overSPDY, "WebSocket": overWebSocket} {
		method := map[string]string{"SPDY": "POST ", "WebSocket": "GET "}[name]
		if code, body := s.raw(t, s.oscar, method+exec+" HTTP/1.1\n"+headers); code != http.StatusSwitchingProtocols {
			t.Errorf("%s is refused to who is exempt: %d %s", name, code, body)
		}
	}
	node := s.node(t)
	for name, request := range map[string]string{
		"SPDY":                              "POST " + exec + " HTTP/1.1\n" + overSPDY,
		"SPDY by GET":                       "GET " + exec + " HTTP/1.1\n" + overSPDY,
		"WebSocket":                         "GET " + exec + " HTTP/1.1\n" + overWebSocket,
		"WebSocket by POST":                 "POST " + exec + " HTTP/1.1\n" + overWebSocket,
		"no upgrade":                        "POST " + exec + " HTTP/1.1\nContent-Length: 0",
		"upgrade in another case":           "POST " + exec + " HTTP/1.1\nconnection: uPgRaDe\nupgrade: spdy/3.1",
		"several upgrades":                  "POST " + exec + " HTTP/1.1\nConnection: keep-alive, Upgrade\nUpgrade: websocket, SPDY/3.1\nUpgrade: SPDY/3.1",
		"an upgrade that is not announced":  "POST " + exec + " HTTP/1.1\nUpgrade: SPDY/3.1",
		"another method by a header":        "GET " + exec + " HTTP/1.1\nX-HTTP-Method-Override: POST\n" + overSPDY,
		"the path in a header":              "GET /version HTTP/1.1\nX-Original-URL: " + exec + "\nX-Rewrite-URL: " + exec + "\n" + overSPDY,
		"HTTP/1.0":                          "POST " + exec + " HTTP/1.0\n" + overSPDY,
		"a body and an upgrade":             "POST " + exec + " HTTP/1.1\nContent-Length: 4\n" + overSPDY + "\n\ntrue",
		"chunked":                           "POST " + exec + " HTTP/1.1\nTransfer-Encoding: chunked\n" + overSPDY + "\n\n0\r\n\r\n",
		"the subresource in capitals":       "POST /api/v1/namespaces/shop/pods/" + pod + "/EXEC?command=true&stdout=true HTTP/1.1\n" + overSPDY,
		"the subresource mixed":             "POST /api/v1/namespaces/shop/pods/" + pod + "/Exec?command=true&stdout=true HTTP/1.1\n" + overSPDY,
		"the resource in capitals":          "POST /api/v1/namespaces/shop/PODS/" + pod + "/exec?command=true&stdout=true HTTP/1.1\n" + overSPDY,
		"a slash at the end":                "POST /api/v1/namespaces/shop/pods/" + pod + "/exec/?command=true&stdout=true HTTP/1.1\n" + overSPDY,
		"two slashes":                       "POST /api/v1//namespaces/shop/pods/" + pod + "//exec?command=true&stdout=true HTTP/1.1\n" + overSPDY,
		"dots":                              "POST /api/v1/namespaces/open/../shop/pods/" + pod + "/exec?command=true&stdout=true HTTP/1.1\n" + overSPDY,
		"escaped":                           "POST /api/v1/namespaces/shop/pods/" + pod + "/%65xec?command=true&stdout=true HTTP/1.1\n" + overSPDY,
		"escaped slashes":                   "POST /api/v1/namespaces/open%2F..%2Fshop/pods/" + pod + "/exec?command=true&stdout=true HTTP/1.1\n" + overSPDY,
		"two containers":                    "POST " + exec + "&container=main&container=first HTTP/1.1\n" + overSPDY,
		"an empty container":                "POST " + exec + "&container= HTTP/1.1\n" + overSPDY,
		"an empty container and another":    "POST " + exec + "&container=&container=main HTTP/1.1\n" + overSPDY,
		"two commands":                      "POST " + exec + "&command=-c&command=id HTTP/1.1\n" + overSPDY,
		"no command":                        "POST /api/v1/namespaces/shop/pods/" + pod + "/exec?stdout=true HTTP/1.1\n" + overSPDY,
		"a dry run":                         "POST " + exec + "&dryRun=All HTTP/1.1\n" + overSPDY,
		"an unknown parameter":              "POST " + exec + "&namespace=open&name=other HTTP/1.1\n" + overSPDY,
		"semicolons":                        "POST /api/v1/namespaces/shop/pods/" + pod + "/exec?stdout=true;command=true HTTP/1.1\n" + overSPDY,
		"attach":                            "POST /api/v1/namespaces/shop/pods/" + pod + "/attach?stdout=true HTTP/1.1\n" + overSPDY,
		"portforward":                       "POST /api/v1/namespaces/shop/pods/" + pod + "/portforward?ports=80 HTTP/1.1\nConnection: Upgrade\nUpgrade: SPDY/3.1",
		"the kubelet's exec":                "POST " + node + "/proxy/exec/shop/" + pod + "/main?command=true&output=1 HTTP/1.1\n" + overSPDY,
		"the kubelet's exec by WebSocket":   "GET " + node + "/proxy/exec/shop/" + pod + "/main?command=true&output=1 HTTP/1.1\n" + overWebSocket,
		"the kubelet's exec, with dots":     "POST " + node + "/proxy/metrics/../exec/shop/" + pod + "/main?command=true&output=1 HTTP/1.1\n" + overSPDY,
		"the kubelet's exec, escaped dots":  "POST " + node + "/proxy/metrics/%2e%2e/exec/shop/" + pod + "/main?command=true&output=1 HTTP/1.1\n" + overSPDY,
		"the kubelet's exec, two slashes":   "POST " + node + "/proxy//exec//shop/" + pod + "/main?command=true&output=1 HTTP/1.1\n" + overSPDY,
		"the kubelet's exec, escaped slash": "POST " + node + "/proxy/exec%2Fshop%2F" + pod + "%2Fmain?command=true&output=1 HTTP/1.1\n" + overSPDY,
		"the kubelet's exec, capitals":      "POST " + node + "/proxy/Exec/shop/" + pod + "/main?command=true&output=1 HTTP/1.1\n" + overSPDY,
		"the kubelet's exec, by its port":   "POST " + node + ":10250/proxy/exec/shop/" + pod + "/main?command=true&output=1 HTTP/1.1\n" + overSPDY,
		"the kubelet's run":                 "POST " + node + "/proxy/run/shop/" + pod + "/main?cmd=id HTTP/1.1\nContent-Length: 0",
		"the kubelet's attach":              "POST " + node + "/proxy/attach/shop/" + pod + "/main?output=1 HTTP/1.1\n" + overSPDY,
		"the kubelet's portForward":         "POST " + node + "/proxy/portForward/shop/" + pod + " HTTP/1.1\n" + overSPDY,
		"a Pod's proxy":                     "POST /api/v1/namespaces/shop/pods/https:" + pod + ":10250/proxy/exec/shop/" + pod + "/main?command=true HTTP/1.1\n" + overSPDY,
		"a Service's proxy":                 "POST /api/v1/namespaces/shop/services/https:web:10250/proxy/exec/shop/" + pod + "/main?command=true HTTP/1.1\n" + overSPDY,
	} {
		before := s.records.count()
		code, body := s.raw(t, s.mallory, request)
		t.Logf("%s: %d %.160s", name, code, body)
		// 200 is the answer of /version, of which the headers asked for more.
		if code < 300 && name != "the path in a header" {
			t.Errorf("%s passes: %d %s", name, code, body)
		}
		s.records.mu.Lock()
		for _, r := range s.records.records[min(before, len(s.records.records)):] {
			if r.User.Username == "mallory" && r.Decision == v1alpha1.AuditAllowed {
				t.Errorf("%s: allowed: %+v", name, r)
			}
		}
		s.records.mu.Unlock()
	}
}

func (s *stage) nobodyPassesByCreating(t *testing.T, pod string) {
	create := func(path, manifest string) testkit.Answer {
		return s.send(t, s.mallory, "POST", path, "application/yaml", manifest)
	}
	const (
		pods     = "/api/v1/namespaces/shop/pods"
		roles    = "/apis/rbac.authorization.k8s.io/v1/namespaces/shop/roles"
		requests = "/apis/admitkit.dev/v1alpha1/namespaces/shop/execaccessrequests"
	)
	refused := func(what string, a testkit.Answer) {
		t.Helper()
		if a.Code < 300 || !strings.Contains(a.Body, "admitkit alone makes") {
			t.Errorf("%s: %s", what, a)
		}
	}
	// A Pod that looks like an access Pod.
	fake := `{apiVersion: v1, kind: Pod, metadata: {namespace: shop, name: %s, labels: {app.kubernetes.io/managed-by: admitkit-access,
  admitkit.dev/access-request: mine}, annotations: {admitkit.dev/request-uid: "1"}}, spec: {containers: [{name: main, image: example.com/main}]}}`
	refused("a Pod with the name of an access Pod", create(pods, fmt.Sprintf(fake, "podaccess-mine")))
	if a := create(pods, fmt.Sprintf(fake, "mine")); a.Code != http.StatusCreated {
		t.Fatal(a)
	}
	s.running(t, "mine")
	refusedBy(t, enforce.RuleRequest, s.exec(t, s.mallory, "shop", "mine", "command=true"))
	// A record of a grant.
	role := `{apiVersion: rbac.authorization.k8s.io/v1, kind: Role, metadata: {namespace: shop, %s, labels: {app.kubernetes.io/managed-by: admitkit-access},
  annotations: {admitkit.dev/request-uid: "1", admitkit.dev/pod-uid: "2", admitkit.dev/subjects: '[{"kind":"User","name":"mallory"}]'}},
  rules: [{apiGroups: [""], resources: [pods/exec], resourceNames: [` + pod + `], verbs: [create, get]}]}`
	for _, name := range []string{"name: execaccess-mine", "name: podaccess-mine", "generateName: execaccess-"} {
		refused("a Role with "+name, create(roles, fmt.Sprintf(role, name)))
	}
	passes(t, "a Role of another name", create(roles, fmt.Sprintf(role, "name: mine")))
	// The record of another's grant, turned to oneself.
	s.request(t, "theirs", "web", nil)
	patch := `{"metadata":{"annotations":{"admitkit.dev/subjects":"[{\"kind\":\"User\",\"name\":\"mallory\"}]"}}}`
	if a := s.send(t, s.mallory, "PATCH", roles+"/execaccess-theirs", testkit.AsMerge, patch); a.Code < 300 {
		t.Errorf("the record of a grant was changed: %s", a)
	}
	// A request in another's name, and one whose status says that it is granted.
	request := `{apiVersion: admitkit.dev/v1alpha1, kind: ExecAccessRequest, metadata: {namespace: shop, name: mine},
  spec: {templateName: web, requester: {username: alice, groups: [devs]}}, status: {ready: true, podName: ` + pod + `}}`
	if a := create(requests, request); a.Code < 300 {
		t.Errorf("a request that the template does not allow was made: %s", a)
	}
	refusedBy(t, enforce.RuleRequest, s.exec(t, s.mallory, "shop", pod, "command=true"))
}
