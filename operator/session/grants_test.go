package session_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/internal/session/protocol"
	"github.com/admitkit/admitkit/operator/session"
)

// granting is an installation that grants access to Pods of a namespace, where sessions end
// with it. The Pod old was there before.
type granting struct {
	*installation
	asAlice client.Client
}

func grants(t *testing.T) *granting {
	t.Helper()
	namespace := testkit.Namespace(t, testkit.Client(t, server.Admin(), scheme))
	i, _ := collecting(t, func(o *session.Options) {
		o.AuditObjects, o.NoCollector, o.AccessNamespaces = true, session.Open, []string{namespace}
		o.Max, o.Idle = 8*time.Hour, 30*time.Minute
	}, newPod(namespace, "old"))
	g := &granting{i, testkit.Client(t, i.alice, scheme)}
	g.runs("old")
	return g
}

// runs says that a Pod runs, as a kubelet would.
func (g *granting) runs(name string) *corev1.Pod {
	g.t.Helper()
	pod := &corev1.Pod{}
	if err := g.Admin.Get(g.t.Context(), client.ObjectKey{Namespace: g.Namespace, Name: name}, pod); err != nil {
		g.t.Fatal(err)
	}
	pod.Status.Phase = corev1.PodRunning
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	if err := g.Admin.Status().Update(g.t.Context(), pod); err != nil {
		g.t.Fatal(err)
	}
	return pod
}

// ask asks for access to a Pod by a template of the same name, which ends sessions.
func (g *granting) ask(pod, name string) *v1alpha1.ExecAccessRequest {
	g.t.Helper()
	return g.askBy(pod, name, v1alpha1.AccessConfig{OnExpiry: v1alpha1.ExpiryEndSession})
}

// askBy asks by a template with a config that says nothing of who and how long.
func (g *granting) askBy(pod, name string, config v1alpha1.AccessConfig) *v1alpha1.ExecAccessRequest {
	g.t.Helper()
	template := &v1alpha1.ExecAccessTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: g.Namespace, Name: name}}
	config.AllowedUsers, config.DefaultDuration, config.MaxDuration = []string{"alice"}, "1h", "3h"
	template.Spec.AccessConfig = config
	template.Spec.ControllerTargetRef = v1alpha1.ControllerTargetRef{APIVersion: "v1", Kind: "Pod", Name: pod}
	testkit.Create(g.t, g.asAlice, template)
	req := &v1alpha1.ExecAccessRequest{ObjectMeta: metav1.ObjectMeta{Namespace: g.Namespace, Name: name}}
	req.Spec.TemplateName = name
	testkit.Create(g.t, g.asAlice, req)
	return req
}

// granted waits until a request is granted.
func (g *granting) granted(req *v1alpha1.ExecAccessRequest) {
	g.t.Helper()
	testkit.Eventually(g.t, "request "+req.Name+" is granted", func(ctx context.Context) bool {
		return g.asAlice.Get(ctx, client.ObjectKeyFromObject(req), req) == nil && req.Status.Ready
	})
}

// recorded is a recorder that is connected.
type recorded struct {
	*granting
	text, token string
	ticket      *protocol.Ticket
	conn        *tls.Conn
	from        *bufio.Reader
}

func (g *granting) record(pod *corev1.Pod) *recorded {
	g.t.Helper()
	r := &recorded{granting: g, token: g.token(pod, session.Audience)}
	r.text, r.ticket = g.ticketFor(pod.Name, "id")
	r.connect()
	return r
}

func (r *recorded) connect() {
	r.t.Helper()
	status, said, conn, from := connect(r.t, r.ticket, r.text, r.token, strings.Repeat("s", 64))
	if status != http.StatusSwitchingProtocols {
		r.t.Fatalf("%d %s", status, said)
	}
	r.conn, r.from = conn, from
}

// next returns when the collector says that the session ends, or why it ends now.
func (r *recorded) next() (end time.Time, why string) {
	r.t.Helper()
	if err := r.conn.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
		r.t.Fatal(err)
	}
	f, err := protocol.Read(r.from)
	for err == nil && f.Type == protocol.Ack {
		f, err = protocol.Read(r.from)
	}
	if err != nil {
		r.t.Fatal(err)
	}
	switch f.Type {
	case protocol.Stop:
		return time.Time{}, string(f.Data)
	case protocol.Until:
		var limits protocol.Limits
		if err := json.Unmarshal(f.Data, &limits); err != nil {
			r.t.Fatal(err)
		}
		return time.Now().Add(time.Duration(limits.Left) * time.Microsecond), limits.Reason
	}
	r.t.Fatalf("the collector sends %q", f.Type)
	return
}

// endsAt wants the collector to say that the session ends then.
func (r *recorded) endsAt(want time.Time) {
	r.t.Helper()
	// The clock is the API server's, and the machine may be busy.
	if end, why := r.next(); end.Sub(want).Abs() > 20*time.Second || !strings.HasSuffix(why, " ends") {
		r.t.Errorf("the session ends at %s, not %s: %s", end, want, why)
	}
}

