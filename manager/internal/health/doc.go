// Package health answers whether a process works: to the kubelet, and to itself.
//
// Read the files in this order:
//
//   - health.go: [Health] serves /healthz and /readyz. [VerifyLeaf] is the check of the
//     serving certificate.
//   - prober.go: [Prober] proves that the API server reaches a webhook of the installation.
package health
