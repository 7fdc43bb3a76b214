package session

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"go.uber.org/zap"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	authenticationv1client "k8s.io/client-go/kubernetes/typed/authentication/v1"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/operator/internal/session/collector"
	"github.com/admitkit/admitkit/operator/internal/session/protocol"
	"github.com/admitkit/admitkit/operator/internal/session/sessionsapi"
)

const (
	// maxHeader has room for a ticket and a token.
	maxHeader = protocol.MaxTicket + 16<<10
	// podUID is what the API server says about a token that is bound to a Pod:
	// https://kubernetes.io/docs/reference/access-authn-authz/service-accounts-admin/#bound-service-account-tokens
	podUID = "authentication.kubernetes.io/pod-uid"
)

// settle is the default of collectors, but in tests.
var settle time.Duration

// receiver is the port to which the recorders connect. Every replica has one.
type receiver struct {
	*shared
	certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	reviews     authenticationv1client.TokenReviewInterface
	collector   *collector.Collector
	// api is nil unless questions about sessions are answered here, too.
	api       *sessionsapi.Server
	storage   *lazyStorage
	evictions *evictions // nil without Evict

	mu    sync.Mutex
	conns map[net.Conn]bool // all that are open: the server forgets those that were upgraded
	ended bool
}

var (
	_ manager.Runnable               = (*receiver)(nil)
	_ manager.LeaderElectionRunnable = (*receiver)(nil)
)

// newReceiver returns the receiver of a manager, with the certificate that this serves to
// the names of its Service.
func newReceiver(s *shared, mgr extension.Manager, storage *lazyStorage, reviews authenticationv1client.TokenReviewInterface) (*receiver, error) {
	r := &receiver{shared: s, reviews: reviews, storage: storage, conns: map[net.Conn]bool{}}
	certificate, err := s.servingCertificate(mgr)
	if err != nil {
		return nil, fmt.Errorf("the certificate of the port for recorders: %w", err)
	}
	r.certificate = func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		cert, err := certificate(hello)
		if err != nil { // the recorder hears no more than that it is an error
			r.log.Error("there is no certificate for recorders", zap.Error(err))
		}
		return cert, err
	}
	r.collector = collector.New(collector.Options{
		Key: s.options.key, Identify: r.identify, NamespaceUID: r.namespaceUID, Storage: storage, Retention: s.options.Retention,
		Now: s.clock.Now, Noted: r.onNote, Ended: r.onEnd, Limits: s.grants.limits, Over: r.over, Runs: r.containerRuns, Settle: settle, Redact: s.options.Redact, Observer: observer{},
	})
	if s.grants != nil {
		s.grants.collector = r.collector
	}
	s.given = newIssuedTickets(s, storage)
	if s.options.Evict {
		r.evictions = newEvictions(s, storage)
	}
	return r, nil
}

// NeedLeaderElection is false: each replica takes sessions.
func (*receiver) NeedLeaderElection() bool { return false }

// Start serves until ctx ends, and deletes old recordings. Then it closes the connections:
// the recorders go to another replica.
func (r *receiver) Start(ctx context.Context) error {
	beginCounting()
	var running sync.WaitGroup
	defer running.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if r.grants != nil {
		if err := r.grants.follow(ctx); err != nil {
			return fmt.Errorf("session: following access requests: %w", err)
		}
	}
	served := make(chan error, 2)
	if err := r.keepRecordings(ctx, &running, served); err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort("", strconv.Itoa(int(r.options.Port))))
	if err != nil {
		return fmt.Errorf("session: Port: %w", err)
	}
	web := r.server()
	go func() { served <- web.Serve(r.listen(listener)) }()
	r.log.Info("recorders can connect", zap.String("address", listener.Addr().String()))
	select {
	case err = <-served:
		err = fmt.Errorf("session: %w", err)
	case <-ctx.Done():
	}
	err = errors.Join(err, web.Close())
	r.closeAll()
	return err
}

// keepRecordings opens the storage, or goes on to try it, and then does what is to be done
// about the recordings in it. failed gets an error for which the manager has to end.
func (r *receiver) keepRecordings(ctx context.Context, running *sync.WaitGroup, failed chan<- error) error {
	first := r.storage.try(ctx, firstTime)
	if errors.Is(first, collector.ErrConfiguration) {
		return fmt.Errorf("session: recordings cannot be kept: %w", first)
	}
	running.Go(func() {
		if err := r.storage.run(ctx, first); err != nil && ctx.Err() == nil {
			failed <- fmt.Errorf("recordings cannot be kept: %w", err)
			return
		}
		running.Go(func() { r.given.run(ctx) })
		running.Go(func() {
			r.collector.Announce(ctx, func(err error) { r.log.Error("other replicas may not know which sessions go on", zap.Error(err)) })
		})
		if r.evictions != nil {
			running.Go(func() { r.evictions.run(ctx) })
		}
		r.collector.Run(ctx, func(err error) { r.log.Error("recordings are not as they should be", zap.Error(err)) })
	})
	running.Go(func() { r.keepBundle(ctx) })
	return nil
}

// ServeHTTP counts what the collector does.
func (r *receiver) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	if r.isAPI(request) {
		r.knowFront(request)
		r.api.ServeHTTP(w, request)
		return
	}
	live.Inc()
	defer live.Dec()
	answer := &answer{ResponseWriter: w}
	r.collector.ServeHTTP(answer, request)
	if answer.status != 0 {
		refusedTotal.WithLabelValues(strconv.Itoa(answer.status)).Inc()
		r.log.Warn("a recorder was refused", zap.Int("status", answer.status), zap.String("remote", request.RemoteAddr), zap.ByteString("reason", answer.reason))
	}
}

