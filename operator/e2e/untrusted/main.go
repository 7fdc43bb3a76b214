//go:build linux

// Command untrusted is what end-to-end tests run in a sandbox, and around it:
//
//	untrusted work               does what a run is for: it reads and writes its Workspace, and asks a server
//	untrusted escape             tries every way out that it knows, and prints what became of each
//	untrusted dial               connects where no run may, for a child of escape
//	untrusted names NAME=ADDR... answers for names, as the DNS of the cluster
//	untrusted hello              greets whoever connects, as another Pod
//	untrusted proxy              lets everything through, as a proxy that holds nothing back
//	untrusted stay               asks a server, and does not end
//	untrusted echo               says what it hears, until nobody speaks any more
package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"
)

func main() {
	commands := map[string]func(args []string) error{"work": work, "escape": escape, "dial": dialOut, "names": answerNames, "hello": hello, "proxy": proxy, "stay": stay, "echo": echo}
	command := (func([]string) error)(nil)
	if len(os.Args) > 1 {
		command = commands[os.Args[1]]
	}
	err := errors.New("name a command: see the comment of the package")
	if command != nil {
		err = command(os.Args[2:])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "untrusted:", err)
		os.Exit(1)
	}
}

// work reads what the Workspace was seeded with, adds a line to it, and asks a server. What it
// found is the output of the run.
func work([]string) error {
	home := os.Getenv("HOME")
	var found []string
	for name := range strings.FieldsSeq(os.Getenv("FILES")) {
		text, err := os.ReadFile(filepath.Join(home, name))
		if err != nil {
			return err
		}
		found = append(found, name+"="+strings.TrimSpace(string(text)))
	}
	lines, err := os.OpenFile(filepath.Join(home, "lines"), os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(lines, os.Getenv("ADMITKIT_RUN")); err != nil {
		return err
	}
	if _, err := lines.Seek(0, io.SeekStart); err != nil {
		return err
	}
	text, err := io.ReadAll(lines)
	if err != nil {
		return err
	}
	found = append(found, "lines="+strings.Join(strings.Fields(string(text)), ","))
	answer := get(addressOf(listed), listed, listed, true)
	return os.WriteFile("/dev/termination-log", []byte(strings.Join(append(found, answer), "\n")), 0o600)
}

// greeting is what everything says that no run may hear.
const greeting = "HELLO"

// hello greets whoever connects to port 8081.
func hello([]string) error {
	listener, err := net.Listen("tcp", ":8081")
	if err != nil {
		return err
	}
	for {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		_, _ = io.WriteString(conn, greeting)
		_ = conn.Close()
	}
}

// proxy connects whoever asks by CONNECT to whatever they name.
func proxy([]string) error {
	listener, err := net.Listen("tcp", proxyAddress)
	if err != nil {
		return err
	}
	for {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer func() { _ = conn.Close() }()
			buffer := make([]byte, 4096)
			n, err := conn.Read(buffer)
			fields := strings.Fields(string(buffer[:n]))
			if err != nil || len(fields) < 2 {
				return
			}
			to, err := net.Dial("tcp", fields[1])
			if err != nil {
				return
			}
			defer func() { _ = to.Close() }()
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\n\r\n")
			go func() { _, _ = io.Copy(to, conn) }()
			_, _ = io.Copy(conn, to)
		}()
	}
}

// stay prints what a server answers, and is there until it is killed.
func stay([]string) error {
	fmt.Println(get(addressOf(listed), listed, listed, true))
	time.Sleep(time.Hour)
	return nil
}

func echo([]string) error {
	_, err := io.Copy(os.Stdout, os.Stdin)
	return err
}
