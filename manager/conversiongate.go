package manager

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"go.uber.org/zap"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	ctrlmanager "sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/admitkit/admitkit/internal/registration"
	"github.com/admitkit/admitkit/manager/internal/apiserver"
)

// conversionInterval is how often what waits for conversions looks for them.
const conversionInterval = time.Second

// conversionGate holds up reconcilers and watchers until the program's conversions are
// registered. Before that, an API server returns an object in another version than the
// stored one without the fields that only the stored one has, and an update removes them
// for good.
type conversionGate struct {
	manager *Manager
	crds    []string

	mu  sync.Mutex
	err error
}

// newConversionGate returns nil for a program without a Converter.
func (m *Manager) newConversionGate() *conversionGate {
	crds := m.conversions().Names()
	if len(crds) == 0 {
		return nil
	}
	return &conversionGate{manager: m, crds: crds, err: errors.New("nobody has looked yet")}
}

// check is a readiness check.
func (g *conversionGate) check(*http.Request) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.err
}

// wait returns true when the conversions are registered, and false if ctx ends first.
func (g *conversionGate) wait(ctx context.Context) bool {
	for !g.look(ctx) {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(conversionInterval):
		}
	}
	return true
}

func (g *conversionGate) look(ctx context.Context) (open bool) {
	ctx, cancel := context.WithTimeout(ctx, apiserver.Timeout)
	defer cancel()
	var errs []error
	for _, crd := range g.crds {
		errs = append(errs, registration.Converted(ctx, g.manager.clients.Admissionregistration.RESTClient(), crd))
	}
	err := errors.Join(errs...)
	g.mu.Lock()
	defer g.mu.Unlock()
	if err != nil && (g.err == nil || err.Error() != g.err.Error()) {
		g.manager.options.Logger.Warnw("reconcilers and watchers wait until the conversions are registered", zap.Error(err))
	}
	g.err = err
	return err == nil
}

// held is what a reconciler or a watcher runs, once the gate is open.
type held struct {
	ctrlmanager.Runnable
	gate *conversionGate
}

func (h held) Start(ctx context.Context) error {
	if !h.gate.wait(ctx) {
		return nil
	}
	return h.Runnable.Start(ctx)
}

func (h held) NeedLeaderElection() bool {
	r, says := h.Runnable.(ctrlmanager.LeaderElectionRunnable)
	return !says || r.NeedLeaderElection()
}

// Add holds up what a reconciler or a watcher adds, but for its caches, which begin with
// what reads them.
func (k kubeManager) Add(r ctrlmanager.Runnable) error {
	k.added.Add(1)
	own, hasCache := r.(interface{ GetCache() cache.Cache })
	if hasCache {
		*k.caches = append(*k.caches, own.GetCache())
	}
	if k.gate != nil && !hasCache {
		r = held{r, k.gate}
	}
	return k.Manager.Add(r)
}
