package access

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/admitkit/admitkit/operator/access/internal/grant"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/egress"
	"github.com/admitkit/admitkit/operator/internal/controller"
)

// enqueue puts the requests that an object concerns into the queue: first those
// whose time is over, then those that something happens to, and last those that a
// start or restart finds.
func (r *requests) enqueue(keys func(context.Context, client.Object) []types.NamespacedName) handler.EventHandler {
	add := func(ctx context.Context, q controller.Queue, object client.Object, priority int) {
		if _, isPolicy := object.(*unstructured.Unstructured); isPolicy && priority != controller.PriorityInitial {
			priority = controller.PriorityEnd // something may be open until it is back
		}
		if req, ok := object.(v1alpha1.Request); ok {
			switch {
			case grant.Ended(req):
				priority = controller.PriorityCleanup
			case v1alpha1.Over(req, r.Clock.Now()):
				priority = controller.PriorityEnd
			}
		}
		for _, key := range keys(ctx, object) {
			controller.Put(q, key, priority)
		}
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q controller.Queue) {
			priority := controller.PriorityNormal
			if e.IsInInitialList {
				priority = controller.PriorityInitial
			}
			add(ctx, q, e.Object, priority)
		},
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q controller.Queue) {
			if e.ObjectOld.GetResourceVersion() != e.ObjectNew.GetResourceVersion() {
				add(ctx, q, e.ObjectNew, controller.PriorityNormal)
			}
		},
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q controller.Queue) {
			if _, ok := e.Object.(v1alpha1.Request); ok {
				add(ctx, q, e.Object, controller.PriorityNormal)
				return
			}
			if template, ok := e.Object.(v1alpha1.Template); ok {
				for _, key := range r.askingBy(ctx, template, func(req v1alpha1.Request) bool { return !grant.Ended(req) }) {
					q.Add(reconcile.Request{NamespacedName: key})
				}
				return
			}
			if r.isNews(e.Object, keys(ctx, e.Object)) {
				add(ctx, q, e.Object, controller.PriorityCleanup)
			}
		},
	}
}

// isNews reports whether the deletion of what requests get is news, and not what this
// process did at the end, after which it comes back for the rest. It keeps a Role.
func (r *requests) isNews(object client.Object, keys []types.NamespacedName) bool {
	for _, key := range keys {
		if _, ours := r.facts.Unbound.Load(key); ours {
			return false
		}
		if role, ok := object.(*rbacv1.Role); ok {
			r.facts.LastRoles.Store(key, role)
		}
	}
	return true
}

func (r *requests) keyOf(_ context.Context, object client.Object) []types.NamespacedName {
	return []types.NamespacedName{client.ObjectKeyFromObject(object)}
}

// ownerOf finds the request by the name of what it got, since labels and owner
// references can be removed.
func (r *requests) ownerOf(_ context.Context, object client.Object) []types.NamespacedName {
	if key, ok := r.kind.Owner(client.ObjectKeyFromObject(object)); ok {
		return []types.NamespacedName{key}
	}
	return nil
}

// waitingFor finds the requests that are not granted and refer to a template; for roles
// also those that are, because the status of the template tells that its role was made anew.
func (r *requests) waitingFor(ctx context.Context, template client.Object) []types.NamespacedName {
	return r.askingBy(ctx, template, func(req v1alpha1.Request) bool {
		return !grant.Ended(req) && (r.kind.GivesRole || !grant.WasGranted(req))
	})
}

// askingBy finds the requests that refer to a template and that which selects.
func (r *requests) askingBy(ctx context.Context, template client.Object, which func(v1alpha1.Request) bool) []types.NamespacedName {
	list := r.kind.NewRequestList()
	if err := r.Cached.List(ctx, list, client.InNamespace(template.GetNamespace())); err != nil {
		return nil
	}
	var keys []types.NamespacedName
	grant.EachRequest(list, func(req v1alpha1.Request) {
		if req.GetRequestSpec().TemplateName == template.GetName() && which(req) {
			keys = append(keys, client.ObjectKeyFromObject(req))
		}
	})
	return keys
}

// wake has a request looked at.
func (r *requests) wake(ctx context.Context, key types.NamespacedName) {
	req := r.kind.NewRequest()
	req.SetNamespace(key.Namespace)
	req.SetName(key.Name)
	select {
	case r.woken <- event.GenericEvent{Object: req}:
	case <-ctx.Done():
	}
}

// decidedBy finds the request that a decision is about.
func (r *requests) decidedBy(_ context.Context, object client.Object) []types.NamespacedName {
	about := object.(*v1alpha1.AccessDecision).Spec.Request
	if about.Kind != r.kind.RequestKind {
		return nil
	}
	return []types.NamespacedName{{Namespace: object.GetNamespace(), Name: about.Name}}
}

// watchPolicies returns what is watched for the policies: they themselves, and the addresses
// of the API server.
func (r *requests) watchPolicies() map[client.Object]func(context.Context, client.Object) []types.NamespacedName {
	watches := map[client.Object]func(context.Context, client.Object) []types.NamespacedName{}
	if !r.kind.MakesPod || len(r.Holder.Kinds) == 0 {
		return nil
	}
	for _, kind := range r.Holder.Kinds {
		watches[egress.NewPolicy(kind)] = r.ownerOf
	}
	watches[&discoveryv1.EndpointSlice{}], watches[&corev1.Service{}] = r.reachingAPIServer, r.reachingAPIServer
	return watches
}

// reachingAPIServer finds the requests whose policies have the addresses of the API server.
func (r *requests) reachingAPIServer(ctx context.Context, _ client.Object) []types.NamespacedName {
	var list v1alpha1.PodAccessRequestList
	if err := r.Cached.List(ctx, &list); err != nil {
		return nil
	}
	var keys []types.NamespacedName
	for i := range list.Items {
		if e := list.Items[i].Status.Egress; e != nil && e.Policy != "" && egress.NamesAPIServer(&e.Egress) {
			keys = append(keys, client.ObjectKeyFromObject(&list.Items[i]))
		}
	}
	return keys
}
