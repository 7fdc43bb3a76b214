package main

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/admitkit/admitkit/manager/command"
	"github.com/admitkit/admitkit/operator/internal/sandbox/proxy/redirect"
)

func init() { subcommands = append(subcommands, newRedirectCommand) }

// newRedirectCommand returns the command of an init container.
func newRedirectCommand() *cobra.Command {
	var options redirect.Options
	cmd := &cobra.Command{
		Use:   "egress-redirect",
		Short: "Have the kernel send the connections of a Pod to its proxy",
		Long: `Have the kernel send the connections of a Pod to ports 80 and 443 to its proxy, by rules of
nftables, and refuse all but the proxy the port of the broker, if there is one. It ends then. It runs in an init container with the capability NET_ADMIN.`,
		Args: func(cmd *cobra.Command, args []string) error { return command.Wrong(cobra.NoArgs(cmd, args)) },
		RunE: func(*cobra.Command, []string) error {
			if options.Port == 0 || options.ProxyUID == 0 {
				return command.Wrong(errors.New("--proxy-port and --proxy-uid: neither can be 0"))
			}
			return redirect.Install(options)
		},
	}
	cmd.Flags().Uint16Var(&options.Port, "proxy-port", 15001, "where the proxy listens, on the loopback address")
	cmd.Flags().Uint32Var(&options.ProxyUID, "proxy-uid", 1337, "user of the proxy, whose own connections go out; no other container may run as this user")
	cmd.Flags().Uint16Var(&options.BrokerPort, "broker-port", 0, "port of the broker, to which only the proxy connects, whatever the address (default 0: there is no broker)")
	return cmd
}
