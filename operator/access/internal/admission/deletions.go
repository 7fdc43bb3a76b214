package admission

import (
	"context"
	"fmt"

	"go.uber.org/zap"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/operator/access/internal/grant"
	"github.com/admitkit/admitkit/operator/access/internal/kube"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// deletions records who deletes a request. It refuses nothing: a deletion ends access.
type deletions struct{ *kube.Connection }

var _ extension.Validator[*unstructured.Unstructured] = (*deletions)(nil)

func deletionScope(a *kube.Connection) extension.Scope {
	ignore := admissionregistrationv1.Ignore
	return extension.Scope{
		Name: "access-deletion", FailurePolicy: &ignore, Modes: []extension.Mode{extension.Enforce}, NamespaceSelector: a.Places.Selector(),
		Rules: extension.Resources(v1alpha1.GroupVersion.Group, v1alpha1.GroupVersion.Version,
			[]string{"podaccessrequests", "execaccessrequests", "roleaccessrequests"}, admissionregistrationv1.Delete),
	}
}

// Register connects to the cluster.
func (d *deletions) Register(mgr extension.Manager) error { return d.Setup(mgr) }

// Validate records the deletion.
func (d *deletions) Validate(ctx context.Context, obj *unstructured.Unstructured, req *extension.Request) error {
	user := req.User()
	k, found := grant.KindOf(req.Kind.Kind)
	if !found {
		return nil // not by our scope
	}
	request := k.NewRequest()
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(obj.Object, request); err != nil {
		return err
	}
	if me, err := d.Self.Reconciler(ctx); req.DryRun() || err == nil && user.Username == me {
		return nil // at the end of the retention nothing is lost
	}
	record := k.About(request, grant.ActionDeleted, "%s deletes the request of %s, which ends access", user.Username, grant.RequesterOf(request))
	if grant.Ended(request) {
		record.Reason = fmt.Sprintf("%s deletes the request of %s, whose access has ended", user.Username, grant.RequesterOf(request))
	}
	// The API server may ask again about the same deletion, with another UID.
	record.ID, record.User = record.ID+"-"+grant.ShortHash(user.Username), user
	if err := d.Recorder.Record(ctx, record); err != nil {
		d.Log.Error("a request is deleted without a record", zap.String("request", req.Namespace+"/"+req.Name), zap.String("user", user.Username), zap.Error(err))
	}
	return nil
}
