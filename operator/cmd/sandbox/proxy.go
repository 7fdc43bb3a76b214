package main

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/admitkit/admitkit/manager/command"
	"github.com/admitkit/admitkit/operator/internal/sandbox/broker/protocol"
	"github.com/admitkit/admitkit/operator/internal/sandbox/proxy"
	"github.com/admitkit/admitkit/operator/internal/sandbox/runca"
)

// proxyFlags are those of the proxy of a run.
type proxyFlags struct {
	mode, address     string
	certFile, keyFile string
	broker            protocol.ClientOptions
	hosts             string
	upstream          string
	deny              []string
	maxConnections    int
	probe             bool
}

// newProxyCommand returns the command that runs beside a run, as a sidecar.
func newProxyCommand() *cobra.Command {
	f := &proxyFlags{}
	cmd := &cobra.Command{
		Use:   "egress-proxy",
		Short: "Let the connections of a run through, as the broker or a list says",
		Long: `Let the connections of a run through to the names that BrokerPolicies allow, with their
credentials, or without a broker to those of a list. It runs as a container beside the run, and
has no right on the cluster.`,
		Args: func(cmd *cobra.Command, args []string) error { return command.Wrong(cobra.NoArgs(cmd, args)) },
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd.Context()) },
	}
	flags := cmd.Flags()
	flags.StringVar(&f.mode, "mode", "", "how connections come in: cooperative, by HTTPS_PROXY, or transparent, redirected by the kernel (required)")
	flags.StringVar(&f.address, "address", "127.0.0.1:15001", "where the proxy listens")
	flags.StringVar(&f.certFile, "ca-cert-file", "/run/admitkit/ca/tls.crt", "certificate of the run's authority, in PEM")
	flags.StringVar(&f.keyFile, "ca-key-file", "/run/admitkit/ca/tls.key", "key of that certificate, in PEM")
	flags.StringVar(&f.broker.URL, "broker-url", "", "URL of the broker (required without --hosts: these are all names then)")
	flags.StringVar(&f.hosts, "hosts", "", "names beyond which nothing goes, whatever the broker says, as a list in JSON: [{\"host\": \"api.example.com\", \"ports\": [443]}]")
	flags.StringVar(&f.broker.CAFile, "broker-ca-file", "/run/admitkit/broker/ca.crt", "authorities of the broker's certificate, in PEM")
	flags.StringVar(&f.broker.TokenFile, "broker-token-file", "/run/admitkit/token/token", "projected ServiceAccount token of audience "+protocol.Audience)
	flags.StringVar(&f.upstream, "upstream-ca-file", "", "authorities, in PEM, that the proxy accepts of servers besides those of the internet (default none)")
	flags.StringSliceVar(&f.deny, "deny-cidr", nil, "addresses that no name leads to, besides those that are not public: those of Pods, Services and nodes where these are public; repeatable")
	flags.BoolVar(&f.probe, "probe", false, "only report, by the exit code, whether a proxy serves at --address")
	flags.IntVar(&f.maxConnections, "max-connections", 256, "connections that can be open at a time")
	return cmd
}

// probeTimeout bounds a probe.
const probeTimeout = 2 * time.Second

func (f *proxyFlags) run(ctx context.Context) error {
	if f.probe {
		conn, err := (&net.Dialer{Timeout: probeTimeout}).DialContext(ctx, "tcp", f.address)
		if err != nil {
			return err
		}
		return conn.Close()
	}
	options, err := f.options()
	if err != nil {
		return command.Wrong(err)
	}
	if options.Logger, err = zap.NewProduction(); err != nil {
		return err
	}
	p, err := proxy.New(options)
	if err != nil {
		return command.Wrong(err)
	}
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	// A proxy that listens is one that serves: --probe goes by that.
	if _, err := options.Broker.Egress(ctx); err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", f.address)
	if err != nil {
		return fmt.Errorf("--address: %w", err)
	}
	return p.Run(ctx, listener)
}

func (f *proxyFlags) options() (proxy.Options, error) {
	options := proxy.Options{Mode: proxy.Mode(f.mode), MaxConnections: f.maxConnections}
	if f.mode == "" {
		return options, errors.New("--mode: must be cooperative or transparent")
	}
	if f.maxConnections < 1 {
		return options, fmt.Errorf("--max-connections: %d must be at least 1", f.maxConnections)
	}
	for _, text := range f.deny {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return options, fmt.Errorf("--deny-cidr: %w", err)
		}
		options.Deny = append(options.Deny, prefix.Masked())
	}
	var err error
	if options.Roots, err = roots(f.upstream); err != nil {
		return options, fmt.Errorf("--upstream-ca-file: %w", err)
	}
	if options.CA, err = readPair(f.certFile, f.keyFile); err != nil {
		return options, err
	}
	return options, f.governedBy(&options)
}

// governedBy says by what the proxy goes: the broker, a list, or both.
func (f *proxyFlags) governedBy(options *proxy.Options) error {
	if f.hosts != "" {
		if err := json.Unmarshal([]byte(f.hosts), &options.Within); err != nil {
			return fmt.Errorf("--hosts: must be a list of names in JSON: %w", err)
		}
	}
	if f.broker.URL == "" && options.Within != nil {
		options.Broker = &proxy.Listed{Names: options.Within, Log: os.Stdout}
		return nil
	}
	client, err := protocol.NewClient(f.broker)
	if err != nil {
		return fmt.Errorf("--broker-url, --broker-ca-file and --broker-token-file: %w", err)
	}
	options.Broker = client
	return nil
}

// roots returns the authorities of the internet and those of a file, nil without a file.
func roots(file string) (*x509.CertPool, error) {
	if file == "" {
		return nil, nil //nolint:nilnil // it stands for those of the internet
	}
	pem, err := os.ReadFile(file) //nolint:gosec // the flag names it
	if err != nil {
		return nil, err
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		return nil, err
	}
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s: no certificate in it", file)
	}
	return pool, nil
}

func readPair(certFile, keyFile string) (pair runca.Pair, err error) {
	if pair.Certificate, err = os.ReadFile(certFile); err != nil { //nolint:gosec // the flag names it
		return pair, fmt.Errorf("--ca-cert-file: %w", err)
	}
	if pair.Key, err = os.ReadFile(keyFile); err != nil { //nolint:gosec // the flag names it
		return pair, fmt.Errorf("--ca-key-file: %w", err)
	}
	return pair, nil
}
