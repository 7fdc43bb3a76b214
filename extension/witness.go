package extension

import "context"

// Witness is implemented by a [Mutator], [Validator] or [Extension] on which a record or
// a right depends, so that nobody passes it by a request that is too large.
//
// A review can be too large to be read or decoded: its body, the memory that it takes
// (MaxBodyBytes, MaxMemoryBytes), its nesting, its user's groups. No limit covers all
// that defaults and JSON's escaping make of a request. It is an error for most webhooks,
// and the failure policy decides. With Ignore, somebody who makes his Pod large enough
// would pass unseen. In a webhook with a Witness such a request is denied instead,
// whatever the failure policy.
//
// Other failures stay failures: of a handler before the Witness in the same webhook, of
// its own, and of a server that is not there. Where nothing may pass, use Fail.
type Witness interface {
	// Unseen is called before the denial, once for each Witness of the webhook. The
	// request has everything but the objects. If it was too large to be read, DryRun and
	// Options are missing too, and perhaps a part of the user; so take it for one that is
	// not a dry run. The reason is the one that the user gets. The request is denied even
	// if Unseen panics, or does not return in time; ctx has its deadline.
	Unseen(ctx context.Context, req *Request, reason string)
}
