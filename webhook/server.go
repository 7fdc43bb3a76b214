package webhook

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	ctrlwebhook "sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/admitkit/admitkit/webhook/internal/limits"
)

// DefaultMaxConnections is the default limit of connections. An API server opens one
// for each hundred requests that it sends at a time, and closes it after 90 s of idleness.
const DefaultMaxConnections = 512

// ServerOptions are the options of [NewServer].
type ServerOptions struct {
	// Host is the address to listen on. Default: every address.
	Host string
	// Port is the port to listen on. Default: 9443.
	Port int
	// Listener is used in place of Host and Port. The server closes it. Default: none.
	Listener net.Listener
	// GetCertificate returns the serving certificate for each handshake, so that a
	// renewed one needs no restart. Required.
	GetCertificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// MinVersion is the oldest version of TLS, of crypto/tls. Default: TLS 1.2, which is
	// also the least.
	MinVersion uint16
	// CipherSuites are those of TLS 1.2, of crypto/tls. Default: those of crypto/tls.
	CipherSuites []uint16
	// Clients decide by their certificates who may connect. Default: everybody may.
	Clients *Clients
	// OpenPath returns the path under which a handler is registered for one that a client
	// calls, for servers whose clients are told paths that nobody else can guess. ok is false
	// for a path that is none: the answer is 404, and the request is counted. Default: the
	// path is the same.
	OpenPath func(ctx context.Context, called string) (path string, ok bool)
	// MaxConnections is the most connections at a time. If there are more, the one
	// that has been of least use for longest is closed; first those that have not
	// completed an admission. Default: DefaultMaxConnections.
	MaxConnections int
	// LameDuck is how long the server continues to accept requests when it stops and
	// is no longer ready. The endpoints of a Service, and API servers with open
	// connections, need this time to change to another replica.
	LameDuck time.Duration
	// Logger gets the server's start, stop and errors. Default: none.
	Logger *zap.Logger
}

// The bounds of one connection. A webhook's timeout is at most 30 s, so nothing
// legitimate takes longer than that and the time to read it. The idle time is more
// than the 90 s after which an API server closes an idle connection: if the server
// closed it first, a request could meet a closing connection.
const (
	readHeaderTimeout = 5 * time.Second // and of a handshake
	writeTimeout      = limits.ReadTimeout + maxTimeout + answerTimeout
	idleTimeout       = 120 * time.Second
	// API servers send less than 4 KiB.
	maxHeaderBytes = 16 << 10
)

// onlyHTTP1 is the protocol of webhooks. API servers speak HTTP/1.1 to a Service
// (k8s.io/apiserver/pkg/util/webhook/client.go), but prefer HTTP/2 at a URL. There, a
// small bound on streams makes a busy API server exceed it: Go's server answers with
// PROTOCOL_ERROR, and a webhook of the failure policy Ignore is then passed by unseen
// (201 of 128,000 admissions of 64 clients). A large bound lets one connection occupy
// the memory of hundreds. By HTTP/1.1 a connection has one request at a time.
func onlyHTTP1() *http.Protocols {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	return protocols
}

// ShutdownTimeout is how long a server waits, after its lame-duck time, for requests
// in flight: a little more than a webhook may take (30 s). The Pod's
// terminationGracePeriodSeconds must be longer than both together.
const ShutdownTimeout = 35 * time.Second

// Server serves webhooks over HTTPS: TLS 1.2 and later, HTTP/1.1. It is a
// controller-runtime webhook.Server, so it can replace that one.
type Server struct {
	options ServerOptions
	mux     *http.ServeMux

	mu       sync.Mutex
	listener *limits.Connections
	// accepts ends refuse, and refused is closed when it has ended.
	accepts context.CancelFunc
	refused chan struct{}
	closed  bool
	state   error // why it is not ready, nil if it is
}

var _ ctrlwebhook.Server = (*Server)(nil)

