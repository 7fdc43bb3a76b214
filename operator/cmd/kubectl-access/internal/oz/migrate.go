package oz

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"
	goyaml "go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/json"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/admitkit/admitkit/extension/manifest"
	"github.com/admitkit/admitkit/operator/cmd/kubectl-access/internal/cli"
)

// The most that is read, of a file and in all.
const (
	maxManifest  = 16 << 20
	maxManifests = 10_000
)

// migration is one run of the command migrate.
type migration struct {
	*cli.Base
	files         []string
	recursive     bool
	strict        bool
	subjects      string
	seen, written int
	// lost counts the objects that cannot be carried over, dropped what others lose.
	lost, dropped int
}

// Command returns the command that rewrites manifests of Oz.
func Command(c *cli.Base) *cobra.Command {
	m := &migration{Base: c}
	cmd := &cobra.Command{
		Use: "migrate -f FILE|DIRECTORY", Short: "Rewrite manifests of the Oz RBAC Controller",
		Long: `Rewrite manifests of the Oz RBAC Controller (crds.wizardofoz.co) for admitkit. The
result goes to standard output. Standard error says for each object what is
changed, what is dropped because admitkit has nothing like it, and what cannot be
carried over. Comments are lost. No cluster is needed.

The exit code is 1 if an object cannot be carried over, which is then missing in
the result, and with --strict also if something was dropped.`,
		Example: "  kubectl access migrate -f oz/ > admitkit.yaml\n  kubectl get podaccesstemplates.crds.wizardofoz.co -A -o yaml | kubectl access migrate -f -",
		Args:    cobra.NoArgs,
		RunE:    func(*cobra.Command, []string) error { return m.run() },
	}
	flags := cmd.Flags()
	flags.StringArrayVarP(&m.files, "filename", "f", nil, "file or directory with manifests; - is standard input")
	flags.BoolVarP(&m.recursive, "recursive", "R", false, "also read directories in the directory")
	flags.BoolVar(&m.strict, "strict", false, "fail if something is dropped")
	flags.StringVar(&m.subjects, "subjects", "Requester", "who gets access by the templates: Requester, or Groups, as in Oz: all who may ask")
	return cmd
}

func (m *migration) run() error {
	switch {
	case len(m.files) == 0:
		return cli.Exitf(cli.CodeUsage, "-f is missing\nSee 'kubectl access migrate --help'")
	case m.subjects != "Requester" && m.subjects != "Groups":
		return cli.Exitf(cli.CodeUsage, "--subjects %q: must be Requester or Groups", m.subjects)
	}
	for _, name := range m.files {
		if err := m.read(name); err != nil {
			return err
		}
	}
	m.Sayf("%d of %d objects are rewritten; %d cannot be carried over, %d fields are dropped", m.written, m.seen, m.lost, m.dropped)
	switch {
	case m.lost > 0:
		return cli.Exitf(cli.CodeError, "%d objects cannot be carried over", m.lost)
	case m.strict && m.dropped > 0:
		return cli.Exitf(cli.CodeError, "--strict: %d fields are dropped", m.dropped)
	case m.written == 0:
		return cli.Exitf(cli.CodeNotFound, "there is no manifest of Oz in %q", m.files)
	}
	return nil
}

