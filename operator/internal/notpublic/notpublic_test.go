package notpublic

import (
	"net/netip"
	"testing"
)

func TestWhatIsNotPublic(t *testing.T) {
	for text, want := range map[string]bool{
		"1.1.1.1": false, "198.41.0.4": false, "2606:4700::1111": false, "::ffff:1.1.1.1": false,
		"10.1.2.3": true, "127.0.0.1": true, "192.88.99.1": true, "255.255.255.255": true, "::ffff:10.0.0.1": true,
		"fe80::1%eth0": true, "2002::1": true, "4000::1": true, "::1": true, "fd00::1": true,
	} {
		if is := Contains(netip.MustParseAddr(text)); is != want {
			t.Errorf("%s: %v", text, is)
		}
	}
	for _, addr := range Metadata {
		if !Contains(addr) {
			t.Errorf("%s, at which a cloud gives credentials, counts as public", addr)
		}
	}
}
