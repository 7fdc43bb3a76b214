package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/pflag"

	"github.com/admitkit/admitkit/extension/cloudevents"
)

const notifyPrefix = "access-notify"

// bindNotify adds the flags of the notifications about access requests.
func bindNotify(flags *pflag.FlagSet, o *cloudevents.Options) {
	flags.StringVar(&o.URL, notifyPrefix+"-url", "", "send each step of an access request to this HTTPS endpoint as a CloudEvent")
	flags.StringVar(&o.Dir, notifyPrefix+"-dir", "", "folder of the queue on disk; by default 1000 notifications are queued in memory")
	flags.StringVar(&o.Source, notifyPrefix+"-source", "", "source of the CloudEvents, such as a name of the cluster (default admitkit.dev/access)")
	flags.StringVar(&o.TokenFile, notifyPrefix+"-token-file", "", "file with the bearer token for the endpoint; like the other files it is read again when it is replaced")
	flags.StringVar(&o.CertFile, notifyPrefix+"-cert-file", "", "file with the client certificate for the endpoint, in PEM")
	flags.StringVar(&o.KeyFile, notifyPrefix+"-key-file", "", "file with the key of that certificate, in PEM")
	flags.StringVar(&o.CAFile, notifyPrefix+"-ca-file", "", "file with the authorities of the endpoint's certificate, in PEM (default: those of the system)")
}

// checkNotify names the flag that has no effect, and that of a file which is not there.
func checkNotify(flags *pflag.FlagSet, o *cloudevents.Options) error {
	var errs []error
	for _, name := range []string{"dir", "source", "token-file", "cert-file", "key-file", "ca-file"} {
		if flag := flags.Lookup(notifyPrefix + "-" + name); o.URL == "" && flag.Changed {
			errs = append(errs, fmt.Errorf("--%s has no effect without --%s-url", flag.Name, notifyPrefix))
		}
	}
	for flag, path := range map[string]string{"token-file": o.TokenFile, "cert-file": o.CertFile, "key-file": o.KeyFile, "ca-file": o.CAFile} {
		if path == "" {
			continue
		}
		if _, err := os.Stat(path); err != nil {
			errs = append(errs, fmt.Errorf("--%s-%s: %w", notifyPrefix, flag, err))
		}
	}
	return errors.Join(errs...)
}
