package command

import (
	"cmp"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/admitkit/admitkit/manager"
)

// ofFlag are the options whose flag says what their group, or their type, says in Go.
var ofFlag = map[string]string{
	"Certificates.Dir": "certificate-dir", "Registration.Annotations": "webhook-annotations", "Watching.QueueLength": "watcher-queue-length",
	"OperatorFingerprint": "fingerprint", "KubeConfig": "kubeconfig", "Registration.ForeignCABundle": "foreign-ca-bundle", "Certificates.CALifetime": "ca-lifetime",
	"Serving.TLSMinVersion": "tls-min-version", "Serving.TLSCipherSuites": "tls-cipher-suites", "Serving.ClientCAFile": "client-ca",
}

var hump = regexp.MustCompile("([a-z])([A-Z])")

// pathsOf returns the paths of options, such as Certificates.LeafSecretName.
func pathsOf(group string, options reflect.Type) (paths []string) {
	for field := range options.Fields() {
		switch path := group + field.Name; {
		case field.Type.Kind() == reflect.Struct:
			paths = append(paths, pathsOf(path+".", field.Type)...)
		case field.IsExported():
			paths = append(paths, path)
		}
	}
	return paths
}

// flagsOfOptions returns the flags by the paths of the options that they set.
func flagsOfOptions(set *pflag.FlagSet) map[string]string {
	flags := map[string]string{}
	paths := append(pathsOf("", reflect.TypeFor[manager.InstallOptions]()), pathsOf("", reflect.TypeFor[manager.Options]())...)
	for _, path := range paths {
		field := path[strings.LastIndexByte(path, '.')+1:]
		flag := cmp.Or(ofFlag[path], strings.ToLower(hump.ReplaceAllString(field, "$1-$2")))
		if set.Lookup(flag) != nil {
			flags[path] = flag
		}
	}
	return flags
}

// inFlags returns an error of manager in the words of the command line, whose user does not
// know the options but by their flags.
func inFlags(set *pflag.FlagSet, err error) error {
	if err == nil {
		return nil
	}
	flags := flagsOfOptions(set)
	// The API server's errors, too, have words such as Port and Namespace.
	if text := err.Error(); !strings.Contains(text, "manager options: ") && !strings.Contains(text, "install options: ") {
		maps.DeleteFunc(flags, func(path, _ string) bool { return !strings.Contains(path, ".") && !hump.MatchString(path) })
	}
	// The longest first: ServiceName is also a part of other names.
	paths := slices.SortedFunc(maps.Keys(flags), func(a, b string) int { return cmp.Or(len(b)-len(a), strings.Compare(a, b)) })
	for i, path := range paths {
		paths[i] = regexp.QuoteMeta(path)
	}
	option := regexp.MustCompile(`\b(` + strings.Join(paths, "|") + `)\b`)
	text := option.ReplaceAllStringFunc(err.Error(), func(path string) string { return "--" + flags[path] })
	return &translated{text, err}
}

// translated is an error with another text.
type translated struct {
	text string
	err  error
}

func (e *translated) Error() string { return e.text }
func (e *translated) Unwrap() error { return e.err }
