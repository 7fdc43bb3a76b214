package sessions

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/operator/cmd/kubectl-access/internal/cli"
	"github.com/admitkit/admitkit/operator/internal/session/protocol"
	"github.com/admitkit/admitkit/operator/internal/session/sessionsapi"
)

// sessionsOf asks about recorded sessions.
type sessionsOf struct {
	*cli.Base
	rest      rest.Interface
	namespace string
}

// Command returns the commands about recorded sessions.
func Command(c *cli.Base) *cobra.Command {
	return cli.Group(&cobra.Command{
		Use: "sessions", Short: "List, replay, follow, search and end recorded sessions",
		Long: `List, replay, follow, search and end sessions that admitkit has recorded.

RBAC decides who may, in the namespace of the Pod: list and get on sessions show who,
where and when; get on sessions/log reads a recording, watch on it follows a live
session, and delete on sessions ends one. Each reading is on record, before you see
anything.

A recording has the escape sequences that the session printed. replay and watch send
them to your terminal as they are, as any replay does; with --text you get plain lines.`,
	}, listCommand(c), replayCommand(c), watchCommand(c), exportCommand(c), searchCommand(c), verifyCommand(c), endCommand(c))
}

// sessions connects.
func sessions(c *cli.Base, everywhere bool) (*sessionsOf, error) {
	namespace, _, err := c.Flags.ToRawKubeConfigLoader().Namespace()
	if err != nil {
		return nil, err
	}
	config, err := c.Flags.ToRESTConfig()
	if err != nil {
		return nil, err
	}
	config = rest.CopyConfig(config)
	version := sessionsapi.GroupVersion
	config.GroupVersion, config.APIPath = &version, "/apis"
	config.NegotiatedSerializer = plainJSON
	made, err := rest.RESTClientFor(config)
	if everywhere {
		namespace = ""
	}
	return &sessionsOf{Base: c, rest: made, namespace: namespace}, err
}

// get asks for something of the namespace, or of one session in it.
func (s *sessionsOf) get(parts ...string) *rest.Request {
	return s.rest.Get().NamespaceIfScoped(s.namespace, s.namespace != "").Suffix(append([]string{sessionsapi.Resource}, parts...)...)
}

// each hands over all sessions, the newest first.
func (s *sessionsOf) each(ctx context.Context, selector string, hand func(*unstructured.Unstructured) error) error {
	for next := ""; ; {
		request := s.get().SetHeader("Accept", "application/json").Param("limit", "500")
		for name, value := range map[string]string{"continue": next, "fieldSelector": selector} {
			if value != "" {
				request.Param(name, value)
			}
		}
		text, err := bodyOf(request.Do(ctx))
		if err != nil {
			return s.explained(err)
		}
		list := &unstructured.UnstructuredList{}
		if err := list.UnmarshalJSON(text); err != nil {
			return err
		}
		for i := range list.Items {
			if err := hand(&list.Items[i]); err != nil {
				return err
			}
		}
		if next = list.GetContinue(); next == "" {
			return nil
		}
	}
}

// bodyOf returns what the API server answered. The error of Raw alone has not its reason.
func bodyOf(result rest.Result) ([]byte, error) {
	if err := result.Error(); err != nil {
		return nil, err
	}
	return result.Raw()
}

// explained says what to do about an error.
func (s *sessionsOf) explained(err error) error {
	status := apierrors.APIStatus(nil)
	switch {
	case apierrors.IsNotFound(err) && errors.As(err, &status) && status.Status().Details != nil && status.Status().Details.Name != "":
		return cli.Exitf(cli.CodeNotFound, "%w in namespace %s: 'kubectl access sessions list -A' has all that you may see", err, s.namespace)
	case apierrors.IsNotFound(err):
		return cli.Exitf(cli.CodeNotFound, "this cluster has no API for recorded sessions: it is there with admitkit --sessions --sessions-api, in the chart sessions.api.enabled")
	case apierrors.IsBadRequest(err):
		return cli.Exitf(cli.CodeUsage, "%w", err)
	case apierrors.IsServiceUnavailable(err):
		return cli.Exitf(cli.CodeError, "%w\nIf it stays so: kubectl get apiservice %s.%s says whether the API server reaches admitkit", err, sessionsapi.GroupVersion.Version, sessionsapi.GroupVersion.Group)
	case apierrors.IsForbidden(err):
		reason, _ := cli.Denial(err)
		return cli.Exitf(cli.CodeRefused, "you have no right to do this: %s\nAn administrator can give you the verb on this resource in the API group %s", reason, sessionsapi.GroupVersion.Group)
	}
	return cli.Explained(err)
}

