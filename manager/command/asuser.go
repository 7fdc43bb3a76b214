package command

import (
	"errors"
	"slices"

	"github.com/spf13/pflag"
	authenticationv1 "k8s.io/api/authentication/v1"
)

// asUser is who makes the requests of a command, in the form of flags.
type asUser struct {
	name   string
	groups []string
}

func (a *asUser) bind(set *pflag.FlagSet) {
	set.StringVar(&a.name, "user", "", "user who makes the requests (default: admin, in the group system:masters)")
	set.StringSliceVar(&a.groups, "groups", nil, "groups of the user, in addition to system:authenticated")
}

// check returns what is wrong with the flags.
func (a *asUser) check() error {
	if len(a.groups) > 0 && a.name == "" {
		return errors.New("--groups: set --user too")
	}
	return nil
}

// info returns the user, nil if none is named.
func (a *asUser) info() *authenticationv1.UserInfo {
	if a.name == "" {
		return nil
	}
	return &authenticationv1.UserInfo{Username: a.name, Groups: slices.Concat(a.groups, []string{"system:authenticated"})}
}
