package webhook

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"unicode"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/admitkit/admitkit/internal/host"
)

// The limits of an API server for the warnings of one request, in characters
// (k8s.io/apiserver, pkg/endpoints/filters/warning.go): it truncates each warning,
// and drops warnings once their total is too long.
const (
	maxWarning  = 256
	maxWarnings = 4096
)

// report adds a handler's warnings and audit annotations to the response.
func (p *passage) report(handler *host.Handler, warnings []string, annotations map[string]string) {
	for _, warning := range warnings {
		p.warn(warning)
	}
	for key, value := range annotations {
		if p.response.AuditAnnotations == nil {
			p.response.AuditAnnotations = map[string]string{}
		}
		p.response.AuditAnnotations[auditKey(handler.AuditName, key)] = strings.ToValidUTF8(value, "\ufffd")
	}
}

func (p *passage) warn(text string) {
	text = cleanWarning(text)
	most := maxWarnings
	if p.observes() {
		most /= 4 // the rest is for those of extensions in force
	}
	length := utf8.RuneCountInString(text)
	if text == "" || p.warned+length > most {
		return
	}
	p.warned += length
	p.response.Warnings = append(p.response.Warnings, text)
}

// cleanWarning makes text fit a Warning header. The API server silently drops a
// warning that contains a control character, such as a line break.
func cleanWarning(text string) string {
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r // invalid UTF-8 becomes U+FFFD
	}, text)
	text = strings.TrimSpace(text)
	if utf8.RuneCountInString(text) <= maxWarning {
		return text
	}
	return string([]rune(text)[:maxWarning-1]) + "…"
}

// auditKey returns the key of an audit annotation: the extension's name and its key,
// so that two extensions in one webhook do not overwrite each other's annotations.
// The API server adds the webhook's name and a slash in front, and drops the
// annotation if the result is not a qualified name (k8s.io/apiserver,
// pkg/admission/attributes.go).
func auditKey(name, key string) string {
	qualified := strings.Map(func(r rune) rune {
		if r < utf8.RuneSelf && (unicode.IsLetter(r) || unicode.IsDigit(r) || r == '.' || r == '_' || r == '-') {
			return r
		}
		return '-'
	}, name+"."+key)
	if len(qualified) > validation.LabelValueMaxLength {
		// The end is more specific, but two names may differ in the beginning only.
		digest := sha256.Sum256([]byte(qualified))
		beginning := hex.EncodeToString(digest[:4]) + "-"
		qualified = beginning + qualified[len(qualified)-validation.LabelValueMaxLength+len(beginning):]
	}
	return strings.Trim(qualified, ".-_")
}
