package extension

import corev1 "k8s.io/api/core/v1"

// Unwrapper is implemented by an extension, or a part of one, whose Mutator puts a program
// of its own before the command of an exec, or of a new ephemeral container: the options
// then have its name and its command with the arguments. Validators run after Mutators, and so see that
// program in the options' command. By an Unwrapper they see what the user gave:
// mgr.GetUnwrapper() asks all of this manager.
type Unwrapper interface {
	// Unwrap returns the command that the user gave, or nil if this extension has not
	// wrapped it. It must be certain of that, by a signature for example, and not by how the
	// command begins: others decide by what it returns, and anybody can give a command that
	// begins like a wrapped one.
	Unwrap(options *corev1.PodExecOptions, req *Request) *Unwrapped
}

// Unwrapped is the command that a user gave.
type Unwrapped struct {
	// Command is the command and its arguments.
	Command []string
	// Session is the name that the extension gave to what will run. No other has it. If it
	// can be the name of an object, it is the ID of the record that audit makes.
	Session string
}
