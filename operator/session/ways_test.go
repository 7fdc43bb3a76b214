package session_test

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/host"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/audit"
	"github.com/admitkit/admitkit/operator/session"
	"github.com/admitkit/admitkit/testing/admit"
	"github.com/admitkit/admitkit/testing/fakes"
)

// wayIn is a way into a Pod that cannot be recorded.
type wayIn struct {
	method, path string
	kind, object string // what it leads to
	why          string
}

// waysIn are those into the Pods of a namespace.
func waysIn(namespace string) (all []wayIn) {
	in := "/api/v1/namespaces/" + namespace
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		all = append(all, wayIn{method, in + "/pods/old/portforward?ports=80", "Pod", "old", "a forwarded port"})
	}
	for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodHead, http.MethodOptions} {
		all = append(all, wayIn{method, in + "/pods/old/proxy", "Pod", "old", "the proxy of a Pod"},
			wayIn{method, in + "/services/web/proxy/x", "Service", "web", "the proxy of a Service"})
	}
	for path, pod := range map[string]string{
		"exec/" + namespace + "/old/web?command=id&output=1": "old", "EXEC/" + namespace + "/old/uid/web?command=id": "old", "run/" + namespace + "/old/web": "old",
		"attach/" + namespace + "/old/web": "old", "portForward/" + namespace + "/old": "old", "metrics/%2e%2e/exec/" + namespace + "/old/web": "old",
		"exec/DEFAULT/old/web": "", "cri/exec/token": "", "unheard-of": "",
	} {
		way := wayIn{http.MethodPost, "/api/v1/nodes/n/proxy/" + path, "Node", "n", "this path of the kubelet"}
		if pod != "" {
			way.kind, way.object = "Pod", pod
		}
		all = append(all, way)
	}
	return append(all, wayIn{http.MethodGet, in + "/pods/https:old:8443/proxy/x", "Pod", "old", "the proxy of a Pod"},
		wayIn{http.MethodGet, in + "/services/http:web:80/proxy", "Service", "web", "the proxy of a Service"},
		wayIn{http.MethodGet, "/api/v1/nodes/https:n:10250/proxy/exec/" + namespace + "/old/web", "Pod", "old", "this path of the kubelet"})
}

// everywhere lets audit read the Pods that paths of kubelets name.
var everywhere = audit.Options{NamespaceSelector: extension.EveryNamespace()}

func TestPortsAndProxiesAreRefusedOrOnRecord(t *testing.T) {
	for policy, refused := range map[session.Policy]bool{session.Closed: true, session.Open: false} {
		t.Run(string(policy), func(t *testing.T) {
			namespace := testkit.Namespace(t, testkit.Client(t, server.Admin(), scheme))
			i := install(t, func(o *session.Options) { o.Unrecorded = policy }, everywhere, newPod(namespace, "old"))
			ways := waysIn(namespace)
			for _, way := range ways {
				answer := testkit.Send(t, i.alice, way.method, way.path, "", "")
				if answer.Code == http.StatusForbidden != refused || refused && way.method != http.MethodHead && !strings.Contains(answer.Body, way.why) {
					t.Errorf("%s %s: %s", way.method, way.path, answer)
				}
				if i.recordsUnrecorded(way) == refused {
					t.Errorf("%s %s: on record as unrecorded: %t", way.method, way.path, refused)
				}
			}
			for _, path := range []string{"nodes/n/proxy/metrics", "nodes/n/proxy/containerLogs/" + namespace + "/old/web", "nodes/n/proxy/exec/default/old/web", "namespaces/default/pods/old/proxy", "namespaces/default/services/web/proxy"} {
				if answer := testkit.Send(t, i.alice, http.MethodGet, "/api/v1/"+path, "", ""); answer.Code == http.StatusForbidden {
					t.Errorf("%s: %s", path, answer)
				}
				if record := i.sink.decided("unrecorded"); record != nil {
					t.Errorf("%s: audit has %+v", path, record)
				}
			}
			i.hasEvents(ways, refused)
		})
	}
}

