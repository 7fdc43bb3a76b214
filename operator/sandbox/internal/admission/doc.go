// Package admission admits SandboxRuns, their templates and Workspaces, and guards the Pods, Jobs and
// network policies of runs and seeds against others.
//
// Read the files in this order:
//
//   - admission.go: [Parts], one for each kind of request, and what they have in common.
//   - runs.go, templates.go, workspaces.go: who may make which of our own kinds.
//   - pods.go: the labels of Pods, and their deletion.
//   - owners.go: Pods and Jobs that claim to be of a run.
//   - exec.go: who gets into Pods.
//   - networkpolicies.go: policies that would let a Pod reach more.
//   - rights.go: what all of this reads.
package admission
