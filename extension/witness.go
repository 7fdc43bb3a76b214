package extension

import "context"

// Witness is implemented by a Mutator or Validator on which a record or a right
// depends, so that no request may pass that it did not see.
//
// A review can be too large to be read or decoded (MaxBodyBytes, MaxMemoryBytes), and
// no limit covers all that defaults and JSON's escaping make of a request. It is an
// error for most webhooks, and the failure policy decides. With Ignore, somebody who
// makes his Pod large enough would pass unseen. In a webhook with a Witness such a
// request is denied instead, whatever the failure policy.
type Witness interface {
	// Unseen is called before the denial. The request has everything but the objects
	// and, if it was too large to be read, DryRun and Options, which come after them.
	// The reason is the one that the user gets.
	Unseen(ctx context.Context, req *Request, reason string)
}
