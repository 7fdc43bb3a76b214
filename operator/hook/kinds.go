package hook

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/admitkit/admitkit/operator/api/metacontroller/v1alpha1"
)

// kind asks the API server about a resource that hooks may be about.
func (e *engine) kind(ctx context.Context, rule v1alpha1.ResourceRule) (*parentKind, error) {
	version, err := schema.ParseGroupVersion(rule.APIVersion)
	if err != nil {
		return nil, fault("Invalid", err.Error())
	}
	if err := e.allows(rule.Resource, version.Group); err != nil {
		return nil, err
	}
	return e.discover(ctx, rule)
}

func (e *engine) discover(ctx context.Context, rule v1alpha1.ResourceRule) (*parentKind, error) {
	list, err := e.discovery.ServerResourcesForGroupVersion(rule.APIVersion)
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if kind := kindIn(list, rule); kind != nil {
		return kind, nil
	}
	return nil, fault("NoSuchKind", fmt.Sprintf("the API server has no resource %s in %s: install its CustomResourceDefinition, and write the plural in lower case", rule.Resource, rule.APIVersion))
}

func noSuchKind(err error) bool {
	p, ok := errors.AsType[*problem](err)
	return ok && p.reason == "NoSuchKind"
}

// kindIn returns what the API server says of a resource, or nil if it has none.
func kindIn(list *metav1.APIResourceList, rule v1alpha1.ResourceRule) *parentKind {
	version, err := schema.ParseGroupVersion(rule.APIVersion)
	if list == nil || err != nil {
		return nil
	}
	var kind *parentKind
	hasStatus := false
	for _, r := range list.APIResources {
		switch r.Name {
		case rule.Resource:
			kind = &parentKind{GroupVersionKind: version.WithKind(r.Kind), resource: version.WithResource(r.Name), namespaced: r.Namespaced}
		case rule.Resource + "/status":
			hasStatus = true
		}
	}
	if kind != nil {
		kind.hasStatus = hasStatus
	}
	return kind
}

// found is a kind as it was when its controller began; nil is an optional one that was not
// there.
type found struct {
	rule v1alpha1.ResourceRule
	kind *parentKind
}

// is says whether the kind is still what it was.
func (f found) is(now *parentKind) bool {
	if f.kind == nil || now == nil {
		return f.kind == nil && now == nil
	}
	return f.kind.GroupVersionKind == now.GroupVersionKind && f.kind.namespaced == now.namespaced && f.kind.hasStatus == now.hasStatus
}

const (
	// checkEvery is how often the kinds of all controllers are looked at, besides when a
	// watch says that there is something wrong.
	checkEvery = 30 * time.Second
	// checkPause is between two of these looks.
	checkPause = time.Second
)

// watchKinds begins controllers anew whose kinds are no more what they were: a
// CustomResourceDefinition that was deleted, or made anew with another version or scope.
func (e *engine) watchKinds(ctx context.Context) {
	tick := time.NewTicker(checkEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-e.watches.broken:
		}
		e.checkKinds(ctx)
		select {
		case <-ctx.Done():
			return
		case <-time.After(checkPause):
		}
	}
}

func (e *engine) checkKinds(ctx context.Context) {
	e.mu.Lock()
	all := make(map[string]*parents, len(e.running))
	for key, r := range e.running {
		all[key] = r.parents
	}
	e.mu.Unlock()
	lists := map[string]*metav1.APIResourceList{}
	for key, p := range all {
		for _, f := range p.found {
			list, asked := lists[f.rule.APIVersion]
			if !asked {
				var err error
				list, err = e.discovery.ServerResourcesForGroupVersion(f.rule.APIVersion)
				if err != nil && !apierrors.IsNotFound(err) {
					return // the API server is not there: nothing can be said
				}
				lists[f.rule.APIVersion] = list
			}
			if !f.is(kindIn(list, f.rule)) {
				e.again(ctx, key, p)
				break
			}
		}
		p.checkWatches()
	}
}

// again has a controller begin anew.
func (e *engine) again(ctx context.Context, key string, p *parents) {
	e.mu.Lock()
	if r := e.running[key]; r != nil && r.parents == p {
		r.hash = ""
	}
	e.mu.Unlock()
	object := &unstructured.Unstructured{}
	object.SetName(p.name)
	kind := "DecoratorController"
	if p.composite {
		kind = "CompositeController"
	}
	select {
	case e.anew[kind] <- event.GenericEvent{Object: object}:
	case <-ctx.Done():
	}
}

// checkWatches reports a watch that does not work any more, such as for a right that has
// been taken away: what the hooks would be told is old.
func (p *parents) checkWatches() {
	p.mu.Lock()
	leases := p.leases()
	for _, l := range p.related {
		leases = append(leases, l)
	}
	p.mu.Unlock()
	p.definition.mu.Lock()
	for _, l := range p.files {
		leases = append(leases, l)
	}
	p.definition.mu.Unlock()
	var err error
	for _, l := range leases {
		if l.synced() {
			err = errors.Join(err, l.brokenNow())
		}
	}
	p.mu.Lock()
	was := p.broken
	p.broken = err != nil
	p.mu.Unlock()
	if err != nil || was {
		p.report.ready(err)
	}
}
