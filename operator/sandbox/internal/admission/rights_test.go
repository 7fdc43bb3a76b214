package admission

import (
	"testing"

	"github.com/admitkit/admitkit/operator/egress"
)

func TestWhatAdmitsReadsNothingOfTheControlPlane(t *testing.T) {
	for _, mode := range []egress.Mode{egress.ModeAuto, egress.ModeOn, egress.ModeOff} {
		a := &admitted{&gate{Options: Options{Namespaces: []string{"agents"}, Egress: &egress.Options{Mode: mode}}}}
		if rights := a.NamespaceRights(); len(rights) != 1 || len(rights["agents"]) == 0 {
			t.Errorf("%s: %v", mode, rights)
		}
	}
}
