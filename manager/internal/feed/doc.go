// Package feed passes the events of an informer to one watcher, with a bounded queue, so
// that a slow watcher delays nobody and misses no state that lasts.
package feed
