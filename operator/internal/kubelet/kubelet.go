// Package kubelet reads the paths of a kubelet's own API, to which nodes/proxy leads. The
// command of a session there is in the query, which admission does not receive.
package kubelet

import (
	"path"
	"regexp"
	"slices"
	"strings"
)

// HarmlessPath matches the paths below nodes/proxy that open no session: metrics,
// logs and status. Every other path counts as a way in, so that a newer kubelet's
// path, or a path that some server on the way reads differently, is refused
// rather than let through. It is RE2, which Go and CEL share.
const HarmlessPath = `^/*((metrics|stats|healthz|pods|runningpods|configz|spec|logs|containerLogs|flagz|statusz)(/[A-Za-z0-9_:-][A-Za-z0-9_.:-]*)*/?)?$`

var harmless = regexp.MustCompile(HarmlessPath)

// IsHarmless reports whether a path opens no session.
func IsHarmless(path string) bool { return harmless.MatchString(path) }

// sessions are the paths that lead into a container (k8s.io/kubernetes/pkg/kubelet/server).
var sessions = []string{"exec", "attach", "portForward", "run", "cri"}

// Session is what a path says about the session that it opens.
type Session struct {
	// Namespace and Pod are empty if the path does not name them, as below cri.
	Namespace, Pod string
	// Container is empty if the path does not name one.
	Container string
}

// SessionOf reads a path such as /exec/NAMESPACE/POD/CONTAINER or
// /exec/NAMESPACE/POD/UID/CONTAINER. ok is false if it is not known to open a session.
func SessionOf(at string) (of Session, ok bool) {
	parts := strings.Split(strings.Trim(path.Clean("/"+at), "/"), "/")
	if !slices.ContainsFunc(sessions, func(s string) bool { return strings.EqualFold(s, parts[0]) }) {
		return of, false
	}
	if len(parts) < 3 || strings.EqualFold(parts[0], "cri") {
		return of, true
	}
	of.Namespace, of.Pod = parts[1], parts[2]
	if len(parts) > 3 && !strings.EqualFold(parts[0], "portForward") {
		of.Container = parts[len(parts)-1]
	}
	return of, true
}
