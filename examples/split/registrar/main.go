// Command registrar registers what the server serves, keeps it registered, and
// removes it:
//
//	registrar register --stay --leaf-secret-name split-certificate ...
//	registrar unregister ...
package main

import (
	"github.com/admitkit/admitkit/examples/split"
	"github.com/admitkit/admitkit/manager/command"
)

func main() {
	command.Main(split.Command("registrar", "register", "unregister", "manifests"))
}
