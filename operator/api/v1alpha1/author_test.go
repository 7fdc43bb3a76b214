package v1alpha1_test

import (
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

func TestAnAuthorIsAllThatTheAPIServerSaidAboutAUser(t *testing.T) {
	user := authenticationv1.UserInfo{
		Username: "jane", UID: "1", Groups: []string{"sre"}, Extra: map[string]authenticationv1.ExtraValue{"via": {"sso", "vpn"}},
	}
	author := v1alpha1.AuthorOf(user)
	if got := author.UserInfo(); !apiequality.Semantic.DeepEqual(got, user) {
		t.Errorf("got %+v, want %+v", got, user)
	}
	if !author.Is(user) {
		t.Error("the author is not the user")
	}
	for what, change := range map[string]func(*v1alpha1.Author){
		"another name":  func(a *v1alpha1.Author) { a.Username = "joe" },
		"another UID":   func(a *v1alpha1.Author) { a.UID = "2" },
		"another group": func(a *v1alpha1.Author) { a.Groups = append(a.Groups, "system:masters") },
		"less extra":    func(a *v1alpha1.Author) { a.Extra["via"] = a.Extra["via"][:1] },
		"more extra":    func(a *v1alpha1.Author) { a.Extra["scopes"] = nil },
	} {
		other := author.DeepCopy()
		if change(other); other.Is(user) {
			t.Errorf("%s: the author is the user still", what)
		}
	}
	var nobody *v1alpha1.Author
	if nobody.Is(authenticationv1.UserInfo{}) {
		t.Error("nobody is a user")
	}
}
