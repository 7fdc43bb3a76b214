package facts

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/operator/access/internal/check"
	"github.com/admitkit/admitkit/operator/access/internal/grant"
	"github.com/admitkit/admitkit/operator/access/internal/kube"
	"github.com/admitkit/admitkit/operator/access/internal/rules"
	"github.com/admitkit/admitkit/operator/access/internal/workload"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// Retention is how long requests are kept after their end, and how long before it that is
// announced.
type Retention struct{ Keep, WarnBefore time.Duration }

// Reader reads the facts about the requests of one kind.
type Reader struct {
	*kube.Connection
	kind   grant.Kind
	checks *check.Queue
	keep   Retention

	promises promises
	// LastRoles has the Roles that were deleted, until it is clear why.
	LastRoles sync.Map
	// Unbound has the requests whose RoleBinding this process has deleted at the end,
	// until the rest is done.
	Unbound sync.Map
}

// NewReader returns a reader. asked may be nil in an uninstall, which grants nothing.
func NewReader(conn *kube.Connection, k grant.Kind, asked *check.Queue, keep Retention) *Reader {
	return &Reader{Connection: conn, kind: k, checks: asked, keep: keep, promises: promises{made: map[types.NamespacedName]bool{}}}
}

// Read reads the facts about a request; req is nil if it is gone. It reads the objects
// of others by name from the API server, and only if the stage needs them. The end of
// access never waits for that.
func (r *Reader) Read(ctx context.Context, key types.NamespacedName, req v1alpha1.Request, now time.Time) (*Facts, error) {
	f := &Facts{Kind: r.kind, Key: key, Request: req, Enforced: r.SingleUse, WarnBefore: r.keep.WarnBefore}
	if req != nil {
		f.End, f.Invalid = v1alpha1.EndOf(req)
		f.KeepUntil = grant.KeepUntil(req, r.keep.Keep)
	}
	_, f.Unbound = r.Unbound.Load(key)
	if err := errors.Join(r.readRole(ctx, f), r.readBinding(ctx, f), r.readEgress(ctx, f)); err != nil {
		return f, err
	}
	if req != nil && req.GetRequestSpec().Duration == "" && (f.Role != nil || f.Binding != nil) {
		f.Invalid = errors.New("spec.duration: there is none, and only a request that waits may lack it")
	}
	if last, ok := r.LastRoles.Load(key); ok && req == nil {
		f.LastRole = last.(*rbacv1.Role)
	}
	switch f.Stage(now) {
	case Gone, Invalid, Stale:
		return f, r.readMade(ctx, f, r.Cached, "")
	case Over:
		if err := r.readExpiry(ctx, f); err != nil {
			return f, err
		}
		// A RoleBinding is deleted before anything is read from the API server.
		reader := r.Live
		if f.MayBeBound() || grant.Ended(req) {
			reader = r.Cached
		}
		return f, r.readMade(ctx, f, reader, req.GetUID())
	case Asking:
		if f.Closed = r.Places.Closed(key.Namespace); f.Closed != nil {
			return f, nil //nolint:nilerr // decide tells
		}
		return f, r.readAsking(ctx, f, now)
	case Recorded, Granted:
		if r.kind.GivesRole {
			return f, errors.Join(r.readGrantedRole(ctx, f), r.missTemplate(ctx, f))
		}
		f.Unended = r.endless(f)
		return f, errors.Join(r.readPod(ctx, f), r.missTemplate(ctx, f))
	}
	return f, nil
}

// readAsking reads what decides about a request that has nothing yet. That its template
// has not come in time ends it, and so the API server has the last word.
func (r *Reader) readAsking(ctx context.Context, f *Facts, now time.Time) error {
	if f.WaitsForApproval() {
		var err error
		if f.Decisions, err = r.DecisionsAbout(ctx, f.Key.Namespace, string(f.Request.GetUID())); err != nil {
			return err
		}
		// A finalizer holds a decision back after its deletion, for as long as its author likes.
		f.Decisions = slices.DeleteFunc(f.Decisions, func(d v1alpha1.AccessDecision) bool { return !d.DeletionTimestamp.IsZero() })
	}
	err := r.readTarget(ctx, f)
	switch {
	case err != nil:
		return err
	case f.Template != nil:
		r.readCheck(f)
		r.readHold(ctx, f)
		return r.promise(ctx, f)
	case now.Before(grant.WaitsUntil(f.Request)) && f.Settled() == (grant.Choice{}): // else it has had its template
		return nil
	}
	if err := r.missTemplate(ctx, f); err != nil || f.TemplateGone {
		return err
	}
	return f.ErrBehind()
}

// readTarget reads the template and its target, and chooses a Pod. Where the
// template allows nothing, the target does not matter.
func (r *Reader) readTarget(ctx context.Context, f *Facts) error {
	spec, t := f.Request.GetRequestSpec(), r.kind.NewTemplate()
	err := r.Cached.Get(ctx, types.NamespacedName{Namespace: f.Key.Namespace, Name: spec.TemplateName}, t)
	if err != nil {
		return client.IgnoreNotFound(err)
	}
	f.Template = t
	if r.kind.GivesRole {
		return r.readNewRole(ctx, f)
	}
	if ref := t.GetTargetRef(); ref != nil && rules.Allows(t, spec) == nil {
		f.Target, err = workload.Find(ctx, r.Live, f.Key.Namespace, *ref)
	}
	if err == nil && f.Target != nil && !r.kind.MakesPod {
		name := f.Request.GetTargetPod()
		if name == "" {
			name = f.Settled().Name
		}
		f.Chosen, err = f.Target.Choose(ctx, r.Live, name)
	}
	if rules.NoTarget(err) != nil {
		f.NoTarget, err = err, nil
	}
	if err == nil && (f.Chosen != nil || r.kind.MakesPod) {
		err = r.readEnding(ctx, f)
	}
	return err
}

