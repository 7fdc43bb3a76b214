package collector

import (
	"encoding/json"

	"github.com/admitkit/admitkit/extension/session/protocol"
)

// redact takes secrets out of a frame before it is stored. The same frame becomes the same
// again, since it may arrive twice.
func (c *Collector) redact(f *protocol.Frame) {
	if c.options.Redact == nil {
		return
	}
	switch f.Type {
	case protocol.Output, protocol.Input:
		f.Data = []byte(c.options.Redact(string(f.Data)))
	case protocol.Begin:
		var head protocol.Head
		if json.Unmarshal(f.Data, &head) != nil {
			return // who reads it says so
		}
		for i, argument := range head.Command {
			head.Command[i] = c.options.Redact(argument)
		}
		if text, err := json.Marshal(head); err == nil {
			f.Data = text
		}
	}
	if len(f.Data) > protocol.MaxData {
		f.Data = f.Data[:protocol.MaxData]
	}
}