func listCommand(c *cli.Base) *cobra.Command {
	var everywhere, live bool
	var user, pod, since, until string
	cmd := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List recorded sessions, the newest first",
		Long: `List recorded sessions, the newest first. --since and --until take a duration such as
24h or 7d, which is that long ago, or a time such as 2026-11-21T09:00:00Z.`,
		Example: "  # Which sessions go on, anywhere\n  kubectl access sessions list -A --live\n\n  # What alice did in this namespace in the last week\n  kubectl access sessions list --user alice --since 7d",
		Args:    cli.Exactly(),
	}
	flags := cmd.Flags()
	flags.BoolVarP(&everywhere, "all-namespaces", "A", false, "sessions in all namespaces")
	flags.BoolVar(&live, "live", false, "only sessions that go on")
	flags.StringVar(&user, "user", "", "only sessions of this user")
	flags.StringVar(&pod, "pod", "", "only sessions in this Pod")
	flags.StringVar(&since, "since", "", "only sessions that began since this time")
	flags.StringVar(&until, "until", "", "only sessions that began before this time")
	_ = cmd.RegisterFlagCompletionFunc("pod", c.CompletePods)
	output := c.AddOutputFlags(cmd, sessionColumns)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		show, err := output.ListPrinter(everywhere)
		if err != nil {
			return err
		}
		began, err := cli.NewSpan(since, until)
		if err != nil {
			return err
		}
		s, err := sessions(c, everywhere)
		if err != nil {
			return err
		}
		var found []client.Object
		if err := s.each(cmd.Context(), selected(live, user, pod), func(session *unstructured.Unstructured) error {
			if began.Has(session.GetCreationTimestamp().Time) {
				found = append(found, session)
			}
			return nil
		}); err != nil {
			return err
		}
		if len(found) == 0 {
			what := "sessions"
			if live || user+pod+since+until != "" {
				what = "such sessions"
			}
			c.Sayf("no %s found%s", what, cli.InNamespace(s.namespace, everywhere))
		}
		return show(found...)
	}
	return cmd
}

