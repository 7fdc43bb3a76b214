// Package fakes has counterfeiter fakes of the SDK's interfaces, for unit tests
// without an API server. A fake records its calls and returns what the test sets.
// To test what an extension does to objects, use testing/admit instead.
package fakes

//go:generate counterfeiter -generate

//counterfeiter:generate -o extension.go --fake-name Extension github.com/admitkit/admitkit/extension.Extension
//counterfeiter:generate -o watcher.go --fake-name Watcher github.com/admitkit/admitkit/extension.Watcher
//counterfeiter:generate -o watcherof.go --fake-name WatcherOf github.com/admitkit/admitkit/extension.WatcherOf
//counterfeiter:generate -o reconciler.go --fake-name Reconciler github.com/admitkit/admitkit/extension.Reconciler
//counterfeiter:generate -o mutator.go --fake-name Mutator github.com/admitkit/admitkit/extension.Mutator
//counterfeiter:generate -o validator.go --fake-name Validator github.com/admitkit/admitkit/extension.Validator
//counterfeiter:generate -o hosted.go --fake-name Hosted github.com/admitkit/admitkit/extension.Hosted
//counterfeiter:generate -o scoped.go --fake-name Scoped github.com/admitkit/admitkit/extension.Scoped
//counterfeiter:generate -o entitled.go --fake-name Entitled github.com/admitkit/admitkit/extension.Entitled
//counterfeiter:generate -o leaderelected.go --fake-name LeaderElected github.com/admitkit/admitkit/extension.LeaderElected
//counterfeiter:generate -o remover.go --fake-name Remover github.com/admitkit/admitkit/extension.Remover
//counterfeiter:generate -o manager.go --fake-name Manager github.com/admitkit/admitkit/extension.Manager
