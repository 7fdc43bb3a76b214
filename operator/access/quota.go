package access

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// indexAsker finds the requests of a user by a template.
const indexAsker = "asker"

func (a *shared) indexRequests(ctx context.Context) error {
	for _, kind := range kinds {
		if err := a.cluster.GetFieldIndexer().IndexField(ctx, kind.newRequest(), indexAsker, askers); err != nil {
			return err
		}
	}
	return nil
}

// askers returns by what a request is found.
func askers(obj client.Object) []string {
	spec := obj.(v1alpha1.Request).GetRequestSpec()
	keys := []string{inNamespace(spec)}
	for _, user := range users(spec) {
		keys = append(keys, asker(spec, user))
	}
	return keys
}

// users are those for whom a request counts: who asks, and who is asked for.
func users(spec *v1alpha1.RequestSpec) (names []string) {
	if spec.Requester != nil {
		names = append(names, spec.Requester.Username)
	}
	if spec.OnBehalfOf != "" {
		names = append(names, spec.OnBehalfOf)
	}
	return names
}

// asker names a user and a template. No name of a template has a slash.
func asker(spec *v1alpha1.RequestSpec, user string) string { return spec.TemplateName + "/" + user }

// inNamespace names a user and no template.
func inNamespace(spec *v1alpha1.RequestSpec) string {
	if spec.Requester == nil {
		return ""
	}
	return "/" + spec.Requester.Username
}

// maxWaiting is how many requests of a user in a namespace may wait for templates that do
// not exist: no template says it.
const maxWaiting = 5

// othersWaiting returns the names of the other requests of the same user that wait for
// their templates, or have only just been made.
func (a *shared) othersWaiting(ctx context.Context, k kind, req v1alpha1.Request) (names []string, err error) {
	list := k.requests()
	if err := a.cached.List(ctx, list, client.InNamespace(req.GetNamespace()), client.MatchingFields{indexAsker: inNamespace(req.GetRequestSpec())}); err != nil {
		return nil, fmt.Errorf("listing the requests of %s: %w", inNamespace(req.GetRequestSpec()), err)
	}
	now := a.options.Clock.Now()
	eachRequest(list, func(other v1alpha1.Request) {
		found := meta.IsStatusConditionTrue(other.GetRequestStatus().Conditions, v1alpha1.ConditionTargetTemplateExists)
		if other.GetUID() != req.GetUID() && !found && other.GetDeletionTimestamp().IsZero() && !v1alpha1.Over(other, now) {
			names = append(names, other.GetName())
		}
	})
	slices.Sort(names)
	return names, nil
}

// othersOpen returns the other open requests of the same users by the same template
// that which selects, sorted by name.
func (a *shared) othersOpen(ctx context.Context, k kind, req v1alpha1.Request, which func(v1alpha1.Request) bool) ([]v1alpha1.Request, error) {
	now := a.options.Clock.Now()
	var open []v1alpha1.Request
	for _, user := range users(req.GetRequestSpec()) {
		list, key := k.requests(), asker(req.GetRequestSpec(), user)
		if err := a.cached.List(ctx, list, client.InNamespace(req.GetNamespace()), client.MatchingFields{indexAsker: key}); err != nil {
			return nil, fmt.Errorf("listing the requests of %s: %w", key, err)
		}
		eachRequest(list, func(other v1alpha1.Request) {
			if other.GetUID() != req.GetUID() && k.isOpen(other) && !v1alpha1.Over(other, now) && which(other) {
				open = append(open, other)
			}
		})
	}
	slices.SortFunc(open, func(x, y v1alpha1.Request) int { return cmp.Compare(x.GetName(), y.GetName()) })
	return slices.CompactFunc(open, func(x, y v1alpha1.Request) bool { return x.GetUID() == y.GetUID() }), nil
}

// promises has the requests that this process grants, or will when they can be.
type promises struct {
	mu   sync.Mutex
	made map[types.NamespacedName]bool
}

func (p *promises) forget(key types.NamespacedName) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.made, key)
}

// promise counts the requests that come before one, and promises it access if the
// template's limit leaves room: those that were made before, those that were granted or
// promised, and of those of the same second the ones with a lower UID, or all of them would
// wait for each other. A request that was made earlier may come later, because admission
// takes its time; it counts those that were promised access before it came.
func (r *requests) promise(ctx context.Context, f *facts) error {
	r.promises.mu.Lock()
	defer r.promises.mu.Unlock()
	made := f.request.GetCreationTimestamp()
	var err error
	f.othersOpen, err = r.othersOpen(ctx, r.kind, f.request, func(other v1alpha1.Request) bool {
		created := other.GetCreationTimestamp()
		before := created.Before(&made) || created.Equal(&made) && other.GetUID() < f.request.GetUID()
		granted := wasGranted(other) || gotSomething(other)
		return before || granted || r.promises.made[client.ObjectKeyFromObject(other)]
	})
	if err == nil && tooMany(f.template, f.request.GetRequestSpec(), f.othersOpen) == nil {
		r.promises.made[f.key] = true
	}
	return err
}

// isOpen reports whether a request gives access, or waits to, or has a Pod, as long
// as its time is not over.
func (k kind) isOpen(req v1alpha1.Request) bool {
	used := req.GetRequestStatus().UsedBy != nil
	return req.GetDeletionTimestamp().IsZero() && (!used || k.makesPod)
}

// tooMany refuses a request of a user, or for one, who has as many others open as the
// template allows.
func tooMany(t v1alpha1.Template, spec *v1alpha1.RequestSpec, open []v1alpha1.Request) *refusal {
	for _, user := range users(spec) {
		of := slices.DeleteFunc(slices.Clone(open), func(other v1alpha1.Request) bool { return !countsFor(t, other, user) })
		if refused := tooManyOf(t, user, of); refused != nil {
			return refused
		}
	}
	return nil
}

// countsFor reports whether an open request counts for a user: one of their own does, and one
// on their behalf if the template allows it, or did. Anybody may ask on behalf of anybody
// while the template is yet to come.
func countsFor(t v1alpha1.Template, req v1alpha1.Request, user string) bool {
	spec := req.GetRequestSpec()
	if spec.Requester != nil && spec.Requester.Username == user {
		return true
	}
	return spec.OnBehalfOf == user && (wasGranted(req) || gotSomething(req) || allows(t, spec) == nil)
}

func tooManyOf(t v1alpha1.Template, user string, open []v1alpha1.Request) *refusal {
	limit := int(t.GetAccessConfig().MaxConcurrent)
	if limit == 0 {
		limit = defaultMaxConcurrent
	}
	if len(open) < limit {
		return nil
	}
	const enough = 5
	names := make([]string, 0, enough+1)
	for _, req := range open[:min(len(open), enough)] {
		end, _ := v1alpha1.EndOf(req) // one that is open has an end
		names = append(names, req.GetName()+" until "+end.UTC().Format(time.RFC3339))
	}
	if more := len(open) - enough; more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	return refuse(v1alpha1.ReasonTooMany, "template %q allows a user %d open requests, and %q has %d: %s; "+
		"wait, or end one with kubectl access revoke NAME, which sets its spec.revoked", t.GetName(), limit, user, len(open), strings.Join(names, ", "))
}

// defaultMaxConcurrent is the CRD's default.
const defaultMaxConcurrent = 5
