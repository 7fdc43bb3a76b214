//go:build linux

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// done is what tries see that are ways out as soon as the system lets them.
const done = "DONE"

// proxyUser is as whom the proxy of a run runs.
const proxyUser = 1337

func ended(err error) string {
	if err != nil {
		return err.Error()
	}
	return done
}

// systemTries are the ways by what the container may do.
func systemTries() []try {
	of := func(name string, do func() string) try { return try{name, do, done} }
	return []try{
		of("raw sockets", func() string { return socket(unix.AF_INET, unix.IPPROTO_TCP) }),
		of("sockets of the link", func() string { return socket(unix.AF_PACKET, 0x0300) }),
		of("a user namespace", func() string {
			cmd := exec.Command("/proc/self/exe", "help")
			cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET}
			err := cmd.Start()
			if err == nil {
				_ = cmd.Wait() // which does not know the command
			}
			return ended(err)
		}),
		of("to change the rules that redirect", func() string {
			conn, err := nftables.New()
			if err == nil {
				conn.AddTable(&nftables.Table{Name: "untrusted", Family: nftables.TableFamilyINet})
				err = conn.Flush()
			}
			return ended(err)
		}),
		of("the key of the authority", func() string { return read("/run/admitkit/ca/tls.key") }),
		of("the token of the proxy", func() string { return read("/run/admitkit/token/token") }),
		of("a token of Kubernetes", func() string { return read("/var/run/secrets/kubernetes.io/serviceaccount/token") }),
		of("the memory of the proxy", func() string {
			pid, err := pidOfProxy()
			if err != nil {
				return err.Error()
			}
			return read("/proc/" + strconv.Itoa(pid) + "/maps")
		}),
	}
}

func socket(family, protocol int) string {
	fd, err := unix.Socket(family, unix.SOCK_RAW, protocol)
	if err == nil {
		_ = unix.Close(fd)
	}
	return ended(err)
}

func read(file string) string {
	_, err := os.ReadFile(file)
	return ended(err)
}

// pidOfProxy finds the process that is called egress-proxy.
func pidOfProxy() (int, error) {
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return 0, err
	}
	for _, file := range files {
		if text, err := os.ReadFile(file); err == nil && strings.Contains(string(text), "egress-proxy") {
			return strconv.Atoi(filepath.Base(filepath.Dir(file)))
		}
	}
	return 0, fmt.Errorf("no process of %d is it", len(files))
}

func killTheProxy() string {
	pid, err := pidOfProxy()
	if err != nil {
		return err.Error()
	}
	return ended(syscall.Kill(pid, syscall.SIGKILL))
}

// asUser has a child connect as the user of the proxy, whose connections nothing redirects.
func asUser() string {
	cmd := exec.Command("/proc/self/exe", "dial")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: proxyUser, Gid: proxyUser}}
	text, err := cmd.CombinedOutput()
	return fmt.Sprintf("%s %v", text, err)
}

func dialOut([]string) error {
	fmt.Println(get(public+":443", unlisted, unlisted, false))
	return nil
}
