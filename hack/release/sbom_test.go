package main

import (
	"debug/buildinfo"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
)

func TestTwoSBOMsOfOneFileAreEqual(t *testing.T) {
	const one = `{"name":"a","documentNamespace":"https://anchore.com/1","creationInfo":{"created":"2026-11-23T18:00:00Z","creators":["Tool: syft"]},
		"packages":[{"SPDXID":"1","name":"x"},{"SPDXID":"2","name":"y"}]}`
	const other = `{"documentNamespace":"https://anchore.com/2","creationInfo":{"created":"2026-11-23T19:00:00Z","creators":["Tool: syft"]},
		"packages":[{"SPDXID":"2","name":"y"},{"SPDXID":"1","name":"x"}],"name":"a"}`
	another := strings.Replace(one, `"x"`, `"z"`, 1)
	var got []string
	for _, content := range []string{one, other, another} {
		document, err := normalized([]byte(content), "a", "2026-11-20T00:00:00Z", "v1.57.0")
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, string(document))
	}
	if got[0] != got[1] || !strings.Contains(got[0], `{"created":"2026-11-20T00:00:00Z","creators":["Tool: syft-v1.57.0"]}`) {
		t.Errorf("%s\n%s", got[0], got[1])
	}
	namespace := func(document string) string {
		_, rest, _ := strings.Cut(document, `"documentNamespace":"`)
		name, _, _ := strings.Cut(rest, `"`)
		return name
	}
	if a, b := namespace(got[0]), namespace(got[2]); a == b || !strings.HasPrefix(a, "https://admitkit.dev/spdx/a-") {
		t.Errorf("SBOMs of different content are %s and %s", a, b)
	}
	if _, err := normalized([]byte(`{}`), "a", "", ""); err == nil {
		t.Error("what is no SPDX is accepted")
	}
}

func TestAModuleThatTheSBOMLacksIsNamed(t *testing.T) {
	binary := &buildinfo.BuildInfo{GoVersion: "go1.26.8", Main: debug.Module{Path: "example.com/main"}, Deps: []*debug.Module{
		{Path: "example.com/a", Version: "v1.0.0"},
		{Path: "example.com/b", Version: "v1.0.0"},
		{Path: "example.com/c", Version: "v1.0.0", Replace: &debug.Module{Path: "example.com/d", Version: "v2.0.0"}},
	}}
	const sbom = `{"packages":[{"name":"example.com/main","versionInfo":"v1"},{"name":"stdlib","versionInfo":"go1.26.8"},
		{"name":"example.com/a","versionInfo":"v1.0.0"},{"name":"example.com/b","versionInfo":"v1.0.1"},{"name":"example.com/d","versionInfo":"v2.0.0"}]}`
	if got, err := missing([]byte(sbom), binary); err != nil || !slices.Equal(got, []string{"example.com/b@v1.0.0"}) {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := missing([]byte(`{}`), binary); err != nil || len(got) != 5 {
		t.Errorf("%v, %v", got, err)
	}
}
