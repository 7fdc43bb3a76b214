package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"

	"github.com/admitkit/admitkit/operator/internal/session/collector"
)

// asCollector has the variable by which this program is a collector, for a test that kills
// it or weighs it.
const asCollector = "ADMITKIT_TEST_COLLECTOR"

// collecting is what such a collector is told.
type collecting struct {
	Folder   collector.Folder
	Sessions int
}

// collectorProcess is a collector in a process of its own.
type collectorProcess struct {
	*exec.Cmd
	address string
}

// newCollectorProcess starts a collector of the place's folder. It ends with the test.
func (p *place) newCollectorProcess(sessions int) *collectorProcess {
	p.t.Helper()
	told, err := json.Marshal(collecting{p.folder, sessions})
	if err != nil {
		p.t.Fatal(err)
	}
	program, err := os.Executable()
	if err != nil {
		p.t.Fatal(err)
	}
	c := &collectorProcess{Cmd: exec.Command(program)}
	c.Env, c.Stderr = append(os.Environ(), asCollector+"="+string(told)), os.Stderr
	stdin, err := c.StdinPipe() // at its end the process ends
	if err != nil {
		p.t.Fatal(err)
	}
	stdout, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = stdin.Close(); _ = c.Wait() })
	if c.address, err = bufio.NewReader(stdout).ReadString('\n'); err != nil {
		p.t.Fatal(err)
	}
	c.address = strings.TrimSpace(c.address)
	return c
}

// collect is what the process does.
func collect(told string) error {
	var of collecting
	if err := json.Unmarshal([]byte(told), &of); err != nil {
		return err
	}
	server := newServer(collector.New(collector.Options{
		Key: theKey, Identify: identify, Storage: of.Folder, MaxPodSessions: of.Sessions, MaxUserSessions: of.Sessions, Settle: 1,
	}))
	defer server.Close()
	fmt.Println(server.Listener.Addr())
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}
