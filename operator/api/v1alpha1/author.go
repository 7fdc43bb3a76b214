package v1alpha1

import (
	"maps"
	"slices"

	authenticationv1 "k8s.io/api/authentication/v1"
)

// ExtraValues are the values of one key of what an authenticator said about a user.
// +kubebuilder:validation:MaxItems=16
// +kubebuilder:validation:items:MaxLength=1024
// +listType=atomic
type ExtraValues []string

// Author is who wrote an object, as the API server authenticated them, with all that
// authorizers ask about. The server sets it.
type Author struct {
	Requester `json:",inline"`
	// Extra is what else the authenticator said about the user.
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	Extra map[string]ExtraValues `json:"extra,omitempty"`
}

// AuthorOf returns the author that a user is.
func AuthorOf(user authenticationv1.UserInfo) *Author {
	author := &Author{Requester: Requester{Username: user.Username, UID: user.UID, Groups: slices.Clone(user.Groups)}}
	for key, values := range user.Extra {
		if author.Extra == nil {
			author.Extra = make(map[string]ExtraValues, len(user.Extra))
		}
		author.Extra[key] = ExtraValues(slices.Clone(values))
	}
	return author
}

// UserInfo returns the user that the author was.
func (a *Author) UserInfo() authenticationv1.UserInfo {
	user := authenticationv1.UserInfo{Username: a.Username, UID: a.UID, Groups: a.Groups}
	for key, values := range a.Extra {
		if user.Extra == nil {
			user.Extra = make(map[string]authenticationv1.ExtraValue, len(a.Extra))
		}
		user.Extra[key] = authenticationv1.ExtraValue(values)
	}
	return user
}

// Is reports whether the author is this very user.
func (a *Author) Is(user authenticationv1.UserInfo) bool {
	return a != nil && a.Username == user.Username && a.UID == user.UID && slices.Equal(a.Groups, user.Groups) &&
		maps.EqualFunc(a.Extra, user.Extra, func(x ExtraValues, y authenticationv1.ExtraValue) bool { return slices.Equal([]string(x), []string(y)) })
}
