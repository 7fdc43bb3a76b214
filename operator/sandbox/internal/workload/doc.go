// Package workload makes what runs: the Job of a SandboxRun from its template, and the Job that
// seeds a Workspace. It reads templates, and else computes only.
//
// Read the files in this order:
//
//   - template.go: [Find] reads the template of a run, and its base.
//   - plan.go: [Plan] is what these and the run make together.
//   - limits.go: the part of it that is about Interactive runs.
//   - job.go: the Job, and the Pod with no more than it needs.
//   - proxy.go: [Proxy], which stands beside the work of a run with credentials.
//   - seed.go: the volume of a Workspace, and the Job that fetches into it.
package workload
