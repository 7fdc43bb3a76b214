//go:build linux

package main

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/admitkit/admitkit/operator/internal/session/protocol"
)

// replay looks for the ticket of its own recorder, waits for that of another one that starts, and
// presents it to its collector, with tokens and without.
func replay(pid int, more []string) error {
	report("the ticket of its own recorder", func() (string, error) { return ticketOf(strconv.Itoa(pid)) })
	token, err := os.ReadFile(protocol.TokenFile)
	if err != nil {
		return err
	}
	fmt.Println("watching")
	var text string
	for text == "" {
		names, err := os.ReadDir("/proc")
		if err != nil {
			return err
		}
		for _, each := range names {
			if text, err = ticketOf(each.Name()); err == nil {
				break
			}
		}
	}
	ticket, err := protocol.Parse(text)
	if err != nil {
		return err
	}
	said, err := present(&ticket.Terms, text, string(token))
	fmt.Printf("of the thief: %s %v\n", said, err)
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

// ticketOf returns the ticket on the command line of a recorder.
func ticketOf(pid string) (string, error) {
	line, err := os.ReadFile("/proc/" + pid + "/cmdline")
	if err != nil {
		return "", err
	}
	arguments := strings.Split(string(line), "\x00")
	if arguments[0] == protocol.Program && len(arguments) > 1 {
		if text, ok := strings.CutPrefix(arguments[1], "--ticket="); ok && text != "" {
			return text, nil
		}
	}
	return "", errors.New("its command line has no ticket")
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
