// Package extension is the SDK: what an author of an extension implements, and
// what the host offers in return.
//
// Read it in this order:
//
//   - [Extension], [Watcher] and [Reconciler] are the three roles that a type
//     can play. An Extension answers Pod admissions with a response of its own
//     making, a Watcher sees Pod events, a Reconciler is a controller.
//   - [Mutator] and [Validator] are the generic forms for objects of any kind:
//     change the object in place, or accept or [Deny] it; the library decodes
//     the object and makes the patch. [Mutating] and [Validating] turn them
//     into a [Handler], which is what a manager adds.
//   - [Scope] says which admissions reach an extension. Its zero value means
//     Pods, on CREATE, in the manager's namespace.
//   - [Request] is the admission at hand: who asks, what was there before,
//     and where warnings and audit annotations go.
//   - [Entitled], [LeaderElected], [Hosted] and [Remover] are what a type may
//     implement besides: the rights it needs, where it runs, its host before the
//     first admission, and what goes with it when it is uninstalled.
//   - [Manager] is the host, as an extension sees it. The lifecycle is in
//     package manager.
//
// A Mutator that stamps an owner onto every new Pod, complete:
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
// [Deny] and [Denyf] refuse the object: the client sees 403 and the reason.
// Any other error, and a panic, is a failure of the extension and not a
// decision: the API server is answered with HTTP 500 and the scope's failure
// policy decides what becomes of the object. A context that ended is such an
// error too.
package extension
