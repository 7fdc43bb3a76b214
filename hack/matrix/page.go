package main

import (
	"bytes"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"
)

// support writes docs/support.md. The first row is the default version.
func support(rows []row, commit string, when time.Time) []byte {
	var b bytes.Buffer
	p := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	p("# Supported versions of Kubernetes")
	p("")
	p("<!-- Written by make matrix. Do not edit: change hack/matrix. -->")
	p("")
	p("admitkit supports the four newest minor versions of Kubernetes, %s to %s today. When a new minor is released, it takes the place of the", rows[len(rows)-1].minor, rows[0].minor)
	p("oldest. An older version may work, but nothing here is tested on it.")
	p("")
	p("| Kubernetes | tested on | tests passed | failed | skipped | result |")
	p("|---|---|---|---|---|---|")
	for _, r := range rows {
		result := "passed"
		if r.err != nil {
			result = "**failed**"
		}
		p("| %s | %s | %d | %d | %d | %s |", r.minor, orUnknown(r.tested), r.tests.passed, len(r.tests.failed), len(r.tests.skipped), result)
	}
	p("")
	p("Run of %s at commit %s, with %s on %s/%s.", when.UTC().Format(time.DateOnly), commit, strings.Replace(runtime.Version(), "go", "Go ", 1), runtime.GOOS, runtime.GOARCH)
	p("")
	p("## How to read it")
	p("")
	p("`make matrix` writes this page. For each version it builds the control plane from its Go modules and runs the tests of webhooks, their registration,")
	p("certificates, the manager and the extensions that ship (in their short form) on a real kube-apiserver, kube-controller-manager and kubectl of that version.")
	p("\"Tested on\" is what that kube-apiserver says about itself. etcd and kwok are the same for all versions, and the library is always compiled with the")
	p("client of the version in its go.mod. Nodes are fake ones: the end-to-end tests on a real node run on %s only.", rows[0].minor)
	p("")
	p("Tests are skipped in the short form, or where a version lacks what they test.")
	p("%s", lacks(rows))
	p("")
	p("The nightly workflow runs the matrix. To run the tests on one version: `K8S=%s make test`; to run a part of the matrix:", rows[len(rows)-1].minor)
	p("`make matrix MATRIX=\"%s\"`.", rows[len(rows)-1].minor)
	return b.Bytes()
}

// lacks lists the tests that an older version skips and the default one does not.
func lacks(rows []row) string {
	var lines []string
	for _, r := range rows[1:] {
		var tests []string
		for _, name := range r.tests.skipped {
			if !slices.Contains(rows[0].tests.skipped, name) {
				tests = append(tests, "`"+name+"`")
			}
		}
		if len(tests) > 0 {
			lines = append(lines, fmt.Sprintf("- %s skips %s", r.minor, strings.Join(tests, ", ")))
		}
	}
	if len(lines) == 0 {
		return "No version skips a test that " + rows[0].minor + " does not."
	}
	return "\n" + strings.Join(lines, "\n")
}
