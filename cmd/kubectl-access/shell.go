package main

import (
	"context"
	"errors"
	"os/exec"

	"github.com/google/shlex"
)

// runShell runs the access command. It is a template's author who wrote it, and
// so it is not given to a shell: it may run kubectl, and nothing else.
func (a *ask) runShell(ctx context.Context, req request) error {
	message := req.GetRequestStatus().AccessMessage
	words, err := shlex.Split(message)
	if err != nil || len(words) == 0 || words[0] != "kubectl" {
		return exitf(codeError, "the access command is not one of kubectl, and so is not run: %s", message)
	}
	args := append(a.connection(), words[1:]...)
	// An interrupt is for what runs in the Pod, not for us.
	command := exec.CommandContext(context.WithoutCancel(ctx), "kubectl", args...) //nolint:gosec // see above
	command.Stdin, command.Stdout, command.Stderr = a.In, a.Out, a.ErrOut
	err = command.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return &exitError{code: exit.ExitCode()} // kubectl has said why
	}
	return err
}

// connection returns the flags by which kubectl connects as this command does.
func (c *cli) connection() []string {
	var args []string
	for name, value := range map[string]*string{
		"kubeconfig": c.flags.KubeConfig, "context": c.flags.Context, "cluster": c.flags.ClusterName, "user": c.flags.AuthInfoName,
		"server": c.flags.APIServer, "token": c.flags.BearerToken, "as": c.flags.Impersonate, "as-uid": c.flags.ImpersonateUID,
		"certificate-authority": c.flags.CAFile, "client-certificate": c.flags.CertFile, "client-key": c.flags.KeyFile,
		"tls-server-name": c.flags.TLSServerName, "cache-dir": c.flags.CacheDir,
	} {
		if value != nil && *value != "" {
			args = append(args, "--"+name+"="+*value)
		}
	}
	if c.flags.ImpersonateGroup != nil {
		for _, group := range *c.flags.ImpersonateGroup {
			args = append(args, "--as-group="+group)
		}
	}
	if c.flags.Insecure != nil && *c.flags.Insecure {
		args = append(args, "--insecure-skip-tls-verify")
	}
	return args
}
