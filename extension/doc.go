// Package extension is the SDK: what an author of an extension implements, and
// what the host offers in return.
//
// Read it in this order:
//
//   - [Mutator] and [Validator] are the generic forms, for objects of any kind.
//     You change the object in place, or accept or [Deny] it; the library decodes
//     the object and makes the patch. [Mutating] and [Validating] make a [Handler]
//     of them, which a manager adds.
//   - [Extension], [Watcher] and [Reconciler] are the forms that EiriniX has. An
//     Extension answers Pod admissions with a response of its own, a Watcher sees
//     Pod events, a Reconciler is a controller. A [Composite] has parts, each of
//     any form.
//   - [Converter] converts the objects of a custom resource between its versions.
//   - [Scope] says which admissions reach a handler. Its zero value means Pods, on
//     CREATE, in the watched namespaces, which are the manager's Namespaces option.
//   - [Request] is the admission at hand: who asks, what the object was before, and
//     where warnings and audit annotations go.
//   - [Mode] says whether a handler denies and changes objects, or only tells what it
//     would do.
//   - [Manager] is the host, as an extension sees it. The lifecycle is in package
//     manager.
//   - [Scoped], [Reader], [Entitled], [NamespaceEntitled], [ClusterEntitled], [AggregateEntitled],
//     [LeaderElected], [Hosted], [Witness] and [Remover] are optional. They say what an
//     extension reads, which rights it needs, where it runs, that it wants to know its
//     host first, or of what it cannot see, and what to remove when it is uninstalled. A
//     method with another name is none of them, and nobody can say so: have the compiler
//     do it, by var _ extension.Reader = (*mine)(nil).
//
// Packages cluster, deliver, manifest and remote, below this one, have what extensions that
// reconcile, send events or connect to servers would otherwise write again.
//
// A complete Mutator that writes an owner onto every new Pod:
//
//	stamp := extension.MutatorFunc[*corev1.Pod](
//		func(_ context.Context, pod *corev1.Pod, req *extension.Request) error {
//			metav1.SetMetaDataAnnotation(&pod.ObjectMeta, "owner", req.User().Username)
//			return nil
//		})
//	err := mgr.AddExtension(extension.Mutating(stamp, extension.Scope{Name: "owner"}))
//
// # What an error means
//
// [Deny] and [Denyf] refuse the object: the client sees 403 and the reason. Any
// other error, and a panic, is a failure of the extension, not a decision: the API
// server gets HTTP 500, and the scope's failure policy decides what happens to the
// object. The error of a context that ended is a failure too.
package extension
