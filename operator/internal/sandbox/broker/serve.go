package broker

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strconv"
	"time"

	"go.uber.org/zap"
	"golang.org/x/net/netutil"
	"sigs.k8s.io/controller-runtime/pkg/certwatcher"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/operator/internal/sandbox/broker/protocol"
	shared "github.com/admitkit/admitkit/operator/internal/sources"
)

// Limits of the server.
const (
	maxConnections = 1024
	maxConcurrent  = 64
	requestTimeout = 15 * time.Second
	drainTimeout   = 10 * time.Second
)

// server answers in every replica.
type server struct {
	broker  *service
	certs   certificates
	sources *sources
	working chan struct{}
}

// certificates are those that the server shows.
type certificates interface {
	GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error)
}

func newServer(b *service, mgr extension.Manager) (*server, error) {
	s := &server{broker: b, sources: newSources(b.clock, b.options.SourceConnections), working: make(chan struct{}, maxConcurrent)}
	if b.options.CertFile == "" {
		own, err := newOwnCertificate(b, mgr)
		s.certs = own
		return s, err
	}
	certs, err := certwatcher.New(b.options.CertFile, b.options.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("CertFile and KeyFile: %w", err)
	}
	s.certs = certs
	return s, nil
}

// NeedLeaderElection says that each replica serves.
func (s *server) NeedLeaderElection() bool { return false }

// Start serves until ctx ends, and lets the requests finish.
func (s *server) Start(ctx context.Context) error {
	watch, stop := context.WithCancel(ctx)
	defer stop()
	s.keepCertificate(watch)
	plain, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.broker.options.Address)
	if err != nil {
		return fmt.Errorf("broker: %w", err)
	}
	web := &http.Server{
		Handler: s.routes(), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: requestTimeout + 5*time.Second,
		IdleTimeout: time.Minute, MaxHeaderBytes: 2 * maxToken, ErrorLog: log.New(io.Discard, "", 0), // what strangers' handshakes cause
	}
	served := make(chan error, 1)
	go func() {
		served <- web.Serve(tls.NewListener(netutil.LimitListener(s.sources.listener(plain), maxConnections), &tls.Config{
			GetCertificate: s.certs.GetCertificate, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"},
		}))
	}()
	s.broker.log.Info("the broker serves", zap.String("address", plain.Addr().String()))
	select {
	case err := <-served:
		return fmt.Errorf("broker: %w", err)
	case <-ctx.Done():
	}
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
	defer cancel()
	return web.Shutdown(drain)
}

// keepCertificate keeps the certificate up to date, and returns when there is one.
func (s *server) keepCertificate(ctx context.Context) {
	switch certs := s.certs.(type) {
	case *certwatcher.CertWatcher:
		go func() {
			if err := certs.Start(ctx); err != nil {
				s.broker.log.Error("the certificate is not read again when it changes", zap.Error(err))
			}
		}()
	case *ownCertificate:
		certs.start(ctx)
	}
}

func (s *server) routes() http.Handler {
	mux := http.NewServeMux()
	b := s.broker
	mux.Handle("POST "+protocol.PathIssue, handle(s, func(ctx context.Context, who *caller, request protocol.IssueRequest) (any, error) {
		of, err := b.admit(ctx, who, request.Run, true)
		if err != nil {
			return nil, err
		}
		issued, err := b.issue(ctx, who, of, request)
		if err != nil {
			return nil, b.recordRefusal(ctx, who, of, request.Name, err)
		}
		return issued, nil
	}))
	mux.Handle("POST "+protocol.PathRevoke, handle(s, func(ctx context.Context, who *caller, request protocol.RevokeRequest) (any, error) {
		queued, err := b.revoke(ctx, who, request)
		if err != nil || len(queued) == 0 {
			return nil, err
		}
		return &protocol.Revoked{Queued: queued}, nil
	}))
	mux.Handle("POST "+protocol.PathEgress, handle(s, func(ctx context.Context, who *caller, request struct{ Run *protocol.Run }) (any, error) {
		of, err := b.admit(ctx, who, request.Run, false)
		if err != nil {
			return nil, err
		}
		return b.egress(ctx, of)
	}))
	mux.Handle("POST "+protocol.PathReport, handle(s, func(ctx context.Context, who *caller, report protocol.Report) (any, error) {
		of, err := b.admit(ctx, who, nil, false)
		if err != nil {
			return nil, err
		}
		return nil, b.report(ctx, who, of, report)
	}))
	return mux
}