// answer keeps what a refused recorder is told.
type answer struct {
	http.ResponseWriter
	status int
	reason []byte
}

func (a *answer) WriteHeader(status int) {
	a.status = status
	a.ResponseWriter.WriteHeader(status)
}

func (a *answer) Write(text []byte) (int, error) {
	a.reason = append(a.reason, text...)
	return a.ResponseWriter.Write(text)
}

// Unwrap is for http.ResponseController.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// identify returns the UID of the Pod whose token it is. The API server knows the token by
// its audience, and only while that very Pod exists. The ticket has the Pod's UID: no other
// Pod, of the same name or not, has that.
func (r *receiver) identify(ctx context.Context, token string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	review, err := r.reviews.Create(ctx, &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: []string{Audience}},
	}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	status := &review.Status
	if !status.Authenticated || !slices.Contains(status.Audiences, Audience) {
		return "", fmt.Errorf("%w for %s: %s", collector.ErrToken, Audience, status.Error)
	}
	uid := status.User.Extra[podUID]
	if len(uid) != 1 {
		return "", fmt.Errorf("%w: it is not that of a Pod", collector.ErrToken)
	}
	return uid[0], nil
}

// namespaceUID returns the UID of a namespace, which only the API asks for. A session does not
// wait for it: without it, the API goes by the time at which the namespace was made.
func (r *receiver) namespaceUID(ctx context.Context, name string) string {
	if !r.options.API {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	namespace, err := r.core.Namespaces().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		r.log.Error("a recording does not say which namespace of its name it is from", zap.String("namespace", name), zap.Error(err))
		return ""
	}
	return string(namespace.UID)
}

// onEnd is called before the recorder hears that its last frame is stored.
func (r *receiver) onEnd(ticket *protocol.Ticket, seal collector.Seal) {
	endedTotal.WithLabelValues(kindOfEnd(&seal.End)).Inc()
	ctx, cancel := context.WithTimeout(context.Background(), readTime)
	defer cancel()
	if err := r.report(ctx, ticket, &seal, r.options.location(ticket.ID)); err != nil {
		unreportedTotal.Inc()
		r.log.Error("the AuditEvent does not say where the recording is", zap.String("session", ticket.ID), zap.Error(err))
	}
}

// maxSkew is how far the clock of a node may be ahead, so that a container that had just begun does
// not look like one that was started anew.
const maxSkew = 5 * time.Minute

// over says why a recorder that has left cannot come back: what it ran in has ended. With access to
// a Pod of its own, the Pod ends with that.
func (r *receiver) over(ctx context.Context, ticket *protocol.Ticket) (string, error) {
	pod, err := r.core.Pods(ticket.Namespace).Get(ctx, ticket.Pod, metav1.GetOptions{})
	why := ""
	switch {
	case apierrors.IsNotFound(err), err == nil && string(pod.UID) != ticket.PodUID:
		why = "its Pod was deleted"
	case err != nil:
		return "", fmt.Errorf("reading Pod %s/%s: %w", ticket.Namespace, ticket.Pod, err)
	case !runs(pod, ticket, maxSkew):
		why = "its container has ended"
	default:
		return "", nil
	}
	if limits, err := r.grants.limits(ticket); err == nil && !limits.End.IsZero() && !limits.End.After(r.clock.Now()) {
		why = limits.Reason + ", and " + why
	}
	return why, nil
}

// onNote is called with what the collector notices about a recorder.
func (r *receiver) onNote(ticket *protocol.Ticket, note collector.Note) {
	notedTotal.WithLabelValues(note.Kind).Inc()
	r.log.Warn("a recorder does not do as it should", zap.String("session", ticket.ID), zap.String("note", note.Kind), zap.String("text", note.Text),
		zap.String("pod", ticket.Namespace+"/"+ticket.Pod), zap.String("container", ticket.Container), zap.String("user", ticket.User))
	ctx, cancel := context.WithTimeout(context.Background(), readTime)
	defer cancel()
	if err := r.warnOf(ctx, ticket, note.Kind, "SessionNoted", note.Text); err != nil {
		r.log.Error("there is no Event about a recorder", zap.String("session", ticket.ID), zap.Error(err))
	}
	switch note.Kind {
	case collector.Contested:
		if err := r.reportContested(ctx, ticket, &note); err != nil {
			unreportedTotal.Inc()
			r.log.Error("it is not on record that a ticket is contested", zap.String("session", ticket.ID), zap.Error(err))
		}
	case collector.Replayed:
	default:
		if r.evictions != nil {
			r.evictions.add(ticket, note)
		}
	}
}

// containerRuns reports whether the ephemeral container of a ticket runs.
func (r *receiver) containerRuns(ctx context.Context, ticket *protocol.Ticket) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	pod, err := r.core.Pods(ticket.Namespace).Get(ctx, ticket.Pod, metav1.GetOptions{})
	if err != nil {
		return false, fmt.Errorf("reading Pod %s/%s: %w", ticket.Namespace, ticket.Pod, err)
	}
	return slices.ContainsFunc(pod.Status.EphemeralContainerStatuses, func(status corev1.ContainerStatus) bool {
		return status.Name == ticket.Container && status.State.Running != nil
	}), nil
}
