package facts

import (
	"context"

	"k8s.io/apimachinery/pkg/types"
)

// ReadHold reads the decision about the egress of a Pod alone.
func (r *Reader) ReadHold(ctx context.Context, f *Facts) { r.readHold(ctx, f) }

// Promise promises access to a request alone.
func (r *Reader) Promise(ctx context.Context, f *Facts) error { return r.promise(ctx, f) }

// Promised has the requests that were promised access.
func (r *Reader) Promised() map[types.NamespacedName]bool { return r.promises.made }
