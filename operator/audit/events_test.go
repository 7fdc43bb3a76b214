package audit_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/audit"
	"github.com/admitkit/admitkit/operator/audit/internal/audittest"
	"github.com/admitkit/admitkit/operator/audit/sink"
	"github.com/admitkit/admitkit/operator/audit/sink/auditevent"
	"github.com/admitkit/admitkit/testing/controlplane"
)

// objectsOnly has one sink, which is Closed.
func objectsOnly(options auditevent.Options) audit.Options {
	return audit.Options{Sinks: []audit.SinkOptions{{Sink: auditevent.New(options), FailurePolicy: audit.Closed}}}
}

// execIn execs as alice in the Pod shop.
func execIn(t *testing.T, ns string, command ...string) {
	t.Helper()
	args := append([]string{"-n", ns, "exec", "shop", "-c", "web", "--"}, command...)
	if output, err := cluster.Kubectl(t.Context(), alice, args...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
}

// eventsOf are the AuditEvents of a user in a namespace.
func eventsOf(t *testing.T, user *controlplane.User, ns string) []v1alpha1.AuditEvent {
	t.Helper()
	var list v1alpha1.AuditEventList
	if err := admin.List(t.Context(), &list, client.MatchingLabels{auditevent.LabelNamespace: ns, auditevent.LabelUser: user.Name}); err != nil {
		t.Fatal(err)
	}
	return list.Items
}

// nobodysEvents removes what tests before left, while no webhook keeps it.
func nobodysEvents(t *testing.T) {
	t.Helper()
	for {
		err := admin.DeleteAllOf(t.Context(), &v1alpha1.AuditEvent{})
		if err == nil {
			return
		}
		// Of 20,000 it deletes as many as it can in a minute.
		if !apierrors.IsTimeout(err) {
			t.Fatal(err)
		}
	}
}

// ask asks for an exec as a user, without an upgrade: admission comes first.
func ask(t *testing.T, user *controlplane.User, ns, pod string, query url.Values) testkit.Answer {
	t.Helper()
	return testkit.Send(t, user, http.MethodPost, "/api/v1/namespaces/"+ns+"/pods/"+pod+"/exec?"+query.Encode(), testkit.AsJSON, "")
}

// eventsPath is where AuditEvents are, and schemaPath where the fields of one are in its CRD.
const (
	eventsPath = "/apis/admitkit.dev/v1alpha1/auditevents"
	schemaPath = "/spec/versions/0/schema/openAPIV3Schema/properties"
)

// TestAuditEvents has the tests with AuditEvents. Their guard is for all of the cluster, and so are webhooks for the
// proxies of nodes: one installation at a time has them. The long form measures, and so has the processors to itself.
func TestAuditEvents(t *testing.T) {
	if testing.Short() {
		t.Parallel()
	}
	for _, test := range []struct {
		sentence string
		do       func(*testing.T)
	}{
		{"an AuditEvent goes at the very end of its retention", anAuditEventGoesInTime},
		{"an AuditEvent cannot be tampered with", anAuditEventCannotBeTamperedWith},
		{"a flood of execs does not fill etcd", aFloodDoesNotFillEtcd},
		{"no exec of many is missing from the record", noExecIsMissing},
		{"every way in by kubectl is recorded once", everyWayInIsRecordedOnce},
		{"nobody acts without a true record or a live request", nobodyActsUnseen},
	} {
		t.Run(test.sentence, test.do)
	}
}

func anAuditEventCannotBeTamperedWith(t *testing.T) {
	ns := testkit.ManagerNamespace(t, admin)
	auditor, err := cluster.AddUser("chief-auditor", "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	start(t, ns, objectsOnly(auditevent.Options{DeletableBy: []string{"chief-auditor"}}))
	ask(t, alice, ns, "shop", url.Values{"command": {"true", "evil"}})
	events := eventsOf(t, alice, ns)
	if len(events) != 1 {
		t.Fatalf("%d AuditEvents of one exec", len(events))
	}
	was := events[0]
	this := eventsPath + "/" + was.Name
	tampering := audittest.Metric(t, "admitkit_audit_tampering_total")
	forged := &v1alpha1.AuditEvent{TypeMeta: metav1.TypeMeta{APIVersion: "admitkit.dev/v1alpha1", Kind: "AuditEvent"}, ObjectMeta: metav1.ObjectMeta{Name: "eternal"}}
	forged.Spec.AuditRecord = *audittest.Record("eternal", time.Now().AddDate(50, 0, 0))
	eternal, err := json.Marshal(forged)
	if err != nil {
		t.Fatal(err)
	}
	// The CRD is changed without effect if nobody refuses.
	const ofTheKind = crdPath + "?dryRun=All"
	field := func(operation string) string { return strings.ReplaceAll("["+operation+"]", "FIELDS", schemaPath) }
	// The admin has every right that RBAC can give.
	for attempt, test := range map[string]struct{ method, path, contentType, body string }{
		"to change who it was":         {"PATCH", this, testkit.AsMerge, `{"spec":{"user":{"username":"bob"}}}`},
		"to change the command":        {"PATCH", this, testkit.AsPatch, `[{"op":"replace","path":"/spec/command/1","value":"good"}]`},
		"to remove the command":        {"PATCH", this, testkit.AsMerge, `{"spec":{"command":null}}`},
		"to backdate it":               {"PATCH", this, testkit.AsMerge, `{"spec":{"time":"2020-01-01T00:00:00.000000Z"}}`},
		"to hide it from a search":     {"PATCH", this, testkit.AsMerge, `{"metadata":{"labels":{"admitkit.dev/user":"bob"}}}`},
		"to remove a label":            {"PATCH", this, testkit.AsMerge, `{"metadata":{"labels":{"admitkit.dev/pod":null}}}`},
		"to have it garbage-collected": {"PATCH", this, testkit.AsMerge, `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Namespace","name":"gone","uid":"1"}]}}`},
		"to keep it for ever":          {"PATCH", this, testkit.AsMerge, `{"metadata":{"finalizers":["example.com/never"]}}`},
		"to count in it":               {"PATCH", this + "/status", testkit.AsMerge, `{"status":{"count":7}}`},
		"to prolong or end it":         {"PATCH", this + "/status", testkit.AsMerge, `{"status":{"lastTime":"2020-01-01T00:00:00.000000Z"}}`},
		"to delete it":                 {"DELETE", this, testkit.AsJSON, ""},
		"to delete it at once":         {"DELETE", this, testkit.AsJSON, `{"gracePeriodSeconds":0}`},
		"to delete all":                {"DELETE", eventsPath, testkit.AsJSON, ""},
		"to delete the kind":           {"DELETE", crdPath, testkit.AsJSON, ""},
		"to drop the time of all":      {"PATCH", ofTheKind, testkit.AsPatch, field(`{"op":"remove","path":"FIELDS/spec/properties/time"},{"op":"replace","path":"FIELDS/spec/required","value":[]}`)},
		"to drop the command of all":   {"PATCH", ofTheKind, testkit.AsPatch, field(`{"op":"remove","path":"FIELDS/spec/properties/command"}`)},
		"to drop the rule":             {"PATCH", ofTheKind, testkit.AsPatch, field(`{"op":"remove","path":"FIELDS/spec/x-kubernetes-validations"}`)},
		"to serve none":                {"PATCH", ofTheKind, testkit.AsPatch, field(`{"op":"replace","path":"/spec/versions/0/served","value":false}`)},
		"to count nothing":             {"PATCH", ofTheKind, testkit.AsPatch, field(`{"op":"remove","path":"/spec/versions/0/subresources"}`)},
		"to keep new ones out":         {"PATCH", ofTheKind, testkit.AsPatch, field(`{"op":"add","path":"FIELDS/spec/properties/command/maxItems","value":0}`)},
		"to keep new names out":        {"PATCH", ofTheKind, testkit.AsPatch, field(`{"op":"add","path":"FIELDS/metadata/properties","value":{"name":{"type":"string","maxLength":1}}}`)},
		"to store less": {"PATCH", ofTheKind, testkit.AsPatch, field(`{"op":"replace","path":"/spec/versions/0/storage","value":false},` +
			`{"op":"add","path":"/spec/versions/-","value":{"name":"v2","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}}}`)},
		"to delete all kinds":      {"DELETE", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions?dryRun=All&fieldSelector=metadata.name%3Dauditevents.admitkit.dev", testkit.AsJSON, ""},
		"to make one for ever":     {"POST", eventsPath, testkit.AsJSON, string(eternal)},
		"to delete as the manager": {"DELETE", this, testkit.AsJSON, ""},
	} {
		t.Run("the admin wants "+attempt, func(t *testing.T) {
			var headers []string
			if attempt == "to delete as the manager" {
				headers = []string{"Impersonate-User", managerUser.Name}
			}
			a := testkit.Send(t, cluster.Admin(), test.method, test.path, test.contentType, test.body, headers...)
			if a.Code < 300 || !strings.Contains(a.Body, "audit record") && !strings.Contains(a.Body, "denied the request") {
				t.Errorf("%s", a)
			}
			t.Logf("%s", a)
		})
	}
	var is v1alpha1.AuditEvent
	if err := admin.Get(t.Context(), client.ObjectKeyFromObject(&was), &is); err != nil || is.ResourceVersion != was.ResourceVersion {
		t.Errorf("%v: the AuditEvent was %+v, is %+v", err, was, is)
	}
	if got := audittest.Metric(t, "admitkit_audit_tampering_total") - tampering; got < 10 {
		t.Errorf("%v attempts are counted", got)
	}
	for name, patch := range map[string]string{
		"a field":   field(`{"op":"add","path":"FIELDS/spec/properties/severity","value":{"type":"string"}}`),
		"a version": field(`{"op":"copy","from":"/spec/versions/0","path":"/spec/versions/-"},{"op":"replace","path":"/spec/versions/1/name","value":"v1beta1"},{"op":"replace","path":"/spec/versions/1/storage","value":false}`),
	} {
		if a := testkit.Send(t, cluster.Admin(), "PATCH", ofTheKind, testkit.AsPatch, patch); a.Code != http.StatusOK {
			t.Errorf("an upgrade that adds %s is refused: %s", name, a)
		}
	}
	t.Run("who may delete is on record", func(t *testing.T) { aCleanupIsOnRecord(t, ns, auditor, was.Name) })
}

func aCleanupIsOnRecord(t *testing.T, ns string, auditor *controlplane.User, name string) {
	for i := range 3 {
		ask(t, alice, ns, "shop", url.Values{"command": {"true", fmt.Sprint(i)}})
	}
	remove := func(path string) testkit.Answer {
		return testkit.Send(t, auditor, "DELETE", eventsPath+path, testkit.AsJSON, "")
	}
	if a := remove("/" + name); a.Code != http.StatusOK {
		t.Errorf("who is in DeletableBy cannot delete: %s", a)
	}
	if a := remove("?labelSelector=" + url.QueryEscape(auditevent.LabelUser+"=alice,"+auditevent.LabelNamespace+"="+ns)); a.Code != http.StatusOK {
		t.Errorf("who is in DeletableBy cannot delete all of them: %s", a)
	}
	if left := eventsOf(t, alice, ns); len(left) != 0 {
		t.Errorf("%d AuditEvents are left", len(left))
	}
	var record v1alpha1.AuditEvent
	testkit.Eventually(t, "the record counts all four", func(ctx context.Context) bool {
		var list v1alpha1.AuditEventList
		if err := admin.List(ctx, &list, client.MatchingLabels{auditevent.LabelUser: "chief-auditor"}); err != nil || len(list.Items) != 1 {
			return false
		}
		record = list.Items[0]
		return record.Status.Count == 4
	})
	if r := record.Spec; r.Way != v1alpha1.WayCleanup || !r.Folded || r.Path != "auditevents/"+name || record.Status.Acts[0].Path != r.Path || !strings.Contains(r.Reason, "by alice") {
		t.Errorf("the record is %+v", record)
	}
	if a := remove("/" + record.Name); a.Code < 300 {
		t.Errorf("the record of it can be deleted: %s", a)
	}
}

func anAuditEventGoesInTime(t *testing.T) {
	nobodysEvents(t)
	const retention = 3 * time.Second
	n := testkit.Long(200, 20)
	ns := testkit.ManagerNamespace(t, admin)
	start(t, ns, objectsOnly(auditevent.Options{Retention: retention, FoldAfter: -1}))
	w, err := admin.Watch(t.Context(), &v1alpha1.AuditEventList{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	for i := range n {
		ask(t, alice, ns, "shop", url.Values{"command": {fmt.Sprint("exec-", i)}})
	}
	var worst time.Duration
	gone := 0
	limit := time.After(2 * time.Minute)
	for gone < n {
		select {
		case event := <-w.ResultChan():
			e, ok := event.Object.(*v1alpha1.AuditEvent)
			if !ok || event.Type != watch.Deleted || e.Spec.User.Username != "alice" {
				continue
			}
			gone++
			late := time.Since(e.Spec.Time.Add(retention))
			if late < 0 {
				t.Errorf("%s is gone %s before its time", e.Name, -late)
			}
			worst = max(worst, late)
		case <-limit:
			t.Fatalf("%d of %d are gone", gone, n)
		}
	}
	if !testing.Short() && worst > 2*time.Second {
		t.Errorf("the last is gone %s after its time", worst)
	}
	testkit.Figure("audit.retention_late_ms", float64(worst)/float64(time.Millisecond), "ms")
}

func TestAnEventOnThePodTellsOfTheSession(t *testing.T) {
	t.Parallel()
	ns := testkit.ManagerNamespace(t, admin)
	kept := &memory{}
	start(t, ns, audit.Options{WithoutNodeProxy: true, Sinks: []audit.SinkOptions{{Sink: sink.NewEvent(), FailurePolicy: audit.Closed}, {Sink: kept, FailurePolicy: audit.Closed}}})
	pod := runPod(t, ns, "shop")
	debugged := pod.DeepCopy()
	debugged.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "tools", Image: "example.com/tools:1"}}}
	if err := testkit.Client(t, alice, scheme).SubResource("ephemeralcontainers").Update(t.Context(), debugged, client.DryRunAll); err != nil {
		t.Fatal(err)
	}
	if got := kept.of("alice"); len(got) != 1 || !got[0].DryRun || got[0].Way != v1alpha1.WayDebug {
		t.Errorf("the record of a dry run is %+v", got)
	}
	execIn(t, ns, "true", "--token", "s3cr3t")
	var list eventsv1.EventList
	if err := admin.List(t.Context(), &list, client.InNamespace(ns)); err != nil {
		t.Fatal(err)
	}
	found := 0
	for i := range list.Items {
		e := &list.Items[i]
		if e.Reason == "PodDebug" {
			t.Errorf("there is an Event of a dry run: %+v", e)
		}
		if e.Regarding.Name != "shop" || e.Reason != "PodExec" {
			continue
		}
		found++
		if e.Regarding.UID != pod.UID || e.Regarding.FieldPath != "spec.containers{web}" || e.ReportingController != "admitkit.dev/audit" || strings.Contains(e.Note, "s3cr3t") {
			t.Errorf("the Event is %+v", e)
		}
	}
	if found != 1 {
		t.Errorf("%d Events of one exec", found)
	}
	describe, err := cluster.Kubectl(t.Context(), nil, "-n", ns, "describe", "pod", "shop").CombinedOutput()
	if err != nil || !strings.Contains(string(describe), `alice: exec in container web: ["true" "--token" "REDACTED"]`) {
		t.Errorf("kubectl describe pod does not show it: %v: %s", err, describe)
	}
}
