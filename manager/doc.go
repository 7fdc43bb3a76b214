// Package manager runs extensions: it generates certificates, registers webhook
// configurations, serves admissions, and runs watchers and reconcilers, from the
// start to a drained stop.
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
// [Manager.RegisterExtensions] and ends, the other sets RegisterWebHook to false and
// calls Start. Give both the same options and the same extensions in the same order,
// because names and paths follow from these. docs/security.md lists the rights of
// each.
//
// # Failure
//
// New reports invalid options. Start reports what the API server rejects before it
// registers anything: registration comes last, when the server listens. A stop goes
// the other way round; see ServingOptions.
//
// # Reading the code
//
// start.go is the way through. It makes a serving (serving.go), whose upkeep
// (upkeep.go) keeps the registration (registration.go) and the certificates
// (certificates.go) right. registrar.go runs the upkeep alone. background.go,
// watch.go and feed.go run what does not answer admissions.
package manager
