package act

import (
	"slices"

	"github.com/admitkit/admitkit/extension/redact"
	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// Redact returns a copy of an act's record without secrets, and short enough for
// every sink. Flags say whether something is missing.
func Redact(r *redact.Redactor, a *Act) *v1alpha1.AuditRecord {
	record := a.Record.DeepCopy()
	record.Command, record.CommandBytes, record.CommandSHA256 = clean(r, record, record.Command, commandLimit)
	share := max(commandLimit/max(len(record.Containers), 1), leastCommand)
	for i := range record.Containers {
		c := &record.Containers[i]
		c.Command, c.CommandBytes, c.CommandSHA256 = clean(r, record, c.Command, share)
	}
	if path := r.Path(record.Path); path != record.Path {
		record.Path = path
		flag(record, v1alpha1.FlagRedacted)
	}
	Bound(record)
	return record
}

// clean returns a command as a record holds it, and, if it is cut, the size and sum
// of the whole.
func clean(r *redact.Redactor, record *v1alpha1.AuditRecord, command []string, most int) (cleaned []string, size int64, sum string) {
	cleaned = r.Command(command)
	if !slices.Equal(command, cleaned) {
		flag(record, v1alpha1.FlagRedacted)
	}
	short, whole := limit(cleaned, most)
	if whole {
		return cleaned, 0, ""
	}
	flag(record, v1alpha1.FlagTruncated)
	size, sum = Sum(command)
	return short, size, sum
}
