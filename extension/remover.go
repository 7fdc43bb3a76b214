package extension

import "context"

// Remover is implemented by an extension of any form that leaves something in the
// cluster which must not outlive it: a right that nobody would end, a Pod that
// nobody would delete. Records that are useful without it may stay.
//
// `unregister` (UnregisterExtensions of package manager) calls Remove when no
// manager runs any more, and before it removes the webhook configurations, so that
// they guard what there is to remove until it is gone. Register has not been
// called, and mgr.GetKubeManager is nil. All Removers run at the same time, until
// ctx ends.
//
// Remove returns nil when everything is gone, or an error that names what is left.
// It may be called again after an error, or in a second run. It removes only what
// is provably the extension's: anyone can write a label. In a namespace that is
// gone, the API server answers Forbidden instead of NotFound, because the rights
// in it are gone too.
type Remover interface {
	Remove(ctx context.Context, mgr Manager) error
}