// NewServer returns a server, which does not listen yet.
func NewServer(options ServerOptions) *Server {
	if options.Port == 0 {
		options.Port = ctrlwebhook.DefaultPort
	}
	options.MinVersion = max(options.MinVersion, tls.VersionTLS12)
	if options.MaxConnections == 0 {
		options.MaxConnections = DefaultMaxConnections
	}
	if options.Logger == nil {
		options.Logger = zap.NewNop()
	}
	return &Server{options: options, mux: http.NewServeMux(), state: errors.New("the webhook server has not been started")}
}

// Register serves a handler at a path.
func (s *Server) Register(path string, handler http.Handler) {
	s.mux.Handle(path, handler)
}

// WebhookMux returns the mux behind Register.
func (s *Server) WebhookMux() *http.ServeMux { return s.mux }

// NeedLeaderElection is false: every replica answers.
func (s *Server) NeedLeaderElection() bool { return false }

// StartedChecker returns a check that passes from when the server listens until its
// lame-duck time begins.
func (s *Server) StartedChecker() healthz.Checker {
	return func(*http.Request) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.state
	}
}

// Listen takes the port, so that callers learn of a conflict before they announce
// the server. Start calls it if nobody did. Until the server is started, it closes each
// connection, at first after half a second: a client that waits for a certificate would
// wait for its whole timeout.
func (s *Server) Listen(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return fmt.Errorf("webhook server: %w", net.ErrClosed)
	}
	if s.listener != nil {
		return nil
	}
	listener := s.options.Listener
	if listener == nil {
		var err error
		address := net.JoinHostPort(s.options.Host, strconv.Itoa(s.options.Port))
		if listener, err = new(net.ListenConfig).Listen(ctx, "tcp", address); err != nil {
			return fmt.Errorf("webhook server: %w", err)
		}
	}
	s.listener = limits.NewConnections(listener, s.options.MaxConnections, sample(s.options.Logger))
	refusing, accepts := context.WithCancel(context.WithoutCancel(ctx))
	s.accepts, s.refused = accepts, make(chan struct{})
	go s.refuse(refusing, s.listener.Listener)
	return nil
}

// soon is how long connections wait for a start that follows at once, as usual.
const soon = 500 * time.Millisecond

// refuse closes connections until ctx ends and the listener is closed or has a deadline.
func (s *Server) refuse(ctx context.Context, listener net.Listener) {
	defer close(s.refused)
	timer := time.NewTimer(soon)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return
	case <-timer.C:
	}
	log := sample(s.options.Logger)
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		log.Info("a connection was closed: the webhook server has not been started yet", zap.Stringer("address", conn.RemoteAddr()))
		_ = conn.Close() // nothing to be done about it
	}
}

// accept ends refuse, and returns the listener.
func (s *Server) accept() (*limits.Connections, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	socket, ok := s.listener.Listener.(*net.TCPListener)
	if !ok {
		return nil, fmt.Errorf("webhook server: listens on %T", s.listener.Listener)
	}
	if s.closed {
		return nil, fmt.Errorf("webhook server: %w", net.ErrClosed)
	}
	s.accepts()
	if err := socket.SetDeadline(time.Unix(1, 0)); err != nil {
		return nil, fmt.Errorf("webhook server: %w", err)
	}
	<-s.refused
	return s.listener, socket.SetDeadline(time.Time{})
}

// Close releases the port at once, without a drain. It is for a server that was not
// announced: Start was not called, or a later step failed.
func (s *Server) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.listener == nil {
		return nil
	}
	s.accepts()
	return s.listener.Close()
}

// Start serves until ctx ends, and then drains: the server is no longer ready,
// continues for the lame-duck time while it closes each connection after its next
// answer, stops accepting, and waits for requests in flight. Their contexts live
// until the last of them is done.
func (s *Server) Start(ctx context.Context) error {
	if err := s.Listen(ctx); err != nil {
		return err
	}
	listener, err := s.accept()
	if err != nil {
		return err
	}
	requests, cancelRequests := context.WithCancel(context.WithoutCancel(ctx))
	defer cancelRequests()
	server, err := s.httpServer(ctx, requests, listener)
	if err != nil {
		return err
	}
	served := make(chan error, 1)
	go func() { served <- server.ServeTLS(listener, "", "") }()
	s.setState(nil)
	s.options.Logger.Info("webhook server listens", zap.Stringer("address", listener.Addr()))
	select {
	case err := <-served:
		return fmt.Errorf("webhook server: %w", err)
	case <-ctx.Done():
		return s.drain(requests, server, served)
	}
}

