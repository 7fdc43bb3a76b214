package replay

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admission/v1"

	"github.com/admitkit/admitkit/internal/offline"
	"github.com/admitkit/admitkit/internal/recording"
)

// Report is what a replay found.
type Report struct {
	// Reviews is how many admissions were replayed, and Differing how many of them differ.
	Reviews   int `json:"reviews"`
	Differing int `json:"differing"`
	// Updated is how many recordings got today's answer, or were left out.
	Updated int `json:"updated,omitempty"`
	// Unfinished is how many had no decision in time when they were recorded, or of a webhook
	// that only observes have none now. They are not compared.
	Unfinished  int      `json:"unfinished,omitempty"`
	Differences []*Group `json:"differences"`
	// Webhooks have the times of the admissions that were compared.
	Webhooks []*Timing `json:"webhooks"`
	// Unreadable are the parts of recordings that were skipped.
	Unreadable []string `json:"unreadable,omitempty"`

	tell    func(*Group, Example) // of each new example; nil for nobody
	groups  map[groupKey]*Group
	timings map[string]*Timing
}

// Group is one difference of many admissions.
type Group struct {
	Webhook string `json:"webhook"`
	// Kind is webhook, mode, decision, code, reason, effect, warnings or audit annotations.
	Kind   string `json:"kind"`
	Change string `json:"change,omitempty"`
	Count  int    `json:"count"`
	// Replaced is of how many of them a value was replaced when they were recorded.
	Replaced int       `json:"replaced,omitempty"`
	Examples []Example `json:"examples"`
}

type groupKey struct{ webhook, kind, change string }

// Example is one admission of a group.
type Example struct {
	Request string    `json:"request"`
	Time    time.Time `json:"time"`
	// Diff has what was recorded in lines with a minus, and today's with a plus.
	Diff string `json:"diff,omitempty"`
	// Replaced are the paths of the values that were replaced when it was recorded: the
	// difference may be due to them.
	Replaced []string `json:"replaced,omitempty"`
}

// Timing compares the times of a webhook.
type Timing struct {
	Webhook  string `json:"webhook"`
	Recorded Times  `json:"recorded"`
	Now      Times  `json:"now"`

	recorded, now times
}

// The bounds of a report.
const (
	maxExamples = 3
	maxGroups   = 200
	maxDiff     = 40 // lines
	maxReplaced = 5
)

func newReport() *Report {
	return &Report{Differences: []*Group{}, groups: map[groupKey]*Group{}, timings: map[string]*Timing{}}
}

// add adds the differences of an admission.
func (r *Report) add(e *recording.Entry, differences []difference) {
	if len(differences) > 0 {
		r.Differing++
	}
	for _, d := range differences {
		key := groupKey{nameOf(e.Webhook), d.Kind, d.Change}
		if len(r.groups) >= maxGroups && r.groups[key] == nil {
			key.change = "" // those of many changes are one
		}
		group := r.groups[key]
		if group == nil {
			group = &Group{Webhook: key.webhook, Kind: key.kind, Change: key.change}
			r.groups[key] = group
		}
		group.Count++
		var replaced []string
		if d.Kind != "webhook" && d.Kind != "mode" {
			replaced = replacedIn(e)
		}
		if len(replaced) > 0 {
			group.Replaced++
		}
		if len(group.Examples) < maxExamples {
			example := Example{requestOf(e), e.Time, cut(d.Detail), replaced}
			group.Examples = append(group.Examples, example)
			if r.tell != nil {
				r.tell(group, example)
			}
		}
	}
}

// replacedIn returns what was replaced in a request, or some of it.
func replacedIn(e *recording.Entry) []string {
	var replaced []string
	for _, path := range e.Replaced {
		if inRequest, is := strings.CutPrefix(path, "request."); is {
			replaced = append(replaced, inRequest)
		}
	}
	if more := len(replaced) - maxReplaced; more > 0 {
		return append(replaced[:maxReplaced], fmt.Sprintf("... and %d more", more))
	}
	return replaced
}

