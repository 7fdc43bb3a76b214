package command_test

import (
	"strings"
	"testing"
	"text/template"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/admitkit/admitkit/operator/access/internal/command"
)

var pod = &metav1.ObjectMeta{
	Name: "web-1", Namespace: "shop", GenerateName: "web-", UID: "u",
	Labels: map[string]string{"app": "web", "app.kubernetes.io/name": "front"}, Annotations: map[string]string{"team": "a\"b"},
}

func TestACommandHasWhatItsTemplateNames(t *testing.T) {
	for text, want := range map[string]string{
		"": "",
		"kubectl exec -ti -n {{ .Metadata.Namespace }} {{ .Metadata.Name }} -- sh":       "kubectl exec -ti -n shop web-1 -- sh",
		`{{ .Metadata.Labels.app }} {{index .Metadata.Labels "app.kubernetes.io/name"}}`: "web front",
		"{{ .Metadata.Labels.none }}|{{ index .Metadata.Annotations `none` }}|":          "||",
		"a {{- /* why */ -}} b {{- .Metadata.UID }}":                                     "abu",
		"{{ .Metadata.GenerateName }}{{ .Metadata.Annotations.team }}":                   `web-a"b`,
	} {
		parsed, err := command.Parse(text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		if got, err := parsed.For(pod); err != nil || got != want {
			t.Errorf("%q gives %q, %v, want %q", text, got, err, want)
		}
	}
}

func TestWhatATemplateMayNotHaveIsNamedWithItsPosition(t *testing.T) {
	for text, want := range map[string]string{
		"one\n  {{ range 9 }}{{ end }}":               "accessCommand:2:11: {{range 9}}{{end}} is not supported: use text",
		"{{ .Metadata.Title }}":                       "accessCommand:1:3: {{.Metadata.Title}} is no field",
		"{{ .Metadata.Labels }}":                      "is no field",
		"{{ .Metadata.Name.First }}":                  "is no field",
		"{{ .Spec.NodeName }}":                        "is no field",
		"{{ . }}":                                     "is not supported",
		"{{ .Metadata.GetName }}":                     "is no field",
		`{{ printf "%1000000d" 1 }}`:                  "is not supported",
		`{{ $a := "x" }}`:                             "is not supported",
		`{{ .Metadata.Name | printf "%s" }}`:          "is not supported",
		`{{ index .Metadata.Labels .Metadata.Name }}`: "is not supported",
		`{{ slice .Metadata.Labels "a" }}`:            "is not supported",
		`{{ index .Metadata.Labels 1 }}`:              "is not supported",
		`{{ if .Metadata.Name }}x{{ end }}`:           "is not supported",
		`{{ with .Metadata }}x{{ end }}`:              "is not supported",
		`{{ template "x" }}`:                          "is not supported",
		`{{ define "x" }}{{ end }}`:                   `define "x" is not supported`,
		`{{ (.Metadata).Name }}`:                      "is not supported",
		`{{ .Metadata`:                                "accessCommand:1: unclosed action",
		strings.Repeat("x", command.Limit+1):          "at most 4096",
	} {
		if _, err := command.Parse(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q gives %v, want %q", text, err, want)
		}
	}
}

func TestACommandIsNoLongerThanItsLimit(t *testing.T) {
	parsed, err := command.Parse(strings.Repeat("{{ .Metadata.Annotations.long }}", 10))
	if err != nil {
		t.Fatal(err)
	}
	long := func(n int) *metav1.ObjectMeta {
		return &metav1.ObjectMeta{Annotations: map[string]string{"long": strings.Repeat("x", n)}}
	}
	if got, err := parsed.For(long(409)); err != nil || len(got) != 4090 {
		t.Errorf("it has %d bytes, %v", len(got), err)
	}
	if _, err := parsed.For(long(410)); err == nil || !strings.Contains(err.Error(), "longer than 4096") {
		t.Errorf("got %v", err)
	}
}

func FuzzACommandIsThatOfTextTemplate(f *testing.F) {
	for _, text := range []string{
		"{{ .Metadata.Name }} {{ index .Metadata.Labels \"app\" -}} x", "{{ .Metadata.Labels.app }}{{/* c */}}",
		`{{$a := printf "%100000d" 1}}{{$a = printf "%s%s" $a $a}}{{$a}}`, `{{if .Metadata.UID}}{{range 9223372036854775807}}{{end}}{{end}}`,
		`{{define "a"}}{{template "a"}}{{end}}{{template "a"}}`, "{{((.Metadata))}}", "{{.Metadata.Metadata}}",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		parsed, err := command.Parse(text)
		if err != nil {
			return
		}
		got, err := parsed.For(pod)
		if err != nil {
			return
		}
		full, err := template.New("full").Option("missingkey=zero").Parse(text)
		if err != nil {
			t.Fatalf("%q is accepted, but is no template: %v", text, err)
		}
		var want strings.Builder
		if err := full.Execute(&want, struct{ Metadata *metav1.ObjectMeta }{pod}); err != nil || got != want.String() {
			t.Fatalf("%q gives %q, text/template gives %q, %v", text, got, want.String(), err)
		}
	})
}
