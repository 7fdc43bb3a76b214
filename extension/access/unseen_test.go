package access_test

import (
	"context"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/api/v1alpha1"
	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/testing/controlplane"
)

// The manager grants what the status says was approved, once it watches a namespace.
func TestWhereNoWebhookLooksNobodyWritesThatARequestWasApproved(t *testing.T) {
	t.Parallel()
	c := &castle{namespace: testkit.Namespace(t, admin)}
	install(t, c.namespace)
	for _, name := range []string{"podaccessrequests", "execaccessrequests", "roleaccessrequests"} {
		c.let(t, c.namespace, name, rule("admitkit.dev", "create get update patch", name), "mallory")
		c.let(t, c.namespace, name+"-status", rule("admitkit.dev", "update patch", name+"/status"), "mallory")
	}
	// Whoever may create RoleBindings in the namespace is not the manager either.
	c.let(t, c.namespace, "binder", rule("rbac.authorization.k8s.io", "create", "rolebindings"), "mallory")
	const message = "status: only admitkit writes who approved"
	meta := metav1.ObjectMeta{Namespace: c.namespace, Name: "mine"}
	spec := v1alpha1.RequestSpec{TemplateName: "t", Duration: "1h"}
	exec, pod, role := &v1alpha1.ExecAccessRequest{ObjectMeta: meta}, &v1alpha1.PodAccessRequest{ObjectMeta: meta}, &v1alpha1.RoleAccessRequest{ObjectMeta: meta}
	for _, request := range []request{exec, pod, role} {
		*request.GetRequestSpec() = spec
	}
	write := func(ctx context.Context, user *controlplane.User, object client.Object, status string) error {
		return as(t, user).Status().Patch(ctx, object.DeepCopyObject().(client.Object), client.RawPatch("application/merge-patch+json", []byte(`{"status":`+status+`}`)), client.DryRunAll)
	}
	const approved = `{"approvedAt":"2030-01-01T00:00:00Z"}`
	for _, object := range []client.Object{exec, pod, role} {
		testkit.Create(t, admin, object)
		testkit.Eventually(t, "the policy is in force", func(ctx context.Context) bool {
			err := write(ctx, mallory, object, approved)
			return err != nil && strings.Contains(err.Error(), message)
		})
		for _, status := range []string{
			approved, `{"verdicts":[{"username":"bob","decision":"Approve","time":"2030-01-01T00:00:00Z"}]}`, `{"grantedAt":"2030-01-01T00:00:00Z"}`,
			`{"check":{"name":"a","decision":"Allow","time":"2030-01-01T00:00:00Z"}}`, `{"accessMessage":"rm -rf /"}`,
		} {
			refused(t, write(t.Context(), mallory, object, status), message)
		}
		if err := write(t.Context(), mallory, object, `{"revokedAt":"2030-01-01T00:00:00Z"}`); err != nil {
			t.Errorf("what takes access away: %v", err)
		}
	}
	refused(t, write(t.Context(), mallory, exec, `{"podName":"web-0","podUID":"1"}`), message)
	refused(t, write(t.Context(), mallory, role, `{"grantedRole":{"kind":"ClusterRole","name":"cluster-admin","uid":"1"}}`), message)
}

func TestWhereNoWebhookLooksNobodyLengthensAccessBeyondItsTemplate(t *testing.T) {
	t.Parallel()
	p := &panel{namespace: testkit.Namespace(t, admin)}
	install(t, p.namespace)
	(&castle{namespace: p.namespace}).let(t, p.namespace, "requests", rule("admitkit.dev", "get update patch", "execaccessrequests"), "mallory", "alice")
	free, strict := p.template("free", 0, "1h"), p.template("strict", 1, "1h")
	free.Spec.AccessConfig.Approval = nil
	testkit.Create(t, admin, free, strict)
	asked := func(name, template string) *v1alpha1.ExecAccessRequest {
		r := execRequest(p.namespace, name, template)
		r.Spec.Duration, r.Spec.Requester = "1h", &v1alpha1.Requester{Username: "alice", Groups: []string{"devs", "engineers", "system:authenticated"}}
		testkit.Create(t, as(t, alice), r)
		return r
	}
	mine, unapproved := asked("mine", "free"), asked("unapproved", "strict")
	lengthen := func(ctx context.Context, user *controlplane.User, r *v1alpha1.ExecAccessRequest, spec string) string {
		err := as(t, user).Patch(ctx, r.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(`{"spec":`+spec+`}`)), client.DryRunAll)
		if err != nil {
			return err.Error()
		}
		return ""
	}
	const longer, others = "spec.duration: the template gives no longer access", "spec.duration: only the requester"
	for what, c := range map[string]struct {
		user    *controlplane.User
		request *v1alpha1.ExecAccessRequest
		spec    string
		want    string
	}{
		"up to what the template gives":           {alice, mine, `{"duration":"2h"}`, ""},
		"shorter, by whoever may update it":       {mallory, mine, `{"duration":"5m"}`, ""},
		"beyond what the template gives":          {alice, mine, `{"duration":"2h1s"}`, longer},
		"by taking it away, with another default": {alice, mine, `{"duration":null}`, longer},
		"by somebody else":                        {mallory, mine, `{"duration":"2h"}`, others},
		"without the approval that it needs now":  {alice, unapproved, `{"duration":"2h"}`, longer},
	} {
		if c.want == "" {
			if said := lengthen(t.Context(), c.user, c.request, c.spec); said != "" {
				t.Errorf("%s: %s", what, said)
			}
			continue
		}
		testkit.Eventually(t, what+" is refused", func(ctx context.Context) bool {
			return strings.Contains(lengthen(ctx, c.user, c.request, c.spec), c.want)
		})
	}
}
