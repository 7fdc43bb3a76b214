package binding

import (
	"context"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/internal/controller"
)

// ofObjects puts objects into the queue, unless it was only their status that changed.
func (r *bindings) ofObjects() handler.EventHandler {
	add := func(q controller.Queue, object client.Object, priority int) {
		if o, ok := object.(v1alpha1.TransientBinding); ok && !r.options.Clock.Now().Before(o.GetBindingSpec().ValidUntil.Time) {
			priority = controller.PriorityEnd
			if o.GetBindingStatus().EndedAt != nil {
				priority = controller.PriorityCleanup
			}
		}
		controller.Put(q, client.ObjectKeyFromObject(object), priority)
	}
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, q controller.Queue) {
			priority := controller.PriorityNormal
			if e.IsInInitialList {
				priority = controller.PriorityInitial
			}
			add(q, e.Object, priority)
		},
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q controller.Queue) {
			if e.ObjectOld.GetGeneration() != e.ObjectNew.GetGeneration() || e.ObjectOld.GetUID() != e.ObjectNew.GetUID() {
				add(q, e.ObjectNew, controller.PriorityNormal)
			}
		},
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q controller.Queue) {
			controller.Put(q, client.ObjectKeyFromObject(e.Object), controller.PriorityEnd) // its binding must go
		},
	}
}

// ofBindings puts the objects of bindings into the queue, which have their names. What
// this process did itself is no news.
func (r *bindings) ofBindings() handler.EventHandler {
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, q controller.Queue) {
			key := client.ObjectKeyFromObject(e.Object)
			if e.IsInInitialList {
				controller.Put(q, key, controller.PriorityInitial)
			} else if !r.own.made(key, e.Object.GetUID()) {
				controller.Put(q, key, controller.PriorityEnd)
			}
		},
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q controller.Queue) {
			if e.ObjectOld.GetResourceVersion() != e.ObjectNew.GetResourceVersion() {
				controller.Put(q, client.ObjectKeyFromObject(e.ObjectNew), controller.PriorityEnd)
			}
		},
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q controller.Queue) {
			if key := client.ObjectKeyFromObject(e.Object); !r.own.removed(key, e.Object.GetUID()) {
				controller.Put(q, key, controller.PriorityEnd)
			}
		},
	}
}

// ofRoles puts the objects that refer to a role into the queue when it comes or goes.
func (r *bindings) ofRoles(kind string) handler.EventHandler {
	add := func(ctx context.Context, role client.Object, q controller.Queue, priority int) {
		for _, key := range r.referring(ctx, kind, role) {
			controller.Put(q, key, priority)
		}
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q controller.Queue) {
			if !e.IsInInitialList { // else the objects come by themselves
				add(ctx, e.Object, q, controller.PriorityBegin)
			}
		},
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q controller.Queue) {
			if e.ObjectOld.GetUID() != e.ObjectNew.GetUID() {
				add(ctx, e.ObjectNew, q, controller.PriorityEnd)
			}
		},
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q controller.Queue) {
			add(ctx, e.Object, q, controller.PriorityEnd)
		},
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
