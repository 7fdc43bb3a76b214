package extension

// Composite is an extension that consists of parts, each of any form that a
// manager's AddExtension takes, Composites included. The shipped extensions are
// Composites: mgr.AddExtension(access.New(options)) adds handlers and reconcilers.
//
// It is also how one value is both an [Extension] and a [Watcher], whose Handle
// methods differ: as two parts.
//
// AddExtension calls Parts once and adds the parts in order. An error, about
// invalid options for example, is the error of AddExtension. mgr.GetKubeManager is
// nil at that time. The Composite itself is added too if it has another form, and
// may be [Entitled] and [Remover].
//
// A part must not embed its Composite: it would have the method Parts itself, and so
// be a Composite that has itself as a part. Embed what the parts share instead.
type Composite interface {
	Parts(mgr Manager) ([]any, error)
}
