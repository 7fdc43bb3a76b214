// Command server serves what the registrar has registered:
//
//	server serve --leaf-secret-name split-certificate ...
package main

import (
	"github.com/admitkit/admitkit/examples/split"
	"github.com/admitkit/admitkit/manager/command"
)

func main() {
	command.Main(split.Command("server", "serve", "review"))
}
