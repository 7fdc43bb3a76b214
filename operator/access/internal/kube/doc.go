// Package kube is the connection of access to the cluster: what admission and the
// controllers read, and the rights that they need.
//
// Read the files in this order:
//
//   - connection.go: [Connection], with a cache of what is ours and clients for the rest.
//   - indexes.go: the indexes of the cache, and what is listed by them.
//   - read.go: objects and rights that are asked for by name.
//   - status.go: the one place that writes the status of a request.
//   - rights.go: the rights to read, and to grant.
package kube
