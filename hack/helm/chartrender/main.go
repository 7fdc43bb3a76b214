// Command chartrender renders and lints charts with Helm's own library. It answers one
// request after another, so that tests with hundreds of values start one process.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"

	"helm.sh/helm/v4/pkg/action"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	release "helm.sh/helm/v4/pkg/release/v1"
)

// request is in JSON on the standard input.
type request struct {
	Chart, Release, Namespace string
	// Values are in YAML.
	Values string
	// Lint has the chart linted strictly, in place of rendered.
	Lint bool
}

// answer is in JSON on the standard output.
type answer struct {
	Manifest, Hooks, Notes, Error string
}

func main() {
	slog.SetDefault(slog.New(slog.DiscardHandler)) // every error is in an answer
	if err := serve(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "chartrender:", err)
		os.Exit(1)
	}
}

// serve answers requests until there are no more.
func serve(in io.Reader, out io.Writer) error {
	charts := map[string]*chart.Chart{}
	requests, answers := json.NewDecoder(in), json.NewEncoder(out)
	for {
		var r request
		if err := requests.Decode(&r); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		a, err := r.answer(charts)
		if err != nil {
			a.Error = err.Error()
		}
		if err := answers.Encode(a); err != nil {
			return err
		}
	}
}

func (r request) answer(charts map[string]*chart.Chart) (a answer, err error) {
	values, err := loader.LoadValues(strings.NewReader(r.Values))
	if err != nil {
		return a, err
	}
	if r.Lint {
		lint := action.NewLint()
		lint.Strict, lint.Namespace = true, r.Namespace
		return a, errors.Join(lint.Run([]string{r.Chart}, values).Errors...)
	}
	if charts[r.Chart] == nil {
		if charts[r.Chart], err = loader.Load(r.Chart); err != nil {
			return a, err
		}
	}
	install := action.NewInstall(action.NewConfiguration())
	install.DryRunStrategy, install.ReleaseName, install.Namespace = action.DryRunClient, r.Release, r.Namespace
	made, err := install.Run(charts[r.Chart], values)
	if err != nil {
		return a, err
	}
	rendered := made.(*release.Release)
	a.Manifest, a.Notes = rendered.Manifest, rendered.Info.Notes
	for _, hook := range rendered.Hooks {
		a.Hooks += fmt.Sprintf("---\n# Source: %s\n%s\n", hook.Path, hook.Manifest)
	}
	return a, nil
}
