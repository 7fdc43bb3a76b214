package sessionsapi

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"time"

	"go.uber.org/zap"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/admitkit/admitkit/operator/internal/session/collector"
	"github.com/admitkit/admitkit/operator/internal/session/protocol"
)

const (
	// maxReaders is how many requests read recordings at a time. readersOfUser and
	// readersOfAccounts are how many of them one user has, and the ServiceAccounts of one
	// namespace.
	maxReaders, readersOfUser, readersOfAccounts = 32, 4, 8
	// retryReaders is after how many seconds the next one should ask.
	retryReaders = 5
	// writeTime is how long a client may take for what is written at a time, a few KiB.
	writeTime = 30 * time.Second
	// readLimit is how long a recording may take, and followLimit a session that is followed.
	readLimit, followLimit = time.Hour, 12 * time.Hour
	// followTime is how often the storage is asked what there is of a session that is
	// followed, and stateTime how often whether it goes on.
	followTime, stateTime = 300 * time.Millisecond, 5 * time.Second
)

// The content types of recordings.
const (
	typeCast   = "application/x-asciicast"
	typeFrames = "application/octet-stream"
)

func uidType(uid string) types.UID { return types.UID(uid) }

// read answers with a recording.
func (s *Server) read(w http.ResponseWriter, r *http.Request, user *authenticationv1.UserInfo, to request) error {
	leave, err := s.readers.enter(user.Username)
	if err != nil {
		return err
	}
	defer leave()
	e, err := s.find(r.Context(), user, to)
	if err != nil {
		return err
	}
	switch as := to.query.Get("as"); as {
	case "", "cast":
		return s.stream(w, r, user, e, "read", typeCast, readLimit, func(ctx context.Context, out *stream) error {
			return collector.Cast(ctx, s.options.Storage, e.id(), out)
		})
	case "frames":
		return s.stream(w, r, user, e, "read", typeFrames, readLimit, func(ctx context.Context, out *stream) error {
			return collector.Frames(ctx, s.options.Storage, e.id(), func(f *protocol.Frame) error {
				_, err := out.Write(f.Append(nil))
				return err
			})
		})
	case "seal":
		return s.verify(w, r, e)
	default:
		return apierrors.NewBadRequest(fmt.Sprintf("as: %.40q: must be cast, frames or seal", as))
	}
}

// verify answers whether a recording is as it was made. Nothing of it is shown.
func (s *Server) verify(w http.ResponseWriter, r *http.Request, e *entry) error {
	ctx, cancel := unhurried(w, r, readLimit)
	defer cancel()
	key, err := s.options.Key()
	if err != nil {
		return err
	}
	object := s.object(e)
	answer := SessionSeal{TypeMeta: metav1.TypeMeta{APIVersion: GroupVersion.String(), Kind: "SessionSeal"}, ObjectMeta: object.ObjectMeta}
	switch seal, err := collector.Verify(ctx, s.options.Storage, e.id(), key); {
	case err == nil:
		answer.Valid, answer.Frames, answer.Bytes, answer.SHA256 = true, int64(seal.Frames), seal.Bytes, seal.SHA256 //nolint:gosec // frames are numbered one by one
		answer.EndTime = object.Status.EndTime
	case errors.Is(err, collector.ErrChanged), errors.Is(err, collector.ErrNotSealed):
		answer.Reason = err.Error()
	default:
		return apierrors.NewServiceUnavailable("reading the recording: " + err.Error())
	}
	return s.send(w, answer)
}

// errLost ends a session that is followed.
var errLost = errors.New("the recorder is not connected any more, and the recording has no end")

// follow answers with the recording of a session as it grows.
func (s *Server) follow(w http.ResponseWriter, r *http.Request, user *authenticationv1.UserInfo, to request) error {
	leave, err := s.readers.enter(user.Username)
	if err != nil {
		return err
	}
	defer leave()
	e, err := s.find(r.Context(), user, to)
	if err != nil {
		return err
	}
	if state, _ := s.index.state(e); state != Live { // else watch would be get
		return apierrors.NewConflict(groupResource, e.id(), fmt.Errorf("the session is %s, and only a live one can be followed: get sessions/log reads it", state))
	}
	return s.stream(w, r, user, e, "watched", typeCast, followLimit, func(ctx context.Context, out *stream) error {
		looked := s.options.Now()
		err := collector.FollowCast(ctx, s.options.Storage, e.id(), out, func(ctx context.Context) error {
			if err := out.flush(); err != nil {
				return err
			}
			if now := s.options.Now(); now.Sub(looked) >= stateTime {
				looked = now
				e, err := s.index.get(ctx, e.id())
				if err != nil {
					return err
				}
				if state, _ := s.index.state(e); state == Lost {
					return errLost
				}
			}
			return pause(ctx, max(followTime, s.options.Storage.Delay()))
		})
		if errors.Is(err, errLost) {
			_, err = fmt.Fprintf(out, "# %s\n", errLost)
		}
		return err
	})
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// unhurried returns the context of a request that may take longer than the server's
// ReadTimeout.
func unhurried(w http.ResponseWriter, r *http.Request, limit time.Duration) (context.Context, context.CancelFunc) {
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{}) // else the request ends, which it may
	return context.WithTimeout(r.Context(), limit)
}

// stream records that somebody reads a session, and sends what write writes. A client sees
// an answer that is cut as one that is broken.
func (s *Server) stream(w http.ResponseWriter, r *http.Request, user *authenticationv1.UserInfo, e *entry, action, contentType string, limit time.Duration,
	write func(context.Context, *stream) error,
) error {
	ctx, cancel := unhurried(w, r, limit)
	defer cancel()
	if err := s.recordOf(ctx, user, action, e, action+" the session"); err != nil {
		return err
	}
	out := &stream{w: w, control: http.NewResponseController(w), contentType: contentType}
	err := write(ctx, out)
	switch {
	case err == nil:
		return out.begin()
	case !out.begun && errors.Is(err, fs.ErrNotExist):
		return notFound(e.id())
	case !out.begun:
		return apierrors.NewServiceUnavailable("reading the recording: " + err.Error())
	}
	if r.Context().Err() == nil { // the client is still there
		s.options.Log.Error("a recording was sent in part", zap.String("session", e.id()), zap.String("user", user.Username), zap.Error(err))
	}
	panic(http.ErrAbortHandler)
}

// stream is an answer that begins with its first byte, and whose client must take each part
// within writeTime.
type stream struct {
	w           http.ResponseWriter
	control     *http.ResponseController
	contentType string
	begun       bool
}

func (s *stream) begin() error {
	if s.begun {
		return nil
	}
	s.begun = true
	s.w.Header().Set("Content-Type", s.contentType)
	s.w.Header().Set("X-Content-Type-Options", "nosniff")
	if err := s.control.SetWriteDeadline(time.Now().Add(writeTime)); err != nil {
		return err
	}
	s.w.WriteHeader(http.StatusOK)
	return nil
}

func (s *stream) Write(p []byte) (int, error) {
	if err := s.begin(); err != nil {
		return 0, err
	}
	if err := s.control.SetWriteDeadline(time.Now().Add(writeTime)); err != nil {
		return 0, err
	}
	return s.w.Write(p)
}

func (s *stream) flush() error {
	if err := s.begin(); err != nil {
		return err
	}
	if err := s.control.SetWriteDeadline(time.Now().Add(writeTime)); err != nil {
		return err
	}
	return s.control.Flush()
}
