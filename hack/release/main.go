// Command release builds what a tag consists of, and checks it without uploading
// anything.
//
//	release build          build the release of the tag at HEAD into bin/release
//	release check          build it twice in clean clones, compare and examine it
//	release notes VERSION  print the section of CHANGELOG.md
//
// docs/releasing.md lists the files of a release.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if len(args) == 0 {
		return errors.New("say what to do: build, check or notes")
	}
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	dir := flags.String("dir", ".", "root of the repository")
	tools := flags.String("tools", "bin/tools", "folder with goreleaser, syft, helm and validate-krew-manifest")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	root, err := filepath.Abs(*dir)
	if err != nil {
		return err
	}
	absolute, err := filepath.Abs(*tools)
	if err != nil {
		return err
	}
	switch args[0] {
	case "build":
		_, err = build(ctx, root, absolute)
		return err
	case "check":
		return check(ctx, root, absolute)
	case "notes":
		changelog, err := os.ReadFile(filepath.Join(root, "CHANGELOG.md"))
		if err != nil {
			return err
		}
		text, err := notes(string(changelog), flags.Arg(0))
		fmt.Print(text)
		return err
	}
	return fmt.Errorf("unknown subcommand %q: say build, check or notes", args[0])
}
