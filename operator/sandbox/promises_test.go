package sandbox_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/admitkit/admitkit/internal/testkit"
)

// sections are those of testdata/promises.md, with how many rows each has: a row that is lost is noticed.
var sections = []struct {
	number string
	rows   int
}{
	{"A.1.1", 10},
	{"A.1.2", 7},
	{"A.1.3", 19},
	{"A.1.4", 16},
	{"A.1.5", 9},
	{"A.1.6", 3},
	{"A.1.7", 9},
	{"A.1.8", 15},
	{"A.1.9", 3},
	{"A.1.10", 4},
	{"A.1.11", 8},
	{"A.1.12", 11},
	{"A.1.13", 23},
	{"A.1.14", 4},
	{"A.1.15", 15},
	{"A.1.16", 16},
	{"A.1.17", 3},
	{"A.1.18", 7},
	{"A.3", 29},
	{"A.4.1", 1},
	{"A.4.2", 1},
	{"A.4.3", 2},
	{"A.4.4", 1},
	{"A.4.5", 2},
	{"A.4.6", 9},
	{"A.4.7", 3},
	{"A.4.8", 3},
	{"A.4.9", 1},
}

// promise is a row of the table.
type promise struct{ number, held string }

// named is a test in a row, `PACKAGE NAME`, and in brackets the case of it.
var named = regexp.MustCompile("`([-a-z0-9/]+) (Test[A-Za-z0-9]+)`(?: \\(([^)]+)\\))?")

func TestEachPromiseIsHeldByATestOrSaidToBeDifferent(t *testing.T) {
	rows := promises(t)
	byPackage := map[string]*testsOf{}
	open, different := 0, 0
	for at, number := range numbers() {
		if at >= len(rows) || rows[at].number != number {
			t.Fatalf("row %d is not %s", at+1, number)
		}
		reason, isDifferent := strings.CutPrefix(rows[at].held, "different: ")
		missing, isOpen := strings.CutPrefix(rows[at].held, "open: ")
		tests := named.FindAllStringSubmatch(rows[at].held, -1)
		switch {
		case isDifferent:
			different++
			if len(strings.Fields(reason)) < 4 {
				t.Errorf("%s: different, and %q is no reason", number, reason)
			}
		case isOpen:
			open++
			t.Logf("%s is open: %s", number, missing)
			if len(strings.Fields(missing)) < 4 {
				t.Errorf("%s: open, and %q does not say what is missing", number, missing)
			}
		case len(tests) == 0:
			t.Errorf("%s: no test holds it, and it is neither different nor open: %q", number, rows[at].held)
		}
		for _, of := range tests {
			if byPackage[of[1]] == nil {
				byPackage[of[1]] = readTests(t, of[1])
			}
			if problem := byPackage[of[1]].lacks(of[2], of[3]); problem != "" {
				t.Errorf("%s: %s: %s", number, of[1], problem)
			}
		}
	}
	if want := len(numbers()); len(rows) != want {
		t.Errorf("there are %d rows, want %d", len(rows), want)
	}
	testkit.Figure("sandbox.rows", float64(len(rows)), "count")
	testkit.Figure("sandbox.rows_open", float64(open), "count")
	testkit.Figure("sandbox.rows_different", float64(different), "count")
}

// promises reads the table.
func promises(t *testing.T) (rows []promise) {
	t.Helper()
	content, err := os.ReadFile("testdata/promises.md")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.SplitSeq(string(content), "\n") {
		if !strings.HasPrefix(line, "| A.") {
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		if len(cells) != 3 || strings.TrimSpace(cells[1]) == "" {
			t.Fatalf("%q has not three cells", line)
		}
		rows = append(rows, promise{strings.TrimSpace(cells[0]), strings.TrimSpace(cells[2])})
	}
	return rows
}

// numbers are those that there must be, in order.
func numbers() (all []string) {
	for _, section := range sections {
		for row := range section.rows {
			all = append(all, fmt.Sprintf("%s.%d", section.number, row+1))
		}
	}
	return all
}

// testsOf are the tests of a package, whatever they are built for.
type testsOf struct {
	functions map[string]bool
	// texts are the constants in the files, among which are the names of cases.
	texts map[string]bool
}

func readTests(t *testing.T, pkg string) *testsOf {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join("../..", pkg, "*_test.go"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("%s has no tests: %v", pkg, err)
	}
	of := &testsOf{functions: map[string]bool{}, texts: map[string]bool{}}
	for _, path := range paths {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(node ast.Node) bool {
			switch n := node.(type) {
			case *ast.FuncDecl:
				of.functions[n.Name.Name] = n.Recv == nil
			case *ast.BasicLit:
				of.texts[strings.Trim(n.Value, "\"`")] = true
			}
			return true
		})
	}
	return of
}

// lacks says what is not there of a test and a case of it, "" if both are.
func (of *testsOf) lacks(test, which string) string {
	switch {
	case !of.functions[test]:
		return "there is no " + test
	case which != "" && !of.texts[which]:
		return test + " has no case " + which
	}
	return ""
}