// keep tells the collector that the recorder is there.
func (r *recorded) keep() {
	r.t.Helper()
	if _, err := r.conn.Write((&protocol.Frame{Type: protocol.Alive}).Append(nil)); err != nil {
		r.t.Fatal(err)
	}
}

// The parts share an installation, one namespace, and the API server.
func TestASessionEndsWithItsGrant(t *testing.T) {
	t.Parallel()
	g := grants(t)
	g.theEndFollowsTheRequest(t)
	g.takenAwayEndsIt(t)
	g.withoutTheRecorderNothingIsGranted(t)
	g.theSmallerLimitsCount(t)
	g.limitsAreDurations(t)
}

func (g *granting) theEndFollowsTheRequest(t *testing.T) {
	t.Helper()
	g.pod("web")
	web := g.runs("web")
	req := g.ask("web", "a")
	g.granted(req)
	r := g.record(web)
	if grant := r.ticket.Grant; grant == nil || grant.Name != "a" || grant.UID != string(req.UID) || !r.ticket.Terms.Closed {
		t.Fatalf("the ticket says %+v", r.ticket)
	}
	end, err := v1alpha1.EndOf(req)
	if err != nil {
		t.Fatal(err)
	}
	r.endsAt(end)
	var event v1alpha1.AuditEvent
	reader := testkit.Client(t, server.Admin(), scheme)
	if err := reader.Get(t.Context(), client.ObjectKey{Name: r.ticket.ID}, &event); err != nil {
		t.Fatal(err)
	}
	if by := event.Spec.AccessRequest; by == nil || by.Name != "a" {
		t.Errorf("the AuditEvent has %+v", by)
	}

	for _, change := range []struct {
		what, duration string
		by             time.Duration
	}{{"a longer grant", "2h", time.Hour}, {"a shorter grant", "30m", -30 * time.Minute}} {
		r.keep()
		if answer := g.patch("a", fmt.Sprintf(`{"spec":{"duration":%q}}`, change.duration)); answer.Code != http.StatusOK {
			t.Fatalf("%s: %s", change.what, answer)
		}
		r.endsAt(end.Add(change.by))
	}
	r.connect() // to another replica, or after a restart
	r.endsAt(end.Add(-30 * time.Minute))
	r.keep()
	if answer := g.patch("a", `{"spec":{"revoked":{}}}`); answer.Code != http.StatusOK {
		t.Fatal(answer)
	}
	if _, why := r.next(); why != "access by request a was revoked" {
		t.Errorf("the session ends because %q", why)
	}
	// It stays so, and no other session begins by it.
	r.connect()
	if _, why := r.next(); why != "access by request a was revoked" {
		t.Errorf("the session ends because %q", why)
	}
	if _, ticket := g.ticketFor("web", "id"); ticket.Grant != nil || ticket.Terms.Closed {
		t.Errorf("a session by other rights ends with %+v", ticket.Grant)
	}
}

func (g *granting) patch(name, patch string) testkit.Answer {
	g.t.Helper()
	return testkit.Send(g.t, g.alice, http.MethodPatch, "/apis/admitkit.dev/v1alpha1/namespaces/"+g.Namespace+"/execaccessrequests/"+name, testkit.AsMerge, patch)
}

func (g *granting) takenAwayEndsIt(t *testing.T) {
	t.Helper()
	for what, take := range map[string]func(name string) client.Object{
		"was deleted": func(name string) client.Object {
			return &v1alpha1.ExecAccessRequest{ObjectMeta: metav1.ObjectMeta{Namespace: g.Namespace, Name: name}}
		},
		"was revoked": func(name string) client.Object { // the template is gone
			return &v1alpha1.ExecAccessTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: g.Namespace, Name: name}}
		},
	} {
		name := strings.ReplaceAll(what, " ", "-")
		g.pod(name)
		pod := g.runs(name)
		g.granted(g.ask(name, name))
		r := g.record(pod)
		r.next()
		r.keep()
		if err := g.asAlice.Delete(t.Context(), take(name)); err != nil {
			t.Fatal(err)
		}
		// What is gone may be the RoleBinding first.
		if _, why := r.next(); !strings.HasPrefix(why, "access by request "+name+" was ") {
			t.Errorf("%s: the session ends because %q", what, why)
		}
	}
}

