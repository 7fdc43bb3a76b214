package facts

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/operator/access/internal/grant"
	"github.com/admitkit/admitkit/operator/access/internal/rules"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// promises has the requests that this process grants, or will when they can be.
type promises struct {
	mu   sync.Mutex
	made map[types.NamespacedName]bool
}

// Forget forgets that a request was promised access.
func (r *Reader) Forget(key types.NamespacedName) {
	r.promises.mu.Lock()
	defer r.promises.mu.Unlock()
	delete(r.promises.made, key)
}

// promise counts the requests that come before one, and promises it access if the
// template's limit leaves room: those that were made before, those that were granted or
// promised, and of those of the same second the ones with a lower UID, or all of them would
// wait for each other. A request that was made earlier may come later, because admission
// takes its time; it counts those that were promised access before it came.
func (r *Reader) promise(ctx context.Context, f *Facts) error {
	r.promises.mu.Lock()
	defer r.promises.mu.Unlock()
	made := f.Request.GetCreationTimestamp()
	var err error
	f.OthersOpen, err = r.OthersOpen(ctx, r.kind, f.Request, func(other v1alpha1.Request) bool {
		created := other.GetCreationTimestamp()
		before := created.Before(&made) || created.Equal(&made) && other.GetUID() < f.Request.GetUID()
		granted := grant.WasGranted(other) || grant.GotSomething(other)
		return before || granted || r.promises.made[client.ObjectKeyFromObject(other)]
	})
	if err == nil && rules.TooMany(f.Template, f.Request.GetRequestSpec(), f.OthersOpen) == nil {
		r.promises.made[f.Key] = true
	}
	return err
}