// missTemplate reads the template of a grant, or finds out that it is gone, even if there is
// another of its name now. The API server has the last word, since that ends access.
func (r *Reader) missTemplate(ctx context.Context, f *Facts) error {
	key := types.NamespacedName{Namespace: f.Key.Namespace, Name: f.Request.GetRequestSpec().TemplateName}
	for _, reader := range []client.Reader{r.Cached, r.Live} {
		t, err := kube.Get(ctx, reader, key, r.kind.NewTemplate())
		if err != nil {
			return err
		}
		if t != nil && f.isOf(t) {
			f.Template = t
			return nil
		}
	}
	f.TemplateGone = true
	return nil
}

// readExpiry reads the template of a request that ends without its record, which others
// may delete: it says whether the Pod is to be evicted.
func (r *Reader) readExpiry(ctx context.Context, f *Facts) error {
	if f.Role != nil || f.Kind.MakesPod || f.Kind.GivesRole || f.Settled() == (grant.Choice{}) || grant.Ended(f.Request) {
		return nil
	}
	key := types.NamespacedName{Namespace: f.Key.Namespace, Name: f.Request.GetRequestSpec().TemplateName}
	template, err := kube.Get(ctx, r.Cached, key, r.kind.NewTemplate())
	f.Template = template
	return err
}

// readRole reads the record of the grant from the cache.
func (r *Reader) readRole(ctx context.Context, f *Facts) error {
	role, err := kube.Get(ctx, r.Cached, r.kind.Resource(f.Key), &rbacv1.Role{})
	f.Role = role
	return err
}

// readBinding reads the RoleBinding from the cache.
func (r *Reader) readBinding(ctx context.Context, f *Facts) error {
	binding, err := kube.Get(ctx, r.Cached, r.kind.Resource(f.Key), &rbacv1.RoleBinding{})
	f.Binding = binding
	return err
}

// readMade finds the access Pod: by the record, or, where there is no record yet,
// by its owner, the request with the UID, or any if uid is "".
func (r *Reader) readMade(ctx context.Context, f *Facts, reader client.Reader, uid types.UID) error {
	if !f.Kind.MakesPod {
		return nil
	}
	resource := f.Kind.Resource(f.Key)
	if f.Role != nil && grant.ChoiceOf(f.Role).Name == resource.Name {
		f.Made = grant.ChoiceOf(f.Role)
		return nil
	}
	pod, err := kube.Get(ctx, reader, resource, &corev1.Pod{})
	if pod != nil && f.Kind.Owns(pod, uid) {
		f.Made = grant.Choice{Name: pod.Name, UID: pod.UID}
	}
	return err
}

// readCheck reads how it stands with the check that the template names.
func (r *Reader) readCheck(f *Facts) {
	if name := f.Template.GetAccessConfig().Check; name != "" {
		f.NoCheck, f.Trouble = rules.NoCheck(r.CheckNames, name), r.checks.Trouble(f.Subject())
	}
}

// readPod reads what has become of the Pod of a grant. An access Pod is in the cache
// soon after it was made. Other Pods are not watched: when one goes, the garbage
// collector deletes the RoleBinding that it owns, and that is watched.
func (r *Reader) readPod(ctx context.Context, f *Facts) error {
	pod := grant.ChoiceOf(f.Role)
	if settled := f.Settled(); settled != (grant.Choice{}) && settled != pod {
		f.Lost = rules.PodOther
		return nil
	}
	key := types.NamespacedName{Namespace: f.Key.Namespace, Name: pod.Name}
	if f.Kind.MakesPod {
		own, err := kube.Get(ctx, r.Cached, key, &corev1.Pod{})
		if err != nil {
			return err
		}
		if own != nil && own.UID == pod.UID { // else it may be an earlier one, if the cache is behind
			f.Own = own
		}
	}
	if f.Binding != nil && (f.Own != nil || !f.Kind.MakesPod) {
		return nil
	}
	found, err := r.LivePod(ctx, key)
	switch {
	case err != nil:
		return err
	case found == nil:
		f.Lost = rules.PodGone
	case found.UID != pod.UID:
		f.Lost = rules.PodReplaced
	case !found.DeletionTimestamp.IsZero():
		f.Lost = rules.PodGoing
	}
	return nil
}

// Left reads what is left of a request that is to end whatever it says: its RoleBinding is
// known.
func (r *Reader) Left(ctx context.Context, key types.NamespacedName, binding *rbacv1.RoleBinding) (*Facts, error) {
	f := &Facts{Kind: r.kind, Key: key, Binding: binding}
	if err := r.readRole(ctx, f); err != nil {
		return f, err
	}
	return f, errors.Join(r.readMade(ctx, f, r.Live, ""), r.readEgress(ctx, f))
}
