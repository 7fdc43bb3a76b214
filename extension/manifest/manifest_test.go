package manifest

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/admitkit/admitkit/internal/testkit"
)

func names(objects []Object) (names string) {
	for _, object := range objects {
		names += fmt.Sprintf("%d:%s/%s ", object.Document, object.GetKind(), object.GetName())
	}
	return strings.TrimSpace(names)
}

func TestAllObjectsOfAStreamAreRead(t *testing.T) {
	const a, b = `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"}}`, `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"b"}}`
	for text, want := range map[string]string{
		a + "\n" + b: "1:Pod/a 2:Pod/b",
		a + b:        "1:Pod/a 2:Pod/b",
		"{\n \"apiVersion\": \"v1\",\n \"kind\": \"Pod\"}\n{\n\"apiVersion\": \"v1\", \"kind\": \"Node\"}\n---\n" + a: "1:Pod/ 2:Node/ 3:Pod/a",
		"# nothing\n---\n---\n" + a + "\n--- # more\n{apiVersion: v1, kind: Node} # flow\n":                           "2:Pod/a 3:Node/",
		"kind: Pod\napiVersion: v1\n...\n":            "1:Pod/",
		"kind: Pod\napiVersion: v1\n...\n---\n" + b:   "1:Pod/ 2:Pod/b",
		"kind: Pod\napiVersion: v1\n...\n# the end\n": "1:Pod/",
		`{"apiVersion":"v1","kind":"List","items":[` + a + `,{"apiVersion":"v1","kind":"List","items":[` + b + `]}]}` + a: "1:Pod/a 1:Pod/b 2:Pod/a",
		`{"apiVersion":"apps/v1","kind":"DeploymentList","items":[{"metadata":{"name":"c"}}]}`:                            "1:Deployment/c",
		"": "",
	} {
		if objects, err := Objects(strings.NewReader(text)); err != nil || names(objects) != want {
			t.Errorf("%s: %q, %v", text, names(objects), err)
		}
	}
	for text, want := range map[string]string{
		"kind: Pod\napiVersion: v1\n...\n" + b:                       "document 1: something follows its end",
		"kind: Pod\napiVersion: v1\n...\nkind: Node\n":               "document 1: something follows its end",
		a + "\nkind: Pod\n":                                          "document 2: ",
		a + "\n}":                                                    "document 2: ",
		a + `{"kind":"Pod","kind":"Node"}`:                           `document 2: `,
		a + "\n---\nmetadata: {}\n":                                  "document 2: has no apiVersion or no kind",
		a + "\n--- " + b:                                             "document 1: invalid Yaml document separator",
		`{"apiVersion":"v1","kind":"List","items":[1]}`:              "document 1: items[0]: is no object",
		`{"apiVersion":"v1","kind":"List","items":[{"kind":"Pod"}]}`: "document 1: items[0]: has no apiVersion or no kind",
		strings.Repeat(`{"apiVersion":"v1","kind":"List","items":[`, 12) + strings.Repeat("]}", 12): "lists are in one another",
	} {
		if objects, err := Objects(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %q, %v; want %q", text, names(objects), err, want)
		}
	}
}

// Each file is a mixed stream that a generator made: all objects of it are read, or it is refused.
func TestNoDocumentIsLost(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	files, lost, refused := 2000, 0, 0
	for range files {
		var b strings.Builder
		want := ""
		for i := range 1 + random.IntN(6) {
			name := fmt.Sprint("n", i)
			want += "Pod/" + name + " "
			object := fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q}}`, name)
			switch random.IntN(5) {
			case 0:
				object = fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata:\n  name: %s\n", name)
			case 1:
				object = strings.NewReplacer(",", ",\n  ", "{", "{\n  ").Replace(object)
			case 2:
				object = "# a comment\n" + object
			case 3:
				object = `{"apiVersion":"v1","kind":"List","items":[` + object + `]}`
			}
			b.WriteString(object + []string{"", "\n", "\n---\n", "\n--- # next\n", "\n...\n", "\n...\n---\n"}[random.IntN(6)])
		}
		objects, err := Objects(strings.NewReader(b.String()))
		got := ""
		for _, object := range objects {
			got += object.GetKind() + "/" + object.GetName() + " "
		}
		switch {
		case err != nil:
			refused++
		case got != want:
			lost++
			t.Errorf("%s\nis %s; want %s", b.String(), got, want)
		}
	}
	if refused > files*3/4 {
		t.Errorf("of %d files, %d are refused", files, refused)
	}
	testkit.Figure("review.documents_lost", float64(lost), "documents")
}

func FuzzObjects(f *testing.F) {
	f.Add("{}\n---\na: [b]\n...\n{}")
	f.Fuzz(func(_ *testing.T, text string) { _, _ = Objects(strings.NewReader(text)) })
}
