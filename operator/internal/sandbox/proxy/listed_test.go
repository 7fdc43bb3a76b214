package proxy

import (
	"bytes"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/admitkit/admitkit/operator/internal/sandbox/broker/protocol"
)

// written is the log of a proxy.
type written struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (w *written) Write(line []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.Write(line)
}

// reports are those that a controller finds in it.
func (w *written) reports() (found []protocol.Reported) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for line := range bytes.Lines(w.text.Bytes()) {
		if report := protocol.ParseLogged(line); report != nil {
			found = append(found, report.Entries...)
		}
	}
	return found
}

// Without a broker the list is all that there is: names, no credential, and refusals on record by way of the log.
func TestAListOfNamesIsAllThatARunReachesWithoutABroker(t *testing.T) {
	log := &written{}
	_, _ = fmt.Fprintln(log, `{"level":"info","msg":"of the proxy itself"}`)
	o := newOutside(t, ModeCooperative, func(options *Options, port int32) {
		options.Broker = &Listed{Names: []protocol.Name{{Host: "api.example.com", Ports: []int32{port}}, {Host: "*.wild.example.com"}}, Log: log}
	})
	status, body, err := get(t, o.client(true), o.url("api.example.com"), func(r *http.Request) { r.Header.Set("Authorization", "Bearer of the run") })
	if err != nil || status != http.StatusOK || !strings.HasSuffix(body, "/path ") {
		t.Errorf("%d %q %v, want an answer without any credential", status, body, err)
	}
	for _, url := range []string{o.url("other.example.com"), "https://api.example.com/", "https://wild.example.com/", o.url("www.wild.example.com")} {
		if _, _, err := get(t, o.client(true), url); err == nil {
			t.Errorf("%s is not listed, and is let through", url)
		}
	}
	o.reports.send(t.Context())
	for host, port := range map[string]int32{"other.example.com": o.port, "api.example.com": 443, "wild.example.com": 443, "www.wild.example.com": o.port} {
		if !slices.ContainsFunc(log.reports(), func(r protocol.Reported) bool { return r.Host == host && r.Port == port && !r.Allowed && r.Count == 1 }) {
			t.Errorf("the refusal of %s, port %d, is not in the log: %s", host, port, log.text.String())
		}
	}
	if !slices.ContainsFunc(log.reports(), func(r protocol.Reported) bool { return r.Removed && r.Host == "api.example.com" }) {
		t.Errorf("it is not in the log that the run's own credential was removed: %s", log.text.String())
	}
}

// A policy and a template each have an author of their own, and neither may allow what the other does not.
func TestAListOfNamesBoundsWhatPoliciesAllow(t *testing.T) {
	until := time.Now().Add(time.Hour)
	says := &protocol.Egress{Allow: []protocol.Name{
		{Host: "*.example.com", Ports: []int32{80, 443}, Headers: []string{"Authorization", "Cookie"}, QueryKeys: []string{"sig"}}, {Host: "policy.example.org"},
	}}
	p := newPolicy(&Options{Logger: zap.NewNop(), Within: []protocol.Name{
		{Host: "api.example.com", Headers: []string{"authorization", "X-Token"}}, {Host: "list.example.org"}, {Host: "*.list.example.com"},
	}})
	p.last, p.at = says, time.Now()
	for _, discovers := range []bool{false, true} {
		if discovers {
			says.DiscoverUntil = &until
		}
		for to, want := range map[string]string{
			"api.example.com 443": "", "a.list.example.com 443": "",
			"api.example.com 80":     "egress.hosts does not list api.example.com, port 80",
			"www.example.com 443":    "egress.hosts does not list",
			"policy.example.org 443": "egress.hosts does not list",
			"list.example.org 443":   map[bool]string{false: "no policy allows list.example.org", true: errDiscovered.Error()}[discovers],
			"new.example.net 443":    "egress.hosts does not list",
		} {
			var host string
			var port int32
			_, _ = fmt.Sscan(to, &host, &port)
			err := p.allows(host, port)
			if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("%s, discovery %v: %v, want %q", to, discovers, err, want)
			}
		}
	}
	if headers, query := p.passing("api.example.com", 443); !slices.Equal(headers, []string{"Authorization"}) || len(query) > 0 {
		t.Errorf("%q and %q pass, want only what both let pass", headers, query)
	}
	p.within = []protocol.Name{} // of a list that lost all its names, which is no reason to allow every one
	if err := p.allows("api.example.com", 443); err == nil {
		t.Error("a list without names bounds nothing")
	}
}
