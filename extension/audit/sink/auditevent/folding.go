package auditevent

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"

	"github.com/admitkit/admitkit/api/v1alpha1"
	"github.com/admitkit/admitkit/extension/audit/internal/act"
)

// Limits of what a folded AuditEvent lists. It is written again for every few acts, and
// etcd keeps each version for some minutes.
const (
	foldActs  = 50
	foldBytes = 4 << 10 // of the commands, paths and containers of these acts
	foldSums  = 100
)

// fits reports whether a status has room for an act: it lists it, or has its sum.
func fits(s *v1alpha1.AuditEventStatus, r *v1alpha1.AuditRecord) bool {
	kind := kindOf(r)
	return listed(s, &kind) >= 0 || hasRoom(s, &kind) || len(s.UnlistedSHA256) < foldSums || slices.Contains(s.UnlistedSHA256, sumOf(r))
}

// fold counts an act in the status of a folded AuditEvent. If it does not fit, only
// RestSHA256 has its command.
func fold(s *v1alpha1.AuditEventStatus, r *v1alpha1.AuditRecord) {
	s.Count++
	if s.FirstTime == nil {
		s.FirstTime = r.Time.DeepCopy()
	}
	s.LastTime = r.Time.DeepCopy()
	kind := kindOf(r)
	if i := listed(s, &kind); i >= 0 {
		s.Acts[i].Count++
		return
	}
	if hasRoom(s, &kind) {
		kind.Count = 1
		s.Acts = append(s.Acts, kind)
		return
	}
	s.Unlisted++
	sum := sumOf(r)
	switch {
	case slices.Contains(s.UnlistedSHA256, sum):
	case len(s.UnlistedSHA256) < foldSums:
		s.UnlistedSHA256 = append(s.UnlistedSHA256, sum)
	default:
		rest := sha256.Sum256([]byte(s.RestSHA256 + sum))
		s.RestSHA256 = hex.EncodeToString(rest[:])
	}
}

func listed(s *v1alpha1.AuditEventStatus, kind *v1alpha1.AuditFold) int {
	return slices.IndexFunc(s.Acts, func(a v1alpha1.AuditFold) bool { return same(&a, kind) })
}

func hasRoom(s *v1alpha1.AuditEventStatus, kind *v1alpha1.AuditFold) bool {
	size := sizeOf(kind)
	for i := range s.Acts {
		size += sizeOf(&s.Acts[i])
	}
	return len(s.Acts) < foldActs && size <= foldBytes
}

// kindOf is an act as a fold lists it. A long command has only its sum.
func kindOf(r *v1alpha1.AuditRecord) v1alpha1.AuditFold {
	kind := v1alpha1.AuditFold{
		Way: r.Way, Decision: r.Decision, Namespace: r.Namespace, Pod: r.Pod, Container: r.Container, Command: r.Command, Path: r.Path,
	}
	if r.Object != nil {
		kind.Path = r.Verb + " " + r.Object.Kind + "/" + r.Object.Name
	}
	if r.CommandSHA256 != "" || sizeOf(&kind) > foldBytes/4 {
		kind.Command, kind.CommandSHA256 = nil, sumOf(r)
	}
	return kind
}

func sizeOf(a *v1alpha1.AuditFold) int {
	size := len(a.Namespace) + len(a.Pod) + len(a.Container) + len(a.Path)
	for _, argument := range a.Command {
		size += len(argument) + 1
	}
	return size
}

func same(a, b *v1alpha1.AuditFold) bool {
	return a.Way == b.Way && a.Decision == b.Decision && a.Namespace == b.Namespace && a.Pod == b.Pod && a.Container == b.Container &&
		a.CommandSHA256 == b.CommandSHA256 && a.Path == b.Path && slices.Equal(a.Command, b.Command)
}

// sumOf is the SHA-256 of a record's command, or of the path behind a proxy.
func sumOf(r *v1alpha1.AuditRecord) string {
	if r.CommandSHA256 != "" {
		return r.CommandSHA256
	}
	command := r.Command
	if len(command) == 0 && r.Path != "" {
		command = []string{r.Path}
	}
	_, sum := act.Sum(command)
	return sum
}
