package binding

import (
	"context"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// Priorities in the queue: ends first, then beginnings, then what happens, and last what a
// start finds, and the clean-up.
const (
	priorityEnd     = 100
	priorityBegin   = 50
	priorityNormal  = 0
	priorityInitial = -50
	priorityCleanup = -100
)

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

func put(q queue, key types.NamespacedName, priority int) {
	item := reconcile.Request{NamespacedName: key}
	if prioritized, ok := q.(priorityqueue.PriorityQueue[reconcile.Request]); ok {
		prioritized.AddWithOpts(priorityqueue.AddOpts{Priority: &priority}, item)
		return
	}
	q.Add(item)
}

// ofObjects puts objects into the queue, unless it was only their status that changed.
func (r *bindings) ofObjects() handler.EventHandler {
	add := func(q queue, object client.Object, priority int) {
		if o, ok := object.(v1alpha1.TransientBinding); ok && !r.options.Clock.Now().Before(o.GetBindingSpec().ValidUntil.Time) {
			priority = priorityEnd
			if o.GetBindingStatus().EndedAt != nil {
				priority = priorityCleanup
			}
		}
		put(q, client.ObjectKeyFromObject(object), priority)
	}
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, q queue) {
			priority := priorityNormal
			if e.IsInInitialList {
				priority = priorityInitial
			}
			add(q, e.Object, priority)
		},
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q queue) {
			if e.ObjectOld.GetGeneration() != e.ObjectNew.GetGeneration() || e.ObjectOld.GetUID() != e.ObjectNew.GetUID() {
				add(q, e.ObjectNew, priorityNormal)
			}
		},
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q queue) {
			put(q, client.ObjectKeyFromObject(e.Object), priorityEnd) // its binding must go
		},
	}
}

// ofBindings puts the objects of bindings into the queue, which have their names. What
// this process did itself is no news.
func (r *bindings) ofBindings() handler.EventHandler {
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, q queue) {
			key := client.ObjectKeyFromObject(e.Object)
			if e.IsInInitialList {
				put(q, key, priorityInitial)
			} else if !r.own.made(key, e.Object.GetUID()) {
				put(q, key, priorityEnd)
			}
		},
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q queue) {
			if e.ObjectOld.GetResourceVersion() != e.ObjectNew.GetResourceVersion() {
				put(q, client.ObjectKeyFromObject(e.ObjectNew), priorityEnd)
			}
		},
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q queue) {
			if key := client.ObjectKeyFromObject(e.Object); !r.own.removed(key, e.Object.GetUID()) {
				put(q, key, priorityEnd)
			}
		},
	}
}

// ofRoles puts the objects that refer to a role into the queue when it comes or goes.
func (r *bindings) ofRoles(kind string) handler.EventHandler {
	add := func(ctx context.Context, role client.Object, q queue, priority int) {
		for _, key := range r.referring(ctx, kind, role) {
			put(q, key, priority)
		}
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) {
			if !e.IsInInitialList { // else the objects come by themselves
				add(ctx, e.Object, q, priorityBegin)
			}
		},
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) {
			if e.ObjectOld.GetUID() != e.ObjectNew.GetUID() {
				add(ctx, e.ObjectNew, q, priorityEnd)
			}
		},
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q queue) { add(ctx, e.Object, q, priorityEnd) },
	}
}

// referring finds the objects that refer to a role. It looks through those of a
// namespace, or for a ClusterRole through all: roles come and go rarely.
func (r *bindings) referring(ctx context.Context, kind string, role client.Object) (keys []types.NamespacedName) {
	visit := func(object v1alpha1.TransientBinding) {
		if ref := object.GetBindingSpec().RoleRef; ref.Kind == kind && ref.Name == role.GetName() && object.GetBindingStatus().EndedAt == nil {
			keys = append(keys, client.ObjectKeyFromObject(object))
		}
	}
	if err := r.each(ctx, role.GetNamespace(), visit); err != nil {
		r.log.Sugar().Warnw("objects of a role were not found", "role", role.GetName(), "error", err)
	}
	return keys
}

// each visits the objects in a namespace, "" for all.
func (r *bindings) each(ctx context.Context, namespace string, visit func(v1alpha1.TransientBinding)) error {
	if r.kind.name == inCluster.name {
		var list v1alpha1.TransientClusterRoleBindingList
		err := r.cached.List(ctx, &list, &client.ListOptions{UnsafeDisableDeepCopy: new(true)})
		for i := range list.Items {
			visit(&list.Items[i])
		}
		return err
	}
	var list v1alpha1.TransientRoleBindingList
	err := r.cached.List(ctx, &list, &client.ListOptions{Namespace: namespace, UnsafeDisableDeepCopy: new(true)})
	for i := range list.Items {
		visit(&list.Items[i])
	}
	return err
}
