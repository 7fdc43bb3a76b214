package audit_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/api/v1alpha1"
	"github.com/admitkit/admitkit/extension/audit"
	"github.com/admitkit/admitkit/extension/audit/internal/audittest"
	"github.com/admitkit/admitkit/extension/audit/sink"
	"github.com/admitkit/admitkit/extension/audit/sink/auditevent"
	"github.com/admitkit/admitkit/internal/testkit"
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

// eventsOf are the AuditEvents of alice in a namespace.
func eventsOf(t *testing.T, ns string) []v1alpha1.AuditEvent {
	t.Helper()
	var list v1alpha1.AuditEventList
	if err := admin.List(t.Context(), &list, client.MatchingLabels{auditevent.LabelNamespace: ns, auditevent.LabelUser: "alice"}); err != nil {
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

func TestAnAuditEventCannotBeTamperedWith(t *testing.T) {
	ns := testkit.ManagerNamespace(t, admin)
	auditor, err := cluster.AddUser("chief-auditor", "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	start(t, ns, objectsOnly(auditevent.Options{DeletableBy: []string{"chief-auditor"}}))
	runPod(t, ns, "shop")
	execIn(t, ns, "true", "evil")
	events := eventsOf(t, ns)
	if len(events) != 1 {
		t.Fatalf("%d AuditEvents of one exec", len(events))
	}
	was := events[0]
	name := was.Name
	tampering := audittest.Metric(t, "admitkit_audit_tampering_total")
	eternal := filepath.Join(t.TempDir(), "eternal.json")
	forged := &v1alpha1.AuditEvent{TypeMeta: metav1.TypeMeta{APIVersion: "admitkit.dev/v1alpha1", Kind: "AuditEvent"}, ObjectMeta: metav1.ObjectMeta{Name: "eternal"}}
	forged.Spec.AuditRecord = *audittest.Record("eternal", time.Now().AddDate(50, 0, 0))
	if text, err := json.Marshal(forged); err != nil || os.WriteFile(eternal, text, 0o600) != nil {
		t.Fatal(err)
	}
	// The admin has every right that RBAC can give.
	for attempt, args := range map[string][]string{
		"to change who it was":         {"patch", "auditevent", name, "--type=merge", "-p", `{"spec":{"user":{"username":"bob"}}}`},
		"to change the command":        {"patch", "auditevent", name, "--type=json", "-p", `[{"op":"replace","path":"/spec/command/1","value":"good"}]`},
		"to remove the command":        {"patch", "auditevent", name, "--type=merge", "-p", `{"spec":{"command":null}}`},
		"to backdate it":               {"patch", "auditevent", name, "--type=merge", "-p", `{"spec":{"time":"2020-01-01T00:00:00.000000Z"}}`},
		"to hide it from a search":     {"label", "--overwrite", "auditevent", name, "admitkit.dev/user=bob"},
		"to remove a label":            {"label", "auditevent", name, "admitkit.dev/pod-"},
		"to have it garbage-collected": {"patch", "auditevent", name, "--type=merge", "-p", `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Namespace","name":"gone","uid":"1"}]}}`},
		"to keep it for ever":          {"patch", "auditevent", name, "--type=merge", "-p", `{"metadata":{"finalizers":["example.com/never"]}}`},
		"to count in it":               {"patch", "auditevent", name, "--subresource=status", "--type=merge", "-p", `{"status":{"count":7}}`},
		"to prolong or end it":         {"patch", "auditevent", name, "--subresource=status", "--type=merge", "-p", `{"status":{"lastTime":"2020-01-01T00:00:00.000000Z"}}`},
		"to delete it":                 {"delete", "auditevent", name},
		"to delete it at once":         {"delete", "auditevent", name, "--force", "--grace-period=0"},
		"to delete all":                {"delete", "auditevents", "--all"},
		"to delete the kind":           {"delete", "crd", "auditevents.admitkit.dev", "--wait=false"},
		"to delete the collection":     {"delete", "--raw", "/apis/admitkit.dev/v1alpha1/auditevents"},
		"to drop the time of all":      dropping(`{"op":"remove","path":"` + schemaPath + `/spec/properties/time"},{"op":"replace","path":"` + schemaPath + `/spec/required","value":[]}`),
		"to drop the command of all":   dropping(`{"op":"remove","path":"` + schemaPath + `/spec/properties/command"}`),
		"to drop the rule":             dropping(`{"op":"remove","path":"` + schemaPath + `/spec/x-kubernetes-validations"}`),
		"to serve none":                dropping(`{"op":"replace","path":"/spec/versions/0/served","value":false}`),
		"to count nothing":             dropping(`{"op":"remove","path":"/spec/versions/0/subresources"}`),
		"to keep new ones out":         dropping(`{"op":"add","path":"` + schemaPath + `/spec/properties/command/maxItems","value":0}`),
		"to keep new names out":        dropping(`{"op":"add","path":"` + schemaPath + `/metadata/properties","value":{"name":{"type":"string","maxLength":1}}}`),
		"to store less":                dropping(`{"op":"replace","path":"/spec/versions/0/storage","value":false},{"op":"add","path":"/spec/versions/-","value":{"name":"v2","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}}}`),
		"to delete all kinds":          {"delete", "--raw", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions?dryRun=All&fieldSelector=metadata.name%3Dauditevents.admitkit.dev"},
		"to make one for ever":         {"create", "--raw", "/apis/admitkit.dev/v1alpha1/auditevents", "-f", eternal},
		"to delete as the manager":     {"--as=system:serviceaccount:admitkit-system:admitkit", "delete", "auditevent", name},
	} {
		t.Run("the admin wants "+attempt, func(t *testing.T) {
			output, err := cluster.Kubectl(t.Context(), nil, args...).CombinedOutput()
			if err == nil || !strings.Contains(string(output), "audit record") && !strings.Contains(string(output), "denied the request") {
				t.Errorf("%v: kubectl says: %s", err, output)
			}
			t.Logf("%s", output)
		})
	}
	var is v1alpha1.AuditEvent
	if err := admin.Get(t.Context(), client.ObjectKey{Name: name}, &is); err != nil || is.ResourceVersion != was.ResourceVersion {
		t.Errorf("%v: the AuditEvent was %+v, is %+v", err, was, is)
	}
	if got := audittest.Metric(t, "admitkit_audit_tampering_total") - tampering; got < 10 {
		t.Errorf("%v attempts are counted", got)
	}
	for name, patch := range map[string]string{
		"a field":   `{"op":"add","path":"` + schemaPath + `/spec/properties/severity","value":{"type":"string"}}`,
		"a version": `{"op":"copy","from":"/spec/versions/0","path":"/spec/versions/-"},{"op":"replace","path":"/spec/versions/1/name","value":"v1beta1"},{"op":"replace","path":"/spec/versions/1/storage","value":false}`,
	} {
		if output, err := cluster.Kubectl(t.Context(), nil, dropping(patch)...).CombinedOutput(); err != nil {
			t.Errorf("an upgrade that adds %s is refused: %v: %s", name, err, output)
		}
	}
	t.Run("who may delete is on record", func(t *testing.T) { aCleanupIsOnRecord(t, ns, auditor, name) })
}

// schemaPath is where the fields of an AuditEvent are in its CRD.
const schemaPath = "/spec/versions/0/schema/openAPIV3Schema/properties"

// dropping patches the CRD, without effect if nobody refuses.
func dropping(patch string) []string {
	return []string{"patch", "crd", "auditevents.admitkit.dev", "--dry-run=server", "--type=json", "-p", "[" + patch + "]"}
}

func aCleanupIsOnRecord(t *testing.T, ns string, auditor *controlplane.User, name string) {
	for i := range 3 {
		execIn(t, ns, "true", fmt.Sprint(i))
	}
	if output, err := cluster.Kubectl(t.Context(), auditor, "delete", "auditevent", name).CombinedOutput(); err != nil {
		t.Errorf("who is in DeletableBy cannot delete: %v: %s", err, output)
	}
	if output, err := cluster.Kubectl(t.Context(), auditor, "delete", "auditevents", "-l", auditevent.LabelUser+"=alice,"+auditevent.LabelNamespace+"="+ns).CombinedOutput(); err != nil {
		t.Errorf("who is in DeletableBy cannot delete all of them: %v: %s", err, output)
	}
	if left := eventsOf(t, ns); len(left) != 0 {
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
	if output, err := cluster.Kubectl(t.Context(), auditor, "delete", "auditevent", record.Name).CombinedOutput(); err == nil {
		t.Errorf("the record of it can be deleted: %s", output)
	}
}

func TestNothingIsDeletedWhileTheClocksDiffer(t *testing.T) {
	nobodysEvents(t)
	ns := testkit.ManagerNamespace(t, admin)
	logs := start(t, ns, objectsOnly(auditevent.Options{Retention: time.Hour, Clock: clocktesting.NewFakePassiveClock(time.Now().Add(2 * time.Hour))}))
	runPod(t, ns, "shop")
	execIn(t, ns, "true")
	testkit.Eventually(t, "the manager says why it deletes nothing, or has deleted", func(context.Context) bool {
		return logs.FilterMessage("no AuditEvent is deleted while the clocks differ").Len() > 0 || len(eventsOf(t, ns)) == 0
	})
	if len(eventsOf(t, ns)) != 1 {
		t.Error("the record of now is deleted as if its time was over")
	}
}

func TestAnAuditEventGoesAtTheVeryEndOfItsRetention(t *testing.T) {
	nobodysEvents(t)
	const retention = 3 * time.Second
	n := testkit.Long(200, 20)
	ns := testkit.ManagerNamespace(t, admin)
	start(t, ns, objectsOnly(auditevent.Options{Retention: retention, FoldAfter: -1, DeletionsPerSecond: 1000}))
	runPod(t, ns, "shop")
	w, err := admin.Watch(t.Context(), &v1alpha1.AuditEventList{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	execer := newExecer(t, ns, 0)
	go func() {
		for i := range n {
			if !execer.execUntilAllowed(t, "shop", fmt.Sprint("exec-", i)) {
				return
			}
		}
	}()
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
	if worst > 2*time.Second {
		t.Errorf("the last is gone %s after its time", worst)
	}
	testkit.Figure("audit.retention_late_ms", float64(worst)/float64(time.Millisecond), "ms")
}

func TestManyAuditEventsAreDeletedAtABoundedRate(t *testing.T) {
	nobodysEvents(t)
	const n, perSecond = 60, 20
	old := metav1.NewMicroTime(time.Now().Add(-time.Hour))
	for i := range n {
		e := &v1alpha1.AuditEvent{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("old-", i)}}
		e.Spec.AuditRecord = *audittest.Record(e.Name, old.Time)
		testkit.Create(t, admin, e)
	}
	kept := &v1alpha1.AuditEvent{ObjectMeta: metav1.ObjectMeta{Name: "young"}}
	kept.Spec.AuditRecord = *audittest.Record("young", time.Now().Add(time.Hour))
	testkit.Create(t, admin, kept)
	left := func() int {
		var list v1alpha1.AuditEventList
		if err := admin.List(t.Context(), &list); err != nil {
			t.Fatal(err)
		}
		n := 0
		for i := range list.Items {
			if strings.HasPrefix(list.Items[i].Name, "old-") {
				n++
			}
		}
		return n
	}
	began := time.Now()
	start(t, testkit.ManagerNamespace(t, admin), objectsOnly(auditevent.Options{Retention: time.Millisecond, DeletionsPerSecond: perSecond}))
	testkit.Eventually(t, "the old ones are gone", func(context.Context) bool { return left() == 0 })
	// The first perSecond may go at once.
	if took, least := time.Since(began), time.Second*(n-perSecond)/perSecond; took < least {
		t.Errorf("%d are gone within %s, want at least %s", n, took, least)
	}
	if err := admin.Get(t.Context(), client.ObjectKeyFromObject(kept), kept); err != nil {
		t.Errorf("the one whose time is not over: %v", err)
	}
}

func TestAFloodIsFoldedIntoOneAuditEventThatCounts(t *testing.T) {
	nobodysEvents(t)
	const after, total = 5, 30
	ns := testkit.ManagerNamespace(t, admin)
	options := objectsOnly(auditevent.Options{FoldAfter: after})
	// All of it is in one minute.
	options.Clock = clocktesting.NewFakeClock(time.Now())
	start(t, ns, options)
	runPod(t, ns, "shop")
	execer := newExecer(t, ns, 0)
	folded := audittest.Metric(t, "admitkit_audit_folded_total")
	var done sync.WaitGroup
	for i := range total {
		done.Go(func() { // the acts of a flood wait for each other
			if err := execer.exec(t.Context(), "shop", "true", fmt.Sprint(i%4)); err != nil {
				t.Error(err)
			}
		})
	}
	done.Wait()
	events := eventsOf(t, ns)
	if len(events) != after+1 {
		t.Fatalf("%d AuditEvents of %d execs, want %d", len(events), total, after+1)
	}
	var fold *v1alpha1.AuditEvent
	for i := range events {
		if events[i].Spec.Folded {
			fold = &events[i]
		}
	}
	if fold == nil || fold.Labels[auditevent.LabelFolded] != "true" {
		t.Fatalf("none says that it is folded: %+v", events)
	}
	acts := int64(0)
	for _, act := range fold.Status.Acts {
		acts += act.Count
	}
	if s := fold.Status; s.Count != total-after || acts != total-after || len(s.Acts) != 4 || s.FirstTime == nil || s.LastTime == nil {
		t.Errorf("the fold says %+v", s)
	}
	if got := audittest.Metric(t, "admitkit_audit_folded_total") - folded; got != total-after {
		t.Errorf("%v are counted as folded, want %d", got, total-after)
	}
}

func TestAnExecDoesNotWaitForTheRateLimitOfTheManagersConnection(t *testing.T) {
	ns := testkit.ManagerNamespace(t, admin)
	slow := *managerUser
	slow.Config = rest.CopyConfig(managerUser.Config)
	slow.Config.QPS, slow.Config.Burst = 2, 2
	startAs(t, &slow, ns, objectsOnly(auditevent.Options{}))
	runPod(t, ns, "shop")
	execer := newExecer(t, ns, 0)
	began := time.Now()
	const execs = 20
	for range execs {
		if err := execer.exec(t.Context(), "shop", "true"); err != nil {
			t.Fatal(err)
		}
	}
	// Each reads the Pod and writes a record: 20 s at two requests a second.
	if took := time.Since(began); took > execs/2*time.Second {
		t.Errorf("%d execs took %s", execs, took)
	}
}

func TestADryRunIsLoggedAndHasNoEffect(t *testing.T) {
	ns := testkit.ManagerNamespace(t, admin)
	kept := &memory{}
	logs := start(t, ns, audit.Options{Sinks: []audit.SinkOptions{
		{Sink: sink.NewLog(), FailurePolicy: audit.Closed},
		{Sink: auditevent.New(auditevent.Options{}), FailurePolicy: audit.Closed},
		{Sink: sink.NewEvent(), FailurePolicy: audit.Closed},
		{Sink: kept, FailurePolicy: audit.Closed},
	}})
	pod := runPod(t, ns, "shop")
	pod.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "tools", Image: "example.com/tools:1"}}}
	if err := testkit.Client(t, alice, scheme).SubResource("ephemeralcontainers").Update(t.Context(), pod, client.DryRunAll); err != nil {
		t.Fatal(err)
	}
	if got := kept.of("alice"); len(got) != 1 || !got[0].DryRun || got[0].Way != v1alpha1.WayDebug {
		t.Errorf("recorded %+v", got)
	}
	if logs.FilterMessage("session").FilterFieldKey("dryRun").Len() != 1 {
		t.Error("it is not logged")
	}
	if got := eventsOf(t, ns); len(got) != 0 {
		t.Errorf("there are AuditEvents: %+v", got)
	}
	var list eventsv1.EventList
	if err := admin.List(t.Context(), &list, client.InNamespace(ns)); err != nil {
		t.Fatal(err)
	}
	for i := range list.Items {
		if list.Items[i].Reason == "PodDebug" {
			t.Errorf("there is an Event: %+v", list.Items[i])
		}
	}
}

func TestAnEventOnThePodTellsOfTheSession(t *testing.T) {
	ns := testkit.ManagerNamespace(t, admin)
	start(t, ns, audit.Options{Required: true})
	pod := runPod(t, ns, "shop")
	execIn(t, ns, "true", "--token", "s3cr3t")
	var list eventsv1.EventList
	if err := admin.List(t.Context(), &list, client.InNamespace(ns)); err != nil {
		t.Fatal(err)
	}
	found := 0
	for i := range list.Items {
		e := &list.Items[i]
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
