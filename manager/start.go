package manager

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	ctrlmanager "sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/admitkit/admitkit/certs"
	"github.com/admitkit/admitkit/internal/host"
	"github.com/admitkit/admitkit/internal/recording"
	"github.com/admitkit/admitkit/internal/registration"
	"github.com/admitkit/admitkit/manager/buildinfo"
	"github.com/admitkit/admitkit/manager/internal/health"
	"github.com/admitkit/admitkit/webhook"
)

// Start registers the extensions (unless RegisterWebHook is false), serves
// admissions, and runs watchers and reconcilers (unless Watching.ReconcilerUser says that
// they run elsewhere). It returns when ctx ends or Stop
// is called and the drain is over, or with the first error.
func (m *Manager) Start(ctx context.Context) error {
	return m.run(ctx, m.start)
}

// run runs one of the ways to use a manager from its beginning to its end.
func (m *Manager) run(ctx context.Context, do func(context.Context) error) error {
	ctx, err := m.begin(ctx)
	if err != nil {
		return err
	}
	defer m.cancel()
	defer m.httpClient.CloseIdleConnections()
	err = do(ctx)
	if err == nil || ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil // stopped at whatever step: not a failure
	}
	return fmt.Errorf("manager: %w", err)
}

// start takes every address and finds every error that it can before anything is
// registered, and then runs the parts.
//
// Two contexts matter here. ctx ends when the manager should stop: the webhooks
// then drain. Everything else, the extensions included, runs in a context that
// outlives ctx until the last request is answered.
func (m *Manager) start(ctx context.Context) error {
	webhooks, err := m.webhooks()
	if err != nil {
		return err
	}
	if err := m.reach(ctx); err != nil {
		return err
	}
	health := health.New()
	kube, err := m.newKubeManager(health)
	if err != nil {
		return err
	}
	run, endRun := context.WithCancel(context.WithoutCancel(ctx))
	defer endRun()
	s, err := m.newServing(ctx, run, webhooks)
	if err != nil {
		return err
	}
	m.enter(run, kube, s.source)
	once, process := m.once(), host.Serves|host.Reconciles
	if m.options.Watching.ReconcilerUser != "" || m.compare != nil {
		once, process = background{}, host.Serves
	}
	if s.readsSynced, err = m.startReads(ctx, kube, process); err != nil {
		return err
	}
	if err := m.parts.Register(m); err != nil {
		return err
	}
	background, err := m.newBackground(kube, m.everywhere(), once, true)
	if err != nil {
		return err
	}
	if err := s.listen(ctx, kube); err != nil {
		return err
	}
	group, groupCtx := errgroup.WithContext(ctx)
	if err := m.serveHealth(ctx, run, health, group); err != nil {
		return err
	}
	group.Go(func() error {
		defer endRun()
		return s.run(groupCtx)
	})
	group.Go(func() error {
		s.awaitConversions(run)
		return m.runKube(run, kube, health)
	})
	group.Go(func() error { return background(run) })
	return group.Wait()
}

// enter sets what extensions get from GetContext, GetKubeManager and
// GetServingCertificate. source is nil in a process that does not serve.
func (m *Manager) enter(run context.Context, kube ctrlmanager.Manager, source certs.Source) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ctx, m.kube, m.source = run, kube, source
}

// serveHealth takes the address of the health checks, if there is one, and serves
// them in the group until run ends.
func (m *Manager) serveHealth(ctx, run context.Context, health *health.Health, group *errgroup.Group) error {
	if m.options.Serving.HealthAddress == "" {
		return nil
	}
	serve, err := health.Listen(ctx, m.options.Serving.HealthAddress)
	if err != nil {
		return err
	}
	group.Go(func() error { return serve(run) })
	return nil
}

// serving answers admissions in one process: newServing, listen, run.
type serving struct {
	*upkeep
	webhooks []*webhook.Webhook
	server   *webhook.Server // nil if there are neither webhooks nor conversions
	port     net.Listener    // nil unless Options.Port is FreePort
	handling webhook.HandlerOptions
	served   map[string]bool     // paths of webhooks
	recorder *recording.Recorder // nil if nothing is recorded
	others   atomic.Pointer[http.Handler]
	// readsSynced waits for the cache of what extensions read.
	readsSynced func(context.Context) bool
}

// replicaSpread is how far apart replicas register that start together.
const replicaSpread = 500 * time.Millisecond

