package webhook

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/admitkit/admitkit/internal/host"
)

// The lengths, in characters, to which an API server keeps the warnings of one
// request (k8s.io/apiserver, pkg/endpoints/filters/warning.go): it cuts each one
// and drops the rest once they are too many.
const (
	maxWarning  = 256
	maxWarnings = 4096
)

// report adds what a handler says besides its decision to the answer.
func (p *passage) report(handler *host.Handler, warnings []string, annotations map[string]string) {
	for _, warning := range warnings {
		p.warn(warning)
	}
	for key, value := range annotations {
		if p.response.AuditAnnotations == nil {
			p.response.AuditAnnotations = map[string]string{}
		}
		p.response.AuditAnnotations[auditKey(handler.Name, key)] = strings.ToValidUTF8(value, "\ufffd")
	}
}

func (p *passage) warn(text string) {
	text = cleanWarning(text)
	length := utf8.RuneCountInString(text)
	if text == "" || p.warned+length > maxWarnings {
		return
	}
	p.warned += length
	p.response.Warnings = append(p.response.Warnings, text)
}

// cleanWarning makes of a text what fits in a Warning header. One with a control
// character, a line break say, the API server drops without a word.
func cleanWarning(text string) string {
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r // that which is not UTF-8 becomes U+FFFD
	}, text)
	text = strings.TrimSpace(text)
	if utf8.RuneCountInString(text) <= maxWarning {
		return text
	}
	return string([]rune(text)[:maxWarning-1]) + "…"
}

// auditKey returns the key of an audit annotation: the extension's name and the
// key that it chose, so that two extensions in one webhook do not overwrite each
// other's. The API server puts the webhook's name and a slash before it, and
// drops what is not a qualified name then (k8s.io/apiserver,
// pkg/admission/attributes.go).
func auditKey(name, key string) string {
	qualified := strings.Map(func(r rune) rune {
		if r < utf8.RuneSelf && (unicode.IsLetter(r) || unicode.IsDigit(r) || r == '.' || r == '_' || r == '-') {
			return r
		}
		return '-'
	}, name+"."+key)
	if over := len(qualified) - validation.LabelValueMaxLength; over > 0 {
		qualified = qualified[over:] // the end says more than the beginning
	}
	return strings.Trim(qualified, ".-_")
}
