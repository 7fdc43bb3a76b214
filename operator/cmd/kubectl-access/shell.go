package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/operator/cmd/kubectl-access/internal/cli"
)

// runShell runs the access command. A template's author wrote it, but it has the
// engineer's rights. So no shell interprets it, and it runs only if it does
// nothing but use the Pod of the request.
func (a *ask) runShell(ctx context.Context, cl client.WithWatch, req request) error {
	message := req.GetRequestStatus().AccessMessage
	args, err := podCommand(message, req.GetNamespace(), req.GetRequestStatus().PodName)
	if err != nil {
		return cli.Exitf(cli.CodeError, "the access command is not run: %w\nAccess is there all the same. Run it yourself if you trust it: %s", err, message)
	}
	a.Sayf("running: kubectl %s", cli.Escape(cli.CommandLine(args)))
	stop := a.expiryNotice(context.WithoutCancel(ctx), cl, req)
	err = a.Kubectl(ctx, args)
	stop()
	return err
}

// shellCommands are the kubectl commands that --shell runs, each with the flags
// that concern only the Pod. Everything else is refused, above all connection
// flags, which can name a program to run for credentials; files and cp, which
// could copy the engineer's files to the Pod; and selectors and copies, which
// concern other Pods.
var shellCommands = map[string]func(*pflag.FlagSet){
	"exec":   session,
	"attach": session,
	"debug": func(flags *pflag.FlagSet) {
		session(flags)
		for _, name := range []string{"image", "image-pull-policy", "target", "profile"} {
			flags.String(name, "", "")
		}
	},
	"logs": func(flags *pflag.FlagSet) {
		flags.StringP("container", "c", "", "")
		flags.BoolP("follow", "f", false, "")
		flags.BoolP("previous", "p", false, "")
		for _, name := range []string{"all-containers", "prefix", "timestamps"} {
			flags.Bool(name, false, "")
		}
		for _, name := range []string{"since", "since-time", "tail"} {
			flags.String(name, "", "")
		}
	},
	"port-forward": func(*pflag.FlagSet) {},
	"get": func(flags *pflag.FlagSet) {
		flags.StringP("output", "o", "", "")
		flags.BoolP("watch", "w", false, "")
	},
}

func session(flags *pflag.FlagSet) {
	flags.BoolP("stdin", "i", false, "")
	flags.BoolP("tty", "t", false, "")
	flags.BoolP("quiet", "q", false, "")
	flags.StringP("container", "c", "", "")
}

// podCommand returns kubectl's arguments for an access command, or an error if it
// does more than use the Pod. It builds them from what it parsed, so that kubectl
// cannot parse the text in another way.
func podCommand(message, namespace, pod string) ([]string, error) {
	words, err := splitWords(message)
	if err != nil {
		return nil, err
	}
	if len(words) == 0 || words[0] != "kubectl" {
		return nil, errors.New("it is not a kubectl command")
	}
	in := namespace
	flagSet := func(name string) *pflag.FlagSet {
		flags := pflag.NewFlagSet(name, pflag.ContinueOnError)
		flags.SetOutput(io.Discard)
		flags.StringVarP(&in, "namespace", "n", in, "")
		return flags
	}
	before := flagSet("kubectl")
	before.SetInterspersed(false)
	if err := before.Parse(words[1:]); err != nil {
		return nil, refusedFlag(before, err)
	}
	define, known := shellCommands[before.Arg(0)]
	if !known {
		return nil, fmt.Errorf("--shell does not run kubectl %s, but only attach, debug, exec, get, logs, port-forward", before.Arg(0))
	}
	name := before.Arg(0)
	flags := flagSet("kubectl " + name)
	define(flags)
	if err := flags.Parse(before.Args()[1:]); err != nil {
		return nil, refusedFlag(flags, err)
	}
	about, command := flags.Args(), []string(nil)
	if dash := flags.ArgsLenAtDash(); dash >= 0 {
		about, command = about[:dash], append([]string{"--"}, about[dash:]...)
	}
	about = podFirst(about)
	switch {
	case len(about) == 0 || about[0] != pod || in != namespace:
		return nil, fmt.Errorf("it is not about the Pod of the request, %s/%s", namespace, pod)
	case len(about) > 1 && name != "port-forward":
		return nil, fmt.Errorf("what is %q? kubectl %s takes the Pod alone", about[1], name)
	}
	args := []string{name, "--namespace=" + namespace}
	flags.Visit(func(flag *pflag.Flag) {
		if flag.Name != "namespace" {
			args = append(args, "--"+flag.Name+"="+flag.Value.String())
		}
	})
	return slices.Concat(append(args, "pod/"+pod), about[1:], command), nil
}

// podFirst takes the words away that say that a name is that of a Pod.
func podFirst(args []string) []string {
	if len(args) == 0 {
		return nil
	}
	sort, name, one := strings.Cut(args[0], "/")
	switch sort {
	case "pod", "pods", "po":
		if one {
			return append([]string{name}, args[1:]...)
		}
		if len(args) > 1 {
			return args[1:]
		}
	}
	return args
}

func refusedFlag(flags *pflag.FlagSet, err error) error {
	return fmt.Errorf("%s has a flag that --shell does not pass on, such as one that says where to connect and as whom: %w", flags.Name(), err)
}
