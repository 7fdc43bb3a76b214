package webhook

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/admitkit/admitkit/extension"
	"github.com/admitkit/admitkit/internal/host"
	"github.com/admitkit/admitkit/webhook/internal/review"
)

// OtherRevisions returns the handler for paths under [MutatingPath],
// [ValidatingPath], [WarnPath] and [ObservePath] that belong to none of webhooks. During an upgrade, replicas of
// two revisions serve webhooks that one of them registered, and an unknown webhook
// must not cause an outage. So the handlers that its path names answer, whatever
// their scope, as this revision did before the upgrade. Each runs once, however often
// the path names it.
//
// A handler that this revision does not have is new, or its Go type was renamed. If
// the webhook of that name has handlers here, in the mode of the path, that the path does
// not name, they run in its place: a guard that was renamed is in force throughout. If it
// has none, the handler is skipped, and takes effect when the last replica without it is gone. It
// is not refused, although the failure policy may be Fail: a new revision that does
// not become ready would then block everything that the old one still answers well.
//
// Such requests are counted under the webhook name "other-revision". At most one a
// minute is logged, as a warning. A path that names more than 1000 handlers, or one
// of more than 80 characters, is not found.
func OtherRevisions(webhooks []*Webhook, options HandlerOptions) http.Handler {
	if options.Logger == nil {
		options.Logger = zap.NewNop()
	}
	options.Recorder = nil // a webhook of another revision is none that this one could be compared by
	o := &otherRevisions{log: options.Logger}
	for _, mode := range allModes {
		o.webhooks = append(o.webhooks, newOtherWebhooks(webhooks, true, mode, options), newOtherWebhooks(webhooks, false, mode, options))
	}
	return o
}

// The limits of a path. A segment is a slug and an ordinal; see segmentsOf.
const (
	maxSegments = 1000
	maxSegment  = 80
)

// logOtherRevisions is how often such a request is logged.
const logOtherRevisions = time.Minute

type otherRevisions struct {
	webhooks []*otherWebhooks // of each mode and kind
	log      *zap.Logger

	mu       sync.Mutex
	logged   time.Time // the last time
	unlogged int       // requests since then
}

func (o *otherRevisions) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	i := slices.IndexFunc(o.webhooks, func(webhooks *otherWebhooks) bool { return strings.HasPrefix(r.URL.Path, webhooks.path) })
	if i < 0 {
		_ = review.WriteFailure(w, http.StatusNotFound, errNoPath) // the client is gone
		return
	}
	webhooks := o.webhooks[i]
	name, segments, err := parsePath(r.URL.Path, webhooks.path)
	if err != nil {
		_ = review.WriteFailure(w, http.StatusNotFound, err) // the client is gone
		return
	}
	found, missing := webhooks.find(name, segments)
	o.note(r.URL.Path, missing)
	webhooks.handler.serve(w, r, webhooks.chain(found))
}

// errNoPath says that a path is not that of a webhook.
var errNoPath = errors.New("not the path of a webhook, which names its handlers")

// parsePath returns the name of a webhook and the segments of its handlers from a
// path with this beginning.
func parsePath(path, beginning string) (name string, segments []string, err error) {
	segments = strings.SplitN(strings.TrimPrefix(path, beginning), "/", maxSegments+2)
	switch {
	case len(segments) < 2:
		return "", nil, errNoPath
	case len(segments) > maxSegments+1:
		return "", nil, fmt.Errorf("the path of a webhook names at most %d handlers", maxSegments)
	}
	for _, segment := range segments {
		if segment == "" || len(segment) > maxSegment {
			return "", nil, fmt.Errorf("a name in the path of a webhook has 1 to %d characters", maxSegment)
		}
	}
	return segments[0], segments[1:], nil
}

// note logs that another revision registered a path, unless it did so recently.
func (o *otherRevisions) note(path string, missing []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.logged.IsZero() && time.Since(o.logged) < logOtherRevisions {
		o.unlogged++
		return
	}
	o.log.Warn("another revision registered this webhook; its handlers that this revision has will answer",
		zap.String("path", path[:min(len(path), 1000)]), zap.Strings("missing", missing[:min(len(missing), 10)]), zap.Int("unloggedRequests", o.unlogged))
	o.logged, o.unlogged = time.Now(), 0
}

