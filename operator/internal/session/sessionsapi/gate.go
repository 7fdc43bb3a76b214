package sessionsapi

import (
	"fmt"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// serviceAccount is what the names of ServiceAccounts begin with, before their namespace.
const serviceAccount = "system:serviceaccount:"

// gate bounds how many requests of one kind are answered at a time. Whoever may make
// ServiceAccounts in a namespace has as many users as they want: together these have a bound.
type gate struct {
	// kind says what such a request does.
	kind string
	// all is how many there may be, of which ofUser may be of one user, and ofAccounts of the
	// ServiceAccounts of one namespace.
	all, ofUser, ofAccounts int
	// retry is after how many seconds the next one should ask.
	retry int

	mu      sync.Mutex
	entered int
	held    map[string]int // by user, and by the prefix of ServiceAccounts
}

// readersGate is the gate of recordings, and listersGate that of what sessions there are.
func readersGate() gate {
	return gate{kind: "read recordings", all: maxReaders, ofUser: readersOfUser, ofAccounts: readersOfAccounts, retry: retryReaders, held: map[string]int{}}
}

func listersGate() gate {
	return gate{kind: "list sessions", all: maxListers, ofUser: listersOfUser, ofAccounts: listersOfAccounts, retry: retryListers, held: map[string]int{}}
}

// enter lets a request of a user in, which must leave.
func (g *gate) enter(user string) (leave func(), err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	accounts, namespace := accountsOf(user)
	switch {
	case g.held[user] >= g.ofUser:
		return nil, g.refuse("%d requests of %s %s at a time, as many as those of one user may", g.ofUser, user, g.kind)
	case accounts != "" && g.held[accounts] >= g.ofAccounts:
		return nil, g.refuse("%d requests of the ServiceAccounts of namespace %s %s at a time, as many as those of one namespace may", g.ofAccounts, namespace, g.kind)
	case g.entered >= g.all:
		return nil, g.refuse("%d requests %s at a time, as many as may in one replica", g.all, g.kind)
	}
	g.entered++
	g.held[user]++
	if accounts != "" {
		g.held[accounts]++
	}
	return func() { g.leave(user, accounts) }, nil
}

func (g *gate) leave(holders ...string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.entered--
	for _, holder := range holders {
		if g.held[holder]--; g.held[holder] <= 0 {
			delete(g.held, holder)
		}
	}
}

func (g *gate) refuse(format string, args ...any) error {
	return apierrors.NewTooManyRequests(fmt.Sprintf(format, args...), g.retry)
}

// accountsOf returns what the names of all ServiceAccounts of a namespace begin with, if the
// user is one of them. No user has it as a name.
func accountsOf(user string) (accounts, namespace string) {
	of, isOne := strings.CutPrefix(user, serviceAccount)
	if !isOne {
		return "", ""
	}
	namespace, _, _ = strings.Cut(of, ":")
	return serviceAccount + namespace + ":", namespace
}
