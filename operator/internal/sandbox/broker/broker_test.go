package broker_test

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/internal/sandbox/broker"
	"github.com/admitkit/admitkit/operator/internal/sandbox/broker/protocol"
)

const patience = time.Minute

func secret(namespace, name string, data map[string]string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, StringData: data}
}

const topSecret = "sk-do-not-tell"

func TestTheBroker(t *testing.T) {
	t.Parallel()
	w := install(t)
	container := injected("env", "model-key")
	container.Delivery = v1alpha1.CredentialDelivery{InContainer: &v1alpha1.InContainer{Accepted: true, Reason: why}}
	basic := injected("git", "model-key", "a.git.example.com")
	basic.Delivery.ProxyInjected.Header, basic.Delivery.ProxyInjected.BasicUser = "Authorization", "x-access-token"
	missing := injected("missing", "nowhere", "api.example.com")
	lines := injected("lines", "lines", "api.example.com")
	testkit.Create(t, admin,
		secret(w.Namespace, "model-key", map[string]string{"key": topSecret + "\n"}),
		secret(w.Namespace, "lines", map[string]string{"key": "a\nb: c"}),
		policy(w.Namespace, "agents", func(s *v1alpha1.BrokerPolicySpec) {
			s.Grants.Credentials = append(s.Grants.Credentials, container, basic, missing, lines, injected("both", "model-key", "api.example.com"))
		}),
		policy(w.Namespace, "more", func(s *v1alpha1.BrokerPolicySpec) {
			s.AppliesToTemplates, s.Grants.Credentials = []string{"agent-code"}, []v1alpha1.CredentialGrant{injected("both", "model-key", "api.example.com")}
			discovering(time.Hour)(s)
		}))
	t.Run("gives a credential to the proxy of a run, on record and without its value", w.gives)
	t.Run("revokes when the run has ended, and when it is gone", w.revokesByItself)
	t.Run("gives what is for the container to the controller alone", w.givesTheController)
	t.Run("gives the seed of a Workspace what a policy grants that, until it has ended", w.seeds)
	t.Run("refuses who may not ask, and what is not granted", w.refuses)
	t.Run("issues nothing that is not recorded", w.failsClosed)
	t.Run("says what a run may reach, and records what its proxy refused", w.tellsEgress)
	t.Run("limits how often a run asks, and how much", w.limits)
	t.Run("is there for others while an address floods it", w.flooded)
	t.Run("ends a lease that nobody renews", w.endsInTime)
}

func (w *world) gives(t *testing.T) {
	r := w.start(t, "given", "agent-code")
	proxy := w.proxyOf(t, r)
	issued, err := proxy.Issue(t.Context(), protocol.IssueRequest{Name: "model"})
	if err != nil {
		t.Fatal(err)
	}
	if issued.Header == nil || *issued.Header != (protocol.Header{Name: "X-Api-Key", Value: topSecret}) || issued.Value != "" || len(issued.Hosts) != 1 {
		t.Errorf("it is %+v", issued)
	}
	if left := time.Until(issued.ExpiresAt); left > broker.DefaultLeaseDuration || left < broker.DefaultLeaseDuration-patience {
		t.Errorf("it lasts for %s", left)
	}
	again, err := proxy.Issue(t.Context(), protocol.IssueRequest{Name: "model"})
	if err != nil || again.Lease != issued.Lease || !again.ExpiresAt.After(issued.ExpiresAt) {
		t.Errorf("the renewal is %+v (%v), of %s", again, err, issued.Lease)
	}
	git, err := proxy.Issue(t.Context(), protocol.IssueRequest{Name: "git"})
	if want := "Basic " + base64.StdEncoding.EncodeToString([]byte("x-access-token:"+topSecret)); err != nil || git.Header.Value != want {
		t.Errorf("for git it is %+v (%v)", git, err)
	}
	held := w.leases(t, r)
	if len(held) != 2 {
		t.Fatalf("there are %d leases", len(held))
	}
	if queued, err := proxy.Revoke(t.Context(), protocol.RevokeRequest{Lease: git.Lease}); err != nil || len(queued) > 0 || len(w.leases(t, r)) != 1 {
		t.Errorf("one is revoked: %v, %v, and %d are left", queued, err, len(w.leases(t, r)))
	}
	if queued, err := w.controller(t).Revoke(t.Context(), protocol.RevokeRequest{Run: r.named()}); err != nil || len(queued) > 0 || len(w.leases(t, r)) != 0 {
		t.Errorf("all are revoked: %v, %v, and %d are left", queued, err, len(w.leases(t, r)))
	}
	actions, text := w.records(t, r)
	if n := len(actions); n != 4 || !has(actions, "issued Allowed") || !has(actions, "revoked Allowed") {
		t.Errorf("%d records: %v", n, actions)
	}
	if strings.Contains(text, topSecret) {
		t.Error("the value is on record")
	}
}

