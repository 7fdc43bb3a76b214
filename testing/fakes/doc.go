// Package fakes has counterfeiter fakes of the SDK's interfaces, for unit tests
// without an API server: of what an author implements, and of the [Manager] that an
// extension is handed. A fake records its calls and returns what the test sets.
// To test what an extension does to objects, use testing/admit instead.
package fakes

//go:generate counterfeiter -generate

//counterfeiter:generate -o extension.go --fake-name Extension github.com/admitkit/admitkit/extension.Extension
//counterfeiter:generate -o watcher.go --fake-name Watcher github.com/admitkit/admitkit/extension.Watcher
//counterfeiter:generate -o reconciler.go --fake-name Reconciler github.com/admitkit/admitkit/extension.Reconciler
//counterfeiter:generate -o mutator.go --fake-name Mutator github.com/admitkit/admitkit/extension.Mutator
//counterfeiter:generate -o validator.go --fake-name Validator github.com/admitkit/admitkit/extension.Validator
//counterfeiter:generate -o manager.go --fake-name Manager github.com/admitkit/admitkit/extension.Manager
