package protocol

import "context"

// Hook is the function that a controller is made of: a web server, by [NewWebhook], or a
// policy that runs in the process, by a [Compiler]. It is safe for concurrent use.
type Hook interface {
	// Call returns the hook's response to a request. An error changes nothing in the
	// cluster, and the call is repeated with a growing delay. A response that is
	// longer than [MaxResponseBytes] is an error.
	Call(ctx context.Context, request Request) (response []byte, err error)
}

// HookFunc makes a function a [Hook].
type HookFunc func(ctx context.Context, request Request) ([]byte, error)

// Call calls f.
func (f HookFunc) Call(ctx context.Context, request Request) ([]byte, error) { return f(ctx, request) }

// Request is what a hook is asked.
type Request struct {
	// Key tells requests about one parent from those about others, by its UID. A
	// webhook keeps the ETag of its last response under it.
	Key string
	// Body is a JSON document: a [SyncRequest], a [DecorateRequest] or a [CustomizeRequest].
	Body []byte
}

// MaxResponseBytes is how long a response can be. A longer one is an error, not cut off.
const MaxResponseBytes = 10 << 20

// Policy is a hook that is a policy in Rego.
type Policy struct {
	// Name says where the source is from, for messages: configmap/namespace/name/key,
	// or inline.
	Name string
	// Source is one module.
	Source string
	// Query is what is evaluated with the request as its input: data.controller, for
	// example. Its value is the response.
	Query string
	// Version is v0 or v1, the version of the language.
	Version string
}

// Compiler compiles a policy. It is called once for each change of the policy; the error
// of a policy that does not compile names the line.
type Compiler func(ctx context.Context, policy Policy) (Hook, error)
