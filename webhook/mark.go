package webhook

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"

	"github.com/admitkit/admitkit/internal/jsonpatch"
)

// ChangedBy is the annotation of objects that say which extensions have changed them: see
// [HandlerOptions].Mark. It is for people: whoever may write the object may write it, too.
const ChangedBy = "admitkit.dev/changed-by"

// maxMark bounds what is kept of the annotation of others.
const maxMark = 4 << 10

// mark writes the extensions that changed the object onto it. A request for a subresource
// changes no annotations.
func (p *passage) mark() error {
	request := p.object.request
	if p.chain.mark == "" || len(p.changed) == 0 || request.SubResource != "" || request.Operation != admissionv1.Create && request.Operation != admissionv1.Update {
		return nil
	}
	if err := p.object.flush(); err != nil {
		return err
	}
	var document struct {
		Metadata *struct {
			Annotations map[string]string `json:"annotations"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(p.object.document.Raw, &document); err != nil || document.Metadata == nil {
		return err
	}
	operation := map[string]any{"op": "add", "path": "/metadata/annotations/" + strings.ReplaceAll(ChangedBy, "/", "~1")}
	value := marked(document.Metadata.Annotations[ChangedBy], p.chain.mark, p.changed)
	operation["value"] = value
	if document.Metadata.Annotations == nil {
		operation["path"], operation["value"] = "/metadata/annotations", map[string]string{ChangedBy: value}
	}
	text, err := json.Marshal([]any{operation})
	if err != nil {
		return err
	}
	next, err := jsonpatch.Decode(text)
	if err != nil {
		return err
	}
	return p.object.apply(next)
}

// marked returns the annotation with the names of a program added: those of each program
// stand behind its name and revision, such as "my-ext@v1.2.0: stamp, sidecar".
func marked(before, program string, names []string) string {
	of := map[string]string{} // by program without its revision
	if len(before) <= maxMark {
		for entry := range strings.SplitSeq(before, "; ") {
			if name, _, ok := strings.Cut(entry, "@"); ok {
				of[name] = entry
			}
		}
	}
	name, _, _ := strings.Cut(program, "@")
	if _, known, ok := strings.Cut(of[name], ": "); ok {
		names = append(strings.Split(known, ", "), names...)
	}
	slices.Sort(names)
	of[name] = program + ": " + strings.Join(slices.Compact(names), ", ")
	entries := slices.Collect(maps.Values(of))
	slices.Sort(entries)
	return strings.Join(entries, "; ")
}
