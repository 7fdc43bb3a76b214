package sessionsapi

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/admitkit/admitkit/operator/internal/screen"
	"github.com/admitkit/admitkit/operator/internal/session/collector"
	"github.com/admitkit/admitkit/operator/internal/session/protocol"
)

const (
	// searchTime is less than the minute that kube-apiserver gives a request by default.
	searchTime  = 30 * time.Second
	searchBytes = 256 << 20
	maxText     = 256
	// maxHits is how many lines a search finds, and hitsOfSession how many in one session.
	maxHits, hitsOfSession = 100, 10
	// maxHitLine is how much of a line is shown.
	maxHitLine = 240
)

// search answers with the lines that sessions printed and that contain a text, in the newest
// sessions first. It reads recordings, all of them: so it needs that right.
func (s *Server) search(w http.ResponseWriter, r *http.Request, user *authenticationv1.UserInfo, to request) error {
	text := to.query.Get("search")
	if text == "" || len(text) > maxText || !utf8.ValidString(text) || strings.ContainsAny(text, "\r\n\x1b") {
		return apierrors.NewBadRequest(fmt.Sprintf("search: must be 1 to %d bytes of text in one line", maxText))
	}
	page, err := parsePage(to)
	if err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	if err := s.authorize(r.Context(), user, "get", to.namespace, Log, ""); err != nil {
		return err
	}
	leave, err := s.readers.enter(user.Username)
	if err != nil {
		return err
	}
	defer leave()
	ctx, cancel := unhurried(w, r, searchTime)
	defer cancel()
	entries, unread, err := s.sessions(ctx, user, to, Log)
	if err != nil {
		return err
	}
	where := "all namespaces"
	if to.namespace != "" {
		where = "namespace " + to.namespace
	}
	if err := s.record(ctx, user, "searched", corev1.ObjectReference{Namespace: to.namespace, Name: "*"}, corev1.ObjectReference{},
		fmt.Sprintf("%s searched the sessions of %s for %q", user.Username, where, text)); err != nil {
		return err
	}
	found := &SessionSearch{TypeMeta: metav1.TypeMeta{APIVersion: GroupVersion.String(), Kind: "SessionSearch"}, Items: []SessionHit{}, Incomplete: unread}
	s.searchAll(ctx, entries, page.fields, text, found)
	return s.send(w, found)
}

// searchAll searches sessions until it has found or read enough.
func (s *Server) searchAll(ctx context.Context, entries []*entry, selector fields.Selector, text string, found *SessionSearch) {
	left, failed := int64(searchBytes), 0
	var last error
	for n, e := range entries {
		if !selector.Matches(fieldsOf(s.object(e))) {
			continue
		}
		err := s.searchOne(ctx, e, text, &left, found)
		switch {
		case err == nil:
			found.Searched++
		case ctx.Err() != nil, errors.Is(err, errEnough):
			found.Incomplete = fmt.Sprintf("the %d oldest of %d sessions are not searched, or in part: a search has %s, %d MiB and %d lines at most. Narrow it by a field selector, such as spec.user=NAME",
				len(entries)-n, len(entries), searchTime, searchBytes>>20, maxHits)
			return
		case !errors.Is(err, fs.ErrNotExist): // it was deleted
			failed, last = failed+1, err
		}
	}
	if failed > 0 {
		found.Incomplete = fmt.Sprintf("%d sessions could not be read: %v", failed, last)
	}
}

// errEnough ends a search, and errOne that of a session.
var (
	errEnough = errors.New("a search finds and reads no more")
	errOne    = errors.New("a search finds no more in one session")
)

func (s *Server) searchOne(ctx context.Context, e *entry, text string, left *int64, found *SessionSearch) error {
	var at time.Duration
	var enough error
	hits := 0
	lines := &screen.Text{Overlap: len(text) - 1, Line: func(line string) {
		where := strings.Index(line, text)
		if where < 0 || enough != nil {
			return
		}
		found.Items = append(found.Items, SessionHit{
			Namespace: e.ticket.Namespace, Session: e.id(), User: e.ticket.User, Pod: e.ticket.Pod, At: metav1.Duration{Duration: at}, Line: around(line, where, len(text)),
		})
		if hits++; len(found.Items) >= maxHits {
			enough = errEnough
		} else if hits >= hitsOfSession {
			enough = errOne
		}
	}}
	err := collector.Frames(ctx, s.options.Storage, e.id(), func(f *protocol.Frame) error {
		if *left -= int64(f.Size()); *left < 0 {
			return errEnough
		}
		if f.Type == protocol.Output {
			at = f.At
			lines.Write(f.Data)
		}
		return enough
	})
	if err == nil {
		lines.Flush()
	}
	if errors.Is(err, errOne) {
		return nil
	}
	return err
}

// around returns a part of a line with what was found.
func around(line string, at, length int) string {
	if len(line) <= maxHitLine {
		return line
	}
	from := max(0, at-(maxHitLine-min(length, maxHitLine))/2)
	to := min(len(line), from+maxHitLine)
	return strings.ToValidUTF8(line[from:to], "")
}
