package brokerpolicy

import (
	"fmt"
	"net/netip"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

// RefuseNames says what is wrong with names that can be reached, by their field, "" if nothing is.
func RefuseNames(field string, names []v1alpha1.EgressName) string {
	for i := range names {
		if problem := RefuseHost(names[i].Host); problem != "" {
			return fmt.Sprintf("%s[%d].host: %q %s", field, i, names[i].Host, problem)
		}
	}
	return ""
}

// NameWarnings says which ports of names nothing opens.
func NameWarnings(field string, names []v1alpha1.EgressName) (warnings []string) {
	for i := range names {
		for _, port := range names[i].Ports {
			if port != 443 && port != 80 {
				warnings = append(warnings, fmt.Sprintf("%s[%d].ports: the network policy of a run opens ports 443 and 80 only: name the addresses of %s, port %d, in egress.cidrs of the template", field, i, names[i].Host, port))
			}
		}
	}
	return warnings
}

// RefuseHost says why a host cannot be a name in a policy, "" if it can.
func RefuseHost(host string) string {
	name, wildcard := strings.CutPrefix(host, "*.")
	switch {
	case host == "*" || name == "":
		return "would allow every name: list those that the runs need"
	case isAddress(host):
		return "is an address: name the server, since a policy holds names"
	case strings.ContainsAny(host, ":/@"):
		return "has more than a name in it: leave out scheme and path, and write ports into the field ports"
	case len(validation.IsDNS1123Subdomain(name)) > 0:
		return "is not a DNS name in lower case, such as api.example.com or *.example.com"
	case !strings.Contains(name, ".") && wildcard:
		return "would allow a whole top-level domain: write at least two labels after the *"
	case !strings.Contains(name, "."):
		return "has only one label, so that it would lead into the cluster: write the full name"
	}
	for _, suffix := range internalSuffixes {
		if strings.HasSuffix("."+name, suffix) {
			return "ends with " + suffix + ": such names are internal to a cluster or a network, and runs cannot reach these"
		}
	}
	if last := name[strings.LastIndexByte(name, '.')+1:]; strings.Trim(last, "0123456789") == "" {
		return "ends with a number: some clients would take it for an address"
	}
	return ""
}

// internalSuffixes are those of names that lead into the cluster or its network.
var internalSuffixes = []string{".svc", ".local", ".internal", ".localhost", ".localdomain", ".home.arpa", ".in-addr.arpa", ".ip6.arpa"}

func isAddress(host string) bool {
	_, err := netip.ParseAddr(strings.Trim(host, "[]"))
	if err != nil {
		_, err = netip.ParseAddrPort(host)
	}
	return err == nil
}
