// Package memcluster is a cluster in memory: objects, behind the HTTP of the Kubernetes API.
// Extensions that answer admissions without a cluster reach it by the clients of their
// manager.
//
// Read the files in this order:
//
//   - cluster.go: [Cluster], and what it does with a call.
//   - write.go, delete.go, watch.go: the calls that change objects, and those that follow.
//   - discovery.go, reviews.go: which kinds there are, and who may do what.
//   - rights.go: [Account], a caller with the [Rights] of a program.
package memcluster
