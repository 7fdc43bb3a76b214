// Package e2e tests what users install on a real cluster: the image, installed by
// the Helm chart with the rights that the chart grants, and the kubectl plugin.
//
// `make e2e` creates a cluster on this machine and runs the tests there. To run them
// on your own cluster, set KUBECONFIG and E2E_IMAGE. The cluster must have these
// images or be able to pull them:
//
//	E2E_IMAGE         the operator: operator/cmd/admitkit
//	E2E_SAMPLE_IMAGE  a user's own operator: internal/testkit/sample
//	E2E_POD_IMAGE     a busybox, for the Pods of the tests
//
// The tests need the rights of an administrator and a cluster without admitkit. They
// create namespaces with the prefix e2e-, the CRDs of admitkit and releases of the
// chart, and remove them in the end. Tests that measure something print lines of the
// form "FIGURE name=value unit".
//
// The short form has what only a node shows: that Pods run, that a session is recorded
// and ends, that an attack in a container fails, that an upgrade fails no Pod, and that
// an uninstall leaves nothing. The long form measures, disturbs what is installed, and
// tries every variant.
//
// Package egress beside it tests network policies, and package sandbox runs work that nobody
// trusts; both need root, and sandbox the cluster of `make e2e`.
package e2e
