// Package grant knows what a grant is: the kinds of access, and the objects that a request
// gets. It is below all other parts of package access, and reads nothing.
//
// Read the files in this order:
//
//   - kind.go: [Kind], one for Pods that are made, one for Pods that run, one for roles,
//     with the labels and annotations of what a request gets.
//   - role.go: [Choice], the Role that records it, and the RoleBinding.
//   - request.go: what a request says of itself.
//   - records.go: records about a request, and their words.
package grant
