package command

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"

	"github.com/spf13/cobra"

	"github.com/admitkit/admitkit/internal/replay"
	"github.com/admitkit/admitkit/manager/buildinfo"
	"github.com/admitkit/admitkit/webhook"
)

// replaying runs today's extensions on recorded admissions.
type replaying struct {
	review // its manager, and what extensions read
	update bool
}

const aboutReplay = `Send the admissions that a server kept with --record to the extensions of this program,
without a cluster, and print what they answer differently: the decision, its code and
reason, the object after the patch, warnings and audit annotations, a few examples of
each; and webhooks that no longer exist, or are in another mode. Times are printed by
percentile beside the recorded ones, and are no difference.

Each request goes to the webhook that it was recorded of. Scopes are not asked: the API
server called that webhook. An extension that reads something in the cluster fails,
unless --with gives the objects that are there. One that goes by the time, or by what it
saw before, may answer differently for that reason.

Secrets were replaced when the admissions were recorded. Of a difference in a request with
such a value, the paths are printed: it may be due to them.

With --update the answers of this program take the place of the recorded ones where they
differ, for tests in CI. The flags of the other subcommands are accepted, and those that
are not listed here change nothing.

Exit codes: 0 nothing differs, or --update; 1 something differs; 2 a flag or a scope is
wrong, or nothing is recorded there.`

func newReplay(name string, f *flags, build Build) *cobra.Command {
	r := &replaying{review: review{flags: f, build: build}}
	cmd := &cobra.Command{
		Use:   "replay DIR [DIR...]",
		Short: "Run the extensions on recorded admissions, and print what differs",
		Long:  aboutReplay,
		Example: strings.ReplaceAll(`  NAME replay recordings/
  NAME replay testdata/recordings --with testdata/objects.yaml --update`, "NAME", name),
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return wrong(errors.New("name a folder of recordings, as --record made it"))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, dirs []string) error { return r.run(cmd, dirs) },
	}
	set := cmd.Flags()
	set.StringSliceVar(&r.with, "with", nil, "manifests of the objects that are in the cluster, for extensions that read or write; and of CustomResourceDefinitions and Namespaces")
	set.BoolVarP(&r.recursive, "recursive", "R", false, "read subfolders of --with too")
	set.StringVarP(&r.output, "output", "o", "text", "text or json")
	set.BoolVar(&r.update, "update", false, "write today's answers into the recordings where they differ")
	f.hideInHelp(cmd, ofReview)
	return cmd
}

func (r *replaying) run(cmd *cobra.Command, dirs []string) error {
	cluster, err := r.cluster(cmd)
	if err != nil {
		return wrong(err)
	}
	if r.output != "text" && r.output != "json" {
		return wrong(fmt.Errorf("--output: %q: must be text or json", r.output))
	}
	mgr, webhooks, stop, err := r.manage(cmd, cluster)
	if err != nil {
		return err
	}
	defer stop()
	report, err := replay.Run(cmd.Context(), dirs, replay.Options{
		Webhooks: webhooks, Update: r.update, Build: buildinfo.Get().Short(),
		Handling: webhook.HandlerOptions{Scheme: mgr.GetKubeManager().GetScheme(), Logger: mgr.GetLogger().Desugar(), Exemptions: mgr.Exemptions()},
	})
	if _, unreadable := errors.AsType[*fs.PathError](err); unreadable || errors.Is(err, replay.ErrNothing) {
		return wrong(err)
	}
	if err != nil {
		return err
	}
	if err := r.write(cmd.OutOrStdout(), report); err != nil {
		return err
	}
	if report.Differing > 0 && !r.update {
		return fmt.Errorf("%d of %d admissions differ; if they should, --update writes today's answers", report.Differing, report.Reviews)
	}
	return nil
}

func (r *replaying) write(w io.Writer, report *replay.Report) error {
	if r.output == "json" {
		encoder := json.NewEncoder(w)
		encoder.SetIndent("", "  ")
		return encoder.Encode(report)
	}
	_, err := io.WriteString(w, report.Text())
	return err
}
