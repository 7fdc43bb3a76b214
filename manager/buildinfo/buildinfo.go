// Package buildinfo says what a binary was built from: the version of the program, and
// that of admitkit in it. A release is stamped by the linker; any other binary has what
// Go recorded in it. Programs of manager/command have it as their command version.
package buildinfo

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
)

// The linker sets them in our releases: -X github.com/admitkit/admitkit/manager/buildinfo.version=v1.2.3.
var version, commit, date string

// unknown is the version of a binary that has none, such as one of `go run`.
const unknown = "(devel)"

const library = "github.com/admitkit/admitkit"

// Info is what a binary was built from.
type Info struct {
	// Version is the program's own.
	Version string `json:"version"`
	// Admitkit is the version of the library. In admitkit's own programs it is Version.
	Admitkit string `json:"admitkit"`
	// Program is the import path of the program.
	Program string `json:"program,omitempty"`
	// Commit is that of the program's repository, with -dirty if files were changed.
	Commit string `json:"commit,omitempty"`
	// Date is the commit's, so that two builds of one commit are equal.
	Date      string `json:"date,omitempty"`
	GoVersion string `json:"goVersion"`
	Platform  string `json:"platform"`
}

// Get returns the Info of this binary.
var Get = sync.OnceValue(func() Info {
	recorded, _ := debug.ReadBuildInfo()
	return read(recorded, Info{Version: version, Commit: commit, Date: date})
})

// read prefers the stamp to what Go recorded, unless the program is another module's:
// the stamp says nothing of that.
func read(recorded *debug.BuildInfo, stamp Info) Info {
	info := Info{GoVersion: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if recorded == nil {
		recorded = &debug.BuildInfo{Main: debug.Module{Path: library}}
	}
	info.Program = recorded.Path
	info.Version = recorded.Main.Version
	settings := map[string]string{}
	for _, setting := range recorded.Settings {
		settings[setting.Key] = setting.Value
	}
	info.Commit, info.Date = settings["vcs.revision"], settings["vcs.time"]
	if settings["vcs.modified"] == "true" {
		info.Commit += "-dirty"
	}
	for _, module := range recorded.Deps {
		if module.Path == library {
			info.Admitkit = versionOf(module)
		}
	}
	if path := recorded.Main.Path; path == library || strings.HasPrefix(path, library+"/") {
		info.Version = cmp.Or(stamp.Version, info.Version)
		info.Commit = cmp.Or(stamp.Commit, info.Commit)
		info.Date = cmp.Or(stamp.Date, info.Date)
		info.Admitkit = info.Version
	}
	info.Version, info.Admitkit = cmp.Or(info.Version, unknown), cmp.Or(info.Admitkit, unknown)
	return info
}

// versionOf returns the version of what is really compiled in.
func versionOf(module *debug.Module) string {
	if module.Replace != nil {
		module = module.Replace
	}
	return module.Version
}

// Short returns the versions on one line, as --version prints them.
func (i Info) Short() string {
	text := i.Version
	if i.Admitkit != i.Version {
		text += ", admitkit " + i.Admitkit
	}
	return text + ", " + i.GoVersion
}

// Write prints it for people, or as JSON, for the subcommand version of the program name.
func (i Info) Write(w io.Writer, name, format string) error {
	switch format {
	case "":
		_, err := io.WriteString(w, i.text(name))
		return err
	case "json":
		encoder := json.NewEncoder(w)
		encoder.SetIndent("", "  ")
		return encoder.Encode(i)
	}
	return fmt.Errorf("--output: unknown format %q: use json, or none for text", format)
}

func (i Info) text(name string) string {
	var text strings.Builder
	line := func(key, value string) {
		if value != "" {
			fmt.Fprintf(&text, "%-9s %s\n", key, value)
		}
	}
	line(name, i.Version)
	if i.Admitkit != i.Version {
		line("admitkit", i.Admitkit)
	}
	line("commit", i.Commit)
	line("date", i.Date)
	line("go", i.GoVersion+" "+i.Platform)
	return text.String()
}