// otherWebhooks are the handlers of all webhooks of one kind, for the paths of a mode.
type otherWebhooks struct {
	path    string // its beginning
	places  []place
	inMode  []bool   // whether the handler of each place has the mode in some namespace
	handler *handler // its chain has a handler for each place
}

// place is where a handler is.
type place struct{ webhook, segment string }

func newOtherWebhooks(webhooks []*Webhook, mutating bool, mode extension.Mode, options HandlerOptions) *otherWebhooks {
	all := (&Webhook{Name: "other-revision", Mutating: mutating, Mode: mode}).asRegistered()
	o := &otherWebhooks{path: all.kindPath()}
	for _, w := range webhooks {
		if w.Mutates() != mutating {
			continue
		}
		for i, segment := range w.segments {
			at := slices.Index(o.places, place{w.Name, segment})
			if at < 0 { // else it is there in another mode
				at = len(o.places)
				o.places, o.inMode = append(o.places, place{w.Name, segment}), append(o.inMode, false)
				all.Handlers = append(all.Handlers, w.Handlers[i])
			}
			o.inMode[at] = o.inMode[at] || w.Mode == mode
		}
	}
	o.handler = all.Handler(options).(*handler)
	return o
}

// chain returns the chain of the handlers at these places.
func (o *otherWebhooks) chain(places []int) *chain {
	c := o.handler.chain
	all, meters := c.handlers, c.meters
	c.handlers, c.meters = make([]*host.Handler, len(places)), make([]*meter, len(places))
	for i, at := range places {
		c.handlers[i], c.meters[i] = all[at], meters[at]
	}
	return &c
}

// find returns the places of the handlers for the segments of a webhook's path, each
// at most once. If a webhook of that name here has all segments of a name, those are meant:
// the modes may divide it there. Else it gives its handlers of the same name, in order; for
// other segments it is the handler with exactly that segment. The
// handlers of the webhook that are then left, and have the mode, stand in for those that
// are missing.
func (o *otherWebhooks) find(name string, segments []string) (found []int, missing []string) {
	inTurn, bySegment := map[string][]int{}, map[string]int{}
	for i, p := range o.places {
		bySegment[p.segment] = i
		if p.webhook == name {
			inTurn[uncounted(p.segment)] = append(inTurn[uncounted(p.segment)], i)
		}
	}
	differs := map[string]bool{} // names of which there are others here
	for _, segment := range segments {
		if at, known := bySegment[segment]; !known || o.places[at].webhook != name {
			differs[uncounted(segment)] = true
		}
	}
	used, standIn := make([]bool, len(o.places)), -1
	for _, segment := range segments {
		at, known := bySegment[segment]
		if next := inTurn[uncounted(segment)]; len(next) > 0 && differs[uncounted(segment)] {
			at, known, inTurn[uncounted(segment)] = next[0], true, next[1:]
		}
		if known && !used[at] {
			used[at] = true
			found = append(found, at)
			continue
		}
		missing = append(missing, segment)
		if standIn < 0 {
			standIn = len(found)
		}
	}
	if standIn < 0 {
		return found, nil
	}
	var left []int
	for i, p := range o.places {
		if p.webhook == name && !used[i] && o.inMode[i] {
			left = append(left, i)
		}
	}
	return slices.Insert(found, standIn, left...), missing
}

// segmentsOf returns a path segment for each handler: its name and that of the
// type it takes, as the API server accepts them, and its ordinal among equal
// names.
func segmentsOf(handlers []*extension.Handler) []string {
	segments := make([]string, len(handlers))
	count := map[string]int{}
	for i, h := range handlers {
		a := host.Open(h)
		takes := "object" // of any kind
		if object := a.NewObject(); object != nil {
			takes = fmt.Sprintf("%T", object)
		}
		segment := slug(a.Name + " " + takes)
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
