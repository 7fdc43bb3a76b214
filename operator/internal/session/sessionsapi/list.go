package sessionsapi

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	utilnet "k8s.io/apimachinery/pkg/util/net"

	"github.com/admitkit/admitkit/operator/internal/session/protocol"
)

const (
	// maxList is how many sessions one answer has. The next ones follow by `continue`, for
	// which kubectl asks by itself.
	maxList = 500
	// maxListers, listersOfUser and listersOfAccounts are how many requests are answered at a
	// time that say which sessions there are: as maxReaders. They take less time, so the next
	// one should ask after retryListers seconds.
	maxListers, listersOfUser, listersOfAccounts = 64, 8, 16
	retryListers                                 = 1
)

// get answers with one session.
func (s *Server) get(w http.ResponseWriter, r *http.Request, user *authenticationv1.UserInfo, to request) error {
	form, ok := formOf(r.Header.Get("Accept"))
	if !ok {
		return notAcceptable()
	}
	leave, err := s.listers.enter(user.Username)
	if err != nil {
		return err
	}
	defer leave()
	e, err := s.find(r.Context(), user, to)
	if err != nil {
		return err
	}
	session := s.object(e)
	if form == asTable {
		return s.send(w, table(metav1.ListMeta{}, []Session{*session}, s.options.Now()))
	}
	return s.send(w, session)
}

// list answers with the sessions of a namespace, or of all.
func (s *Server) list(w http.ResponseWriter, r *http.Request, user *authenticationv1.UserInfo, to request) error {
	form, ok := formOf(r.Header.Get("Accept"))
	if !ok {
		return notAcceptable()
	}
	page, err := parsePage(to)
	if err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	leave, err := s.listers.enter(user.Username)
	if err != nil {
		return err
	}
	defer leave()
	entries, unread, err := s.sessions(r.Context(), user, to)
	if err != nil {
		return err
	}
	if unread != "" {
		if warning, err := utilnet.NewWarningHeader(299, "-", strings.ToValidUTF8(unread, "")); err == nil {
			w.Header().Add("Warning", warning)
		}
	}
	list := SessionList{TypeMeta: metav1.TypeMeta{APIVersion: GroupVersion.String(), Kind: "SessionList"}, Items: []Session{}}
	var last *entry
	for _, e := range entries {
		if page.after != nil && newestFirst(e, page.after) <= 0 {
			continue
		}
		session := s.object(e)
		if !page.fields.Matches(fieldsOf(session)) || !page.labels.Matches(labels.Set(nil)) {
			continue
		}
		if len(list.Items) == page.limit {
			list.Continue = tokenOf(last)
			break
		}
		list.Items, last = append(list.Items, *session), e
	}
	if form == asTable {
		return s.send(w, table(list.ListMeta, list.Items, s.options.Now()))
	}
	return s.send(w, list)
}

// page is which sessions of a list are asked for.
type page struct {
	fields fields.Selector
	labels labels.Selector
	limit  int
	// after is the last session of the page before, nil for the first page.
	after *entry
}

func parsePage(to request) (p page, err error) {
	if p.fields, err = fields.ParseSelector(to.query.Get("fieldSelector")); err != nil {
		return p, fmt.Errorf("fieldSelector: %w", err)
	}
	known := fieldsOf(&Session{})
	for _, requirement := range p.fields.Requirements() {
		if _, ok := known[requirement.Field]; !ok {
			return p, fmt.Errorf("fieldSelector: %q: must be one of metadata.name, metadata.namespace, spec.user, spec.pod, spec.podUID, status.state", requirement.Field)
		}
	}
	if p.labels, err = labels.Parse(to.query.Get("labelSelector")); err != nil {
		return p, fmt.Errorf("labelSelector: %w", err)
	}
	p.limit = maxList
	if text := to.query.Get("limit"); text != "" {
		limit, err := strconv.Atoi(text)
		if err != nil || limit < 0 {
			return p, fmt.Errorf("limit: %q: must be a number", text)
		}
		if limit > 0 {
			p.limit = min(limit, maxList)
		}
	}
	if token := to.query.Get("continue"); token != "" {
		p.after, err = parseToken(token)
	}
	return p, err
}

// tokenOf returns where a list goes on.
func tokenOf(e *entry) string {
	return base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, "%d/%s", e.began.UnixNano(), e.id()))
}

func parseToken(token string) (*entry, error) {
	text, err := base64.RawURLEncoding.DecodeString(token)
	at, id, found := strings.Cut(string(text), "/")
	nanos, notNumber := strconv.ParseInt(at, 10, 64)
	if err != nil || notNumber != nil || !found || !protocol.ValidID(id) {
		return nil, fmt.Errorf("continue: %.40q: must be what a list has in metadata.continue", token)
	}
	e := &entry{began: time.Unix(0, nanos)}
	e.ticket.ID = id
	return e, nil
}