func (g *granting) withoutTheRecorderNothingIsGranted(t *testing.T) {
	t.Helper()
	req := g.ask("old", "b")
	testkit.Eventually(t, "the request says why it is not granted", func(ctx context.Context) bool {
		if err := g.asAlice.Get(ctx, client.ObjectKeyFromObject(req), req); err != nil {
			return false
		}
		c := meta.FindStatusCondition(req.Status.Conditions, v1alpha1.ConditionAccessResourcesCreated)
		return c != nil && c.Reason == v1alpha1.ReasonNotRecorded && strings.Contains(c.Message, "kubectl rollout restart")
	})
	config := v1alpha1.AccessConfig{AllowedUsers: []string{"alice"}, OnExpiry: v1alpha1.ExpiryEndSession}
	for why, template := range map[string]client.Object{
		"needs verbs exec and log alone": &v1alpha1.ExecAccessTemplate{Spec: v1alpha1.ExecAccessTemplateSpec{
			AccessConfig:        v1alpha1.AccessConfig{AllowedUsers: []string{"alice"}, OnExpiry: v1alpha1.ExpiryEndSession, Verbs: []v1alpha1.AccessVerb{v1alpha1.VerbExec, v1alpha1.VerbPortForward}},
			ControllerTargetRef: v1alpha1.ControllerTargetRef{APIVersion: "v1", Kind: "Pod", Name: "old"},
		}},
		"is for exec access": &v1alpha1.PodAccessTemplate{Spec: v1alpha1.PodAccessTemplateSpec{AccessConfig: config, PodSpec: &newPod("", "").Spec}},
	} {
		template.SetNamespace(g.Namespace)
		template.SetName("c")
		if err := g.asAlice.Create(t.Context(), template); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v", why, err)
		}
	}
}

// The operator's limits are 8h, and 30m without a key.
func (g *granting) theSmallerLimitsCount(t *testing.T) {
	t.Helper()
	for name, test := range map[string]struct {
		config    v1alpha1.AccessConfig
		max, idle time.Duration
	}{
		"idle":     {v1alpha1.AccessConfig{Session: &v1alpha1.SessionLimits{IdleTimeout: "5m"}}, 8 * time.Hour, 5 * time.Minute},
		"longer":   {v1alpha1.AccessConfig{Session: &v1alpha1.SessionLimits{IdleTimeout: "1h", MaxLength: "1h30m"}}, 90 * time.Minute, 30 * time.Minute},
		"and-ends": {v1alpha1.AccessConfig{Session: &v1alpha1.SessionLimits{MaxLength: "20m"}, OnExpiry: v1alpha1.ExpiryEndSession}, 20 * time.Minute, 30 * time.Minute},
	} {
		g.pod(name)
		pod := g.runs(name)
		req := g.askBy(name, name, test.config)
		g.granted(req)
		ends := test.config.OnExpiry == v1alpha1.ExpiryEndSession
		_, ticket := g.ticketFor(name, "id")
		if terms := ticket.Terms; terms.Max != int64(test.max.Seconds()) || terms.Idle != int64(test.idle.Seconds()) || terms.Closed != ends || (ticket.Grant != nil) != ends {
			t.Errorf("%s: the ticket says %+v, %+v", name, terms, ticket.Grant)
		}
		if ends { // the collector says so, too
			r := g.record(pod)
			if end, why := r.next(); time.Until(end) > test.max || why != protocol.ReasonMax {
				t.Errorf("the session ends at %s: %s", end, why)
			}
			r.keep()
		}
		if answer := g.patch(name, `{"spec":{"revoked":{}}}`); answer.Code != http.StatusOK {
			t.Fatal(answer)
		}
		if _, ticket := g.ticketFor(name, "id"); ticket.Terms.Max != 8*3600 || ticket.Terms.Idle != 1800 {
			t.Errorf("%s: without the grant the ticket says %+v", name, ticket.Terms)
		}
	}
}

func (g *granting) limitsAreDurations(t *testing.T) {
	t.Helper()
	for why, config := range map[string]v1alpha1.AccessConfig{
		"idleTimeout or maxLength must be set": {Session: &v1alpha1.SessionLimits{}},
		"idleTimeout: Invalid value":           {Session: &v1alpha1.SessionLimits{IdleTimeout: "1.5s"}},
		"must be a duration of whole seconds":  {Session: &v1alpha1.SessionLimits{IdleTimeout: "0s"}},
		"from 1s to 8760h":                     {Session: &v1alpha1.SessionLimits{MaxLength: "8761h"}},
		"maxLength: Invalid value":             {Session: &v1alpha1.SessionLimits{MaxLength: "20"}},
		"session needs verbs exec and log alone": {
			Session: &v1alpha1.SessionLimits{MaxLength: "20m"}, Verbs: []v1alpha1.AccessVerb{v1alpha1.VerbExec, v1alpha1.VerbAttach},
		},
	} {
		config.AllowedUsers = []string{"alice"}
		template := &v1alpha1.ExecAccessTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: g.Namespace, Name: "bad"}}
		template.Spec.AccessConfig = config
		template.Spec.ControllerTargetRef = v1alpha1.ControllerTargetRef{APIVersion: "v1", Kind: "Pod", Name: "web"}
		if err := g.asAlice.Create(t.Context(), template); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v", why, err)
		}
	}
}