func (w *world) gone(t *testing.T, r *aRun) {
	t.Helper()
	testkit.Within(t, patience, "its leases are gone", func(context.Context) bool { return len(w.leases(t, r)) == 0 })
}

func (w *world) revokesByItself(t *testing.T) {
	ended, deleted := w.start(t, "ended", "agent-code"), w.start(t, "deleted", "agent-code")
	for _, r := range []*aRun{ended, deleted} {
		if _, err := w.proxyOf(t, r).Issue(t.Context(), protocol.IssueRequest{Name: "model"}); err != nil {
			t.Fatal(err)
		}
	}
	proxy := w.proxyOf(t, ended)
	ended.become(t, "Succeeded")
	w.gone(t, ended)
	_, err := proxy.Issue(t.Context(), protocol.IssueRequest{Name: "model"})
	refused(t, err, protocol.CodeRunEnded)
	_, err = proxy.Egress(t.Context())
	refused(t, err, protocol.CodeRunEnded)
	if err := admin.Delete(t.Context(), deleted.object); err != nil {
		t.Fatal(err)
	}
	w.gone(t, deleted)
}

func (w *world) givesTheController(t *testing.T) {
	r := w.start(t, "contained", "agent-code")
	issued, err := w.controller(t).Issue(t.Context(), protocol.IssueRequest{Run: r.named(), Name: "env"})
	if err != nil || issued.Value != topSecret || issued.Header != nil {
		t.Errorf("it is %+v (%v)", issued, err)
	}
	_, err = w.controller(t).Issue(t.Context(), protocol.IssueRequest{Run: r.named(), Name: "model"})
	refused(t, err, protocol.CodeForbidden)
	_, err = w.proxyOf(t, r).Issue(t.Context(), protocol.IssueRequest{Name: "env"})
	refused(t, err, protocol.CodeForbidden)
	_, err = w.controller(t).Issue(t.Context(), protocol.IssueRequest{Run: &protocol.Run{Namespace: w.Namespace, Name: "nobody"}, Name: "env"})
	refused(t, err, protocol.CodeRunNotFound)
	_, err = w.controller(t).Issue(t.Context(), protocol.IssueRequest{Name: "env"})
	refused(t, err, protocol.CodeBadRequest)
}

