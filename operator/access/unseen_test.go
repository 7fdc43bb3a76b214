package access_test

import (
	"context"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/internal/testkit"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/testing/controlplane"
)

// The manager grants what the status says was approved, once it watches a namespace.
func TestWhereNoWebhookLooksNobodyWritesThatARequestWasApproved(t *testing.T) {
	t.Parallel()
	c := &castle{namespace: testkit.Namespace(t, admin)}
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
		testkit.Create(t, admin, request)
	}
	install(t, c.namespace)
	write := func(ctx context.Context, user *controlplane.User, object client.Object, status string) error {
		return as(t, user).Status().Patch(ctx, object.DeepCopyObject().(client.Object), client.RawPatch("application/merge-patch+json", []byte(`{"status":`+status+`}`)), client.DryRunAll)
	}
	const approved = `{"approvedAt":"2030-01-01T00:00:00Z"}`
	for _, object := range []client.Object{exec, pod, role} {
		eventually(t, map[string]tried{
			"that it was approved": {message, func(ctx context.Context) error { return write(ctx, mallory, object, approved) }},
		})
		for _, status := range []string{
			`{"verdicts":[{"username":"bob","decision":"Approve","time":"2030-01-01T00:00:00Z"}]}`, `{"grantedAt":"2030-01-01T00:00:00Z"}`,
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
	install(t, p.namespace)
	const longer, others = "spec.duration: the template gives no longer access", "spec.duration: only the requester"
	eventually(t, map[string]tried{
		"up to what the template gives":           changes(t, alice, mine, `{"duration":"2h"}`, ""),
		"shorter, by whoever may update it":       changes(t, mallory, mine, `{"duration":"5m"}`, ""),
		"beyond what the template gives":          changes(t, alice, mine, `{"duration":"2h1s"}`, longer),
		"by taking it away, with another default": changes(t, alice, mine, `{"duration":null}`, longer),
		"by somebody else":                        changes(t, mallory, mine, `{"duration":"2h"}`, others),
		"without the approval that it needs now":  changes(t, alice, unapproved, `{"duration":"2h"}`, longer),
	})
}