// newServing prepares the registration, if this process registers, and the source
// of certificates. A port that it takes is free again when run ends.
func (m *Manager) newServing(ctx, run context.Context, webhooks []*webhook.Webhook) (*serving, error) {
	s := &serving{upkeep: &upkeep{Manager: m}, webhooks: webhooks, served: map[string]bool{}}
	if !m.answers(webhooks) {
		return s, nil
	}
	if err := m.guardOwnPods(webhooks); err != nil {
		return nil, err
	}
	if m.options.Port == FreePort {
		if err := s.takePort(run); err != nil {
			return nil, err
		}
	}
	if *m.options.RegisterWebHook {
		s.registration = m.registration(webhooks)
		s.registration.Spread = replicaSpread
		if err := m.checkOwner(ctx, s.registration); err != nil {
			return nil, err
		}
		m.warnOfEiriniX(ctx)
	}
	var err error
	s.serveToo = s.serve
	s.source, err = m.newSource(s.registration)
	s.paths = m.newPaths(s.registration)
	return s, err
}

// takePort takes a free port before the registration, which it is a part of.
func (s *serving) takePort(run context.Context) error {
	listener, err := new(net.ListenConfig).Listen(run, "tcp", net.JoinHostPort(s.options.Host, "0"))
	if err != nil {
		return fmt.Errorf("%s: %w", unlistenable(err), err)
	}
	// A server that has begun closes it itself.
	context.AfterFunc(run, func() { _ = listener.Close() })
	s.port = listener
	s.mu.Lock()
	defer s.mu.Unlock()
	s.options.Port = int32(listener.Addr().(*net.TCPAddr).Port) //nolint:gosec // a port
	s.options.Logger.Infow("the webhooks have a port that was free", "port", s.options.Port)
	return nil
}

// listen adds the handlers and the readiness checks, and takes the port.
func (s *serving) listen(ctx context.Context, kube ctrlmanager.Manager) error {
	if !s.answers(s.webhooks) {
		return nil
	}
	o, log := &s.options, s.options.Logger.Desugar()
	clients, err := s.clients()
	if err != nil {
		return err
	}
	var openPath func(context.Context, string) (string, bool)
	switch {
	case s.paths != nil:
		openPath = s.paths.Open
	case clients == nil:
		return errors.New("Serving.PlainPaths: needs Serving.ClientCAFile: without either, whoever reaches the port is taken for an API server, and can have any user recorded as having done anything")
	}
	s.server = webhook.NewServer(webhook.ServerOptions{
		OpenPath: openPath,
		Host:     o.Host, Port: int(o.Port), Listener: s.port, GetCertificate: s.source.GetCertificate, LameDuck: *o.Serving.DrainPeriod, Logger: log,
		MaxConnections: o.Serving.MaxConnections, MinVersion: o.Serving.minVersion, CipherSuites: o.Serving.cipherSuites, Clients: clients,
	})
	handling := webhook.HandlerOptions{
		Scheme: o.Scheme, Logger: log, TracerProvider: o.Serving.TracerProvider, MaxBodyBytes: o.Serving.MaxBodyBytes, MaxInFlight: o.Serving.MaxInFlight,
		Memory:     webhook.NewMemory(o.Serving.MaxMemoryBytes), // of all webhooks: the process has one limit
		Exemptions: s.exemptions, Mark: s.mark(),
	}
	if s.recorder, err = s.newRecorder(); err != nil {
		return err
	}
	if s.recorder != nil { // else it would be an interface with nil in it
		handling.Recorder = s.recorder
	}
	s.handling = handling
	s.tellModes(s.webhooks)
	if err := s.register(); err != nil {
		return err
	}
	if err := errors.Join(kube.AddReadyzCheck("webhook", s.server.StartedChecker()), s.addChecks(kube, s.source, s.registration)); err != nil {
		return err
	}
	if err := s.server.Listen(ctx); err != nil {
		return fmt.Errorf("manager options: %s: %w", unlistenable(err), err)
	}
	return nil
}

// register adds the handlers to the server.
func (s *serving) register() error {
	if s.compare != nil {
		return s.registerCandidate()
	}
	s.serve(s.webhooks)
	for _, c := range s.parts.Converters {
		s.server.Register(webhook.ConversionPath(c.CRD), webhook.ConversionHandler(c, s.handling))
	}
	others := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { (*s.others.Load()).ServeHTTP(w, r) })
	for _, path := range []string{webhook.MutatingPath, webhook.ValidatingPath, webhook.WarnPath, webhook.ObservePath} {
		s.server.Register(path, s.afterReads(others))
	}
	if *s.options.Registration.Probe {
		s.server.Register(registration.ProbePath, registration.ProbeHandler())
	}
	return nil
}

// mark returns the program and its revision, as objects say what changed them.
func (m *Manager) mark() string {
	if !m.options.Serving.ChangedBy {
		return ""
	}
	return m.options.OperatorFingerprint + "@" + buildinfo.Get().Version
}