func (w *world) refuses(t *testing.T) {
	r, other, stranger := w.start(t, "honest", "agent-code"), w.start(t, "other", "agent-code"), w.start(t, "stranger", "import")
	issue := func(token, name string, run *protocol.Run) error {
		_, err := w.ask(t, token).Issue(t.Context(), protocol.IssueRequest{Name: name, Run: run})
		return err
	}
	ofPod := func(pod *corev1.Pod) string { return w.token(t, w.Namespace, "default", protocol.Audience, pod) }
	refused(t, issue("forged", "model", nil), protocol.CodeUnauthorized)
	refused(t, issue("", "model", nil), protocol.CodeUnauthorized)
	refused(t, issue(strings.Repeat("a", 20<<10), "model", nil), protocol.CodeUnauthorized)
	refused(t, issue(w.token(t, w.Namespace, "default", "https://kubernetes.default.svc", r.pod), "model", nil), protocol.CodeUnauthorized)
	refused(t, issue(ofPod(nil), "model", nil), protocol.CodeForbidden)
	refused(t, issue(ofPod(r.pod), "model", other.named()), protocol.CodeForbidden)
	refused(t, issue(ofPod(r.pod), "unknown", nil), protocol.CodeCredentialNotFound)
	refused(t, issue(ofPod(r.pod), "both", nil), protocol.CodeAmbiguous)
	refused(t, issue(ofPod(stranger.pod), "model", nil), protocol.CodePolicyMissing)
	refused(t, issue(ofPod(r.pod), "missing", nil), protocol.CodeProviderFailed)
	refused(t, issue(ofPod(r.pod), "lines", nil), protocol.CodeProviderFailed)
	// With the labels of a run, or a Job of its own making that names the run.
	refused(t, issue(ofPod(w.podOf(t, "labelled", nil)), "model", nil), protocol.CodeRunNotFound)
	forged := r.job.DeepCopy()
	forged.ObjectMeta = metav1.ObjectMeta{Namespace: w.Namespace, Name: "forged", OwnerReferences: r.job.OwnerReferences}
	forged.Spec.Selector, forged.Spec.Template.Labels = nil, nil
	forged.Status = batchv1.JobStatus{}
	testkit.Create(t, admin, forged)
	refused(t, issue(ofPod(w.podOf(t, "forged", forged)), "model", nil), protocol.CodeRunNotFound)
	// A token ends with its Pod.
	token := ofPod(other.pod)
	if err := admin.Delete(t.Context(), other.pod, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	refused(t, issue(token, "model", nil), protocol.CodeUnauthorized)
	for _, of := range []*aRun{r, stranger} {
		if actions, _ := w.records(t, of); !has(actions, "issue-refused Denied") {
			t.Errorf("the records of %s are %v", of.object.GetName(), actions)
		}
	}
	// What failed is not left behind.
	w.gone(t, r)
	if queued, err := w.ask(t, ofPod(r.pod)).Revoke(t.Context(), protocol.RevokeRequest{Run: other.named()}); err == nil {
		t.Errorf("a run revokes what another has: %v", queued)
	}
	_, err := w.ask(t, ofPod(r.pod)).Revoke(t.Context(), protocol.RevokeRequest{Lease: "any", Undelivered: true})
	refused(t, err, protocol.CodeForbidden) // a run that has a token from a pool would free it
}

func (w *world) failsClosed(t *testing.T) {
	r := w.start(t, "unrecorded", "agent-code")
	proxy := w.proxyOf(t, r)
	if _, err := proxy.Issue(t.Context(), protocol.IssueRequest{Name: "git"}); err != nil {
		t.Fatal(err)
	}
	w.unrecorded.Store(true)
	defer w.unrecorded.Store(false)
	_, err := proxy.Issue(t.Context(), protocol.IssueRequest{Name: "model"})
	refused(t, err, protocol.CodeAuditUnavailable)
	_, err = proxy.Issue(t.Context(), protocol.IssueRequest{Name: "unknown"})
	refused(t, err, protocol.CodeAuditUnavailable)
	err = proxy.Report(t.Context(), aReport("lost"))
	refused(t, err, protocol.CodeAuditUnavailable)
	// The end waits for its record, too, in the queue.
	queued, err := w.controller(t).Revoke(t.Context(), protocol.RevokeRequest{Run: r.named()})
	if err != nil || len(queued) == 0 {
		t.Errorf("%v (%v) are queued", queued, err)
	}
	w.unrecorded.Store(false)
	w.gone(t, r)
}

func aReport(id string) protocol.Report {
	now := time.Now().UTC()
	return protocol.Report{ID: id, Entries: []protocol.Reported{{Host: "evil.example.com", Port: 443, Reason: "no policy allows it", Count: 37, First: now.Add(-time.Minute), Last: now}}}
}

func (w *world) tellsEgress(t *testing.T) {
	r := w.start(t, "reaching", "agent-code")
	proxy := w.proxyOf(t, r)
	egress, err := proxy.Egress(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(egress.Allow) != 4 || egress.DiscoverUntil == nil || len(egress.Credentials) != 4 {
		t.Errorf("it is %+v", egress)
	}
	for _, credential := range egress.Credentials {
		if credential.Name == "both" || credential.Name == "env" {
			t.Errorf("the proxy is told of credential %s", credential.Name)
		}
	}
	quiet, err := w.proxyOf(t, w.start(t, "quiet", "agent-other")).Egress(t.Context())
	if err != nil || quiet.DiscoverUntil != nil || len(quiet.Allow) != 2 {
		t.Errorf("for another template it is %+v (%v)", quiet, err)
	}
	for range 2 { // the second is the first, sent again
		if err := proxy.Report(t.Context(), aReport("one")); err != nil {
			t.Fatal(err)
		}
	}
	actions, text := w.records(t, r)
	if len(actions) != 1 || actions[0] != "egress-refused Denied" || !strings.Contains(text, `37 connections to "evil.example.com", port 443`) {
		t.Errorf("the records are %v: %s", actions, text)
	}
	tooMany := aReport("many")
	for len(tooMany.Entries) <= protocol.MaxReported {
		tooMany.Entries = append(tooMany.Entries, tooMany.Entries[0])
	}
	refused(t, proxy.Report(t.Context(), tooMany), protocol.CodeBadRequest)
	long := aReport("long")
	long.Entries[0].Host = strings.Repeat("a", protocol.MaxDetail+1)
	refused(t, proxy.Report(t.Context(), long), protocol.CodeBadRequest)
}

func (w *world) limits(t *testing.T) {
	r := w.start(t, "hasty", "agent-code")
	proxy := w.proxyOf(t, r)
	answers := make(chan error, 200)
	var calls sync.WaitGroup
	for range cap(answers) { // at once, so that it is too many on a busy machine, too
		calls.Go(func() {
			_, err := proxy.Issue(t.Context(), protocol.IssueRequest{Name: "model"})
			answers <- err
		})
	}
	calls.Wait()
	close(answers)
	limited := (*protocol.Error)(nil)
	for err := range answers {
		if refused, is := errors.AsType[*protocol.Error](err); is && refused.Code == protocol.CodeRateLimited {
			limited = refused
		}
	}
	if limited == nil || limited.Status != http.StatusTooManyRequests || limited.RetryAfter < time.Second {
		t.Errorf("of 200 calls at once none is limited: %+v", limited)
	}
	if actions, _ := w.records(t, r); !has(actions, "issue-refused Denied") {
		t.Errorf("the records are %v", actions)
	}
	token := w.token(t, w.Namespace, "default", protocol.Audience, r.pod)
	plain := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	for sentence, c := range map[string]struct {
		method, body string
		status       int
	}{
		"a body that is too large":  {http.MethodPost, `{"name":"` + strings.Repeat("a", protocol.MaxBody) + `"}`, http.StatusBadRequest},
		"a field that nobody knows": {http.MethodPost, `{"name":"model","value":"x"}`, http.StatusBadRequest},
		"another method":            {http.MethodGet, "", http.StatusMethodNotAllowed},
	} {
		req, err := http.NewRequestWithContext(t.Context(), c.method, "https://"+w.options.Address+protocol.PathIssue, strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
		resp, err := plain.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode != c.status {
			t.Errorf("%s: %d %s", sentence, resp.StatusCode, text)
		}
	}
}

// What reaches the port without a token is as much as work in a Pod could do that nothing redirects.
func (w *world) flooded(t *testing.T) {
	proxy := w.proxyOf(t, w.start(t, "calm", "agent-code"))
	flooder := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 9)}}
	plain := &http.Client{Transport: &http.Transport{
		DialContext: flooder.DialContext, TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
	}}
	statuses, begun := map[int]int{}, time.Now()
	for range 60 {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+w.options.Address+protocol.PathEgress, strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer forged")
		resp, err := plain.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		statuses[resp.StatusCode]++
	}
	if statuses[http.StatusTooManyRequests] == 0 || statuses[http.StatusUnauthorized] > 21+int(time.Since(begun).Seconds()) {
		t.Errorf("the answers to invalid tokens are %v: the API server is asked about too many", statuses)
	}
	for range sourceConnections + 40 {
		conn, err := flooder.DialContext(t.Context(), "tcp", w.options.Address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
	}
	testkit.Within(t, patience, "connections beyond the limit of an address are closed", func(context.Context) bool {
		return strings.Contains(w.Metrics(), `admitkit_broker_requests_total{code="RateLimited",path="connection"}`)
	})
	if _, err := proxy.Egress(t.Context()); err != nil {
		t.Errorf("a run at another address is not answered: %v", err)
	}
}

func (w *world) endsInTime(t *testing.T) {
	r := w.start(t, "silent", "agent-code")
	issued, err := w.proxyOf(t, r).Issue(t.Context(), protocol.IssueRequest{Name: "model"})
	if err != nil {
		t.Fatal(err)
	}
	lease := &v1alpha1.CredentialLease{ObjectMeta: metav1.ObjectMeta{Namespace: w.WebhookNamespace, Name: issued.Lease}}
	for _, change := range []string{`{"credential":"other"}`, `{"key":"other/key"}`, `{"run":{"name":"other"}}`} {
		err := admin.Patch(t.Context(), lease.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(`{"spec":`+change+`}`)))
		if err == nil || !strings.Contains(err.Error(), "only expiresAt and pod") {
			t.Errorf("a lease is changed by %s: %v", change, err)
		}
	}
	// As if its time were over.
	patch := client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"expiresAt":"`+time.Now().UTC().Add(time.Second).Format("2006-01-02T15:04:05.000000Z")+`"}}`))
	if err := admin.Patch(t.Context(), lease, patch); err != nil {
		t.Fatal(err)
	}
	w.gone(t, r)
}
