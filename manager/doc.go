// Package manager runs extensions: it generates the certificates, registers the
// webhook configurations, serves the admissions, and runs watchers and
// reconcilers, from start to a drained stop.
//
//	mgr, err := manager.New(manager.Options{
//		Namespace:        "apps",      // whose Pods
//		WebhookNamespace: "my-system", // where we are
//		ServiceName:      "my-ext",    // and how the API server reaches us
//	})
//	err = mgr.AddExtension(myExtension)
//	err = mgr.Start(ctrl.SetupSignalHandler())
//
// # One process or two
//
// [Manager.Start] registers and serves. To keep the right to write webhook
// configurations away from the process that serves, run two: one calls
// [Manager.RegisterExtensions] and ends, the other has RegisterWebHook set to
// false and calls Start. Both are given the same options and the same
// extensions in the same order, since names and paths come from these. The
// README lists the rights of each.
//
// # Failure
//
// What is wrong with the options is said by [New], and what the API server has
// to say about a start by Start, before anything is registered. Registration
// comes last, when the server listens. A stop goes the other way round: see
// Options.DrainPeriod.
package manager
