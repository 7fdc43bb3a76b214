package main

import (
	"os"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

func readYAML(t *testing.T, file string, into any) {
	t.Helper()
	content, err := os.ReadFile("../../" + file)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(content, into); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
}

func TestTheChartNamesItsImageAndVersionOnce(t *testing.T) {
	var chart struct {
		Version, AppVersion string
		Annotations         map[string]string
	}
	type image struct{ Repository string }
	var values struct {
		Image                    image
		Hooks, Sandbox, Sessions struct{ Image image }
	}
	readYAML(t, "operator/charts/admitkit/Chart.yaml", &chart)
	readYAML(t, "operator/charts/admitkit/values.yaml", &values)
	if chart.Version != chart.AppVersion || !tagPattern.MatchString("v"+chart.Version) {
		t.Errorf("version %q, appVersion %q", chart.Version, chart.AppVersion)
	}
	for i, got := range []string{values.Image.Repository, values.Hooks.Image.Repository, values.Sandbox.Image.Repository, values.Sessions.Image.Repository} {
		if got != registry+installed[i] || !slices.Contains(images, installed[i]) {
			t.Errorf("the chart installs %s, and the release pushes %s to %s", got, images, registry)
		}
	}
	var listed []struct {
		Image     string
		Platforms []string
	}
	if err := yaml.Unmarshal([]byte(chart.Annotations["artifacthub.io/images"]), &listed); err != nil {
		t.Fatal(err)
	}
	for i, program := range installed {
		if want := registry + program + ":" + chart.AppVersion; len(listed) != len(installed) || listed[i].Image != want || len(listed[i].Platforms) != len(architectures) {
			t.Errorf("Artifact Hub is told of %+v, want %s for %v", listed, want, architectures)
		}
	}
	var links []struct{ Name, URL string }
	if err := yaml.Unmarshal([]byte(chart.Annotations["artifacthub.io/links"]), &links); err != nil || len(links) == 0 {
		t.Errorf("links %v: %v", links, err)
	}
}

// https://krew.sigs.k8s.io/docs/developer-guide/develop/naming-guide/
func TestKrewWouldAcceptTheName(t *testing.T) {
	var config struct {
		Krews []struct {
			Name             string
			ShortDescription string `json:"short_description"`
			Description      string
		}
	}
	readYAML(t, ".goreleaser.yaml", &config)
	if len(config.Krews) != 1 {
		t.Fatalf("%d plugins", len(config.Krews))
	}
	plugin := config.Krews[0]
	for _, word := range []string{"kube", "krew", "plugin", "_"} {
		if strings.Contains(plugin.Name, word) {
			t.Errorf("%s: krew refuses %q in a name", plugin.Name, word)
		}
	}
	if plugin.Name == "access" || plugin.Name != strings.ToLower(plugin.Name) {
		t.Errorf("krew refuses the name %s", plugin.Name)
	}
	// kubectl krew search cuts what is longer.
	if length := len(plugin.ShortDescription); length == 0 || length > 50 || strings.HasSuffix(plugin.ShortDescription, ".") {
		t.Errorf("the short description has %d characters, want at most 50 and no full stop: %q", length, plugin.ShortDescription)
	}
	for i, line := range strings.Split(plugin.Description, "\n") {
		if len(line) > 80 {
			t.Errorf("line %d of the description has %d characters", i+1, len(line))
		}
	}
}

func TestAManifestOfOtherArchivesIsRefused(t *testing.T) {
	const platform = "  - {uri: 'https://github.com/admitkit/admitkit/releases/download/v1.0.0/a', sha256: '%'}\n"
	manifest := func(version, sum string) []byte {
		return []byte("spec:\n  version: " + version + "\n  platforms:\n" + strings.Repeat(strings.ReplaceAll(platform, "%", sum), 6))
	}
	sums := []sum{{name: "a", sum: "abc"}}
	for name, c := range map[string]struct {
		manifest []byte
		want     string
	}{
		"the archives' own":  {manifest("v1.0.0", "abc"), ""},
		"another checksum":   {manifest("v1.0.0", "def"), "there is no artifact with the URI"},
		"another version":    {manifest("v1.0.1", "abc"), "has version v1.0.1 and 6 platforms, want v1.0.0 and 6"},
		"a platform is gone": {[]byte("spec: {version: v1.0.0}"), "0 platforms"},
	} {
		t.Run(name, func(t *testing.T) {
			err := krewOf(c.manifest, "v1.0.0", sums)
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
}

func TestBuildsThatDifferAreNamed(t *testing.T) {
	one := []sum{{name: "a", sum: "1"}, {name: "b", sum: "2"}}
	if err := compare(one, one); err != nil {
		t.Error(err)
	}
	for want, other := range map[string][]sum{
		"differ in b": {{name: "a", sum: "1"}, {name: "b", sum: "3"}},
		"differ in c": {{name: "a", sum: "1"}, {name: "b", sum: "2"}, {name: "c", sum: "4"}},
		"differ in a": {{name: "b", sum: "2"}},
	} {
		if err := compare(one, other); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

func TestAPathOfTheBuilderIsFound(t *testing.T) {
	if err := withoutPlaces("a", []byte("x /home/me/src/main.go y"), []string{"/home/me/src"}); err == nil || !strings.Contains(err.Error(), "a contains /home/me/src") {
		t.Error(err)
	}
	if err := withoutPlaces("a", []byte("github.com/admitkit/admitkit/main.go"), []string{"/home/me/src"}); err != nil {
		t.Error(err)
	}
}

func TestEveryProgramWithAnImageIsBuiltForLinuxAndPublished(t *testing.T) {
	var config struct {
		Builds []struct {
			ID, Dir, Main, Binary string
			Goos                  []string
		}
		Archives []struct{ ID string }
	}
	readYAML(t, ".goreleaser.yaml", &config)
	workflow, err := os.ReadFile("../../.github/workflows/release.yaml")
	if err != nil {
		t.Fatal(err)
	}
	dockerfile, err := os.ReadFile("../../Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	for _, program := range images {
		built := false
		for _, b := range config.Builds {
			built = built || b.ID == program && b.Dir == "operator" && b.Main == "./cmd/"+program && b.Binary == program && slices.Contains(b.Goos, "linux")
		}
		if !built {
			t.Errorf("goreleaser does not build %s for Linux: %+v", program, config.Builds)
		}
		if !strings.Contains(string(dockerfile), "\nENTRYPOINT [\"/"+program+"\"]\n") {
			t.Errorf("the Dockerfile makes no image of %s", program)
		}
	}
	if want := "IMAGES: " + strings.Join(images, " ") + "\n"; !strings.Contains(string(workflow), want) {
		t.Errorf("the workflow does not publish %q", want)
	}
	if !strings.HasSuffix(string(dockerfile), "ENTRYPOINT [\"/"+images[0]+"\"]\n") {
		t.Errorf("without --target, docker build does not make %s", images[0])
	}
}

func TestATagOfAnotherVersionThanTheLibrarysIsRefused(t *testing.T) {
	r := &release{root: "../..", tag: "v0.0.0"} // what is required between releases
	if err := r.checkLibrary(); err != nil {
		t.Error(err)
	}
	r.tag = "v7.0.0"
	if err := r.checkLibrary(); err == nil || !strings.Contains(err.Error(), "v7.0.0") || !strings.Contains(err.Error(), "docs/releasing.md") {
		t.Errorf("got %v", err)
	}
	r.tag = "v7.0.0" + snapshot
	if err := r.checkLibrary(); err != nil {
		t.Error(err)
	}
}
