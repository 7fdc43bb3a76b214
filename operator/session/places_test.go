package session_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
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

// hasRecorder says what a Pod lacks of the recorder, "" if it has it.
func hasRecorder(pod *corev1.Pod) string {
	if len(pod.Spec.InitContainers) == 0 || pod.Spec.InitContainers[0].Name != "admitkit-session" || pod.Spec.InitContainers[0].Image != recorderImage {
		return "the init container"
	}
	for _, c := range pod.Spec.Containers {
		for name, path := range map[string]string{"admitkit-session": "/.admitkit", "admitkit-session-token": "/.admitkit-token"} {
			if !slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == name && m.MountPath == path && m.ReadOnly }) {
				return "the mount " + path + " of container " + c.Name
			}
		}
	}
	return ""
}

// The parts share an installation, whose namespace gets the label after the first of them.
func TestSessionsAreRecordedWhereTheLabelSaysSo(t *testing.T) {
	t.Parallel()
	namespace := testkit.Namespace(t, testkit.Client(t, server.Admin(), scheme))
	i, _ := collecting(t, func(o *session.Options) {
		o.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"admitkit.dev/sessions": "true"}}
		o.AccessNamespaces = []string{namespace}
	}, newPod(namespace, "old"))
	g := &granting{i, testkit.Client(t, i.alice, scheme)}
	g.withoutTheLabel(t)
	patch := client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"labels":{"admitkit.dev/sessions":"true"}}}`))
	if err := i.Admin.Patch(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, patch); err != nil {
		t.Fatal(err)
	}
	pods := 0
	testkit.Succeeds(t, time.Minute, "a new Pod has the recorder", func(ctx context.Context) error {
		pods++ // the API server may not have heard of the label yet
		pod := newPod(namespace, fmt.Sprintf("new-%d", pods))
		if err := i.Admin.Create(ctx, pod); err != nil {
			return err
		}
		if lacks := hasRecorder(pod); lacks != "" {
			return fmt.Errorf("%s lacks %s", pod.Name, lacks)
		}
		return nil
	})
	if _, ticket := i.ticketFor(fmt.Sprintf("new-%d", pods), "id"); ticket.Grant != nil {
		t.Errorf("without access the ticket says %+v", ticket.Grant)
	}
	g.everyAccessPodHasIt(t, fmt.Sprintf("new-%d", pods))
}

// podTemplate makes a template for access Pods, whose sessions are limited.
func (g *granting) podTemplate(name string, change func(*v1alpha1.PodAccessTemplateSpec)) {
	g.t.Helper()
	template := &v1alpha1.PodAccessTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: g.Namespace, Name: name}}
	template.Spec.AccessConfig = v1alpha1.AccessConfig{AllowedUsers: []string{"alice"}, Session: &v1alpha1.SessionLimits{IdleTimeout: "5m"}}
	change(&template.Spec)
	testkit.Create(g.t, g.asAlice, template)
}

// askForPod asks for an access Pod.
func (g *granting) askForPod(name, template string) *v1alpha1.PodAccessRequest {
	g.t.Helper()
	req := &v1alpha1.PodAccessRequest{ObjectMeta: metav1.ObjectMeta{Namespace: g.Namespace, Name: name}}
	req.Spec.TemplateName = template
	testkit.Create(g.t, g.asAlice, req)
	return req
}

// withoutTheLabel neither records sessions, nor grants what limits them.
func (g *granting) withoutTheLabel(t *testing.T) {
	t.Helper()
	g.pod("plain")
	if answer, ran := g.exec("plain", nil, "id"); !slices.Equal(ran, []string{"id"}) {
		t.Errorf("%s: runs %q", answer, ran)
	}
	if answer := testkit.Send(t, g.alice, http.MethodGet, "/api/v1/namespaces/"+g.Namespace+"/pods/plain/proxy", "", ""); answer.Code == http.StatusForbidden {
		t.Error(answer)
	}
	g.podTemplate("made", func(spec *v1alpha1.PodAccessTemplateSpec) { spec.PodSpec = &newPod("", "").Spec })
	req := g.askForPod("early", "made")
	testkit.Eventually(t, "the request says why it is not granted", func(ctx context.Context) bool {
		if err := g.asAlice.Get(ctx, client.ObjectKeyFromObject(req), req); err != nil {
			return false
		}
		c := meta.FindStatusCondition(req.Status.Conditions, v1alpha1.ConditionAccessResourcesCreated)
		return c != nil && c.Reason == v1alpha1.ReasonNotRecorded && strings.Contains(c.Message, "ask the operator to record them")
	})
	if err := g.asAlice.Delete(t.Context(), req); err != nil {
		t.Fatal(err)
	}
}

// everyAccessPodHasIt looks at a Pod that a template describes, at one made after a Pod that
// has the recorder, and at one made after a Pod that was there before.
func (g *granting) everyAccessPodHasIt(t *testing.T, recorded string) {
	t.Helper()
	for name, pod := range map[string]string{"copied": recorded, "copied-old": "old"} {
		ref := &v1alpha1.ControllerTargetRef{APIVersion: "v1", Kind: "Pod", Name: pod}
		g.podTemplate(name, func(spec *v1alpha1.PodAccessTemplateSpec) { spec.ControllerTargetRef = ref })
	}
	for _, template := range []string{"made", "copied", "copied-old"} {
		req := g.askForPod(template, template)
		name := v1alpha1.PodAccessPrefix + template
		pod := &corev1.Pod{}
		testkit.Succeeds(t, time.Minute, "there is the access Pod of "+template, func(ctx context.Context) error {
			return g.Admin.Get(ctx, client.ObjectKey{Namespace: g.Namespace, Name: name}, pod)
		})
		if lacks := hasRecorder(pod); lacks != "" {
			t.Errorf("the access Pod of %s lacks %s: %+v", template, lacks, pod.Spec)
			continue
		}
		pod = g.runs(name)
		testkit.Eventually(t, "request "+template+" is granted", func(ctx context.Context) bool {
			return g.asAlice.Get(ctx, client.ObjectKeyFromObject(req), req) == nil && req.Status.Ready
		})
		_, ticket := g.ticketFor(name, "id")
		if want := (&protocol.Grant{Kind: "PodAccessRequest", Name: template, UID: string(req.UID)}); ticket.Grant == nil || *ticket.Grant != *want || ticket.Terms.Idle != 300 || ticket.PodUID != string(pod.UID) {
			t.Errorf("%s: the ticket says %+v, %+v", template, ticket.Grant, ticket.Terms)
		}
	}
}
