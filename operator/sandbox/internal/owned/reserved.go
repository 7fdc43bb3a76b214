package owned

import (
	"slices"
	"strings"
)

// reserved are the variables by which the sandbox says how to reach the outside. Programs read
// some of them in lower case, too.
var reserved = []string{
	"HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "GIT_SSL_CAINFO", "HOME",
}

// IsReserved reports whether the sandbox itself sets an environment variable.
func IsReserved(name string) bool {
	name = strings.ToUpper(name)
	return slices.Contains(reserved, name) || strings.HasPrefix(name, "ADMITKIT_")
}
