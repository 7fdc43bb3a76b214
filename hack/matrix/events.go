package main

import (
	"bytes"
	"encoding/json"
	"io"
	"strings"
)

// report counts the top-level tests of a run. A test's name is package.Test.
type report struct {
	passed          int
	failed, skipped []string
}

// events reads what go test -json prints. The log gets the text of it.
type events struct {
	report *report
	log    io.Writer
	rest   []byte
}

// Write reads the lines that are complete.
func (e *events) Write(p []byte) (int, error) {
	e.rest = append(e.rest, p...)
	for {
		line, rest, ok := bytes.Cut(e.rest, []byte("\n"))
		if !ok {
			return len(p), nil
		}
		e.rest = rest
		if err := e.line(line); err != nil {
			return 0, err
		}
	}
}

func (e *events) line(line []byte) error {
	var event struct{ Action, Package, Test, Output, ImportPath string }
	if json.Unmarshal(line, &event) != nil { // a line of the toolchain, about a build
		_, err := e.log.Write(append(line, '\n'))
		return err
	}
	if _, err := io.WriteString(e.log, event.Output); err != nil {
		return err
	}
	name := strings.TrimPrefix(event.Package, "github.com/admitkit/admitkit/")
	if event.Test != "" {
		name += "." + event.Test
	}
	switch subtest := strings.Contains(event.Test, "/"); {
	case subtest:
	case event.Action == "pass" && event.Test != "":
		e.report.passed++
	case event.Action == "skip" && event.Test != "":
		e.report.skipped = append(e.report.skipped, name)
	case event.Action == "fail" && (event.Test != "" || !e.failedIn(name)):
		e.report.failed = append(e.report.failed, name)
	}
	return nil
}

// failedIn says whether a test of a package failed, which makes the package fail.
func (e *events) failedIn(name string) bool {
	for _, failed := range e.report.failed {
		if strings.HasPrefix(failed, name+".") {
			return true
		}
	}
	return false
}
