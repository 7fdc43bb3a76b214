package session

import (
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/admitkit/admitkit/extension/session/protocol"
)

// key reads the key of tickets.
func (o *Options) key() (protocol.Key, error) {
	current, err := os.ReadFile(filepath.Join(o.KeyFolder, "key"))
	if err != nil {
		return protocol.Key{}, fmt.Errorf("the key of tickets: %w", err)
	}
	if len(current) < protocol.MinKey {
		return protocol.Key{}, fmt.Errorf("the key of tickets in %s has %d bytes: make one of at least %d random bytes", o.KeyFolder, len(current), protocol.MinKey)
	}
	previous, err := os.ReadFile(filepath.Join(o.KeyFolder, "previous"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return protocol.Key{}, fmt.Errorf("the previous key of tickets: %w", err)
	}
	return protocol.Key{Current: current, Previous: previous}, nil
}

// terms are what tickets say about how sessions are recorded.
func (o *Options) terms() (protocol.Terms, error) {
	content, err := os.ReadFile(o.CAFile)
	if err != nil {
		return protocol.Terms{}, fmt.Errorf("the authorities of collectors: %w", err)
	}
	terms := protocol.Terms{
		Collectors: o.Collectors, ServerName: o.ServerName, Closed: o.NoCollector == Closed, Wait: int(o.Wait / time.Second), Input: o.Input,
	}
	for block, rest := pem.Decode(content); block != nil; block, rest = pem.Decode(rest) {
		if block.Type == "CERTIFICATE" {
			terms.CA = append(terms.CA, block.Bytes)
		}
	}
	if len(terms.CA) == 0 {
		return terms, fmt.Errorf("the authorities of collectors: %s has no certificate in PEM", o.CAFile)
	}
	return terms, nil
}
