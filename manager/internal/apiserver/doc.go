// Package apiserver is what the manager knows of the API server that it talks to.
//
// Read the files in this order:
//
//   - clients.go: [Clients], one for each group that the manager uses, by one connection.
//   - reach.go: whether an API server answers.
//   - clock.go: [Clock], the time of the API server.
//   - events.go: [Event], which says something about a Secret.
//   - unserved.go: the resources of scopes that it does not serve.
package apiserver
