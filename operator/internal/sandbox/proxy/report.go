package proxy

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/admitkit/admitkit/operator/internal/sandbox/broker/protocol"
)

const (
	// reportEvery is how long what is refused is folded before it is reported.
	reportEvery = 10 * time.Second
	// otherNames stands for those beyond what a report can have.
	otherNames = "(other names)"
)

// reports folds what is refused, and tells the broker.
type reports struct {
	broker Broker
	log    *zap.Logger
	id     string // of this process
	number int    // of the report

	mu      sync.Mutex
	entries map[kind]*protocol.Reported
	// failing says that the last report was not taken.
	failing atomic.Bool
}

// kind is what is folded into one entry.
type kind struct {
	host    string
	port    int32
	allowed bool
	removed bool
	reason  string
}

func newReports(broker Broker, log *zap.Logger) *reports {
	return &reports{broker: broker, log: log, id: rand.Text(), entries: map[kind]*protocol.Reported{}}
}

// The most entries of a report: what a run makes many of hides nothing else. Twice as many names that a discovery let
// through are kept of a report that was not taken, and three entries are those of other names.
const (
	maxDiscovered = 16
	maxRefused    = 18
	maxRemoved    = protocol.MaxReported - 3 - 2*maxDiscovered - maxRefused
)

// hasRoom reports whether one more entry of the sort has a place of its own. The caller holds the mutex.
func (r *reports) hasRoom(k kind, discovered int) bool {
	there, most := 0, maxRefused
	switch {
	case k.removed:
		most = maxRemoved
	case k.allowed:
		most = discovered
	}
	for other := range r.entries {
		if other.allowed == k.allowed && other.removed == k.removed && other.host != otherNames {
			there++
		}
	}
	return there < most
}

// add counts a connection, and reports whether it will be on record by its name.
func (r *reports) add(host string, port int32, allowed bool, reason string) (named bool) {
	return r.count(kind{host: host, port: port, allowed: allowed, reason: reason})
}

// addRemoved counts a request that went on without something.
func (r *reports) addRemoved(host string, port int32, what string) {
	r.count(kind{host: host, port: port, allowed: true, removed: true, reason: what})
}

func (r *reports) count(k kind) (named bool) {
	now := time.Now().UTC()
	k.host, k.reason = cut(cmp.Or(k.host, "(no name)")), cut(k.reason)
	r.mu.Lock()
	defer r.mu.Unlock()
	named = r.entries[k] != nil || r.hasRoom(k, maxDiscovered)
	switch {
	case !named && k.allowed && !k.removed: // it is refused then
		return false
	case !named:
		k = kind{host: otherNames, allowed: k.allowed, removed: k.removed, reason: "more different names than a report can have"}
	}
	entry := r.entries[k]
	if entry == nil {
		entry = &protocol.Reported{Host: k.host, Port: k.port, Allowed: k.allowed, Removed: k.removed, Reason: k.reason, First: now}
		r.entries[k] = entry
	}
	entry.Count++
	entry.Last = now
	return named
}

// cut makes a text of a run one that the broker takes: at most twice as long in JSON.
func cut(text string) string {
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' || r == '<' || r == '>' || r == '&' {
			return '?'
		}
		return r
	}, text)
	return text[:min(len(text), protocol.MaxDetail)]
}

// follow reports until ctx ends, and then what is left.
func (r *reports) follow(ctx context.Context) {
	tick := time.NewTicker(reportEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
			defer cancel()
			r.send(last)
			return
		}
		r.send(ctx)
	}
}

// send reports what has come together. What the broker does not take is sent again with what
// has come since.
func (r *reports) send(ctx context.Context) {
	r.mu.Lock()
	entries := r.entries
	r.entries = map[kind]*protocol.Reported{}
	r.mu.Unlock()
	if len(entries) == 0 {
		return
	}
	r.number++
	report := protocol.Report{ID: fmt.Sprintf("%s-%d", r.id, r.number)}
	for _, entry := range entries {
		report.Entries = append(report.Entries, *entry)
	}
	err := r.broker.Report(ctx, report)
	r.failing.Store(err != nil)
	if err == nil {
		return
	}
	r.log.Warn("the broker does not take a report of what was refused", zap.Int("kinds", len(entries)), zap.Error(err))
	r.mu.Lock()
	defer r.mu.Unlock()
	for k, old := range entries {
		if r.entries[k] == nil && k.host != otherNames && !r.hasRoom(k, 2*maxDiscovered) {
			k = kind{host: otherNames, allowed: old.Allowed, removed: old.Removed, reason: "more different names than a report can have"}
			old.Host, old.Port, old.Removed, old.Reason = k.host, k.port, k.removed, k.reason
		}
		if now := r.entries[k]; now != nil {
			now.Count, now.First = now.Count+old.Count, old.First
		} else {
			r.entries[k] = old
		}
	}
}
