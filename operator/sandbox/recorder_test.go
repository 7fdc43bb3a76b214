package sandbox

import (
	"strings"
	"testing"
)

func TestTheCollectorIsCheckedAtTheStart(t *testing.T) {
	broker, proxy := BrokerOptions{Namespace: "leases"}, ProxyOptions{Image: "example.com/sandbox:1"}
	for want, options := range map[string]Options{
		"": {}, "Namespace: required with Port": {Collector: CollectorOptions{Port: 1}},
		`Namespace: "No" is not the name`:                   {Collector: CollectorOptions{Namespace: "No"}},
		`Namespace: "agents" is one in which runs run`:      {Collector: CollectorOptions{Namespace: "agents"}},
		"Port: 70000 is not from 1 to 65535":                {Collector: CollectorOptions{Namespace: "a", Port: 70000}},
		"Port: 8443 is for the proxies of runs alone":       {Collector: CollectorOptions{Namespace: "a", Port: 8443}, Proxy: proxy, Broker: broker},
		"Port: 443 is for the proxies of runs alone, as 80": {Collector: CollectorOptions{Namespace: "a", Port: 443}, Proxy: proxy},
	} {
		of := New(options)
		err := of.options.checkCollector([]string{"agents"})
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	of := New(Options{Collector: CollectorOptions{Namespace: "a"}, Proxy: proxy, Broker: broker})
	if err := of.options.checkCollector([]string{"agents"}); err != nil || of.options.collector().Port != 8444 || (&Options{}).collector() != nil {
		t.Errorf("%v, %+v", err, of.options.collector())
	}
}
