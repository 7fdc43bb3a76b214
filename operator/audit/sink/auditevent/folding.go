package auditevent

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"

	apiequality "k8s.io/apimachinery/pkg/api/equality"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/audit/internal/act"
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

// kindOf is an act as a fold lists it. A long command, or many containers, have only
// their sum.
func kindOf(r *v1alpha1.AuditRecord) v1alpha1.AuditFold {
	kind := v1alpha1.AuditFold{
		Way: r.Way, Decision: r.Decision, Namespace: r.Namespace, Pod: r.Pod, Service: r.Service, Container: r.Container, Command: r.Command, Path: r.Path,
	}
	if r.Way == v1alpha1.WayNodeProxy {
		kind.Node = r.Node
	}
	if len(r.Containers) > 0 {
		kind.Command, kind.Containers = nil, r.Containers
	}
	if r.Object != nil {
		kind.Path = r.Verb + " " + r.Object.Kind + "/" + r.Object.Name
	}
	if r.CommandSHA256 != "" || sizeOf(&kind) > foldBytes/4 {
		kind.Command, kind.Containers, kind.CommandSHA256 = nil, nil, sumOf(r)
	}
	return kind
}

func sizeOf(a *v1alpha1.AuditFold) int {
	size := len(a.Namespace) + len(a.Pod) + len(a.Service) + len(a.Node) + len(a.Container) + len(a.Path)
	for _, argument := range slices.Concat(a.Command, wordsOf(a.Containers)) {
		size += len(argument) + 1
	}
	return size
}

func same(a, b *v1alpha1.AuditFold) bool {
	return a.Way == b.Way && a.Decision == b.Decision && a.Namespace == b.Namespace && a.Pod == b.Pod && a.Service == b.Service && a.Node == b.Node &&
		a.Container == b.Container && a.CommandSHA256 == b.CommandSHA256 && a.Path == b.Path && slices.Equal(a.Command, b.Command) &&
		apiequality.Semantic.DeepEqual(a.Containers, b.Containers)
}

// sumOf is the SHA-256 of a record's command, of the containers that it brings along, of
// the path behind a proxy, or of what was decided about an object.
func sumOf(r *v1alpha1.AuditRecord) string {
	command := r.Command
	switch {
	case len(r.Containers) > 0:
		command = wordsOf(r.Containers)
	case r.CommandSHA256 != "":
		return r.CommandSHA256
	case len(command) == 0 && r.Path != "":
		command = []string{r.Path}
	case len(command) == 0 && r.Object != nil:
		command = []string{r.Verb, r.Object.Kind, r.Object.Name}
	}
	_, sum := act.Sum(command)
	return sum
}

// wordsOf returns the name and the image of each container, and its command, or the sum
// of that if it is cut.
func wordsOf(containers []v1alpha1.AuditContainer) (words []string) {
	for i := range containers {
		c := &containers[i]
		words = append(words, c.Name, c.Image)
		if c.CommandSHA256 != "" {
			words = append(words, c.CommandSHA256)
		} else {
			words = append(words, c.Command...)
		}
	}
	return words
}
