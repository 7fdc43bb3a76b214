package command

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	"k8s.io/client-go/rest"

	"github.com/admitkit/admitkit/internal/offline"
	"github.com/admitkit/admitkit/internal/scan"
	"github.com/admitkit/admitkit/manager"
	"github.com/admitkit/admitkit/manager/internal/apiserver"
	installed "github.com/admitkit/admitkit/manager/internal/manifests"
)

// scanning runs the extensions on what a cluster stores.
type scanning struct {
	flags *flags
	build Build

	output   string
	as       asUser
	findings int
	every    time.Duration
	reports  bool
}

const aboutScan = `Run the extensions on every object that the cluster stores and their scopes cover, and
print what they would refuse or change, by extension and namespace. It changes nothing:
each request is a dry run, and what an extension writes or connects to all the same is refused.

Each object counts as one that is created, and as an update that changes nothing:

  DENIED    it could not be created today
  STUCK     nobody can update it, not even its labels or finalizers
  CHANGED   an extension would change it
  FAILED    an extension had an error, panicked or took too long
  EXEMPTED  an exemption let it pass an extension

All modes count, so that you see what enforcing would do. Admissions without a stored object,
such as CONNECT, DELETE and requests to subresources, are named, and so are Reports. Unless you set --user, some
objects are sent as another user, too: findings that depend on it are told apart, and not
counted.

It lists each resource in pages of one snapshot, and needs the right to list what the scopes
cover, to list namespaces, and what the extensions read.

The flags of the other subcommands are accepted, and those that are not listed here change
nothing.

Exit codes: 0 nothing is denied, stuck or failed; 1 something is; 2 a flag or a scope is
wrong, or something could not be scanned.`

func newScan(name string, f *flags, build Build) *cobra.Command {
	s := &scanning{flags: f, build: build}
	cmd := &cobra.Command{
		Use:   "scan",
		Short: "Run the extensions on what the cluster stores, and change nothing",
		Long:  aboutScan,
		Example: strings.ReplaceAll(`  NAME scan
  NAME scan --namespace shop --user alice --groups developers
  NAME scan -o sarif > scan.sarif`, "NAME", name),
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return s.run(cmd) },
	}
	set := cmd.Flags()
	set.StringVarP(&s.output, "output", "o", "table", strings.Join(scan.Formats(), ", "))
	set.DurationVar(&s.every, "every", 0, "scan again and again, after this time, in one replica at a time; metrics, and with --reports the Reports, have what was found (default: once)")
	set.BoolVar(&s.reports, "reports", false, "keep a Report (openreports.io/v1alpha1, or wgpolicyk8s.io/v1alpha2 where only that is served) for each object with a finding, and remove it with the finding or the object")
	set.IntVar(&s.findings, "findings", scan.DefaultFindings, "how many findings are kept; the rest is only counted")
	s.bindUser(cmd)
	return cmd
}

// bindUser defines the flags about the user, and leaves those out of the help that change nothing.
func (s *scanning) bindUser(cmd *cobra.Command) {
	s.as.bind(cmd.Flags())
	s.flags.hideInHelp(cmd, append(slices.Clone(ofReview), "kubeconfig"))
}

func (s *scanning) run(cmd *cobra.Command) error {
	if err := s.check(cmd); err != nil {
		return wrong(err)
	}
	mgr, options, with, err := s.manager(cmd)
	if err != nil {
		return err
	}
	stop, err := mgr.StartCaches(cmd.Context())
	defer stop()
	if err != nil {
		return wrong(err)
	}
	if s.every > 0 {
		return s.repeat(cmd.Context(), options, with)
	}
	var reports *scan.Reports
	if s.reports {
		if reports, err = reportsOf(cmd.Context(), options, mgr.GetFingerprint()+installed.OfScans); err != nil {
			return err
		}
	}
	done := func() {}
	if out, is := cmd.ErrOrStderr().(*os.File); is && term.IsTerminal(int(out.Fd())) {
		with.Progress, done = progress(out)
	}
	result, err := scan.Run(cmd.Context(), with)
	done()
	if err != nil {
		return err
	}
	if err := result.Write(cmd.OutOrStdout(), s.output, cmd.Root().Name()); err != nil {
		return err
	}
	if reports != nil {
		if err := reports.Write(cmd.Context(), result); err != nil {
			return errors.Join(problemOf(result), fmt.Errorf("--reports: %w", err))
		}
	}
	return problemOf(result)
}

