//go:build linux

package main

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/admitkit/admitkit/operator/internal/session/protocol"
)

// replay presents the ticket of the recorder to its collector, and tokens where they do not
// belong.
func replay(pid int, more []string) error {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return err
	}
	text := ""
	for part := range bytes.SplitSeq(line, []byte{0}) {
		if ticket, ok := strings.CutPrefix(string(part), "--ticket="); ok {
			text = ticket
			break
		}
	}
	ticket, err := protocol.Parse(text)
	if err != nil {
		return fmt.Errorf("the recorder's command line has no ticket: %w", err)
	}
	token, err := os.ReadFile(protocol.TokenFile)
	if err != nil {
		return err
	}
	report("its ticket, with its token", func() (string, error) { return present(&ticket.Terms, text, string(token)) })
	report("its ticket, without a token", func() (string, error) { return present(&ticket.Terms, text, "") })
	report("its ticket, with a byte more", func() (string, error) { return present(&ticket.Terms, text+"A", string(token)) })
	for i, other := range more {
		report(fmt.Sprintf("ticket %d of others", i), func() (string, error) { return present(&ticket.Terms, other, string(token)) })
	}
	if other, err := os.ReadFile("/var/run/secrets/kubernetes.io/serviceaccount/token"); err == nil {
		report("its ticket, with the token of Kubernetes", func() (string, error) { return present(&ticket.Terms, text, string(other)) })
	}
	report("the token at the API server", func() (string, error) { return askAPIServer(string(token)) })
	return nil
}

// present asks a collector to take a session, as the recorder does.
func present(terms *protocol.Terms, ticket, token string) (string, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS13, ServerName: terms.ServerName, RootCAs: x509.NewCertPool()}
	for _, der := range terms.CA {
		if ca, err := x509.ParseCertificate(der); err == nil {
			config.RootCAs.AddCert(ca)
		}
	}
	conn, err := tls.DialWithDialer(&net.Dialer{Timeout: 5 * time.Second}, "tcp", terms.Collectors[0], config)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second)) // it is open
	request := "POST " + protocol.Path + " HTTP/1.1\r\nHost: c\r\nConnection: Upgrade\r\nUpgrade: " + protocol.Upgrade + "\r\nContent-Length: 0\r\n"
	if token != "" {
		request += "Authorization: Bearer " + strings.TrimSpace(token) + "\r\n"
	}
	request += protocol.HeaderTicket + ": " + ticket + "\r\n" + protocol.HeaderSecret + ": " + strings.Repeat("s", 64) + "\r\n\r\n"
	if _, err := io.WriteString(conn, request); err != nil {
		return "", err
	}
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return "", err
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode == http.StatusSwitchingProtocols {
		return "the session", nil
	}
	body, err := io.ReadAll(io.LimitReader(answer.Body, 1<<10))
	return "", errors.Join(fmt.Errorf("%s: %s", answer.Status, strings.TrimSpace(string(body))), err)
}

// askAPIServer asks who the token is.
func askAPIServer(token string) (string, error) {
	address := net.JoinHostPort(os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT"))
	request, err := http.NewRequest(http.MethodGet, "https://"+address+"/api/v1/namespaces", http.NoBody)
	if err != nil {
		return "", err
	}
	request.Header.Set("Authorization", "Bearer "+strings.TrimSpace(token))
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	client := &http.Client{Transport: transport, Timeout: 5 * time.Second}
	answer, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode == http.StatusUnauthorized {
		return "", errors.New(answer.Status)
	}
	return answer.Status, nil
}
