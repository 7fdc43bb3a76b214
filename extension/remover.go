package extension

import "context"

// Remover is what an extension of any form implements that leaves something in
// the cluster that must not outlive it: a right that nobody would end, a Pod that
// nobody would delete. Records, which are of use without it, may stay.
//
// Remove is called by `unregister` (UnregisterExtensions of package manager), when
// no manager runs any more and before the webhook configurations go: what they
// guard is guarded until it is removed. Register was not called, and
// mgr.GetKubeManager is nil. All Removers run at the same time, until ctx ends.
//
// Remove returns when all is gone, or with an error that names what is not. It may
// be called again, after an error or by a second run, and then finds less or
// nothing to do. It removes nothing of which it cannot tell that it is the
// extension's: labels are easily written. Where a namespace is gone, the rights in
// it are gone too, so that what was there looks forbidden, and not missing.
type Remover interface {
	Remove(ctx context.Context, mgr Manager) error
}
