package main

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
)

// normalize makes two SBOMs of one file equal: syft writes the time of the run into
// them, and a random name. It does not know its own version, as it is built here.
func normalize(file, name, date, syft string) error {
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	normalized, err := normalized(content, name, date, syft)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return os.WriteFile(file, normalized, 0o644)
}

func normalized(content []byte, name, date, syft string) ([]byte, error) {
	var document map[string]any
	decoder := json.NewDecoder(bytes.NewReader(content))
	decoder.UseNumber()
	if err := decoder.Decode(&document); err != nil {
		return nil, err
	}
	creation, ok := document["creationInfo"].(map[string]any)
	if !ok {
		return nil, errors.New("it has no creationInfo: is it SPDX?")
	}
	creation["created"], creation["creators"] = date, []string{"Tool: syft-" + syft}
	document["documentNamespace"] = ""
	for _, key := range []string{"packages", "files", "relationships", "hasExtractedLicensingInfos"} {
		if list, ok := document[key].([]any); ok {
			slices.SortStableFunc(list, func(a, b any) int { return cmp.Compare(text(a), text(b)) })
		}
	}
	// SPDX wants another name for each content.
	document["documentNamespace"] = fmt.Sprintf("https://admitkit.dev/spdx/%s-%x", name, sha256.Sum256([]byte(text(document))))
	return append([]byte(text(document)), '\n'), nil
}

// versionOf returns the version of a program that was built of another module.
func versionOf(program string) (string, error) {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return "", err
	}
	return info.Main.Version, nil
}

func text(value any) string {
	content, _ := json.Marshal(value) // it was JSON
	return string(content)
}

// missing returns the modules of a binary that its SBOM does not name.
func missing(sbom []byte, binary *buildinfo.BuildInfo) ([]string, error) {
	var document struct {
		Packages []struct {
			Name        string `json:"name"`
			VersionInfo string `json:"versionInfo"`
		} `json:"packages"`
	}
	if err := json.Unmarshal(sbom, &document); err != nil {
		return nil, err
	}
	named := map[string]bool{}
	for _, p := range document.Packages {
		named[p.Name+"@"+p.VersionInfo] = true
		named[p.Name] = true
	}
	var absent []string
	if !named[binary.Main.Path] {
		absent = append(absent, binary.Main.Path)
	}
	if goVersion := strings.TrimPrefix(binary.GoVersion, "go"); !named["stdlib@go"+goVersion] && !named["stdlib@"+goVersion] {
		absent = append(absent, "stdlib@"+binary.GoVersion)
	}
	for _, module := range binary.Deps {
		if module.Replace != nil {
			module = module.Replace
		}
		if name := module.Path + "@" + module.Version; !named[name] {
			absent = append(absent, name)
		}
	}
	return absent, nil
}
