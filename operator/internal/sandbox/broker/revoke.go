package broker

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/internal/sandbox/broker/protocol"
)

// revokeBudget is how long an answer waits for providers. The queue has the rest.
const revokeBudget = 4 * time.Second

// revoke ends leases of a run, and returns those that are still to be revoked.
func (b *service) revoke(ctx context.Context, who *caller, request protocol.RevokeRequest) (queued []string, err error) {
	var named v1alpha1.LeaseRun
	if request.Undelivered && (who.pod != nil || request.Lease == "") {
		return nil, refuse(http.StatusForbidden, protocol.CodeForbidden, "undelivered: only the controller says that, of one lease")
	}
	if who.pod == nil {
		if !valid(request.Run) {
			return nil, refuse(http.StatusBadRequest, protocol.CodeBadRequest, badRun)
		}
		named = v1alpha1.LeaseRun{Kind: kindOf(request.Run), Namespace: request.Run.Namespace, Name: request.Run.Name} // it may be gone
	} else {
		of, err := b.runOf(ctx, who, request.Run)
		if err != nil {
			return nil, err
		}
		named = of.LeaseRun
	}
	held, err := b.leasesOf(ctx, named.Kind, named.Namespace, named.Name)
	if err != nil {
		return nil, b.unavailable("reading the leases of the run", err)
	}
	var wanted []*v1alpha1.CredentialLease
	for i := range held {
		if (request.Lease == "" || held[i].Name == request.Lease) && (named.UID == "" || named.UID == held[i].Spec.Run.UID) {
			wanted = append(wanted, &held[i])
		}
	}
	if request.Lease != "" && len(wanted) == 0 {
		return nil, nil // it has ended already
	}
	return b.revokeAll(ctx, wanted, request.Undelivered)
}

// revokeAll deletes all leases first, so that none of them is forgotten, and then asks
// their providers.
func (b *service) revokeAll(ctx context.Context, wanted []*v1alpha1.CredentialLease, undelivered bool) (queued []string, err error) {
	for _, lease := range wanted {
		if err := b.live.Delete(ctx, lease, client.Preconditions{UID: &lease.UID}); client.IgnoreNotFound(err) != nil {
			return nil, b.unavailable("deleting a CredentialLease", err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, revokeBudget)
	defer cancel()
	var mu sync.Mutex
	var group errgroup.Group
	group.SetLimit(8)
	for _, lease := range wanted {
		group.Go(func() error {
			err := b.live.Get(ctx, client.ObjectKeyFromObject(lease), lease)
			if err == nil {
				err = b.end(ctx, lease, nil, undelivered, "its run asked for the end, or its controller did")
			}
			if client.IgnoreNotFound(err) != nil {
				mu.Lock()
				defer mu.Unlock()
				queued = append(queued, lease.Name)
			}
			return nil
		})
	}
	_ = group.Wait()
	slices.Sort(queued)
	return queued, nil
}

// end revokes the credential of a lease that is being deleted, and lets the lease go. It
// can run in several processes at once, and again after any failure. handle is nil if it
// is to be read. undelivered says that no container has the credential.
func (b *service) end(ctx context.Context, lease *v1alpha1.CredentialLease, handle []byte, undelivered bool, why string) error {
	if lease.DeletionTimestamp == nil {
		return fmt.Errorf("CredentialLease %s is not being deleted", lease.Name)
	}
	if !slices.Contains(lease.Finalizers, v1alpha1.FinalizerLease) {
		return nil
	}
	stored, err := b.storedHandle(ctx, lease)
	if err != nil {
		return err
	}
	if handle == nil {
		handle = stored
	}
	action := actionRevoked
	if err := b.providers[lease.Spec.Provider].revoke(ctx, lease, handle); err != nil && (!undelivered || !errors.Is(err, errHeld)) {
		if b.clock.Now().Before(lease.Spec.ExpiresAt.Time) || errors.Is(err, errHeld) {
			return fmt.Errorf("revoking credential %s of %s %s/%s: %w", lease.Spec.Credential, lease.Spec.Run.Kind, lease.Spec.Run.Namespace, lease.Spec.Run.Name, err)
		}
		action, why = actionExpired, fmt.Sprintf("it ended by itself at %s, before it could be revoked: %v", lease.Spec.ExpiresAt.UTC().Format(time.RFC3339), err)
	}
	if err := b.release(ctx, lease, action, why); err != nil {
		return err
	}
	if stored != nil {
		// Whoever crashes before this leaves it to the garbage collector: the lease owns it.
		if err := b.live.Delete(ctx, b.handleOf(lease, nil)); client.IgnoreNotFound(err) != nil {
			b.log.Warn("what revoked a lease is still stored", zap.String("lease", lease.Name), zap.Error(err))
		}
	}
	return nil
}

// release records the end of a lease, and lets it go.
func (b *service) release(ctx context.Context, lease *v1alpha1.CredentialLease, action, why string) error {
	if err := b.recorder.Record(ctx, leaseRecord(nil, lease, action, why)); err != nil {
		return fmt.Errorf("recording the end of CredentialLease %s: %w", lease.Name, err)
	}
	return b.letGo(ctx, lease, action)
}

// letGo takes the finalizer away. The status may have been written meanwhile.
func (b *service) letGo(ctx context.Context, lease *v1alpha1.CredentialLease, action string) error {
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		now := &v1alpha1.CredentialLease{}
		if err := b.live.Get(ctx, client.ObjectKeyFromObject(lease), now); err != nil || now.UID != lease.UID {
			return client.IgnoreNotFound(err)
		}
		before := now.DeepCopy()
		controllerutil.RemoveFinalizer(now, v1alpha1.FinalizerLease)
		return client.IgnoreNotFound(b.live.Patch(ctx, now, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})))
	})
	if err != nil {
		return fmt.Errorf("letting CredentialLease %s go: %w", lease.Name, err)
	}
	endedTotal.WithLabelValues(string(lease.Spec.Provider), action).Inc()
	b.log.Debug("a lease has ended", zap.String("lease", lease.Name), zap.String("action", action))
	return nil
}

// storedHandle returns what revokes a lease, nil if nothing is stored.
func (b *service) storedHandle(ctx context.Context, lease *v1alpha1.CredentialLease) ([]byte, error) {
	secret := &corev1.Secret{}
	err := b.live.Get(ctx, client.ObjectKey{Namespace: b.namespace, Name: lease.Name}, secret)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading Secret %s/%s: %w", b.namespace, lease.Name, err)
	}
	for _, owner := range secret.OwnerReferences {
		if owner.UID == lease.UID {
			return secret.Data[handleKey], nil
		}
	}
	return nil, nil
}
