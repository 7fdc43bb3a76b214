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

// OtherRevisions returns the handler for paths under [MutatingPath] and
// [ValidatingPath] that belong to none of webhooks. During an upgrade, replicas of
// two revisions serve webhooks that one of them registered, and an unknown webhook
// must not cause an outage. So the handlers that its path names answer, whatever
// their scope, as this revision did before the upgrade.
//
// A handler that this revision does not have is new, or its Go type was renamed. It
// is skipped here, and takes effect when the last replica without it is gone. The
// first request to such a path is logged as a warning; all of them are counted under
// the webhook name "other-revision".
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

// maxOtherPaths limits the memory that clients can occupy with made-up paths.
const maxOtherPaths = 100

func (o *otherRevisions) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	handler := o.handler(r.URL.Path)
	if handler == nil {
		http.NotFound(w, r)
		return
	}
	handler.ServeHTTP(w, r)
}

// handler returns the handler of a path, nil if the path names no handlers.
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
	o.options.Logger.Warn("another revision registered this webhook; its handlers that this revision has will answer",
		zap.String("path", path), zap.Strings("missing", missing))
	if len(o.handlers) >= maxOtherPaths {
		clear(o.handlers)
	}
	handler := w.Handler(o.options)
	o.handlers[path] = handler
	return handler
}

// find returns the handlers for the segments of a webhook's path. A webhook of that
// name here gives its handlers of the same name, in order; for other segments it is
// the handler with exactly that segment.
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

// uncounted returns a segment without its ordinal.
func uncounted(segment string) string {
	name, _, _ := strings.Cut(segment, ".")
	return name
}

// slug makes a DNS label from Go names.
func slug(names string) string {
	const limit = 63
	words := strings.FieldsFunc(strings.ToLower(names), func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9')
	})
	text := strings.Join(words, "-")
	if len(text) > limit {
		text = text[len(text)-limit:] // the end is more specific
	}
	return strings.Trim(text, "-")
}
