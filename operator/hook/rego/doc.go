// Package rego makes a hook of a policy in Rego: it compiles the policy once, and evaluates
// it with a hook's request as its input.
//
//	policy, err := rego.Compile(rego.Source{
//		Modules: []rego.Module{{Name: "configmap/apps/transient/controller.rego", Text: text}},
//		Version: rego.V0,
//	}, rego.Options{})
//	response, err := policy.Evaluate(ctx, request, time.Now())
//
// Nothing that a policy does leaves the process: builtins that reach the network, files,
// the environment, keys or chance are not there ([Builtins] lists them), the clock is the
// caller's, and print prints nothing. An evaluation is bounded in time, in the length of
// its input and output, and in what it may build; see [Options].
//
// Builtins cannot be interrupted. A [Pool] evaluates policies in processes of their own, which are
// killed when they take too long: use one where others write the input.
//
// [Test] runs the tests that a policy has itself, and package review shows what a hook would make of a
// parent, both without a cluster.
//
// Of all packages of this module, only this one imports OPA.
package rego
