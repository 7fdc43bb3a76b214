// Command program prints what it was built from.
package main

import (
	"os"

	"github.com/admitkit/admitkit/manager/buildinfo"
)

func main() {
	if err := buildinfo.Get().Write(os.Stdout, "program", "json"); err != nil {
		panic(err)
	}
}
