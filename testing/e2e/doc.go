// Package e2e tests what users install, on a real cluster: the image, by the
// Helm chart, under the rights that the chart gives, and kubectl with its plugin.
// `make e2e` brings up a cluster of this machine's own and runs it there; with
// KUBECONFIG and E2E_IMAGE set it runs on a cluster of yours, which must be able
// to pull or already have these images:
//
//	E2E_IMAGE         the operator: cmd/admitkit
//	E2E_SAMPLE_IMAGE  an operator of a user's own: testing/e2e/sample
//	E2E_POD_IMAGE     what the Pods of the tests run: a busybox
//
// The tests make namespaces whose names begin with e2e-, CRDs of admitkit, and
// releases of the chart, and remove them. They need an administrator's rights, and a
// cluster on which admitkit is not installed. A test that measures something prints
// lines "FIGURE name=value unit".
package e2e
