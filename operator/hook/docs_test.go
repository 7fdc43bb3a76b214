package hook_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

func TestTheTableOfTheProtocolNamesTestsThatExist(t *testing.T) {
	page, err := os.ReadFile("../docs/hooks.md")
	if err != nil {
		t.Fatal(err)
	}
	exist := map[string]bool{}
	for _, dir := range []string{".", "../internal/hook", "../cmd/hooks"} {
		err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
			if err != nil {
				return err
			}
			for _, declared := range file.Decls {
				if f, ok := declared.(*ast.FuncDecl); ok {
					exist[f.Name.Name] = true
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	_, table, ok := strings.Cut(string(page), "| Field | Here | Test |\n")
	if !ok {
		t.Fatal("operator/docs/hooks.md has no table of the protocol")
	}
	table, _, _ = strings.Cut(table, "\n\n")
	rows := strings.Split(strings.TrimSpace(table), "\n")[1:]
	if len(rows) < 20 {
		t.Errorf("the table has %d rows", len(rows))
	}
	name := regexp.MustCompile("`(Test[A-Za-z0-9]+)`")
	for _, row := range rows {
		tests := name.FindAllStringSubmatch(row, -1)
		if len(tests) == 0 {
			t.Errorf("no test is named: %s", row)
		}
		for _, test := range tests {
			if !exist[test[1]] {
				t.Errorf("there is no test %s: %s", test[1], row)
			}
		}
	}
}
