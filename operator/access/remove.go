package access

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/operator/access/internal/decision"
	"github.com/admitkit/admitkit/operator/access/internal/facts"
	"github.com/admitkit/admitkit/operator/access/internal/grant"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/egress"
)

var _ extension.Remover = (*requests)(nil)

// Remove implements extension.Remover: it ends all access of its kind at once, since
// nobody will end it later, in the way in which the end of its time does.
//
// Requests stay as records. They are revoked, in a field of the status that the API
// server lets nobody change: otherwise a manager that still runs, or an installation
// that comes later, would grant them again. Shortening spec.duration would not do:
// engineers may write it, and while no webhook is registered may lengthen it again.
//
// It goes on until nothing is left or ctx ends, which the manager sees to.
func (r *requests) Remove(ctx context.Context, mgr extension.Manager) error {
	conn, err := r.Uncached(mgr) // nobody would start a cache
	if err != nil {
		return fmt.Errorf("access: %w", err)
	}
	uncached := newRequests(&shared{Connection: conn}, r.kind)
	// Each namespace for itself, and at the same time: what is in the way in one of them
	// does not keep access in another.
	namespaces := uncached.Places.Each()
	errs := make([]error, len(namespaces))
	var group sync.WaitGroup
	for i, namespace := range namespaces {
		group.Go(func() { errs[i] = uncached.removeIn(ctx, namespace) })
	}
	group.Wait()
	return errors.Join(errs...)
}

// removeIn ends all access in a namespace, "" for every one.
func (r *requests) removeIn(ctx context.Context, namespace string) error {
	removal := &removal{requests: r, namespace: namespace, pending: map[types.NamespacedName]bool{}, bindings: map[types.NamespacedName]*rbacv1.RoleBinding{}, warned: map[types.NamespacedName]bool{}, blocked: map[types.NamespacedName]bool{}}
	err := removal.run(ctx)
	if apierrors.IsForbidden(err) && removal.namespaceGone(ctx) {
		r.Log.Info("the namespace is gone, and with it all access", zap.String("namespace", namespace))
		return nil
	}
	return err
}

// namespaceGone reports whether the namespace is known to be gone. The rights in it went
// with it, so that only the namespace itself can be read, by its name and with a right
// from a ClusterRole.
func (r *removal) namespaceGone(ctx context.Context) bool {
	if r.namespace == "" {
		return false
	}
	return apierrors.IsNotFound(r.Live.Get(ctx, client.ObjectKey{Name: r.namespace}, &corev1.Namespace{}))
}

// removal is one run of Remove. It relies on what engineers can neither write nor
// take away:
//
//   - A RoleBinding or Role is ours if its name begins with our prefix and it has
//     our label, or names a request. Names cannot be changed, and as long as the
//     webhooks stand nobody else can make or change an object of such a name. Our
//     label on any other object counts for nothing.
//   - A Pod is ours if it has the name of the grant, and the record of the grant has
//     its UID or a request of ours owns it. Its labels count for nothing.
type removal struct {
	*requests
	namespace string
	// pending has the requests of which something may be left.
	pending map[types.NamespacedName]bool
	// bindings has the metadata of the RoleBindings of requests.
	bindings map[types.NamespacedName]*rbacv1.RoleBinding
	warned   map[types.NamespacedName]bool
	// blocked has those of which only the policy is left, or a RoleBinding that is being
	// deleted: a webhook that no server answers blocks their end.
	blocked map[types.NamespacedName]bool
}

// removeInterval is the time between two rounds.
const removeInterval = 500 * time.Millisecond

// run makes rounds until one finds nothing: Pods take time to end, and a budget may
// put an eviction off.
func (r *removal) run(ctx context.Context) error {
	var failure error
	err := wait.PollUntilContextCancel(ctx, removeInterval, true, func(ctx context.Context) (bool, error) {
		done, err := r.round(ctx)
		if ctx.Err() == nil {
			failure = err // else what came before says more
		}
		if err != nil && len(r.blocked) == len(r.pending) && len(r.blocked) > 0 {
			return false, err // the manager comes back when the webhooks are gone
		}
		return done && err == nil, forbidden(err)
	})
	if err == nil {
		return nil
	}
	if failure == nil {
		var left []string
		for key := range r.pending {
			left = append(left, r.kind.Resource(key).String())
		}
		slices.Sort(left)
		failure = fmt.Errorf("%w: left: %s; does a manager run, or a Pod not end?", err, strings.Join(left, ", "))
	}
	return fmt.Errorf("removing %s access: %w", r.kind.Name, failure)
}

// forbidden returns the errors that do not go away by waiting.
func forbidden(err error) error {
	if apierrors.IsForbidden(err) {
		return err
	}
	return nil
}

