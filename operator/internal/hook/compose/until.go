package compose

import "time"

// LabelValidUntil is the label of a child that goes at a time, whether or not its hook can
// be asked then. A label is what can be watched for.
const LabelValidUntil = "admitkit.dev/valid-until"

// untilFormat is RFC 3339 without the characters that a label cannot have.
const untilFormat = "20060102T150405.999999999Z"

// UntilLabel returns the label's value for a time; "" is none.
func UntilLabel(until time.Time) string {
	if until.IsZero() {
		return ""
	}
	return until.UTC().Format(untilFormat)
}

// SetUntil gives an object the label, or takes it away if until is zero.
func SetUntil(o *Object, until time.Time) {
	labels, value := o.GetLabels(), UntilLabel(until)
	if now, has := labels[LabelValidUntil]; now == value && has == (value != "") {
		return
	}
	if labels == nil {
		labels = map[string]string{}
	}
	labels[LabelValidUntil] = value
	if value == "" {
		delete(labels, LabelValidUntil)
	}
	if len(labels) == 0 {
		labels = nil
	}
	o.SetLabels(labels)
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
