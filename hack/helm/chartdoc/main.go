// Command chartdoc writes the table of values into the README of the chart: from
// the comments in its values.yaml, so that the two cannot differ.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"go.yaml.in/yaml/v3"
)

const heading = "## Values\n"

const head = heading + `
<!-- Written by make generate from the comments in values.yaml. -->

| value | default | meaning |
|---|---|---|
`

func main() {
	dir := flag.String("dir", ".", "root of the repository")
	flag.Parse()
	if err := write(filepath.Join(*dir, "operator/charts/admitkit")); err != nil {
		fmt.Fprintln(os.Stderr, "chartdoc:", err)
		os.Exit(1)
	}
}

// write replaces everything from the heading on.
func write(chart string) error {
	values, err := os.ReadFile(filepath.Join(chart, "values.yaml"))
	if err != nil {
		return err
	}
	rows, err := table(values)
	if err != nil {
		return fmt.Errorf("values.yaml: %w", err)
	}
	path := filepath.Join(chart, "README.md")
	readme, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	before, _, found := strings.Cut(string(readme), heading)
	if !found {
		return fmt.Errorf("%s: no heading %q", path, strings.TrimSpace(heading))
	}
	return os.WriteFile(path, []byte(before+head+rows), 0o644)
}

func table(values []byte) (string, error) {
	var document yaml.Node
	if err := yaml.Unmarshal(values, &document); err != nil {
		return "", err
	}
	if len(document.Content) == 0 {
		return "", errors.New("empty")
	}
	var rows strings.Builder
	err := walk(&rows, "", document.Content[0])
	return rows.String(), err
}

// walk writes a row for each value that has a comment. A mapping without one is
// a group of values.
func walk(rows *strings.Builder, prefix string, mapping *yaml.Node) error {
	var errs []error
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		key, value := mapping.Content[i], mapping.Content[i+1]
		name := prefix + key.Value
		switch {
		case key.HeadComment != "":
			meaning := strings.TrimPrefix(strings.ReplaceAll(key.HeadComment, "\n# ", " "), "# ")
			def, err := inline(value)
			errs = append(errs, err)
			fmt.Fprintf(rows, "| `%s` | %s | %s |\n", name, def, strings.ReplaceAll(meaning, "|", `\|`))
		case value.Kind == yaml.MappingNode && len(value.Content) > 0:
			errs = append(errs, walk(rows, name+".", value))
		default:
			errs = append(errs, fmt.Errorf("%s has no comment", name))
		}
	}
	return errors.Join(errs...)
}

// inline returns a default for a cell of the table; nothing for an empty text.
func inline(value *yaml.Node) (string, error) {
	var v any
	if err := value.Decode(&v); err != nil {
		return "", err
	}
	if v == "" {
		return "", nil
	}
	text, err := json.Marshal(v)
	return "`" + strings.Trim(string(text), `"`) + "`", err
}
