package sessionsapi

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// MaxBody is the most bytes of a request without its header: of DeleteOptions.
const MaxBody = 64 << 10

// end ends a live session. Its recording stays: only retention deletes it.
func (s *Server) end(w http.ResponseWriter, r *http.Request, user *authenticationv1.UserInfo, to request) error {
	options, err := deleteOptions(r, to)
	if err != nil {
		return err
	}
	e, err := s.find(r.Context(), user, to)
	if err != nil {
		return err
	}
	conflict := func(format string, args ...any) error {
		return apierrors.NewConflict(groupResource, to.name, fmt.Errorf(format, args...))
	}
	if wanted := options.Preconditions; wanted != nil && wanted.UID != nil && *wanted.UID != uidOf(to.name) {
		return conflict("its UID is %s", uidOf(to.name))
	}
	switch state, _ := s.index.state(e); state {
	case Ended:
		return conflict("it has ended at %s; recordings are deleted by retention only", e.summary.Seal.At.Format(metav1.RFC3339Micro))
	case Ending:
		return conflict("it has ended, and its recording is about to be sealed")
	case Lost:
		return conflict("its recorder is not connected, so there is nothing to end; recordings are deleted by retention only")
	}
	if !slices.Contains(options.DryRun, metav1.DryRunAll) {
		if err := s.recordOf(r.Context(), user, "ended", e, "ended the session"); err != nil {
			return err
		}
		if err := s.options.End(r.Context(), to.name, "it was ended by "+user.Username); err != nil {
			return apierrors.NewServiceUnavailable("ending the session: " + err.Error())
		}
	}
	return s.send(w, metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusSuccess, Message: "the session ends within seconds",
		Details: &metav1.StatusDetails{Name: to.name, Group: GroupVersion.Group, Kind: Resource, UID: uidOf(to.name)},
	})
}

// deleteOptions returns those of the body and the query.
func deleteOptions(r *http.Request, to request) (*metav1.DeleteOptions, error) {
	options := &metav1.DeleteOptions{DryRun: to.query["dryRun"]}
	body, err := io.ReadAll(io.LimitReader(r.Body, MaxBody+1))
	switch {
	case err != nil:
		return nil, apierrors.NewBadRequest("reading DeleteOptions: " + err.Error())
	case len(body) > MaxBody:
		return nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("DeleteOptions may have %d bytes", MaxBody))
	case len(body) > 0:
		if kind := r.Header.Get("Content-Type"); kind != "" && !strings.HasPrefix(kind, "application/json") {
			return nil, apierrors.NewGenericServerResponse(http.StatusUnsupportedMediaType, "delete", groupResource, to.name, "DeleteOptions must be application/json", 0, true)
		}
		if err := json.Unmarshal(body, options); err != nil {
			return nil, apierrors.NewBadRequest("DeleteOptions: " + err.Error())
		}
	}
	for _, value := range options.DryRun {
		if value != metav1.DryRunAll {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("dryRun: %.40q: must be All", value))
		}
	}
	return options, nil
}
