package scan

import (
	"cmp"
	"slices"
	"strings"
	"sync"

	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/admitkit/admitkit/internal/offline"
	"github.com/admitkit/admitkit/webhook"
)

// Outcome is what an extension would do to an object.
type Outcome string

// The outcomes, the worst first.
const (
	// Stuck: it denies an update that changes nothing.
	Stuck Outcome = "stuck"
	// Denied: it denies the object when it is created.
	Denied Outcome = "denied"
	// Failed: it has an error, panics or takes too long.
	Failed Outcome = "failed"
	// Changed: it changes the object when it is created or updated.
	Changed Outcome = "changed"
)

// Outcomes are all outcomes.
var Outcomes = []Outcome{Stuck, Denied, Failed, Changed}

// came is what came of an object and one extension.
type came struct {
	mode     string
	outcomes []Outcome
	texts    []string
	exempted bool
}

// noteStep adds a step to what came of an object.
func noteStep(all map[string]*came, operation admissionv1.Operation, step *offline.Step) error {
	c := all[step.Extension]
	if c == nil {
		c = &came{mode: cmp.Or(string(step.Webhook.Mode), "Enforce")}
		all[step.Extension] = c
	}
	note := func(outcome Outcome, text string) {
		if !slices.Contains(c.outcomes, outcome) {
			c.outcomes = append(c.outcomes, outcome)
		}
		if !slices.Contains(c.texts, text) {
			c.texts = append(c.texts, text)
		}
	}
	switch {
	case step.Result == "exempted":
		c.exempted = true
	case step.Err != nil:
		note(Failed, step.Err.Error())
	case step.Result == "denied" && operation == admissionv1.Update:
		note(Stuck, step.Reason)
	case step.Result == "denied":
		note(Denied, step.Reason)
	case step.Result == "mutated":
		fields, err := offline.Fields(step.Before, step.Object)
		if err != nil {
			return err
		}
		note(Changed, "it would change "+fields)
	}
	return nil
}

// Row counts what came of the objects of one namespace and extension.
type Row struct {
	Extension string `json:"extension"`
	Mode      string `json:"mode"`
	// Namespace is empty for objects that are in none.
	Namespace string `json:"namespace,omitempty"`
	Objects   int    `json:"objects"`
	Denied    int    `json:"denied"`
	Stuck     int    `json:"stuck"`
	Changed   int    `json:"changed"`
	Failed    int    `json:"failed"`
	Exempted  int    `json:"exempted"`
	// ByUser counts the findings that depend on the user, and are not among the others.
	ByUser int `json:"byUser"`
}

func (r *Row) count(outcome Outcome) *int {
	return map[Outcome]*int{Denied: &r.Denied, Stuck: &r.Stuck, Changed: &r.Changed, Failed: &r.Failed}[outcome]
}

// Finding is what an extension would do to one object.
type Finding struct {
	Extension  string    `json:"extension"`
	Mode       string    `json:"mode"`
	APIVersion string    `json:"apiVersion"`
	Kind       string    `json:"kind"`
	Resource   string    `json:"resource"`
	Namespace  string    `json:"namespace,omitempty"`
	Name       string    `json:"name"`
	UID        string    `json:"uid,omitempty"`
	Outcomes   []Outcome `json:"outcomes"`
	// ByUser is true if the extension decides otherwise for another user.
	ByUser  bool   `json:"byUser,omitempty"`
	Message string `json:"message"`
}

// Object names the object, such as "Pod shop/web".
func (f *Finding) Object() string {
	name := f.Name
	if f.Namespace != "" {
		name = f.Namespace + "/" + name
	}
	return f.Kind + " " + name
}

// Result is what a scan found.
type Result struct {
	Rows     []*Row    `json:"rows"`
	Findings []Finding `json:"findings"`
	// More is how many findings are not kept.
	More int `json:"more,omitempty"`
	// Left is what no scan can show, and Incomplete what this one could not read or decide.
	Left       []Left   `json:"notScanned,omitempty"`
	Incomplete []string `json:"incomplete,omitempty"`
	// ByUser are the extensions that decide by the user, if none was named.
	ByUser []string `json:"byUser,omitempty"`

	mu      sync.Mutex
	rows    map[Row]*Row // by what they are of
	keep    int
	order   []string                            // of extensions
	samples map[schema.GroupVersionResource]int // compared with another user
	tries   map[string]int                      // of findings of an extension, compared with another user
}