// check returns what is wrong with the flags.
func (s *scanning) check(cmd *cobra.Command) error {
	switch {
	case !slices.Contains(scan.Formats(), s.output):
		return fmt.Errorf("--output: %q: must be %s", s.output, strings.Join(scan.Formats(), ", "))
	case s.findings < 1:
		return fmt.Errorf("--findings: %d: must be at least 1", s.findings)
	case s.every != 0 && s.every < leastEvery:
		return fmt.Errorf("--every: %s: must be at least %s", s.every, leastEvery)
	case s.every > 0 && cmd.Flags().Changed("output"):
		return errors.New("--output: nothing is printed with --every")
	case s.every > 0:
		return nil
	}
	return quiet(cmd)
}

// manager returns a manager that only reads, the options that the flags give, and those of a
// scan with its webhooks.
func (s *scanning) manager(cmd *cobra.Command) (*manager.Manager, manager.Options, scan.Options, error) {
	var with scan.Options
	options, err := s.options(cmd)
	if err != nil {
		return nil, options, with, wrong(err)
	}
	mgr, err := newManager(unserved(reading(options)), s.build)
	if err != nil {
		return nil, options, with, err
	}
	webhooks, err := mgr.Webhooks(cmd.Context())
	if err != nil {
		return nil, options, with, wrong(err)
	}
	with = scan.Options{User: s.as.info(), Client: mgr.GetKubeManager().GetHTTPClient(), Webhooks: webhooks, Findings: s.findings, Engine: offline.Options{Converters: mgr.Converters()}}
	with.Engine.Webhook.Exemptions = mgr.Exemptions()
	with.Config, err = mgr.GetKubeConnection()
	return mgr, options, with, err
}

// options returns the options of the flags, which it checks.
func (s *scanning) options(cmd *cobra.Command) (manager.Options, error) {
	if err := s.as.check(); err != nil {
		return manager.Options{}, err
	}
	return s.flags.connected(cmd)
}

// connected returns the options of the flags, with a connection.
func (f *flags) connected(cmd *cobra.Command) (manager.Options, error) {
	options, err := f.complete(cmd)
	if err != nil || options.RESTConfig != nil {
		return options, err
	}
	if options.RESTConfig, err = apiserver.Config(options.KubeConfig); err != nil {
		return options, fmt.Errorf("manager options: KubeConfig: %w", err)
	}
	options.KubeConfig = ""
	return options, nil
}

// reading returns the options of a manager that changes nothing.
func reading(options manager.Options) manager.Options {
	options.RESTConfig = rest.CopyConfig(options.RESTConfig)
	options.RESTConfig.Wrap(scan.ReadOnly)
	return options
}

// progress shows on a terminal how far a scan is. done removes it.
func progress(out io.Writer) (show func(resource string, done, all int), done func()) {
	const erase = "\r\x1b[K"
	return func(resource string, count, all int) {
			of := ""
			if all > 0 {
				of = fmt.Sprintf(" of %d", all)
			}
			_, _ = fmt.Fprintf(out, "%s%s: %d%s", erase, resource, count, of)
		}, func() {
			_, _ = io.WriteString(out, erase)
		}
}

// problemOf returns why the scan fails, nil if it does not.
func problemOf(result *scan.Result) error {
	var problems []string
	for _, outcome := range []scan.Outcome{scan.Denied, scan.Stuck, scan.Failed} {
		if total := result.Total(outcome); total > 0 {
			problems = append(problems, fmt.Sprintf("%d %s", total, outcome))
		}
	}
	var found error
	if len(problems) > 0 {
		found = errors.New(strings.Join(problems, ", "))
	}
	if len(result.Incomplete) > 0 {
		return wrong(errors.Join(found, fmt.Errorf("not everything could be scanned:\n  %s", offline.Printable(strings.Join(result.Incomplete, "\n  ")))))
	}
	return found
}
