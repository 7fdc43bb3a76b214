package credentials

import (
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/sandbox/internal/owned"
)

// Given remembers the credentials that the containers of runs were given, so that no status has them: who may read runs need not be
// allowed to read Secrets. It learns them wherever their Secret is read or written, the last time when that is deleted.
type Given struct {
	mu sync.Mutex
	of map[types.UID][]string
	// unsure has those of which the status names leases that did not get into the Secret, or of which nobody knows that.
	unsure map[types.UID]bool
}

const (
	// minSecret is the length of the shortest text that is replaced: a shorter one is in every output.
	minSecret = 4
	// maxGiven bounds what is remembered of a run: those of a renewal add up.
	maxGiven = 64
	redacted = "***"
)

// learn remembers what is in the Secret of a run.
func (g *Given) learn(uid types.UID, secret *corev1.Secret) {
	if !strings.HasSuffix(secret.Name, owned.SuffixCredentials) {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.of == nil {
		g.of = map[types.UID][]string{}
	}
	for _, value := range secret.Data {
		text := strings.TrimSpace(string(value))
		if have := g.of[uid]; len(text) >= minSecret && len(have) < maxGiven && !slices.Contains(have, text) {
			g.of[uid] = append(have, text)
		}
	}
}

// doubts reports whether it is unsure what the Secret of a run has, and sets whether it is from now on.
func (g *Given) doubts(uid types.UID, unsure bool) (was bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	was = g.unsure[uid]
	if g.unsure == nil {
		g.unsure = map[types.UID]bool{}
	}
	if delete(g.unsure, uid); unsure {
		g.unsure[uid] = true
	}
	return was
}

// Knows reports whether what somebody was given by these leases is known. After a restart it may not be.
func (g *Given) Knows(uid types.UID, leases []v1alpha1.SandboxCredential) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(leases) == 0 || len(g.of[uid]) > 0
}

// Redact replaces what a run was given by its leases. If that is not known, nothing is left of the text.
func (g *Given) Redact(uid types.UID, leases []v1alpha1.SandboxCredential, text string) string {
	if text == "" {
		return ""
	}
	if !g.Knows(uid, leases) {
		return redacted
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, secret := range g.of[uid] {
		text = strings.ReplaceAll(text, secret, redacted)
	}
	return text
}

// Forget forgets a run that is gone.
func (g *Given) Forget(uid types.UID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.of, uid)
	delete(g.unsure, uid)
}
