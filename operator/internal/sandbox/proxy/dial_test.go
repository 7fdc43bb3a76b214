package proxy

import (
	"context"
	"net"
	"net/netip"
	"testing"
)

// lossy is a resolver that does not hear of the first questions.
type lossy struct{ lost, asked int }

func (l *lossy) LookupNetIP(ctx context.Context, _, host string) ([]netip.Addr, error) {
	if l.asked++; l.asked <= l.lost {
		<-ctx.Done()
		return nil, &net.DNSError{Err: "i/o timeout", Name: host, IsTimeout: true}
	}
	if host == "unknown" {
		return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	}
	return []netip.Addr{netip.MustParseAddr("192.0.2.1")}, nil
}

func TestANameIsAskedForAgainIfNothingAnswers(t *testing.T) {
	t.Parallel()
	lost := &lossy{lost: 1}
	if found, err := (&dialer{resolver: lost}).resolve(t.Context(), "known"); err != nil || len(found) != 1 || lost.asked != 2 {
		t.Errorf("after %d questions: %v, %v", lost.asked, found, err)
	}
	answers := &lossy{}
	if _, err := (&dialer{resolver: answers}).resolve(t.Context(), "unknown"); err == nil || answers.asked != 1 {
		t.Errorf("a name that does not exist is asked for %d times: %v", answers.asked, err)
	}
	gone, leave := context.WithCancel(t.Context())
	leave()
	silent := &lossy{lost: 100}
	if _, err := (&dialer{resolver: silent}).resolve(gone, "known"); silent.asked != 1 || err == nil {
		t.Errorf("who has gone is waited for, %d times: %v", silent.asked, err)
	}
}
