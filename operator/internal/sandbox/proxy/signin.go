package proxy

import (
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/admitkit/admitkit/operator/internal/sandbox/broker/protocol"
)

// A run could sign itself in at a host that it may reach, as somebody who is not known here,
// and carry out what it has read. So nothing goes on by which servers learn who a client is,
// but the credentials of BrokerPolicies, and what these let pass. What is in a body or in the
// path goes on: which part of it would sign in, only the server knows.

// signsIn are words of such headers and keys, without what is between their letters, and
// families those of providers, whose headers have credentials under many names.
var (
	signsIn = []string{
		"authorization", "cookie", "token", "secret", "password", "passwd", "credential", "session", "signature", "bearer",
		"apikey", "accesskey", "authkey", "appkey", "applicationkey", "subscriptionkey", "functionskey", "accountkey", "authemail",
	}
	families = []string{"x-goog-", "x-amz-", "x-ms-"}
	// keys are those of a query that are too short to be words of others.
	keys = []string{"key", "sig", "pwd", "pass", "auth", "jwt", "code"}
)

// signs reports whether a server may take a header, or a key of a query, for a credential.
func signs(name string) bool {
	name = strings.ToLower(strings.ReplaceAll(name, "_", "-"))
	letters := strings.Map(func(r rune) rune {
		if (r < 'a' || r > 'z') && (r < '0' || r > '9') {
			return -1
		}
		return r
	}, name)
	return slices.ContainsFunc(families, func(f string) bool { return strings.HasPrefix(name, f) }) ||
		slices.ContainsFunc(signsIn, func(word string) bool { return strings.Contains(letters, word) })
}

// passing are the headers and keys of the query that go on to a host.
func passing(egress *protocol.Egress, host string, port int32) (headers, query []string) {
	if egress == nil {
		return nil, nil
	}
	for i := range egress.Allow {
		if name := &egress.Allow[i]; name.Allows(host, port) {
			headers, query = append(headers, name.Headers...), append(query, name.QueryKeys...)
		}
	}
	return headers, query
}

// strip removes what would sign a run in, and returns its names.
func strip(out *http.Request, headers, query []string) (removed []string) {
	has := func(list []string, name string) bool {
		return slices.ContainsFunc(list, func(listed string) bool { return strings.EqualFold(listed, name) })
	}
	for name := range out.Header {
		// Servers behind CGI take an underscore for a hyphen, and others pass both on.
		if (signs(name) || strings.Contains(name, "_")) && !has(headers, name) {
			delete(out.Header, name)
			removed = append(removed, "header "+name)
		}
	}
	out.Header.Del("Max-Forwards")
	out.Trailer = nil // headers, too, to some
	var kept []string
	for pair := range strings.SplitSeq(out.URL.RawQuery, "&") {
		raw, _, _ := strings.Cut(pair, "=")
		key, err := url.QueryUnescape(raw)
		if key == "" && err == nil && pair == "" {
			continue
		}
		if (err != nil || strings.Contains(key, ";") || signs(key) || has(keys, key)) && !has(query, key) {
			removed = append(removed, "query "+key)
			continue
		}
		kept = append(kept, pair)
	}
	out.URL.RawQuery = strings.Join(kept, "&")
	slices.Sort(removed)
	return slices.Compact(removed)
}