// admit returns the run of a caller, if it may ask now.
func (b *service) admit(ctx context.Context, who *caller, named *protocol.Run, issue bool) (*run, error) {
	of, err := b.runOf(ctx, who, named)
	if err != nil {
		return nil, err
	}
	wait := b.limits.wait(of.UID, issue)
	if wait == 0 {
		return of, nil
	}
	err = later(http.StatusTooManyRequests, protocol.CodeRateLimited, 1+int(wait/time.Second), "%s asks too often", of)
	return nil, b.recordRefusal(ctx, who, of, "", err)
}

// recordRefusal puts a refusal on record, once a minute for each kind. What failed for a
// while is no refusal, but that of a rate limit is.
func (b *service) recordRefusal(ctx context.Context, who *caller, of *run, credential string, refused error) error {
	refusal := (*protocol.Error)(nil)
	if !errors.As(refused, &refusal) || !refusal.Code.Fatal() && refusal.Code != protocol.CodeRateLimited && refusal.Code != protocol.CodeTooManyLeases {
		return refused
	}
	minute := b.clock.Now().Truncate(time.Minute).Format(time.RFC3339)
	record := runRecord(who, of, digest(string(of.UID), credential, string(refusal.Code), minute), "issue-refused")
	record.Denied, record.Reason = true, fmt.Sprintf("credential %.63q: %s", credential, refusal.Message)
	if err := b.recorder.Record(ctx, record); err != nil {
		b.log.Error("a refusal is not recorded", zap.Error(err))
		return later(http.StatusServiceUnavailable, protocol.CodeAuditUnavailable, 5, "the answer cannot be recorded")
	}
	return refused
}

// handle decodes a request, asks who sends it, and writes the answer of do. nil is an
// answer without a body. The limits of its address come first.
func handle[T any](s *server, do func(ctx context.Context, who *caller, request T) (any, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), requestTimeout)
		defer cancel()
		answer, err := func() (any, error) {
			source := shared.Of(r.RemoteAddr)
			if err := s.sources.admit(source); err != nil {
				return nil, err
			}
			var request T
			if err := decode(w, r, &request); err != nil { // before it takes a place: a body can be slow
				return nil, err
			}
			select {
			case s.working <- struct{}{}:
				defer func() { <-s.working }()
			default:
				return nil, later(http.StatusServiceUnavailable, protocol.CodeUnavailable, 1, "%d requests are being answered", maxConcurrent)
			}
			who, err := s.broker.authenticate(ctx, r)
			if refusal := (*protocol.Error)(nil); errors.As(err, &refusal) && refusal.Code == protocol.CodeUnauthorized {
				s.sources.invalid(source)
			}
			if err != nil {
				return nil, err
			}
			return do(ctx, who, request)
		}()
		write(w, r.URL.Path, answer, err)
	})
}

// decode reads the body of a request.
func decode(w http.ResponseWriter, r *http.Request, request any) error {
	decoder := json.NewDecoder(http.MaxBytesReader(w, r.Body, protocol.MaxBody))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(request); err != nil {
		return refuse(http.StatusBadRequest, protocol.CodeBadRequest, "the request is not the JSON that this path takes, or has more than %d bytes", protocol.MaxBody)
	}
	return nil
}

// write answers. A credential must stay in no cache.
func write(w http.ResponseWriter, path string, answer any, err error) {
	w.Header().Set("Cache-Control", "no-store")
	status, code := http.StatusOK, codeOK
	if err != nil {
		refusal := (*protocol.Error)(nil)
		if !errors.As(err, &refusal) {
			refusal = refuse(http.StatusInternalServerError, protocol.CodeUnavailable, "the broker failed")
		}
		if refusal.RetryAfter > 0 {
			w.Header().Set("Retry-After", strconv.Itoa(int(refusal.RetryAfter/time.Second)))
		}
		status, code, answer = refusal.Status, string(refusal.Code), refusal
	}
	requestsTotal.WithLabelValues(path, code).Inc()
	switch answer := answer.(type) {
	case nil:
		w.WriteHeader(http.StatusNoContent)
		return
	case *protocol.Revoked:
		status = http.StatusAccepted
		_ = answer
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(answer) // an error is the caller's connection
}
