// Package owned knows what belongs to a SandboxRun or a Workspace: by which names, labels and
// owners. It decides nothing, and is below all other parts of package sandbox.
//
// Read the files in this order:
//
//   - owned.go: the names of objects, and their owners. [Is] says whose an object is, and
//     [TakenError] that it is somebody else's.
//   - labels.go: the labels of Pods, by which network policies select them.
//   - pods.go: [Pods] finds those of a run or a seed in the cluster.
//   - secrets.go: the Secrets of both, and the keys in them.
//   - reserved.go: the environment variables that nobody else can set.
package owned