// read migrates what is in a file, in the files of a directory, or in standard input.
func (m *migration) read(name string) error {
	if name == "-" {
		return m.migrate("standard input", m.In)
	}
	info, err := os.Stat(name)
	if err != nil {
		return cli.Exitf(cli.CodeUsage, "-f: %w", err)
	}
	if !info.IsDir() {
		return m.readFile(name)
	}
	entries, err := os.ReadDir(name)
	if err != nil {
		return cli.Exitf(cli.CodeUsage, "-f: %w", err)
	}
	for _, entry := range entries {
		path := filepath.Join(name, entry.Name())
		switch {
		case entry.IsDir() && m.recursive:
			err = m.read(path)
		case entry.Type().IsRegular() && slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(path)):
			err = m.readFile(path)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (m *migration) readFile(name string) error {
	file, err := os.Open(name) //nolint:gosec // the user names it
	if err != nil {
		return cli.Exitf(cli.CodeUsage, "-f: %w", err)
	}
	return errors.Join(m.migrate(name, file), file.Close())
}

// migrate rewrites the documents of a stream.
func (m *migration) migrate(name string, in io.Reader) error {
	raw, err := io.ReadAll(io.LimitReader(in, maxManifest+1))
	if err != nil {
		return cli.Exitf(cli.CodeError, "%s: %w", name, err)
	}
	if len(raw) > maxManifest {
		return cli.Exitf(cli.CodeUsage, "%s: more than %d bytes; split it", name, maxManifest)
	}
	if err := checkAliases(raw); err != nil {
		return cli.Exitf(cli.CodeUsage, "%s: %w", name, err)
	}
	for document, err := range manifest.Documents(bytes.NewReader(raw)) {
		object := map[string]any{}
		if err == nil {
			err = json.Unmarshal(document, &object)
		}
		if err != nil {
			return cli.Exitf(cli.CodeUsage, "%s: %w", name, err)
		}
		if err := m.object(name, object); err != nil {
			return err
		}
	}
	return nil
}

// checkAliases refuses a stream in which YAML's aliases stand for more than a file may have:
// each becomes a copy in the JSON that is decoded.
func checkAliases(raw []byte) error {
	if !bytes.ContainsRune(raw, '&') || !bytes.ContainsRune(raw, '*') {
		return nil
	}
	documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(raw)))
	for {
		text, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		var document goyaml.Node
		if err == nil {
			err = goyaml.Unmarshal(text, &document)
		}
		if err != nil {
			return err
		}
		if expanded(&document, map[*goyaml.Node]int{}) > maxManifest {
			return fmt.Errorf("its aliases stand for more than %d bytes; write less of it by aliases", maxManifest)
		}
	}
}

// expanded returns how many bytes the texts of a node have where each alias is a copy, and
// not much more than maxManifest.
func expanded(node *goyaml.Node, known map[*goyaml.Node]int) int {
	if node.Alias != nil {
		node = node.Alias
	}
	if size, ok := known[node]; ok {
		return size
	}
	known[node] = 0 // one that contains itself is refused when it is decoded
	size := len(node.Value) + 1
	for _, child := range node.Content {
		size = min(size+expanded(child, known), maxManifest+1)
	}
	known[node] = size
	return size
}

// object rewrites one object, or those of a list.
func (m *migration) object(name string, object map[string]any) error {
	if items, isList := object["items"].([]any); isList {
		for _, item := range items {
			if item, ok := item.(map[string]any); ok {
				if err := m.object(name, item); err != nil {
					return err
				}
			}
		}
		return nil
	}
	if len(object) == 0 {
		return nil // an empty document
	}
	if m.seen++; m.seen > maxManifests {
		return cli.Exitf(cli.CodeUsage, "more than %d objects; migrate fewer at a time", maxManifests)
	}
	u := unstructured.Unstructured{Object: object}
	what := fmt.Sprintf("%s: %s %s", name, u.GetKind(), u.GetName()+u.GetGenerateName())
	if u.GetNamespace() != "" {
		what = fmt.Sprintf("%s: %s %s/%s", name, u.GetKind(), u.GetNamespace(), u.GetName()+u.GetGenerateName())
	}
	if !isOz(u.GetAPIVersion()) {
		m.Sayf("%s", cli.EscapeLine(what+": skipped: not a manifest of Oz"))
		return nil
	}
	o := &ozObject{Unstructured: u, subjects: m.subjects}
	o.migrate()
	slices.Sort(o.notes) // what is lost, changed and dropped
	for _, note := range o.notes {
		m.Sayf("%s", cli.EscapeLine(what+": "+note))
	}
	m.dropped += o.dropped
	if o.lost {
		m.lost++
		return nil
	}
	text, err := yaml.Marshal(o.Object)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if m.written++; m.written > 1 {
		text = append([]byte("---\n"), text...)
	}
	_, err = m.Out.Write(text)
	return err
}
