package registration

import "testing"

func TestAConversionIsLostOnceAnotherInstallationIsCalled(t *testing.T) {
	r := &Registration{Target: Target{Host: "127.0.0.1", Port: 9443}}
	ours := func(owner string) *crd {
		live := &crd{}
		live.Spec.Conversion = r.stanza("alarms.example.com", live, []byte("a CA"))
		live.Metadata.Annotations = map[string]string{ConverterAnnotation: owner}
		return live
	}
	theirs := ours("another")
	elsewhere := "https://elsewhere.example.com/convert"
	theirs.Spec.Conversion.Webhook.ClientConfig.URL = &elsewhere
	unset := ours("another")
	unset.Spec.Conversion = nil
	for what, test := range map[string]struct {
		live *crd
		lost bool
	}{
		"its own":                             {ours(r.Target.Owner()), false},
		"one without an owner":                {ours(""), false},
		"another's that still calls this one": {ours("another"), false},
		"another's":                           {theirs, true},
		"another's that converts no more":     {unset, true},
	} {
		if got := r.lost("alarms.example.com", test.live); got != test.lost {
			t.Errorf("%s is lost: %v", what, got)
		}
	}
}