// recordsUnrecorded reports whether audit has kept that a session by a way was not recorded.
func (i *installation) recordsUnrecorded(way wayIn) bool {
	record := i.sink.decided("unrecorded")
	return record != nil && record.User.Username == "alice" && record.Decision == v1alpha1.AuditAllowed && strings.Contains(record.Reason, way.why) &&
		record.Object.Kind == way.kind && record.Object.Name == way.object && (record.Pod == way.object) == (way.kind == "Pod")
}

// decided returns the last decision of an action, and forgets all records.
func (m *memory) decided(action string) (found *v1alpha1.AuditRecord) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, record := range m.records {
		if record.Way == v1alpha1.WayDecision && record.Verb == action {
			found = record
		}
	}
	m.records = nil
	return found
}

// hasEvents wants an Event of each way that was let through and leads to what has a namespace.
func (i *installation) hasEvents(ways []wayIn, refused bool) {
	i.t.Helper()
	var events eventsv1.EventList
	if err := i.Admin.List(i.t.Context(), &events, client.InNamespace(i.Namespace)); err != nil {
		i.t.Fatal(err)
	}
	got, want := map[string]int{}, map[string]int{}
	for _, event := range events.Items {
		if event.Reason == "SessionUnrecorded" && strings.Contains(event.Note, "alice") {
			got[event.Regarding.Kind+" "+event.Regarding.Name]++
		}
	}
	for _, way := range ways {
		if !refused && way.kind != "Node" {
			want[way.kind+" "+way.object]++
		}
	}
	for _, of := range []string{"Pod old", "Service web"} {
		if got[of] != want[of] {
			i.t.Errorf("%s has %d Events, not %d", of, got[of], want[of])
		}
	}
}

func TestThePathOfAKubeletLeadsIntoANamespaceThatIsRecordedOrNot(t *testing.T) {
	options := newOptions(t)
	options.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"admitkit.dev/sessions": "true"}}
	w := admit.New(t, session.New(options)).Strict().MatchConditions(map[string]bool{"may-open-a-session": true}).With(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "other"}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "recorded", Labels: options.NamespaceSelector.MatchLabels}})
	for namespace, refused := range map[string]bool{"recorded": true, "gone": true, "other": false} {
		if result := w.As("alice").Connect("n", &corev1.NodeProxyOptions{Path: "exec/" + namespace + "/web/web"}); result.Allowed == refused || result.Err != nil {
			t.Errorf("%s: %+v", namespace, result)
		}
	}
}

func TestNothingIsUnrecordedIfThatCannotBeOnRecord(t *testing.T) {
	t.Parallel()
	i := install(t, func(o *session.Options) { o.Unrecorded = session.Open }, audit.Options{})
	i.pod("web")
	i.sink.failOn(v1alpha1.WayDecision, errors.New("full"))
	answer := testkit.Send(t, i.alice, http.MethodGet, "/api/v1/namespaces/"+i.Namespace+"/pods/web/proxy", "", "")
	if answer.Code != http.StatusForbidden || !strings.Contains(answer.Body, "cannot be put on record") {
		t.Errorf("got %s", answer)
	}
}

func TestTheWebhookOfNodesCanBeLeftOut(t *testing.T) {
	for _, without := range []bool{false, true} {
		options := valid
		options.WithoutNodeProxy = without
		parts, err := host.PartsOf(session.New(options), fakes.NewManager())
		if err != nil {
			t.Fatal(err)
		}
		var resources []string
		for _, handler := range parts.Handlers {
			for _, rule := range host.Open(handler).Scope.Rules {
				resources = append(resources, rule.Resources...)
			}
		}
		if slices.Contains(resources, "nodes/proxy") == without {
			t.Errorf("without: %t; the webhooks match %q", without, resources)
		}
	}
}
