package sessionsapi

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/admitkit/admitkit/operator/internal/session/protocol"
)

// request is what somebody asks for, as the API server understands it, too.
type request struct {
	verb                         string
	namespace, name, subresource string
	query                        url.Values
}

// parse returns what is asked for. ok is false if there is nothing at this path.
func parse(r *http.Request) (to request, ok bool) {
	path := r.URL.EscapedPath()
	rest, found := strings.CutPrefix(path, "/apis/"+GroupVersion.String()+"/")
	if !found || strings.Contains(path, "%") { // no name here has a character that needs it
		return to, false
	}
	to.query = r.URL.Query()
	parts := strings.Split(rest, "/")
	watches := parts[0] == "watch"
	if watches {
		parts = parts[1:]
	}
	if len(parts) > 2 && parts[0] == "namespaces" {
		if to.namespace = parts[1]; len(validation.IsDNS1123Label(to.namespace)) > 0 {
			return to, false
		}
		parts = parts[2:]
	}
	if len(parts) == 0 || len(parts) > 3 || parts[0] != Resource {
		return to, false
	}
	if len(parts) > 1 {
		if to.name = parts[1]; !protocol.ValidID(to.name) || to.namespace == "" {
			return to, false
		}
	}
	if len(parts) > 2 {
		if to.subresource = parts[2]; to.subresource != Log {
			return to, false
		}
	}
	to.verb = to.verbOf(r.Method, watches)
	return to, true
}

// verbOf returns the verb for which the API server has asked RBAC.
func (r *request) verbOf(method string, watches bool) string {
	switch {
	case watches && method == http.MethodGet:
		return "watch"
	case watches, method == http.MethodHead:
		return ""
	case method == http.MethodDelete && r.name == "":
		return "deletecollection"
	case method != http.MethodGet:
		return map[string]string{http.MethodDelete: "delete", http.MethodPost: "create", http.MethodPut: "update", http.MethodPatch: "patch"}[method]
	case r.name != "":
		return "get"
	case isSet(r.query, "watch"):
		return "watch"
	}
	// A right that names the session covers a list of that one.
	if selector, err := fields.ParseSelector(r.query.Get("fieldSelector")); err == nil {
		if name, ok := selector.RequiresExactMatch("metadata.name"); ok {
			r.name = name
		}
	}
	return "list"
}

// isSet reports whether a parameter is there and not false.
func isSet(query url.Values, name string) bool {
	values, there := query[name]
	if !there || len(values) == 0 {
		return false
	}
	is, err := strconv.ParseBool(values[0])
	return err != nil || is
}
