// Package manifests makes the manifests of an installation: a registrar, the replicas that
// serve, and those that reconcile, each with its own rights and no more.
//
// Read the files in this order:
//
//   - manifests.go: [Config], and [Make], which adds one process after the other.
//   - processes.go: the Deployments of the three processes, with what each needs.
//   - rights.go: the roles, from what extensions ask for, watch and read.
//   - network.go: the Service of metrics and the NetworkPolicy.
package manifests
