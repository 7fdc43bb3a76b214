package webhook

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"

	"go.uber.org/zap"

	"github.com/admitkit/admitkit/extension"
)

// OtherRevisions returns the handler for the paths under [MutatingPath] and
// [ValidatingPath] that are none of webhooks. While an upgrade goes on, replicas of
// two revisions serve what one of them registered, and what they do not know must
// be no outage: a webhook that is not there is answered by the handlers here that
// its path names, whatever the scope, as this revision would have done before.
//
// A handler that is not here is new (or was renamed), and passes over what it has
// not seen: it is in force when the last replica without it is gone. The first such
// request to a path is logged as a warning, and all of them are counted under the
// webhook's name "other-revision".
func OtherRevisions(webhooks []*Webhook, options HandlerOptions) http.Handler {
	if options.Logger == nil {
		options.Logger = zap.NewNop()
	}
	known := map[string]*extension.Admission{}
	for _, w := range webhooks {
		for i, segment := range w.segments {
			known[kindPath(w.Mutating)+segment] = w.Handlers[i]
		}
	}
	return &otherRevisions{known: known, options: options, handlers: map[string]http.Handler{}}
}

type otherRevisions struct {
	known   map[string]*extension.Admission // by the path of their kind and their segment
	options HandlerOptions

	mu       sync.Mutex
	handlers map[string]http.Handler // by path
}

// maxOtherPaths bounds what anyone who reaches the port can make us remember.
const maxOtherPaths = 100

func (o *otherRevisions) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	handler := o.handler(r.URL.Path)
	if handler == nil {
		http.NotFound(w, r)
		return
	}
	handler.ServeHTTP(w, r)
}

// handler returns that of a path, or nil when the path names no handlers.
func (o *otherRevisions) handler(path string) http.Handler {
	o.mu.Lock()
	defer o.mu.Unlock()
	if handler := o.handlers[path]; handler != nil {
		return handler
	}
	w := &Webhook{Name: "other-revision", Mutating: strings.HasPrefix(path, MutatingPath)}
	kind := kindPath(w.Mutating)
	rest, ofKind := strings.CutPrefix(path, kind)
	_, segments, named := strings.Cut(rest, "/")
	if !ofKind || !named {
		return nil
	}
	var missing []string
	for segment := range strings.SplitSeq(segments, "/") {
		if a := o.known[kind+segment]; a != nil {
			w.Handlers = append(w.Handlers, a)
		} else {
			missing = append(missing, segment)
		}
	}
	o.options.Logger.Warn("another revision registered this webhook; the handlers of it that are here answer",
		zap.String("path", path), zap.Strings("missing", missing))
	if len(o.handlers) >= maxOtherPaths {
		clear(o.handlers)
	}
	handler := w.Handler(o.options)
	o.handlers[path] = handler
	return handler
}

// segmentsOf returns a segment of a path for each admission: its name in lower case
// and dashes, as the API server wants it, and the how manieth it is of that name.
func segmentsOf(admissions []*extension.Admission) []string {
	segments := make([]string, len(admissions))
	count := map[string]int{}
	for i, a := range admissions {
		segment := slug(a.Name())
		key := kindPath(a.Mutates()) + segment
		count[key]++
		if n := count[key]; n > 1 {
			segment = fmt.Sprintf("%s.%d", segment, n)
		}
		segments[i] = segment
	}
	return segments
}

// slug makes a DNS label of a Go name.
func slug(name string) string {
	const limit = 63
	words := strings.FieldsFunc(strings.ToLower(name), func(r rune) bool {
		return !slices.Contains([]rune("abcdefghijklmnopqrstuvwxyz0123456789"), r)
	})
	text := strings.Join(words, "-")
	if len(text) > limit {
		text = text[len(text)-limit:] // the end tells more
	}
	return cmp.Or(strings.Trim(text, "-"), "handler") // Go names may have no ASCII letter
}
