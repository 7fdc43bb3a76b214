package command

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/client-go/rest"
	ctrlmanager "sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/scan"
	"github.com/admitkit/admitkit/manager"
	installed "github.com/admitkit/admitkit/manager/internal/manifests"
)

// leastEvery bounds how often a scan lists everything.
const leastEvery = time.Minute

// repeat scans again and again, in a process like the one that reconciles: in one replica,
// with a Lease, metrics and health checks of its own.
func (s *scanning) repeat(ctx context.Context, options manager.Options, with scan.Options) error {
	options.OperatorFingerprint += installed.OfScans
	options.Watching.LeaderElection, options.Watching.ReconcilerUser = true, ""
	options.Registration.Modes, options.Registration.ModesFile = nil, "" // those of extensions that it has not
	options.Serving.Exemptions, options.Serving.ExemptionsFile = nil, ""
	mgr, err := manager.New(options)
	if err != nil {
		return wrong(err)
	}
	p := &periodic{scanning: s, with: with, options: options, mgr: mgr}
	if s.reports {
		if p.reports, err = reportsOf(ctx, options, options.OperatorFingerprint); err != nil {
			return err
		}
	}
	for _, collector := range scan.Collectors() {
		if err := metrics.Registry.Register(collector); err != nil {
			return err
		}
	}
	return errors.Join(mgr.AddExtension(p), mgr.Reconcile(ctx))
}

// periodic is the part of the manager that scans.
type periodic struct {
	*scanning
	with    scan.Options
	options manager.Options
	mgr     *manager.Manager
	reports *scan.Reports
}

// Register has the manager run the scans.
func (p *periodic) Register(mgr extension.Manager) error {
	return mgr.GetKubeManager().Add(ctrlmanager.RunnableFunc(func(ctx context.Context) error {
		next := time.NewTicker(p.every)
		defer next.Stop()
		for {
			if err := p.once(ctx); err != nil && ctx.Err() == nil {
				p.mgr.GetLogger().Errorw("the scan failed", "error", err)
			}
			select {
			case <-ctx.Done():
				return nil
			case <-next.C:
			}
		}
	}))
}

// Reconcile is never called: nothing is watched.
func (p *periodic) Reconcile(context.Context, reconcile.Request) (reconcile.Result, error) {
	return reconcile.Result{}, nil
}

// once scans once.
func (p *periodic) once(ctx context.Context) error {
	began := time.Now()
	result, err := scan.Run(ctx, p.with)
	if err != nil {
		return err
	}
	result.Measure(time.Now(), time.Since(began))
	log := p.mgr.GetLogger().With("took", time.Since(began), "denied", result.Total(scan.Denied), "stuck", result.Total(scan.Stuck),
		"changed", result.Total(scan.Changed), "failed", result.Total(scan.Failed))
	if len(result.Incomplete) > 0 {
		log.Errorw("not everything could be scanned", "incomplete", result.Incomplete)
	} else {
		log.Infow("scanned", "dependOnTheUser", result.ByUser)
	}
	if p.reports == nil {
		return nil
	}
	if err := p.reports.Write(ctx, result); err != nil {
		return fmt.Errorf("--reports: %w", err)
	}
	return nil
}

// reportsOf returns the Reports of a program, over a connection that may write.
func reportsOf(ctx context.Context, options manager.Options, source string) (*scan.Reports, error) {
	client, err := rest.HTTPClientFor(options.RESTConfig)
	if err != nil {
		return nil, err
	}
	reports, err := scan.NewReports(ctx, options.RESTConfig, client, source)
	if err != nil {
		return nil, fmt.Errorf("--reports: %w", err)
	}
	return reports, nil
}
