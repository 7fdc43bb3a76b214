// Package cluster has what extensions that reconcile need of a cluster, beyond
// the clients that package extension offers: a cache of their own ([New]) of
// trimmed Pods ([TrimPod]), the eviction of one very Pod ([Evict]), and who the
// manager is to the API server ([Self]).
package cluster