// serve serves webhooks besides those that are served: API servers may call those for a
// while yet.
func (s *serving) serve(webhooks []*webhook.Webhook) {
	others := webhook.OtherRevisions(webhooks, s.handling)
	s.others.Store(&others)
	for _, w := range webhooks {
		if !s.served[w.Path()] {
			s.served[w.Path()] = true
			s.server.Register(w.Path(), s.afterReads(w.Handler(s.handling)))
		}
	}
}

// unlistenable returns the option because of which nobody can listen.
func unlistenable(err error) string {
	if _, unknown := errors.AsType[*net.DNSError](err); unknown || errors.Is(err, syscall.EADDRNOTAVAIL) {
		return "Host"
	}
	return "Port"
}

// clients returns who may connect; nil for everybody.
func (s *serving) clients() (*webhook.Clients, error) {
	o := &s.options.Serving
	if o.ClientCAFile == "" {
		return nil, nil
	}
	clients, err := webhook.NewClients(webhook.ClientsOptions{CAFile: o.ClientCAFile, Names: o.ClientNames, Clock: s.clock, Logger: s.options.Logger.Desugar()})
	if err != nil {
		return nil, fmt.Errorf("Serving.ClientCAFile: %w: name a file with the CA that signs the certificates of the API servers as clients", err)
	}
	return clients, nil
}

// run serves until ctx ends and the server has drained. It waits for the cache of what
// extensions read, unless it converts, and for a certificate first, and registers only then.
//
// Two parts run here, the server and the upkeep, each in a context that outlives
// ctx. When ctx ends, one of them stops, and its end stops the other:
//
//	usually                ctx ends → server drains → upkeep ends
//	with UnregisterOnStop  ctx ends → upkeep ends → unregister → server drains
//
// A draining server still needs its certificate, so usually the upkeep goes on.
// But the upkeep would repair what is unregistered, so then it ends first. The
// failure of one part stops the other, too.
func (s *serving) run(ctx context.Context) error {
	if s.server == nil {
		if s.readsSynced(ctx) {
			close(s.ready)
		}
		<-ctx.Done()
		return nil
	}
	if len(s.parts.Converters) == 0 && !s.readsSynced(ctx) {
		return s.server.Close() // stopped while waiting: not a failure
	}
	if err := s.wait(ctx); err != nil {
		err = errors.Join(err, s.server.Close())
		if ctx.Err() != nil {
			return nil // stopped while waiting: not a failure
		}
		return err
	}
	defer s.record()() // until the server has drained
	detached := context.WithoutCancel(ctx)
	serveCtx, stopServer := context.WithCancel(detached)
	defer stopServer()
	upkeepCtx, stopUpkeep := context.WithCancel(detached)
	defer stopUpkeep()
	first := stopServer
	if s.options.Registration.UnregisterOnStop {
		first = stopUpkeep
	}
	defer context.AfterFunc(ctx, first)()

	var served, kept error
	var parts sync.WaitGroup
	parts.Go(func() {
		defer stopUpkeep()
		served = s.server.Start(serveCtx)
	})
	parts.Go(func() {
		defer stopServer()
		kept = s.keepUp(upkeepCtx, serveCtx)
	})
	parts.Wait()
	return cmp.Or(kept, served)
}

// maxConversionWait is how long caches wait for conversions: a CustomResourceDefinition may
// come much later.
const maxConversionWait = 10 * time.Second

// awaitConversions waits, before the caches are filled, until this process converts. What is
// read of a kind before it is converted is wrong, and stays so in a cache; or it cannot be
// read at all.
func (s *serving) awaitConversions(ctx context.Context) {
	if len(s.parts.Converters) == 0 || s.registration == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, maxConversionWait)
	defer cancel()
	select {
	case <-s.registration.Conversions.Applied():
	case <-ctx.Done():
	}
}

// afterReads has admissions wait for the cache of what extensions read, if the server begins
// before, because the cache may need its conversions.
func (s *serving) afterReads(next http.Handler) http.Handler {
	if len(s.parts.Converters) == 0 {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !s.readsSynced(r.Context()) {
			http.Error(w, "the cache of what extensions read is not filled", http.StatusServiceUnavailable)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// keepUp runs the upkeep, and after it unregisters if the options say so. If the
// upkeep cannot begin, there is nothing to drain.
func (s *serving) keepUp(ctx, serveCtx context.Context) error {
	if err := s.upkeep.run(ctx); err != nil {
		return errors.Join(err, s.server.Close())
	}
	if s.options.Registration.UnregisterOnStop {
		return errors.Join(s.removeRegistration(serveCtx), s.releaseConversions(serveCtx))
	}
	return nil
}
