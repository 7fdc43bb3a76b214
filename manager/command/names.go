package command

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/admitkit/admitkit/manager"
)

// ofFlag are the options whose flag says what their group, or their type, says in Go.
var ofFlag = map[string]string{
	"Certificates.Dir": "certificate-dir", "Registration.Annotations": "webhook-annotations", "Watching.QueueLength": "watcher-queue-length",
	"Namespaces": "namespace", "OperatorFingerprint": "fingerprint", "KubeConfig": "kubeconfig", "Serving.ClientCAFile": "client-ca", "Serving.RecordDir": "record", "Serving.RecordLimitBytes": "record-limit", "Registration.Modes": "mode",
}

var hump = regexp.MustCompile(`([a-z])([A-Z])|([A-Z])([A-Z][a-z])`)

// kebab returns the name of an option as that of a flag.
func kebab(option string) string { return strings.ToLower(hump.ReplaceAllString(option, "$1$3-$2$4")) }

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
		flag := cmp.Or(ofFlag[path], kebab(field))
		if set.Lookup(flag) != nil {
			flags[path] = flag
		}
	}
	return flags
}

// inFlags returns an error of manager, or of extensions, in the words of the command line,
// whose user does not know the options but by their flags.
func (f *flags) inFlags(set *pflag.FlagSet, err error) error {
	if err == nil {
		return nil
	}
	if apierrors.IsUnauthorized(err) {
		err = fmt.Errorf("%w: the API server does not accept %s", err, f.credentials())
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
	// A scope has fields of the same names, which no flag sets.
	option := regexp.MustCompile(`(\bScope\.|\bscope of [^:\n]+: )?\b(` + strings.Join(paths, "|") + `)\b`)
	text := option.ReplaceAllStringFunc(err.Error(), func(found string) string {
		if flag := flags[found]; flag != "" {
			return "--" + flag
		}
		return found
	})
	return &translated{f.inFlagsOfExtensions(set, text), err}
}

// credentials says which credentials the program uses.
func (f *flags) credentials() string {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = f.options.KubeConfig
	config, err := rules.Load()
	if err != nil || config.Contexts[config.CurrentContext] == nil {
		return "the token of the Pod's ServiceAccount"
	}
	current := config.Contexts[config.CurrentContext]
	return fmt.Sprintf("user %q of context %q in kubeconfig %s", current.AuthInfo, config.CurrentContext, current.LocationOfOrigin)
}

// optionFlags say with what the flags of options begin about which there are errors.
type optionFlags struct{ about, prefix string }

// WithOptionFlags has errors about options of your extensions name the flags that set them,
// which the user of a program knows. The text of an error after about, such as
// "access options: ", is about flags that begin with prefix, such as "access":
// Retention becomes --access-retention there, and PodCIDRs --pod-cidrs if there is that
// flag and no --access-pod-cidrs. Where several fit, the last in the error counts.
func WithOptionFlags(about, prefix string) Option {
	return func(f *flags) { f.ofExtensions = append(f.ofExtensions, optionFlags{about, prefix}) }
}

// NameOptions says which options a flag sets, if its name does not: see [WithOptionFlags].
// An option of a group is named "Group: Option". It panics if there is no such flag.
func NameOptions(set *pflag.FlagSet, flag string, options ...string) {
	if err := set.SetAnnotation(flag, ofOption, options); err != nil {
		panic(err)
	}
}

const ofOption = "admitkit.dev/option"

// optionName is an option of an extension, with the group in which it is.
var optionName = regexp.MustCompile(`\b(?:[A-Z][A-Za-z0-9]+: )?[A-Z][A-Za-z0-9]+\b`)

func (f *flags) inFlagsOfExtensions(set *pflag.FlagSet, text string) string {
	last, prefix := 0, ""
	for _, of := range f.ofExtensions {
		if at := strings.LastIndex(text, of.about); at >= 0 && at+len(of.about) > last {
			last, prefix = at+len(of.about), of.prefix
		}
	}
	if last == 0 {
		return text
	}
	return text[:last] + optionName.ReplaceAllStringFunc(text[last:], func(name string) string {
		group, option, grouped := strings.Cut(name, ": ")
		if !grouped {
			return cmp.Or(flagOfOption(set, prefix, name), name)
		}
		if flag := cmp.Or(flagOfOption(set, prefix, group+option), flagOfOption(set, prefix, name)); flag != "" {
			return flag
		}
		return cmp.Or(flagOfOption(set, prefix, group), group) + ": " + cmp.Or(flagOfOption(set, prefix, option), option)
	})
}

// flagOfOption returns the flag that sets an option, or "".
func flagOfOption(set *pflag.FlagSet, prefix, option string) (found string) {
	candidates := []string{prefix + "-" + kebab(option)}
	if hump.MatchString(option) { // one word may be any word
		candidates = append(candidates, kebab(option))
	}
	for _, flag := range candidates {
		// A flag that is repeated is named after one of many.
		for _, flag := range []string{flag, strings.TrimSuffix(flag, "s")} {
			if set.Lookup(flag) != nil {
				return "--" + flag
			}
		}
	}
	set.VisitAll(func(flag *pflag.Flag) {
		if slices.Contains(flag.Annotations[ofOption], option) && (found == "" || strings.HasPrefix(flag.Name, prefix)) {
			found = "--" + flag.Name
		}
	})
	return found
}

// translated is an error with another text.
type translated struct {
	text string
	err  error
}

func (e *translated) Error() string { return e.text }
func (e *translated) Unwrap() error { return e.err }
