//go:build linux

package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"
)

// The names and addresses of the tests, which are those of package sandbox.
const (
	public  = "11.22.33.44"
	plain   = "11.22.33.66" // greets at ports 443 and 80, without TLS and HTTP
	public6 = "2606:4700::1111"
	// listed is a name that the run may reach, at port 443 alone; inside is another, which leads to the node; late is
	// one that it may reach at the beginning only.
	listed, inside, late = "api.example.com", "inside.example.com", "late.example.com"
	unlisted             = "other.example.com"
	proxyAddress         = "127.0.0.1:15001"
)

// try is a way out, and what it needs to see of the outside to be one.
type try struct {
	name string
	do   func() string
	sees string
}

// result is a line that escape prints for each.
type result struct {
	Name    string
	Escaped bool
	Saw     string
}

// escape tries all ways. The last ones need the test to do something meanwhile.
func escape([]string) error {
	var printing sync.Mutex
	show := func(t try) {
		saw := t.do()
		printing.Lock()
		defer printing.Unlock()
		_ = json.NewEncoder(os.Stdout).Encode(result{t.name, strings.Contains(saw, t.sees), brief(saw)})
	}
	var group sync.WaitGroup
	for _, t := range append(networkTries(), systemTries()...) {
		group.Go(func() { show(t) })
	}
	group.Wait()
	show(openConnection())
	show(deadProxy())
	show(try{"to kill the proxy", killTheProxy, done})
	fmt.Println("TRIED")
	return nil
}

func brief(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	return text[:min(len(text), 160)]
}

// patience is how long the test may take.
var patience = duration("PATIENCE", 2*time.Minute)

// duration returns a variable of the environment, or what it is without that.
func duration(name string, without time.Duration) time.Duration {
	if d, err := time.ParseDuration(os.Getenv(name)); err == nil {
		return d
	}
	return without
}

// openConnection opens a connection to a name that the test takes out of the policies once it reads the line OPEN: what is
// asked on it must not be answered for ever.
func openConnection() try {
	return try{"an open connection whose name is withdrawn", func() string {
		conn, err := dialTLS(addressOf(late), late)
		if err != nil {
			return "it could not be opened: " + err.Error()
		}
		defer func() { _ = conn.Close() }()
		from := bufio.NewReader(conn)
		if answer := ask(conn, from, late); !strings.Contains(answer, greeting) {
			return "it was of no use: " + answer
		}
		fmt.Println("OPEN")
		for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(200 * time.Millisecond) {
			if answer := ask(conn, from, late); !strings.Contains(answer, greeting) {
				return "closed: " + answer
			}
		}
		return "still open"
	}, "still open"}
}

// deadProxy tries, while the test kills the proxy once it reads the line KILL, a name that is not listed until a listed
// one is reached again.
func deadProxy() try {
	return try{"while the proxy is dead", func() string {
		fmt.Println("KILL")
		was, attempts := "alive", 0
		for deadline := time.Now().Add(patience); time.Now().Before(deadline); attempts++ {
			for _, answer := range []string{get(public+":443", "dead."+unlisted, unlisted, false), rawWithin(againTimeout, "tcp", public+":443", "x")} {
				if strings.Contains(answer, greeting) {
					return answer
				}
			}
			works := strings.Contains(get(public+":443", listed, listed, true), greeting)
			switch {
			case was == "alive" && !works:
				was = "dead"
			case was == "dead" && works:
				was = "back" // and sees what is tried once more
			case was == "back":
				return fmt.Sprintf("the proxy is back, after %d attempts", attempts)
			}
		}
		return "the proxy is " + was + " until the end"
	}, greeting}
}
