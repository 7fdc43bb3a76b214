package audit

import "github.com/admitkit/admitkit/operator/audit/internal/act"

// Redactor takes secrets out of texts as the records of this extension are without them, for
// what else keeps commands: the recordings of operator/session. It is a safeguard against
// mishaps, not against somebody who wants a secret recorded.
type Redactor struct{ redactor *act.Redactor }

// NewRedactor returns a Redactor for patterns as in [Options].Redact, such as
// [DefaultRedact]. Without patterns it takes nothing out.
func NewRedactor(patterns ...string) (*Redactor, error) {
	redactor, err := act.NewRedactor(patterns...)
	if err != nil {
		return nil, err
	}
	return &Redactor{redactor}, nil
}

// Text returns a text without its secrets.
func (r *Redactor) Text(text string) string { return r.redactor.Text(text) }

// Command returns a command and its arguments without their secrets. One may be in the
// argument that follows its flag.
func (r *Redactor) Command(command []string) []string { return r.redactor.Command(command) }