// selected returns the field selector of flags.
func selected(live bool, user, pod string) string {
	var terms []string
	if live {
		terms = append(terms, "status.state=Live")
	}
	escape := strings.NewReplacer(`\`, `\\`, ",", `\,`, "=", `\=`).Replace
	if user != "" {
		terms = append(terms, "spec.user="+escape(user))
	}
	if pod != "" {
		terms = append(terms, "spec.pod="+escape(pod))
	}
	return strings.Join(terms, ",")
}

// ofSession returns a field as text.
func ofSession(path ...string) func(client.Object) string {
	return func(object client.Object) string {
		value, _, _ := unstructured.NestedFieldNoCopy(object.(*unstructured.Unstructured).Object, path...)
		if value == nil {
			return ""
		}
		return fmt.Sprint(value)
	}
}

var sessionColumns = []cli.Column{
	{Name: "NAMESPACE", Of: client.Object.GetNamespace},
	{Name: "ID", Of: client.Object.GetName},
	{Name: "USER", Of: ofSession("spec", "user")},
	{Name: "POD", Of: ofSession("spec", "pod")},
	{Name: "STATE", Of: ofSession("status", "state")},
	{Name: "BYTES", Of: ofSession("status", "bytes")},
	{Name: "AGE", Of: cli.Age},
	{Name: "CONTAINER", Wide: true, Of: ofSession("spec", "container")},
	{Name: "IDLE", Wide: true, Of: func(object client.Object) string {
		at, err := time.Parse(time.RFC3339, ofSession("status", "lastActiveTime")(object))
		if err != nil {
			return ""
		}
		return duration.HumanDuration(time.Since(at))
	}},
	{Name: "EXIT", Wide: true, Of: ofSession("status", "exitCode")},
	{Name: "REASON", Wide: true, Of: ofSession("status", "reason")},
	{Name: "GRANT", Wide: true, Of: ofSession("spec", "grant", "name")},
}

// open returns a recording. The caller closes it.
func (s *sessionsOf) open(ctx context.Context, id, as string, live bool) (io.ReadCloser, error) {
	request := s.get(id, sessionsapi.Log)
	if live {
		request = s.rest.Get().Prefix("watch").Namespace(s.namespace).Suffix(sessionsapi.Resource, id, sessionsapi.Log)
	}
	if as != "" {
		request.Param("as", as)
	}
	text, err := request.Stream(ctx)
	if live && apierrors.IsConflict(err) {
		return nil, cli.Exitf(cli.CodeError, "session %s does not go on: 'kubectl access sessions replay %s' plays what there is", id, id)
	}
	return text, s.explained(err)
}

func replayCommand(c *cli.Base) *cobra.Command {
	player := &player{Base: c}
	cmd := &cobra.Command{
		Use: "replay ID", Short: "Replay a session in this terminal",
		Long: `Replay a session in this terminal, as fast as it was.

The escape sequences of the recording go to your terminal, as in any replay: somebody may
have printed some to mislead you. --text prints plain lines instead.`,
		Example: "  # Twice as fast, and no pause longer than 2 s\n  kubectl access sessions replay ID --speed 2 --idle-limit 2s\n\n  # Only what was printed, at once\n  kubectl access sessions replay ID --text",
		Args:    oneSession, ValidArgsFunction: completeSessions(c, ""),
	}
	cmd.Flags().Float64Var(&player.speed, "speed", 1, "how many times faster than it was")
	cmd.Flags().DurationVar(&player.idle, "idle-limit", 0, "no pause is longer than this; 0 for as long as it was")
	cmd.Flags().BoolVar(&player.text, "text", false, "print plain lines at once, without escape sequences")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if player.speed <= 0 || player.idle < 0 {
			return cli.Exitf(cli.CodeUsage, "--speed must be more than 0, and --idle-limit not less")
		}
		if flags := cmd.Flags(); player.text && (flags.Changed("speed") || flags.Changed("idle-limit")) {
			return cli.Exitf(cli.CodeUsage, "--text prints at once: leave out --speed and --idle-limit")
		}
		player.timed = !player.text
		return player.run(cmd.Context(), args[0], false)
	}
	return cmd
}

func watchCommand(c *cli.Base) *cobra.Command {
	player := &player{Base: c}
	cmd := &cobra.Command{
		Use: "watch ID", Short: "Follow a live session, from its beginning until it ends",
		Long: `Follow a live session in this terminal, read-only. What it has printed so far comes at
once, and the rest as it is recorded.

The escape sequences of the session go to your terminal, as in any replay: somebody may
print some to mislead you. --text prints plain lines instead.`,
		Example: "  kubectl access sessions list --live\n  kubectl access sessions watch ID",
		Args:    oneSession, ValidArgsFunction: completeSessions(c, "status.state=Live"),
	}
	cmd.Flags().BoolVar(&player.text, "text", false, "print plain lines, without escape sequences")
	cmd.RunE = func(cmd *cobra.Command, args []string) error { return player.run(cmd.Context(), args[0], true) }
	return cmd
}

func exportCommand(c *cli.Base) *cobra.Command {
	file := ""
	cmd := &cobra.Command{
		Use: "export ID", Short: "Write a session as an asciicast file",
		Long:    "Write a session as an asciicast file of version 3, for asciinema and others.",
		Example: "  kubectl access sessions export ID -o session.cast\n  asciinema play session.cast",
		Args:    oneSession, ValidArgsFunction: completeSessions(c, ""),
	}
	cmd.Flags().StringVarP(&file, "output", "o", "", "file to write, which must not exist (default: standard output)")
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		s, err := sessions(c, false)
		if err != nil {
			return err
		}
		text, err := s.open(cmd.Context(), args[0], "", false)
		if err != nil {
			return err
		}
		defer func() { _ = text.Close() }()
		if file == "" {
			_, err = io.Copy(c.Out, text)
			return cut(err)
		}
		to, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return cli.Exitf(cli.CodeError, "--output: %w", err)
		}
		_, err = io.Copy(to, text)
		if err = errors.Join(err, to.Close()); err != nil {
			_ = os.Remove(file) // a part of a recording is not one
			return cut(err)
		}
		return nil
	}
	return cmd
}

// cut explains an answer that broke off.
func cut(err error) error {
	if err == nil || errors.Is(err, context.Canceled) {
		return cli.Explained(err)
	}
	return cli.Exitf(cli.CodeError, "the recording broke off, and this is a part of it: %w", err)
}

func searchCommand(c *cli.Base) *cobra.Command {
	var everywhere, asJSON bool
	var user, pod string
	cmd := &cobra.Command{
		Use: "search TEXT", Short: "Search what sessions have printed",
		Long: `Search what sessions have printed, the newest first, without the escape sequences. It
needs get on sessions/log for all sessions of the namespace. A search reads 256 MiB, takes
30 s and finds 100 lines at most, and says so if there may be more.`,
		Example: "  kubectl access sessions search 'BEGIN PRIVATE KEY' -A",
		Args:    cli.Exactly("TEXT"),
	}
	flags := cmd.Flags()
	flags.BoolVarP(&everywhere, "all-namespaces", "A", false, "sessions in all namespaces")
	flags.BoolVar(&asJSON, "json", false, "print the answer as JSON")
	flags.StringVar(&user, "user", "", "only sessions of this user")
	flags.StringVar(&pod, "pod", "", "only sessions in this Pod")
	_ = cmd.RegisterFlagCompletionFunc("pod", c.CompletePods)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		s, err := sessions(c, everywhere)
		if err != nil {
			return err
		}
		request := s.get().SetHeader("Accept", "application/json").Param("search", args[0])
		if selector := selected(false, user, pod); selector != "" {
			request.Param("fieldSelector", selector)
		}
		text, err := bodyOf(request.Do(cmd.Context()))
		if err != nil {
			return s.explained(err)
		}
		var found sessionsapi.SessionSearch
		if err := json.Unmarshal(text, &found); err != nil {
			return err
		}
		if asJSON {
			_, err := c.Out.Write(text)
			return err
		}
		for _, hit := range found.Items {
			_, _ = fmt.Fprintf(c.Out, "%s %s %s/%s %s: %s\n", hit.Session, cli.EscapeLine(hit.User), hit.Namespace, hit.Pod, hit.At.Round(time.Second), cli.EscapeLine(hit.Line))
		}
		if found.Incomplete != "" {
			c.Sayf("warning: %s", cli.Escape(found.Incomplete))
		}
		if len(found.Items) == 0 {
			c.Sayf("not found in %d sessions%s", found.Searched, cli.InNamespace(s.namespace, everywhere))
		}
		return nil
	}
	return cmd
}

func verifyCommand(c *cli.Base) *cobra.Command {
	cmd := &cobra.Command{
		Use: "verify ID", Short: "Check that a recording is whole and unchanged",
		Long: `Check that a recording is as it was made: the chain of its sums and its seal, which only
the key of this installation makes. It exits with 1 if not. A recording that was removed is
not there at all: compare the AuditEvents (kubectl access audit).`,
		Args: oneSession, ValidArgsFunction: completeSessions(c, ""),
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		s, err := sessions(c, false)
		if err != nil {
			return err
		}
		text, err := bodyOf(s.get(args[0], sessionsapi.Log).SetHeader("Accept", "application/json").Param("as", "seal").Do(cmd.Context()))
		if err != nil {
			return s.explained(err)
		}
		var seal sessionsapi.SessionSeal
		if err := json.Unmarshal(text, &seal); err != nil {
			return err
		}
		if !seal.Valid {
			return cli.Exitf(cli.CodeError, "%s", seal.Reason)
		}
		return cli.Lines(c.Out, "Session", args[0], "Valid", "yes", "Frames", strconv.FormatInt(seal.Frames, 10), "Bytes", strconv.FormatInt(seal.Bytes, 10), "SHA256", seal.SHA256, "Ended", cli.Moment(seal.EndTime))
	}
	return cmd
}

func endCommand(c *cli.Base) *cobra.Command {
	cmd := &cobra.Command{
		Use: "end ID", Short: "End a live session",
		Long:    "End a live session. Its user is told by whom. The recording stays.",
		Example: "  kubectl access sessions list --live\n  kubectl access sessions end ID",
		Args:    oneSession, ValidArgsFunction: completeSessions(c, "status.state=Live"),
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		s, err := sessions(c, false)
		if err != nil {
			return err
		}
		ctx := cmd.Context()
		if err := s.rest.Delete().Namespace(s.namespace).Suffix(sessionsapi.Resource, args[0]).SetHeader("Accept", "application/json").Do(ctx).Error(); err != nil {
			return s.explained(err)
		}
		for deadline := time.Now().Add(endTime); time.Now().Before(deadline); {
			text, err := bodyOf(s.get(args[0]).SetHeader("Accept", "application/json").Do(ctx))
			var session sessionsapi.Session
			if err == nil {
				err = json.Unmarshal(text, &session)
			}
			switch {
			case apierrors.IsForbidden(err):
				c.Sayf("session %s ends within seconds", args[0])
				return nil
			case err != nil:
				return s.explained(err)
			case session.Status.State != sessionsapi.Live:
				c.Sayf("session %s has ended", args[0])
				return nil
			}
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
				return cli.Exitf(cli.CodeInterrupted, "interrupted")
			}
		}
		return cli.Exitf(cli.CodeTimeout, "session %s goes on after %s, although it was told to end: its recorder may have been stopped. 'kubectl access sessions list -o wide' shows it; delete its Pod to be sure", args[0], endTime)
	}
	return cmd
}

// oneSession requires the ID of a session, also as `list -o name` prints it.
func oneSession(cmd *cobra.Command, args []string) error {
	if err := cli.Exactly("ID")(cmd, args); err != nil {
		return err
	}
	for _, kind := range []string{"session." + sessionsapi.GroupVersion.Group, "session", "sessions"} {
		if id, found := strings.CutPrefix(args[0], kind+"/"); found {
			args[0] = id // RunE gets these arguments
		}
	}
	if !protocol.ValidID(args[0]) {
		return cli.Exitf(cli.CodeUsage, "%q is no ID of a session, which has 32 hexadecimal digits: 'kubectl access sessions list' has them", args[0])
	}
	return nil
}

// endTime is how long a session may take to end: its recorder gives the command seconds.
const endTime = 30 * time.Second

// completeSessions completes the ID of a session.
func completeSessions(c *cli.Base, selector string) cobra.CompletionFunc {
	return cli.FirstArgument(func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		s, err := sessions(c, false)
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		var ids []string
		full := errors.New("there are enough")
		err = s.each(cmd.Context(), selector, func(session *unstructured.Unstructured) error {
			ids = append(ids, cobra.CompletionWithDesc(session.GetName(), cli.EscapeLine(cmp.Or(ofSession("spec", "user")(session), "?")+" in "+ofSession("spec", "pod")(session))))
			if len(ids) >= 100 {
				return full
			}
			return nil
		})
		if err != nil && !errors.Is(err, full) {
			return nil, cobra.ShellCompDirectiveError
		}
		return slices.Clip(ids), cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
	})
}