// time adds the times of an admission.
func (r *Report) time(e *recording.Entry, now time.Duration) {
	name := nameOf(e.Webhook)
	timing := r.timings[name]
	if timing == nil {
		timing = &Timing{Webhook: name}
		r.timings[name] = timing
	}
	timing.recorded.add(time.Duration(e.Took) * time.Microsecond)
	timing.now.add(now)
}

// finish makes the lists.
func (r *Report) finish() {
	r.Differences = slices.SortedFunc(maps.Values(r.groups), func(a, b *Group) int {
		return cmp.Or(strings.Compare(a.Webhook, b.Webhook), strings.Compare(a.Kind, b.Kind), b.Count-a.Count, strings.Compare(a.Change, b.Change))
	})
	for _, name := range slices.Sorted(maps.Keys(r.timings)) {
		timing := r.timings[name]
		timing.Recorded, timing.Now = timing.recorded.percentiles(), timing.now.percentiles()
		r.Webhooks = append(r.Webhooks, timing)
	}
}

// nameOf names a webhook as metrics do, with the mode unless it is in force.
func nameOf(w recording.Webhook) string {
	kind := "validate/"
	if w.Mutates {
		kind = "mutate/"
	}
	if w.Mode.Enforced() {
		return kind + w.Name
	}
	return strings.ToLower(string(w.Mode)) + "/" + kind + w.Name
}

// requestOf says what a request is about.
func requestOf(e *recording.Entry) string {
	var request admissionv1.AdmissionRequest
	if err := json.Unmarshal(e.Request, &request); err != nil {
		return err.Error()
	}
	name := request.Name
	if request.Namespace != "" {
		name = request.Namespace + "/" + name
	}
	text := fmt.Sprintf("%s %s %s", request.Operation, request.Kind.Kind, offline.OneLine(name))
	if request.SubResource != "" {
		text += " (" + request.Resource.Resource + "/" + request.SubResource + ")"
	}
	return text + " by " + offline.OneLine(request.UserInfo.Username)
}

// cut leaves the beginning of a long diff.
func cut(diff string) string {
	lines := strings.SplitAfter(diff, "\n")
	if len(lines) <= maxDiff {
		return diff
	}
	return strings.Join(lines[:maxDiff], "") + fmt.Sprintf("... and %d more lines\n", len(lines)-maxDiff)
}

// Text returns the report for people.
func (r *Report) Text() string {
	var text strings.Builder
	for _, group := range r.Differences {
		group.write(&text)
	}
	for _, part := range r.Unreadable {
		fmt.Fprintf(&text, "skipped: %s\n", part)
	}
	if r.Unfinished > 0 {
		fmt.Fprintf(&text, "%d had no decision in time, and are not compared\n", r.Unfinished)
	}
	for _, t := range r.Webhooks {
		fmt.Fprintf(&text, "%s: p50 %s, now %s; p90 %s, now %s; p99 %s, now %s\n",
			t.Webhook, t.Recorded.P50, t.Now.P50, t.Recorded.P90, t.Now.P90, t.Recorded.P99, t.Now.P99)
	}
	fmt.Fprintf(&text, "%d of %d admissions differ\n", r.Differing, r.Reviews)
	if r.Updated > 0 {
		fmt.Fprintf(&text, "%d recordings are updated\n", r.Updated)
	}
	return offline.Printable(text.String())
}

func (g *Group) write(text *strings.Builder) {
	fmt.Fprintf(text, "%s: %s", g.Webhook, g.Kind)
	if g.Change != "" {
		fmt.Fprintf(text, ": %s", g.Change)
	}
	fmt.Fprintf(text, ": %d\n", g.Count)
	for _, e := range g.Examples {
		fmt.Fprintf(text, "  %s at %s\n", e.Request, e.Time.Format(time.RFC3339))
		for line := range strings.Lines(e.Diff) {
			text.WriteString("    " + line)
		}
		if len(e.Replaced) > 0 {
			fmt.Fprintf(text, "    this may be due to a value that was replaced: %s\n", strings.Join(e.Replaced, ", "))
		}
	}
	if more := g.Count - len(g.Examples); more > 0 {
		fmt.Fprintf(text, "  ... and %d more\n", more)
	}
	text.WriteString("\n")
}
