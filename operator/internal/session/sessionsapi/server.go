package sessionsapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"strconv"
	"time"

	"go.uber.org/zap"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	authorizationv1client "k8s.io/client-go/kubernetes/typed/authorization/v1"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/operator/internal/session/collector"
	"github.com/admitkit/admitkit/operator/internal/session/protocol"
)

// apiTime is how long one question to the API server or the storage may take.
const apiTime = 10 * time.Second

// Options of a [Server]. All are required.
type Options struct {
	// Storage has the recordings.
	Storage collector.Storage
	// Key returns the key of tickets, by which recordings are verified.
	Key func() (protocol.Key, error)
	// End ends a session that is connected to any collector: [collector.Collector.RequestEnd].
	End func(ctx context.Context, id, reason string) error
	// Recorder keeps who reads what.
	Recorder extension.Recorder
	// FrontProxy returns the data of the ConfigMap ConfigMapName.
	FrontProxy func(context.Context) (map[string]string, error)
	// Reviews asks the API server what users may do.
	Reviews authorizationv1client.SubjectAccessReviewInterface
	// Namespaces reads those that there are now.
	Namespaces NamespaceReader
	// Now tells the time.
	Now func() time.Time
	Log *zap.Logger
}

// NamespaceReader reads namespaces, as client-go does.
type NamespaceReader interface {
	Get(ctx context.Context, name string, options metav1.GetOptions) (*corev1.Namespace, error)
}

// Server is the handler of the API group. Requests must come by TLS, with the certificate
// that the client has, if it has one (tls.RequestClientCert).
type Server struct {
	options Options
	front   *front
	index   *index
	// readers and listers bound who asks.
	readers, listers gate
}

var _ http.Handler = (*Server)(nil)

// New returns a Server.
func New(options Options) *Server {
	return &Server{
		options: options, front: &front{read: options.FrontProxy, now: options.Now},
		index: newIndex(options.Storage, options.Key, options.Now), readers: readersGate(), listers: listersGate(),
	}
}

// ServeHTTP implements [http.Handler].
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := s.answer(w, r); err != nil {
		s.fail(w, r, err)
	}
}

func (s *Server) answer(w http.ResponseWriter, r *http.Request) error {
	user, err := s.front.identify(r)
	switch {
	case errors.Is(err, errStranger):
		return apierrors.NewUnauthorized(err.Error())
	case err != nil:
		return apierrors.NewServiceUnavailable(err.Error())
	}
	if found := discovery(r); found != nil && r.Method == http.MethodGet {
		if _, ok := formOf(r.Header.Get("Accept")); !ok {
			return notAcceptable()
		}
		return s.send(w, found)
	}
	to, ok := parse(r)
	if !ok {
		return apierrors.NewGenericServerResponse(http.StatusNotFound, r.Method, schema.GroupResource{Group: GroupVersion.Group}, "", "there is nothing at this path", 0, true)
	}
	handle := s.handlerOf(to)
	if handle == nil {
		return apierrors.NewMethodNotSupported(groupResource, to.verb)
	}
	if err := s.authorize(r.Context(), user, to.verb, to.namespace, to.subresource, to.name); err != nil {
		return err
	}
	return handle(w, r, user, to)
}

type handler func(http.ResponseWriter, *http.Request, *authenticationv1.UserInfo, request) error

// handlerOf returns what answers a request, nil for what sessions cannot do.
func (s *Server) handlerOf(to request) handler {
	switch to.verb + " " + to.subresource {
	case "list ":
		if to.query.Has("search") {
			return s.search
		}
		return s.list
	case "get ":
		return s.get
	case "get " + Log:
		return s.read
	case "watch " + Log:
		return s.follow
	case "delete ":
		return s.end
	}
	return nil
}

// find returns the session that a request names. That of another namespace is not there, nor
// is that of an earlier namespace of the name.
func (s *Server) find(ctx context.Context, user *authenticationv1.UserInfo, to request) (*entry, error) {
	e, err := s.index.get(ctx, to.name)
	if errors.Is(err, fs.ErrNotExist) || err == nil && e.ticket.Namespace != to.namespace {
		return nil, notFound(to.name)
	}
	if err != nil {
		return nil, apierrors.NewServiceUnavailable(fmt.Sprintf("reading session %s: %v", to.name, err))
	}
	own, err := s.ofNamespace(ctx, user, to, []*entry{e})
	switch {
	case err != nil:
		return nil, err
	case len(own) == 0:
		return nil, notFound(to.name)
	}
	return e, nil
}

func notFound(id string) error {
	return apierrors.NewNotFound(groupResource, id)
}

func notAcceptable() error {
	return apierrors.NewGenericServerResponse(http.StatusNotAcceptable, "", schema.GroupResource{Group: GroupVersion.Group}, "", "only application/json is served here, as objects or as a Table", 0, true)
}

// record keeps what somebody is about to do. An error means that it must not happen.
func (s *Server) record(ctx context.Context, user *authenticationv1.UserInfo, action string, object, pod corev1.ObjectReference, reason string) error {
	ctx, cancel := context.WithTimeout(ctx, apiTime)
	defer cancel()
	object.Kind = "Session"
	id := "session." + action + "." + protocol.NewID()
	err := s.options.Recorder.Record(ctx, extension.Record{ID: id, Action: action, User: *user, Object: object, Pod: pod, Reason: reason})
	if err != nil {
		return apierrors.NewServiceUnavailable("this would not be on record, and so it does not happen: " + err.Error())
	}
	return nil
}

// recordOf is record about one session.
func (s *Server) recordOf(ctx context.Context, user *authenticationv1.UserInfo, action string, e *entry, what string) error {
	t := &e.ticket
	return s.record(ctx, user, action, corev1.ObjectReference{Namespace: t.Namespace, Name: t.ID, UID: uidOf(t.ID)}, corev1.ObjectReference{Name: t.Pod, UID: uidType(t.PodUID)},
		fmt.Sprintf("%s %s of %s in Pod %s", user.Username, what, t.User, t.Pod))
}

// send answers with an object.
func (s *Server) send(w http.ResponseWriter, object any) error {
	text, err := json.Marshal(object)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	return s.reply(w, http.StatusOK, text)
}

func (s *Server) reply(w http.ResponseWriter, code int, text []byte) error {
	if err := http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTime)); err != nil {
		return err
	}
	w.WriteHeader(code)
	_, _ = w.Write(append(text, '\n')) // the client is gone
	return nil
}

// fail answers with a Status.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, err error) {
	var said apierrors.APIStatus
	if !errors.As(err, &said) {
		s.options.Log.Error("a question about sessions could not be answered", zap.String("path", r.URL.Path), zap.Error(err))
		said = apierrors.NewInternalError(err)
	}
	status := said.Status()
	status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	if status.Code == http.StatusUnauthorized {
		s.options.Log.Warn("somebody else than the API server asks about sessions", zap.String("remote", r.RemoteAddr), zap.Error(err))
	}
	if details := status.Details; details != nil && details.RetryAfterSeconds > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(details.RetryAfterSeconds)))
	}
	text, _ := json.Marshal(status) // it always marshals
	w.Header().Set("Content-Type", "application/json")
	_ = s.reply(w, int(status.Code), text) // the client is gone
}
