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
// but the credentials of BrokerPolicies, and what these let pass. Bodies and paths go on as
// they are: only the server knows which part of them would sign the run in.

// signsIn are words of such headers and keys, without what is between their letters; families
// are those of providers, whose headers have credentials under many names. A list of words
// is never complete: see the page.
var (
	signsIn = []string{
		"authorization", "authentication", "authtoken", "authkey", "authemail", "jwt", "cookie", "token", "secret", "password", "passwd", "credential", "session", "signature", "bearer", "apikey", "accesskey", "wsse", "sessid", "passphrase", "assertion", "clientcert", "remoteuser", "forwardeduser",
	}
	families = []string{"x-goog-", "x-amz-", "x-ms-", "x-honeycomb-team", "xauth"}
	// short are whole words of such names, and keys those of a query besides.
	short = []string{"auth", "sig", "pwd", "pass"}
	keys  = []string{"key", "code", "ticket", "uploadid"}
	// harmless have such a word, or end in key, and sign nobody in: what protocols need to go
	// on from one request to the next.
	harmless = []string{
		"mcpsessionid", "idempotencykey", "xidempotencykey", "secwebsocketkey", "surrogatekey", "cachekey", "pagetoken", "nextpagetoken", "nexttoken", "continuationtoken",
		"xatlassiantoken", "xgoogrequestparams", "xgoogapiclient", "xgooguserproject", "xmsversion", "xmsdate", "xmsclientrequestid", "authority",
	}
	harmlessFamilies = []string{"x-goog-upload-", "x-ms-blob-", "x-amz-meta-"}
)

// lettersOf returns a name without what is between its letters.
func lettersOf(name string) string {
	return strings.Map(func(r rune) rune {
		if (r < 'a' || r > 'z') && (r < '0' || r > '9') {
			return -1
		}
		return r
	}, strings.ToLower(name))
}

// signs reports whether a server may take a header, or a key of a query, for a credential.
func signs(name string) bool {
	name = strings.ToLower(strings.ReplaceAll(name, "_", "-"))
	letters := lettersOf(name)
	begins := func(f string) bool { return strings.HasPrefix(name, f) }
	if slices.Contains(harmless, letters) || slices.ContainsFunc(harmlessFamilies, begins) {
		return false
	}
	words := strings.FieldsFunc(name, func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') })
	return slices.ContainsFunc(families, begins) || letters == "key" || len(words) > 1 && words[len(words)-1] == "key" ||
		slices.ContainsFunc(words, func(word string) bool { return slices.Contains(short, word) }) ||
		slices.ContainsFunc(signsIn, func(word string) bool { return strings.Contains(letters, word) })
}

// passing are the headers and keys of the query that go on to a host: those that both the broker and the list of the
// template let pass, if there is one.
func (p *policy) passing(host string, port int32) (headers, query []string) {
	egress, err := p.current()
	if err != nil {
		return nil, nil
	}
	headers, query = ownOf(egress.Allow, host, port)
	if p.within == nil {
		return headers, query
	}
	headersWithin, queryWithin := ownOf(p.within, host, port)
	return both(headers, headersWithin), both(query, queryWithin)
}

// ownOf are those that names let pass to a host.
func ownOf(names []protocol.Name, host string, port int32) (headers, query []string) {
	for i := range names {
		if name := &names[i]; name.Allows(host, port) {
			headers, query = append(headers, name.Headers...), append(query, name.QueryKeys...)
		}
	}
	return headers, query
}

func both(a, b []string) []string {
	return slices.DeleteFunc(a, func(name string) bool { return !has(b, name) })
}

// maxProtocols is more than the names of protocols take that people use.
const maxProtocols = 40

// strip removes what would sign a run in, and returns its names.
func strip(out *http.Request, headers, query []string) (removed []string) {
	for name := range out.Header {
		// Servers behind CGI take an underscore for a hyphen, and others pass both on.
		if (signs(name) || strings.Contains(name, "_")) && !has(headers, name) {
			delete(out.Header, name)
			removed = append(removed, "header "+name)
		}
	}
	// Some write a key into the list of protocols of a WebSocket.
	if protocols := strings.Join(out.Header.Values("Sec-Websocket-Protocol"), ","); len(protocols) > maxProtocols || signs(protocols) {
		if !has(headers, "Sec-WebSocket-Protocol") {
			out.Header.Del("Sec-Websocket-Protocol")
			removed = append(removed, "header Sec-WebSocket-Protocol")
		}
	}
	for _, header := range []string{"Max-Forwards", "X-Http-Method-Override", "X-Http-Method", "X-Method-Override", "X-Host", "X-Http-Host-Override", "X-Forwarded-Server", "X-Original-Url", "X-Rewrite-Url", "Http2-Settings"} {
		out.Header.Del(header)
	}
	out.Trailer = nil // headers, too, to some
	raw, more := stripQuery(out.URL.RawQuery, query)
	out.URL.RawQuery = raw
	removed = append(removed, more...)
	slices.Sort(removed)
	return slices.Compact(removed)
}

// stripQuery removes what would sign a run in from a query.
func stripQuery(query string, allowed []string) (rest string, removed []string) {
	var kept []string
	for pair := range strings.SplitSeq(query, "&") {
		if pair == "" {
			continue
		}
		raw, _, named := strings.Cut(pair, "=")
		key, err := url.QueryUnescape(raw)
		if again, wrong := url.QueryUnescape(key); wrong == nil { // some servers do it twice
			key = again
		}
		key, _, _ = strings.Cut(key, "[") // and make a list of key[0]
		letters := lettersOf(key)
		switch {
		case has(allowed, key):
		// Some servers take a semicolon for the beginning of another pair.
		case err != nil || strings.Contains(pair, ";") || strings.Contains(key, ";"):
			removed = append(removed, "query that cannot be read")
			continue
		case signs(key) || slices.Contains(keys, letters):
			if !named { // it may be the secret itself
				letters = "(no name)"
			}
			removed = append(removed, "query "+letters)
			continue
		}
		kept = append(kept, pair)
	}
	return strings.Join(kept, "&"), removed
}

// has reports whether a list has a name, whatever its case.
func has(list []string, name string) bool {
	return slices.ContainsFunc(list, func(listed string) bool { return strings.EqualFold(listed, name) })
}
