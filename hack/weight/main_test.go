package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestAFunctionThatKeepsEveryMethodIsNamed(t *testing.T) {
	graph := bytes.NewBufferString(`runtime.main_main·f -> main.main
main.main -> main.nearest <ReflectMethod>
main.nearest <ReflectMethod> -> reflect.(*rtype).MethodByName
`)
	if found := keepers(graph); !slices.Equal(found, []string{"main.nearest"}) {
		t.Fatalf("found %v", found)
	}
	w := weighed{name: "program", bytes: 10, keepers: []string{"main.nearest"}}
	if err := w.check(w, 1); err == nil || !strings.Contains(err.Error(), "main.nearest") {
		t.Fatalf("error: %v", err)
	}
}

func TestAProgramAboveTheBoundIsAnError(t *testing.T) {
	plain, program := weighed{name: "plain", bytes: 1000}, weighed{name: "program", bytes: 1101}
	if err := program.check(plain, 1.1); err == nil || !strings.Contains(err.Error(), "1.101 times as large as plain") {
		t.Errorf("error: %v", err)
	}
	if err := program.check(plain, 1.102); err != nil {
		t.Error(err)
	}
}

func TestOnlyModulesThatPlainHasNotAreAdded(t *testing.T) {
	plain, program := weighed{modules: []string{"a", "b"}}, weighed{modules: []string{"a", "c", "d"}}
	if added := program.added(plain); !slices.Equal(added, []string{"c", "d"}) {
		t.Errorf("added: %v", added)
	}
}

func TestTheTableReplacesTheOneOfThePage(t *testing.T) {
	page := filepath.Join(t.TempDir(), "weight.md")
	if err := os.WriteFile(page, []byte("# Weight\n"+begin+"old\n"+end+"after\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := write(page, "new\n"); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if string(text) != "# Weight\n"+begin+"new\n"+end+"after\n" {
		t.Errorf("the page: %s", text)
	}
	if err := os.WriteFile(page, []byte("# Weight\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := write(page, "new\n"); err == nil {
		t.Error("a page without the comments is no error")
	}
}