func newResult(webhooks []*webhook.Webhook, left []Left, keep int) *Result {
	r := &Result{Rows: []*Row{}, Findings: []Finding{}, Left: left, rows: map[Row]*Row{}, keep: keep, samples: map[schema.GroupVersionResource]int{}, tries: map[string]int{}}
	for _, w := range webhooks {
		for _, name := range w.Extensions() {
			if !slices.Contains(r.order, name) {
				r.order = append(r.order, name)
			}
		}
	}
	return r
}

// add counts what came of an object. Findings by the user count for themselves: they are about
// somebody who was made up.
func (r *Result) add(pass Pass, o object, all map[string]*came, byUser map[string]bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, c := range all {
		key := Row{Extension: name, Mode: c.mode, Namespace: o.namespace}
		row := r.rows[key]
		if row == nil {
			copied := key
			row = &copied
			r.rows[key] = row
			r.Rows = append(r.Rows, row)
		}
		row.Objects++
		if c.exempted {
			row.Exempted++
		}
		if len(c.outcomes) == 0 {
			continue
		}
		if byUser[name] {
			row.ByUser++
		} else {
			for _, outcome := range c.outcomes {
				*row.count(outcome)++
			}
		}
		if len(r.Findings) == r.keep {
			r.More++
			continue
		}
		slices.SortFunc(c.outcomes, func(a, b Outcome) int { return slices.Index(Outcomes, a) - slices.Index(Outcomes, b) })
		r.Findings = append(r.Findings, Finding{
			name, c.mode, pass.Kind.GroupVersion().String(), pass.Kind.Kind, pass.Resource.GroupResource().String(), o.namespace, o.name, o.uid, c.outcomes, byUser[name], short(strings.Join(c.texts, "; ")),
		})
	}
}

// maxMessage bounds the message of a finding.
const maxMessage = 1024

func short(text string) string {
	if len(text) <= maxMessage {
		return text
	}
	return strings.ToValidUTF8(text[:maxMessage], "") + "..."
}

// leave notes what of a webhook no scan can decide.
func (r *Result) leave(pass Pass, unknown *offline.Unknown) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, w := range pass.Webhooks {
		if w.Scope.Name == unknown.Webhook {
			r.Left = withLeft(r.Left, w, pass.Resource.Resource+": "+unknown.Detail)
		}
	}
}

// maxIncomplete bounds how many reasons are kept.
const maxIncomplete = 100

// incomplete notes what could not be scanned. nil is nothing.
func (r *Result) incomplete(err error) {
	if err == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if text := err.Error(); !slices.Contains(r.Incomplete, text) && len(r.Incomplete) < maxIncomplete {
		r.Incomplete = append(r.Incomplete, text)
	}
}

// How many objects of a resource, and findings of an extension, are sent as another user.
const sampledObjects, sampledFindings = 20, 20

// sampled reports whether an object is to be sent as another user, too.
func (r *Result) sampled(pass Pass, all map[string]*came) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	sampled := r.samples[pass.Resource] < sampledObjects
	for name, c := range all {
		if len(c.outcomes) > 0 && (r.tries[name] < sampledFindings || slices.Contains(r.ByUser, name)) {
			r.tries[name]++
			sampled = true
		}
	}
	r.samples[pass.Resource]++
	return sampled
}

// compare returns the extensions that decided otherwise for nobody, or name nobody as the
// reason, and notes them.
func (r *Result) compare(all, other map[string]*came) map[string]bool {
	byUser := map[string]bool{}
	for name, c := range other {
		byUser[name] = all[name] == nil || !slices.Equal(all[name].outcomes, c.outcomes) ||
			slices.ContainsFunc(c.texts, func(text string) bool { return strings.Contains(text, nobody.Username) })
	}
	for name := range all {
		byUser[name] = byUser[name] || other[name] == nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, is := range byUser {
		if is && !slices.Contains(r.ByUser, name) {
			r.ByUser = append(r.ByUser, name)
		}
	}
	return byUser
}

// sort puts everything in an order that does not depend on the scan's.
func (r *Result) sort() {
	place := func(name string) int { return slices.Index(r.order, name) }
	slices.SortFunc(r.Rows, func(a, b *Row) int {
		return cmp.Or(place(a.Extension)-place(b.Extension), strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Mode, b.Mode))
	})
	slices.SortFunc(r.Findings, func(a, b Finding) int {
		return cmp.Or(place(a.Extension)-place(b.Extension), strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Resource, b.Resource), strings.Compare(a.Name, b.Name))
	})
	slices.Sort(r.Incomplete)
	slices.Sort(r.ByUser)
}

// Total returns how many objects and extensions had an outcome.
func (r *Result) Total(outcome Outcome) (total int) {
	for _, row := range r.Rows {
		total += *row.count(outcome)
	}
	return total
}
