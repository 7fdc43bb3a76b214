package replay

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/admitkit/admitkit/internal/offline"
	"github.com/admitkit/admitkit/internal/recording"
)

// difference is one between two answers to a request.
type difference struct {
	// Kind says what differs, and Change how, as far as it is the same for many requests.
	Kind, Change string
	// Detail is what differs for this request.
	Detail string
}

// compare returns how today's answer differs from the recorded one.
func (r *run) compare(e *recording.Entry, now recording.Answer) ([]difference, error) {
	if same, err := sameAnswer(e.Answer, now); err != nil || same {
		return nil, err
	}
	shown, current, err := r.comparable(e, now)
	if err != nil {
		return nil, err
	}
	return differences(shown, shown.Answer, current)
}

// asRecorded returns an entry of a recording, whose secrets were taken out, and today's answer to it.
func (r *run) asRecorded(e *recording.Entry, now recording.Answer) (*recording.Entry, recording.Answer, error) {
	shown := *e
	var err error
	shown.Answer, now, err = r.redactor.Comparable(e, now)
	return &shown, now, err
}

// withoutSecrets returns an entry as it came, and today's answer to it, without secrets.
func (r *run) withoutSecrets(e *recording.Entry, now recording.Answer) (*recording.Entry, recording.Answer, error) {
	shown, today := *e, *e
	today.Answer = now
	err := errors.Join(r.redactor.Entry(&shown), r.redactor.Entry(&today))
	return &shown, today.Answer, err
}

func sameAnswer(a, b recording.Answer) (bool, error) {
	same, err := recording.Same(a.Object, b.Object)
	a.Object, b.Object = nil, nil
	return same && a.Outcome == b.Outcome && a.Code == b.Code && a.Reason == b.Reason && a.Message == b.Message &&
		slices.Equal(a.Warnings, b.Warnings) && maps.Equal(a.AuditAnnotations, b.AuditAnnotations), err
}

// differences returns how two answers differ.
func differences(e *recording.Entry, recorded, now recording.Answer) ([]difference, error) {
	var all []difference
	if recorded.Outcome != now.Outcome {
		return append(all, difference{"decision", recorded.Outcome + " → " + now.Outcome, changed(outcome(recorded), outcome(now))}), nil
	}
	if recorded.Code != now.Code || recorded.Reason != now.Reason {
		all = append(all, difference{"code", fmt.Sprintf("%d %s → %d %s", recorded.Code, recorded.Reason, now.Code, now.Reason), ""})
	}
	if recorded.Message != now.Message {
		all = append(all, difference{"reason", "", changed(recorded.Message, now.Message)})
	}
	same, err := recording.Same(recorded.Object, now.Object)
	if err != nil {
		return nil, err
	}
	if !same {
		effect, err := effects(e, recorded, now)
		if err != nil {
			return nil, err
		}
		all = append(all, effect)
	}
	if !slices.Equal(recorded.Warnings, now.Warnings) {
		all = append(all, difference{"warnings", "", changed(strings.Join(recorded.Warnings, "\n"), strings.Join(now.Warnings, "\n"))})
	}
	if !maps.Equal(recorded.AuditAnnotations, now.AuditAnnotations) {
		all = append(all, difference{"audit annotations", "", changed(annotations(recorded), annotations(now))})
	}
	return all, nil
}

// effects returns how the objects differ that two patches make.
func effects(e *recording.Entry, recorded, now recording.Answer) (difference, error) {
	change := "changed otherwise"
	var objects [2][]byte
	for i, answer := range []recording.Answer{recorded, now} {
		if objects[i] = answer.Object; len(answer.Object) > 0 {
			continue
		}
		change = []string{"unchanged → changed", "changed → unchanged"}[i]
		var request struct {
			Object json.RawMessage `json:"object"`
		}
		if err := json.Unmarshal(e.Request, &request); err != nil {
			return difference{}, err
		}
		objects[i] = request.Object
	}
	diff, err := offline.Diff(objects[0], objects[1])
	return difference{"effect", change, diff}, err
}

func outcome(a recording.Answer) string {
	if a.Outcome == recording.Allowed {
		return a.Outcome
	}
	return fmt.Sprintf("%s: %d %s: %s", a.Outcome, a.Code, a.Reason, a.Message)
}

func annotations(a recording.Answer) string {
	var lines []string
	for _, key := range slices.Sorted(maps.Keys(a.AuditAnnotations)) {
		lines = append(lines, key+"="+a.AuditAnnotations[key])
	}
	return strings.Join(lines, "\n")
}

// changed shows two texts as a diff does.
func changed(before, after string) string {
	var lines strings.Builder
	for i, text := range []string{before, after} {
		for line := range strings.Lines(text) {
			lines.WriteString([]string{"-", "+"}[i] + strings.TrimSuffix(line, "\n") + "\n")
		}
	}
	return lines.String()
}
