package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/pflag"

	"github.com/admitkit/admitkit/extension/deliver"
	"github.com/admitkit/admitkit/manager/command"
)

// The flags of those to whom something is sent begin with these.
const (
	cloudEventsPrefix = "audit-cloudevents"
	notifyPrefix      = "access-notify"
	otlpPrefix        = "audit-otlp"
	tracesPrefix      = "otlp-traces"
)

// bindCloudEvents adds the flags of an endpoint. what is sent to it, source is the default of
// the source, and unqueued says what is done without a folder.
func bindCloudEvents(flags *pflag.FlagSet, prefix, what, source, unqueued string, o *deliver.EventOptions) {
	flags.StringVar(&o.URL, prefix+"-url", "", "send "+what)
	flags.StringVar(&o.Dir, prefix+"-dir", "", "folder of the queue on disk; by default "+unqueued)
	flags.StringVar(&o.Source, prefix+"-source", "", "source of the CloudEvents, such as a name of the cluster (default "+source+")")
	flags.StringVar(&o.TokenFile, prefix+"-token-file", "", "file with the bearer token for the endpoint; like the other files it is read again when it is replaced")
	flags.StringVar(&o.CertFile, prefix+"-cert-file", "", "file with the client certificate for the endpoint, in PEM")
	flags.StringVar(&o.KeyFile, prefix+"-key-file", "", "file with the key of that certificate, in PEM")
	flags.StringVar(&o.CAFile, prefix+"-ca-file", "", "file with the authorities of the endpoint's certificate, in PEM (default: those of the system)")
}

// bindCollector adds the flags of a collector.
func bindCollector(flags *pflag.FlagSet, prefix, what string, o *deliver.OTLPOptions) {
	flags.StringVar(&o.URL, prefix+"-endpoint", "", "send "+what+" to this OpenTelemetry collector by OTLP over HTTP, such as https://collector:4318")
	command.NameOptions(flags, prefix+"-endpoint", "URL")
	flags.BoolVar(&o.Insecure, prefix+"-insecure", false, "allow http to a collector on another machine, and anybody in between to read what is sent")
	flags.StringVar(&o.TokenFile, prefix+"-token-file", "", "file with the bearer token for the collector; read again when it changes")
	flags.StringVar(&o.CAFile, prefix+"-ca-file", "", "file with the authorities that may sign the collector's certificate (default those of the system); read again when it changes")
	flags.StringVar(&o.CertFile, prefix+"-cert-file", "", "file with the client certificate for the collector; read again when it changes")
	flags.StringVar(&o.KeyFile, prefix+"-key-file", "", "file with the key of the client certificate")
}

// checkCollector returns an error about a wrong option, which begins with about, and about a
// flag that has no effect.
func checkCollector(flags *pflag.FlagSet, prefix, about string, o *deliver.OTLPOptions, more ...string) error {
	if o.URL == "" {
		return checkUnused(flags, prefix, "endpoint", append([]string{"insecure", "token-file", "ca-file", "cert-file", "key-file"}, more...)...)
	}
	if err := o.Validate(); err != nil {
		return fmt.Errorf("%s: %w", about, err)
	}
	return nil
}

// checkNotify names the flag that has no effect, and that of a file which is not there.
func checkNotify(flags *pflag.FlagSet, o *deliver.EventOptions) error {
	if o.URL == "" {
		return checkUnused(flags, notifyPrefix, "url", "dir", "source", "token-file", "cert-file", "key-file", "ca-file")
	}
	return checkFiles(notifyPrefix, &o.Options)
}

// checkUnused names the flags that have no effect without another.
func checkUnused(flags *pflag.FlagSet, prefix, without string, names ...string) error {
	var errs []error
	for _, name := range names {
		if flag := flags.Lookup(prefix + "-" + name); flag.Value.String() != flag.DefValue {
			errs = append(errs, fmt.Errorf("--%s has no effect without --%s-%s", flag.Name, prefix, without))
		}
	}
	return errors.Join(errs...)
}

// checkFiles names the flags of files that are not there.
func checkFiles(prefix string, o *deliver.Options) error {
	var errs []error
	for _, file := range []struct{ flag, path string }{{"token", o.TokenFile}, {"cert", o.CertFile}, {"key", o.KeyFile}, {"ca", o.CAFile}} {
		if file.path == "" {
			continue
		}
		if _, err := os.Stat(file.path); err != nil {
			errs = append(errs, fmt.Errorf("--%s-%s-file: %w", prefix, file.flag, err))
		}
	}
	return errors.Join(errs...)
}
