package compose

import "time"

// LabelValidUntil is the label of a child that goes at a time, whether or not its hook can
// be asked then. A label is what can be watched for.
const LabelValidUntil = "admitkit.dev/valid-until"

// untilFormat is RFC 3339 without the characters that a label cannot have.
const untilFormat = "20060102T150405.999999999Z"

// SetUntil gives an object the label, or takes it away if until is zero, and reports
// whether it had another one.
func SetUntil(o *Object, until time.Time) (changed bool) {
	labels := o.GetLabels()
	now, has := labels[LabelValidUntil]
	if until.IsZero() {
		if has {
			if delete(labels, LabelValidUntil); len(labels) == 0 {
				labels = nil
			}
			o.SetLabels(labels)
		}
		return has
	}
	want := until.UTC().Format(untilFormat)
	if labels == nil {
		labels = map[string]string{}
	}
	labels[LabelValidUntil] = want
	o.SetLabels(labels)
	return now != want
}

// Until returns when an object goes; ok is false if it has no such time. A label that is no
// time is somebody else's work, and its time is over.
func Until(o *Object) (until time.Time, ok bool) {
	text, ok := o.GetLabels()[LabelValidUntil]
	if !ok {
		return time.Time{}, false
	}
	until, err := time.Parse(untilFormat, text)
	if err != nil {
		return time.Time{}, true
	}
	return until, true
}
