// Package fakes has counterfeiter fakes of the SDK's interfaces, for unit tests
// of extensions that want no API server. They record their calls and return
// what they are told to.
package fakes

//go:generate counterfeiter -o extension.go --fake-name Extension github.com/admitkit/admitkit/extension.Extension
//go:generate counterfeiter -o watcher.go --fake-name Watcher github.com/admitkit/admitkit/extension.Watcher
//go:generate counterfeiter -o reconciler.go --fake-name Reconciler github.com/admitkit/admitkit/extension.Reconciler
//go:generate counterfeiter -o manager.go --fake-name Manager github.com/admitkit/admitkit/extension.Manager
