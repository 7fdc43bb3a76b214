package webhook

import (
	"fmt"
	"net/http"
	"strings"
	"sync"

	"go.uber.org/zap"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/host"
)

// OtherRevisions returns the handler for the paths under [MutatingPath] and
// [ValidatingPath] that are none of webhooks. While an upgrade goes on, replicas of
// two revisions serve what one of them registered, and what they do not know must
// be no outage: a webhook that is not there is answered by the handlers here that
// its path names, whatever the scope, as this revision would have done before.
//
// A handler that is not here is new (or its Go type was renamed), and passes over
// what it has not seen: it is in force when the last replica without it is gone. The
// first such request to a path is logged as a warning, and all of them are counted
// under the webhook's name "other-revision".
func OtherRevisions(webhooks []*Webhook, options HandlerOptions) http.Handler {
	if options.Logger == nil {
		options.Logger = zap.NewNop()
	}
	return &otherRevisions{webhooks: webhooks, options: options, handlers: map[string]http.Handler{}}
}

type otherRevisions struct {
	webhooks []*Webhook
	options  HandlerOptions

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
	rest, ofKind := strings.CutPrefix(path, kindPath(w.Mutating))
	segments := strings.Split(rest, "/")
	if !ofKind || len(segments) < 2 {
		return nil
	}
	var missing []string
	w.Handlers, missing = o.find(w.Mutating, segments[0], segments[1:])
	o.options.Logger.Warn("another revision registered this webhook; the handlers of it that are here answer",
		zap.String("path", path), zap.Strings("missing", missing))
	if len(o.handlers) >= maxOtherPaths {
		clear(o.handlers)
	}
	handler := w.Handler(o.options)
	o.handlers[path] = handler
	return handler
}

// find returns the handlers that the segments of the path of a webhook stand for: if
// there is a webhook of that name here, those of it with the same names, in turn, and
// else those with the very segments.
func (o *otherRevisions) find(mutating bool, name string, segments []string) (found []*extension.Handler, missing []string) {
	bySegment, inTurn := map[string]*extension.Handler{}, map[string][]*extension.Handler{}
	for _, w := range o.webhooks {
		if w.Mutating != mutating {
			continue
		}
		for i, segment := range w.segments {
			bySegment[segment] = w.Handlers[i]
			if w.Name == name {
				inTurn[uncounted(segment)] = append(inTurn[uncounted(segment)], w.Handlers[i])
			}
		}
	}
	for _, segment := range segments {
		a := bySegment[segment]
		if next := inTurn[uncounted(segment)]; len(next) > 0 {
			a, inTurn[uncounted(segment)] = next[0], next[1:]
		}
		if a == nil {
			missing = append(missing, segment)
		} else {
			found = append(found, a)
		}
	}
	return found, missing
}

// segmentsOf returns a path segment for each handler: its name and that of the
// type it takes, as the API server accepts them, and its ordinal among equal
// names.
func segmentsOf(handlers []*extension.Handler) []string {
	segments := make([]string, len(handlers))
	count := map[string]int{}
	for i, h := range handlers {
		a := host.Open(h)
		segment := slug(fmt.Sprintf("%s %T", a.Name, a.NewObject()))
		key := kindPath(a.Mutates) + segment
		count[key]++
		if n := count[key]; n > 1 {
			segment = fmt.Sprintf("%s.%d", segment, n)
		}
		segments[i] = segment
	}
	return segments
}

func uncounted(segment string) string {
	name, _, _ := strings.Cut(segment, ".")
	return name
}

// slug makes a DNS label of Go names.
func slug(names string) string {
	const limit = 63
	words := strings.FieldsFunc(strings.ToLower(names), func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9')
	})
	text := strings.Join(words, "-")
	if len(text) > limit {
		text = text[len(text)-limit:] // the end tells more
	}
	return strings.Trim(text, "-")
}