// round ends what there is, and reports whether there was nothing.
func (r *removal) round(ctx context.Context) (done bool, err error) {
	bindings, err := r.list(ctx, rbacv1.SchemeGroupVersion.WithKind("RoleBinding"))
	roles, pods := rbacv1.SchemeGroupVersion.WithKind("Role"), corev1.SchemeGroupVersion.WithKind("Pod")
	errs := []error{err}
	// All of them first, whatever becomes of the rest: they give access.
	for _, key := range bindings {
		r.pending[key] = true
		err := r.unbind(ctx, &facts.Facts{Kind: r.kind, Key: key, Binding: r.bindings[key]}, decision.Decision{Unbind: true})
		errs = append(errs, err)
		r.tell(err, "RoleBinding deleted", r.kind.Resource(key))
	}
	revoked, err := r.revokeAll(ctx)
	errs = append(errs, err)
	kinds := []schema.GroupVersionKind{roles, pods}
	if r.kind.MakesPod {
		kinds = append(kinds, r.Holder.Kinds...)
	}
	for _, kind := range kinds {
		keys, err := r.list(ctx, kind)
		errs = append(errs, err)
		for _, key := range keys {
			r.pending[key] = true
		}
	}
	done = len(bindings) == 0 && !revoked
	for key := range r.pending {
		gone, err := r.removeOf(ctx, key)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", r.kind.Resource(key), err))
		}
		if gone {
			delete(r.pending, key)
			delete(r.blocked, key)
		}
		done = done && gone
	}
	return done, errors.Join(errs...)
}

// removeOf does for a request what the end of its time does, and reports whether
// there was nothing left of it.
func (r *removal) removeOf(ctx context.Context, key types.NamespacedName) (gone bool, err error) {
	f, err := r.facts.Left(ctx, key, r.bindings[key])
	if err != nil {
		return false, err
	}
	if f.Role == nil && f.Made == (grant.Choice{}) && len(f.Leaves()) == 0 {
		return true, nil
	}
	delete(r.blocked, key)
	if _, err := r.apply(ctx, f, decision.Of(f, r.Clock.Now())); err != nil {
		if (f.IsKept() || f.Role == nil && f.Made == (grant.Choice{})) && apierrors.IsInternalError(err) {
			r.blocked[key] = true
		}
		return false, err
	}
	if f.Role != nil {
		r.Log.Info("Role deleted", zap.Stringer("name", r.kind.Resource(key)), zap.Stringer("of", grant.ChoiceOf(f.Role)), zap.String("onExpiry", f.Role.Annotations[grant.AnnotationOnExpiry]))
	}
	return false, nil
}

// revokeAll revokes all requests, those whose time has passed included: while no
// webhook is registered, its requester can lengthen it. It reports whether there
// were any.
func (r *removal) revokeAll(ctx context.Context) (revoked bool, err error) {
	var errs []error
	list := r.kind.NewRequestList()
	for more := true; more; more = list.GetContinue() != "" {
		err := r.Live.List(ctx, list, client.InNamespace(r.namespace), client.Limit(pageSize), client.Continue(list.GetContinue()))
		if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
			return false, nil // the CRDs are gone, and with them the requests
		}
		if err != nil {
			return revoked, fmt.Errorf("listing %ss: %w", r.kind.RequestKind, err)
		}
		grant.EachRequest(list, func(req v1alpha1.Request) {
			due, err := r.revoke(ctx, req)
			revoked = revoked || due
			errs = append(errs, err)
		})
	}
	return revoked, errors.Join(errs...)
}

// revoke revokes a request, and reports whether it was not revoked before.
func (r *removal) revoke(ctx context.Context, req v1alpha1.Request) (due bool, err error) {
	status, live := decision.Revocation(req, r.Clock.Now())
	if status == nil {
		return false, nil
	}
	key := client.ObjectKeyFromObject(req)
	if live {
		r.pending[key] = true
	}
	if err = r.PatchStatus(ctx, req, &status.RequestStatus); err != nil {
		err = fmt.Errorf("revoking %s %s: %w", r.kind.RequestKind, key, err)
	}
	r.tell(err, "request revoked", key)
	return true, err
}

// pageSize is how many objects are read at once.
const pageSize = 500

// list returns the requests to which objects of a kind belong. There may be very many
// Pods and policies, so it reads those with our label; removeOf finds the others by the record.
func (r *removal) list(ctx context.Context, of schema.GroupVersionKind) (keys []types.NamespacedName, err error) {
	kind := of.Kind
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(of.GroupVersion().WithKind(kind + "List"))
	options := []client.ListOption{client.InNamespace(r.namespace), client.Limit(pageSize)}
	if of.Group != rbacv1.GroupName {
		options = append(options, client.MatchingLabels{grant.LabelManagedBy: grant.ManagedBy})
	}
	for more := true; more; more = list.Continue != "" {
		err := r.Live.List(ctx, list, append(options, client.Continue(list.Continue))...)
		if meta.IsNoMatchError(err) && of == egress.CiliumNetworkPolicy {
			return nil, nil
		}
		if err != nil {
			return keys, fmt.Errorf("listing %ss: %w", kind, err)
		}
		for i := range list.Items {
			object := &list.Items[i]
			name := client.ObjectKeyFromObject(object)
			key, named := r.kind.Owner(name)
			switch {
			case !named:
			case object.Labels[grant.LabelManagedBy] == grant.ManagedBy || object.Annotations[grant.AnnotationRequestUID] != "":
				keys = append(keys, key)
				if kind == "RoleBinding" {
					r.bindings[key] = &rbacv1.RoleBinding{ObjectMeta: object.ObjectMeta}
				}
			case !r.warned[name]:
				r.warned[name] = true
				r.Log.Warn("left alone: it has the name of a grant, but neither label nor annotation", zap.String("kind", kind), zap.Stringer("name", name))
			}
		}
	}
	return keys, nil
}

func (r *removal) tell(err error, what string, name types.NamespacedName) {
	if err == nil {
		r.Log.Info(what, zap.Stringer("name", name))
	}
}
