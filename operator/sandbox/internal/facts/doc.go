// Package facts reads what a decision about a SandboxRun depends on. It writes nothing.
//
// Read the files in this order:
//
//   - facts.go: [Facts], and [Reader.Read]: the Job, the Pods, the policy and the template.
//   - interception.go: what names and BrokerPolicies make of a run, or of a seed, as [Proxied].
//   - claims.go: who has a Workspace, and who waits for it.
//   - activity.go: who uses an Interactive run.
package facts
