package protocol

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

// Problem says what is wrong with a report, with the field, "" if nothing is.
func (r *Report) Problem() string {
	if r.ID == "" || len(r.ID) > 64 || strings.ContainsRune(r.ID, 0) {
		return "id: must have from 1 to 64 characters"
	}
	if len(r.Entries) == 0 || len(r.Entries) > MaxReported {
		return fmt.Sprintf("entries: must be from 1 to %d", MaxReported)
	}
	for i, entry := range r.Entries {
		switch {
		case entry.Host == "" || len(entry.Host) > MaxDetail || strings.ContainsRune(entry.Host, 0):
			return fmt.Sprintf("entries[%d].host: must have from 1 to %d characters", i, MaxDetail)
		case entry.Reason == "" || len(entry.Reason) > MaxDetail:
			return fmt.Sprintf("entries[%d].reason: must have from 1 to %d characters", i, MaxDetail)
		case entry.Port < 0 || entry.Port > 65535 || entry.Count < 1 || entry.First.IsZero() || entry.Last.Before(entry.First):
			return fmt.Sprintf("entries[%d]: needs a port, a count and the times of the first and the last", i)
		}
	}
	return ""
}

// Digest tells an entry from all others, by the UID of the run and the ID of its report: sent again, it is the same one.
func (r *Reported) Digest(run, report string) string {
	sum := sha256.Sum256([]byte(strings.Join([]string{run, report, r.Host, strconv.Itoa(int(r.Port)), r.Reason}, "\x00")))
	return hex.EncodeToString(sum[:20])
}

// Told is the action and the reason of its record.
func (r *Reported) Told() (action, reason string) {
	action, what := "egress-refused", "refused"
	switch {
	case r.Removed:
		action, what = "sign-in-removed", "sent on without what would sign the run in"
	case r.Allowed:
		action, what = "egress-discovered", "let through by a discovery"
	}
	return action, fmt.Sprintf("%d connections to %q, port %d, were %s from %s to %s: %q",
		r.Count, r.Host, r.Port, what, r.First.UTC().Format(time.RFC3339), r.Last.UTC().Format(time.RFC3339), r.Reason)
}

// logged is a line of the log of a proxy without a broker. The log has other lines, too.
type logged struct {
	Report *Report `json:"egressReport"`
}

// LogReport writes a report as lines of a log, one for each entry: runtimes of containers cut longer lines.
func LogReport(to io.Writer, report Report) error {
	for _, entry := range report.Entries {
		line, err := json.Marshal(logged{&Report{ID: report.ID, Entries: []Reported{entry}}})
		if err != nil {
			return err
		}
		if _, err := to.Write(append(line, '\n')); err != nil {
			return err
		}
	}
	return nil
}

// ParseLogged returns the report in a line of a log, nil if it has none.
func ParseLogged(line []byte) *Report {
	var l logged
	if json.Unmarshal(line, &l) != nil || l.Report == nil || l.Report.Problem() != "" {
		return nil
	}
	return l.Report
}
