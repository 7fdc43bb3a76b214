package main

import (
	"fmt"

	"github.com/spf13/pflag"

	"github.com/admitkit/admitkit/extension/otlp"
)

// bindEndpoint adds the flags of a collector, which begin with a prefix.
func bindEndpoint(flags *pflag.FlagSet, prefix, what string, e *otlp.Endpoint) {
	flags.StringVar(&e.URL, prefix+"-endpoint", "", "send "+what+" to this OpenTelemetry collector by OTLP over HTTP, such as https://collector:4318")
	flags.BoolVar(&e.Insecure, prefix+"-insecure", false, "allow http to a collector on another machine, and anybody in between to read what is sent")
	flags.StringVar(&e.TokenFile, prefix+"-token-file", "", "file with the bearer token for the collector; read again when it changes")
	flags.StringVar(&e.CAFile, prefix+"-ca-file", "", "file with the authorities that may sign the collector's certificate (default those of the system); read again when it changes")
	flags.StringVar(&e.CertFile, prefix+"-cert-file", "", "file with the client certificate for the collector; read again when it changes")
	flags.StringVar(&e.KeyFile, prefix+"-key-file", "", "file with the key of the client certificate")
}

// checkEndpoint names the flag of a wrong option, and of one that has no effect.
func checkEndpoint(flags *pflag.FlagSet, prefix string, e *otlp.Endpoint, more ...string) error {
	if e.URL != "" {
		if err := e.Validate(); err != nil {
			return &translated{words(flags, prefix, err.Error()), err}
		}
		return nil
	}
	for _, name := range append([]string{"insecure", "token-file", "ca-file", "cert-file", "key-file"}, more...) {
		if flag := flags.Lookup(prefix + "-" + name); flag != nil && flag.Value.String() != flag.DefValue {
			return fmt.Errorf("--%s has no effect without --%s-endpoint", flag.Name, prefix)
		}
	}
	return nil
}
