package kube

import (
	"context"
	"errors"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// PatchStatus is the one place that writes the status of a request.
func (c *Connection) PatchStatus(ctx context.Context, req v1alpha1.Request, s *v1alpha1.RequestStatus) error {
	before := req.DeepCopyObject().(v1alpha1.Request)
	*req.GetRequestStatus() = *s
	if err := c.Writer.Status().Patch(ctx, req, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
		return err
	}
	after := req.GetRequestStatus()
	if s.RevokedAt != nil && after.RevokedAt == nil || s.PodUID != "" && after.PodUID == "" || s.ApprovedAt != nil && after.ApprovedAt == nil ||
		s.GrantedRole != nil && after.GrantedRole == nil || s.Check != nil && after.Check == nil || s.Egress != nil && after.Egress == nil {
		return errors.New("the CRD is of an older version, without status.revokedAt, status.podUID, status.grantedRole, status.approvedAt, status.check or status.egress: apply operator/config/crd of this one")
	}
	return nil
}
