// Package oz rewrites manifests of the Oz RBAC Controller for admitkit: migrate.go reads and
// writes them, oz.go knows what became of each field.
package oz
