package scan

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ReadOnly lets only those requests through that store nothing: a scan or a candidate runs the code
// of extensions, and what exists must not change for it.
func ReadOnly(next http.RoundTripper) http.RoundTripper { return &readOnly{next} }

type readOnly struct{ next http.RoundTripper }

// WrappedRoundTripper lets client-go find the transport below.
func (r *readOnly) WrappedRoundTripper() http.RoundTripper { return r.next }

// reviews match the paths of resources whose creation only asks something.
var reviews = regexp.MustCompile(`(^|/)apis/(authentication|authorization)\.k8s\.io/[^/]+/(namespaces/[^/]+/)?[^/]+reviews$`)

// connections match the paths of subresources that run or reach something, by GET, too: what
// then happens, an API server does not know.
var connections = regexp.MustCompile(`(^|/)(api|apis/[^/]+)/[^/]+/(namespaces/[^/]+/)?[^/]+/[^/]+/(exec|attach|portforward|proxy)(/|$)`)

func (r *readOnly) RoundTrip(req *http.Request) (*http.Response, error) {
	switch {
	case connections.MatchString(req.URL.Path):
		return refuse(req)
	case req.Method == http.MethodGet, req.Method == http.MethodHead:
	case req.Method == http.MethodPost && reviews.MatchString(req.URL.Path):
	case slices.Contains(req.URL.Query()["dryRun"], metav1.DryRunAll):
	default:
		return refuse(req)
	}
	return r.next.RoundTrip(req)
}

// refuse answers as an API server does.
func refuse(req *http.Request) (*http.Response, error) {
	if req.Body != nil {
		if err := req.Body.Close(); err != nil {
			return nil, err
		}
	}
	status := metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Reason: metav1.StatusReasonForbidden, Code: http.StatusForbidden,
		Message: fmt.Sprintf("%s %s is not passed on, since a scan or a candidate changes nothing in the cluster: an extension leaves out its effects in a dry run (Request.DryRun)", req.Method, req.URL.Path),
	}
	text, err := json.Marshal(status)
	if err != nil {
		return nil, err
	}
	return &http.Response{
		Status: "403 Forbidden", StatusCode: http.StatusForbidden, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(text)), ContentLength: int64(len(text)), Request: req,
	}, nil
}
