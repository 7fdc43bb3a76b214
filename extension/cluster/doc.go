// Package cluster has what extensions that reconcile need of a cluster, beyond
// the clients that package extension offers: a cache of their own ([New]) of
// trimmed Pods ([TrimPod]), the eviction of one very Pod ([Evict]), deletions that keep a Pod
// ([Lengthened]), who may bind a role ([MayBind]), and who the manager is to the API
// server ([Self]).
//
// A cache of your own feeds a controller through a source, because the builder's
// For and Owns watch with the manager's cache:
//
//	func (r *Rebooter) Register(mgr extension.Manager) error {
//		own, err := cluster.New(mgr, cluster.Options{Name: "rebooter", ByObject: map[client.Object]cache.ByObject{
//			&corev1.Pod{}: {Transform: cluster.TrimPod},
//		}})
//		if err != nil {
//			return err
//		}
//		return ctrl.NewControllerManagedBy(mgr.GetKubeManager()).Named("rebooter").
//			WatchesRawSource(source.Kind(own.GetCache(), &corev1.Pod{}, &handler.TypedEnqueueRequestForObject[*corev1.Pod]{})).
//			Complete(r)
//	}
//
// The extension needs the rights list and watch on every kind that it caches: it
// returns them from a method Rights ([extension.Entitled]).
package cluster
