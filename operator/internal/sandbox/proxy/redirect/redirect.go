//go:build linux

// Package redirect has the kernel send the connections of a Pod to its proxy, by rules of
// nftables, without any program. It runs in an init container with the capability
// NET_ADMIN, before anything that nobody trusts.
package redirect

import (
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Options say what is redirected where.
type Options struct {
	// Port is where the proxy listens, on the loopback address.
	Port uint16
	// ProxyUID is the user of the proxy, whose own connections go out. No other container of
	// the Pod may run as this user.
	ProxyUID uint32
	// BrokerPort is the port of the broker, to which only the proxy connects, whatever the address. Default: there is none.
	BrokerPort uint16
}

const (
	table    = "admitkit"
	loopback = "lo"
)

// ports are those that the proxy understands: HTTP and TLS.
var ports = []uint16{80, 443}

// Install puts the rules in place, in one step: those of an earlier call are replaced. TCP to
// ports 80 and 443 of other hosts goes to the proxy; UDP to these ports, which is HTTP/3, is
// dropped, so that clients fall back to TCP. TCP to the port of the broker is refused: the
// network policy opens that to the whole Pod, and work could flood the broker. Other ports are
// the network policy's.
func Install(o Options) error {
	if o.Port == 0 || o.ProxyUID == 0 {
		return fmt.Errorf("redirect: port %d, user %d: neither can be 0; the proxy does not run as root", o.Port, o.ProxyUID)
	}
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("redirect: connecting to nftables: %w", err)
	}
	ours := &nftables.Table{Name: table, Family: nftables.TableFamilyINet}
	conn.AddTable(ours)
	conn.DelTable(ours) // of an earlier call; that there is one is sure
	ours = conn.AddTable(ours)
	redirected := conn.AddChain(&nftables.Chain{
		Name: "redirect", Table: ours, Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookOutput, Priority: nftables.ChainPriorityNATDest,
	})
	dropped := conn.AddChain(&nftables.Chain{
		Name: "drop", Table: ours, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookOutput, Priority: nftables.ChainPriorityFilter,
	})
	leave := &expr.Verdict{Kind: expr.VerdictReturn}
	for _, chain := range []*nftables.Chain{redirected, dropped} {
		conn.AddRule(&nftables.Rule{Table: ours, Chain: chain, Exprs: append(user(o.ProxyUID), leave)})
		conn.AddRule(&nftables.Rule{Table: ours, Chain: chain, Exprs: append(out(loopback), leave)})
	}
	for _, port := range ports {
		conn.AddRule(&nftables.Rule{Table: ours, Chain: redirected, Exprs: append(to(unix.IPPROTO_TCP, port),
			&expr.Immediate{Register: 1, Data: binaryutil.BigEndian.PutUint16(o.Port)}, &expr.Redir{RegisterProtoMin: 1})})
		conn.AddRule(&nftables.Rule{Table: ours, Chain: dropped, Exprs: append(to(unix.IPPROTO_UDP, port), &expr.Verdict{Kind: expr.VerdictDrop})})
	}
	if o.BrokerPort != 0 {
		conn.AddRule(&nftables.Rule{Table: ours, Chain: dropped, Exprs: append(to(unix.IPPROTO_TCP, o.BrokerPort), &expr.Reject{Type: unix.NFT_REJECT_TCP_RST})})
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("redirect: the kernel does not take the rules of nftables (does the container have NET_ADMIN, and the kernel nf_tables with nat?): %w", err)
	}
	return nil
}

// user matches what a user sends.
func user(uid uint32) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeySKUID, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(uid)},
	}
}

// out matches what leaves by an interface.
func out(name string) []expr.Any {
	data := make([]byte, unix.IFNAMSIZ)
	copy(data, name)
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: data}}
}

// to matches a port of a protocol.
func to(protocol byte, port uint16) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{protocol}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.BigEndian.PutUint16(port)},
	}
}