// httpServer makes the server of net/http. The drain begins when ctx ends; requests
// is the context of every request.
func (s *Server) httpServer(ctx, requests context.Context, listener *limits.Connections) (*http.Server, error) {
	errorLog, err := zap.NewStdLogAt(s.options.Logger.WithOptions(zap.AddCallerSkip(1)), zapcore.DebugLevel)
	if err != nil {
		return nil, err
	}
	handler := http.Handler(s.mux)
	if s.options.OpenPath != nil {
		handler = s.opening(handler)
	}
	if s.options.Clients != nil {
		handler = s.options.Clients.around(handler)
	}
	return &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if ctx.Err() != nil { // it drains
				// The next request should come by a new connection, which leads to
				// another replica. A connection that is closed between two requests
				// can meet the second, which API servers do not repeat.
				w.Header().Set("Connection", "close")
			}
			handler.ServeHTTP(w, r)
		}),
		TLSConfig:         s.tlsConfig(),
		ReadHeaderTimeout: readHeaderTimeout,
		ReadTimeout:       limits.ReadTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		Protocols:         onlyHTTP1(),
		ConnContext:       limits.WithConnection,
		ConnState:         listener.State,
		BaseContext:       func(net.Listener) context.Context { return requests },
		ErrorLog:          errorLog,
	}, nil
}

// opening has next answer those who know a path. Nothing of the others is read, and nothing
// of their path is logged: it may be one that was good a moment ago.
func (s *Server) opening(next http.Handler) http.Handler {
	log := sample(s.options.Logger)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path, ok := s.options.OpenPath(r.Context(), r.URL.Path)
		if !ok {
			clientsRefused.WithLabelValues(refusedPath).Inc()
			log.Warn("a request was refused: its path is that of no webhook, or not any more", zap.String("address", r.RemoteAddr))
			w.Header().Set("Connection", "close")
			http.NotFound(w, r)
			return
		}
		opened := *r.URL
		opened.Path, opened.RawPath = path, ""
		r.URL, r.RequestURI = &opened, opened.RequestURI()
		next.ServeHTTP(w, r)
	})
}

func (s *Server) tlsConfig() *tls.Config {
	config := &tls.Config{ // NewServer sees to the version
		MinVersion: s.options.MinVersion, CipherSuites: s.options.CipherSuites, GetCertificate: s.options.GetCertificate,
	}
	if clients := s.options.Clients; clients != nil {
		// A client without a certificate is refused there, too, and logged.
		config.ClientAuth, config.VerifyConnection = tls.RequestClientCert, clients.verify
	}
	return config
}

// drain continues for the lame-duck time, and then stops the server. The result of
// the server arrives on served.
func (s *Server) drain(requests context.Context, server *http.Server, served <-chan error) error {
	log := s.options.Logger
	s.setState(errors.New("the webhook server is shutting down"))
	log.Info("webhook server drains", zap.Duration("lameDuck", s.options.LameDuck))
	lameDuck := time.NewTimer(s.options.LameDuck)
	defer lameDuck.Stop()
	select {
	case err := <-served:
		return fmt.Errorf("webhook server: %w", err)
	case <-lameDuck.C:
	}
	patience, cancel := context.WithTimeout(requests, ShutdownTimeout)
	defer cancel()
	err := server.Shutdown(patience)
	if err != nil {
		err = fmt.Errorf("webhook server: requests still in flight after %s: %w", ShutdownTimeout, errors.Join(err, server.Close()))
	}
	if reason := <-served; !errors.Is(reason, http.ErrServerClosed) {
		err = errors.Join(err, reason)
	}
	log.Info("webhook server stopped")
	return err
}

func (s *Server) setState(state error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state = state
}
