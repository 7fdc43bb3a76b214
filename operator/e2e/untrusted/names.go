//go:build linux

package main

import (
	"fmt"
	"net"
	"net/netip"
	"strings"

	"golang.org/x/net/dns/dnsmessage"
)

// answerNames answers for the names that it is given, and says of all others that they do not
// exist.
func answerNames(args []string) error {
	names := map[string][]netip.Addr{}
	for _, arg := range args {
		name, text, _ := strings.Cut(arg, "=")
		addr, err := netip.ParseAddr(text)
		if err != nil {
			return fmt.Errorf("%s: want NAME=ADDRESS: %w", arg, err)
		}
		names[name+"."] = append(names[name+"."], addr)
	}
	conn, err := net.ListenPacket("udp", ":53")
	if err != nil {
		return err
	}
	buffer := make([]byte, 1500)
	for {
		n, from, err := conn.ReadFrom(buffer)
		if err != nil {
			return err
		}
		if answer, err := answerOf(buffer[:n], names); err == nil {
			_, _ = conn.WriteTo(answer, from)
		}
	}
}

func answerOf(question []byte, names map[string][]netip.Addr) ([]byte, error) {
	var message dnsmessage.Message
	if err := message.Unpack(question); err != nil || len(message.Questions) != 1 {
		return nil, fmt.Errorf("%d questions: %w", len(message.Questions), err)
	}
	asked := message.Questions[0]
	message.Response, message.Authoritative, message.RecursionAvailable = true, true, true
	message.Additionals = nil
	addresses, known := names[strings.ToLower(asked.Name.String())]
	if !known {
		message.RCode = dnsmessage.RCodeNameError
	}
	for _, addr := range addresses {
		header := dnsmessage.ResourceHeader{Name: asked.Name, Class: dnsmessage.ClassINET, TTL: 5}
		switch {
		case addr.Is4() && asked.Type == dnsmessage.TypeA:
			message.Answers = append(message.Answers, dnsmessage.Resource{Header: header, Body: &dnsmessage.AResource{A: addr.As4()}})
		case addr.Is6() && asked.Type == dnsmessage.TypeAAAA:
			message.Answers = append(message.Answers, dnsmessage.Resource{Header: header, Body: &dnsmessage.AAAAResource{AAAA: addr.As16()}})
		}
	}
	return message.Pack()
}
