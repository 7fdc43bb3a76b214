// Package testkit is what the tests of this module share: waiting for what a
// cluster does on its own, clients and namespaces, managers and processes that
// end with their test, the code blocks of the documentation, and figures.
//
// It knows the control plane and nothing else of this module, so every package's
// external tests can import it. Tests of an extension outside this module use
// testing/controlplane, testing/admit and testing/fakes.
package testkit
