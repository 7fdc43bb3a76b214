package recording_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/admitkit/admitkit/internal/recording"
)

// redacted returns an entry without its secrets.
func redacted(t testing.TB, request string, answer recording.Answer) *recording.Entry {
	t.Helper()
	redactor, err := recording.NewRedactor()
	if err != nil {
		t.Fatal(err)
	}
	entry := &recording.Entry{Request: json.RawMessage(request), Answer: answer}
	if err := redactor.Entry(entry); err != nil {
		t.Fatal(err)
	}
	return entry
}

// tree returns the content of an object in a request, and what is at a path of it.
func tree(t *testing.T, entry *recording.Entry, path ...any) any {
	t.Helper()
	var content any
	if err := json.Unmarshal(entry.Request, &content); err != nil {
		t.Fatalf("%v: %s", err, entry.Request)
	}
	for _, step := range path {
		switch step := step.(type) {
		case string:
			content = content.(map[string]any)[step]
		case int:
			content = content.([]any)[step]
		}
	}
	return content
}

func TestWhatIsNotSecretStays(t *testing.T) {
	for name, object := range map[string]string{
		"references to Secrets":   container(`"env":[{"name":"A","valueFrom":{"secretKeyRef":{"name":"db","key":"user"}}}],"envFrom":[{"secretRef":{"name":"db"}}],"volumeMounts":[{"name":"secret-volume","mountPath":"/secret"}]`),
		"volumes of Secrets":      `{"apiVersion":"v1","kind":"Pod","spec":{"automountServiceAccountToken":false,"imagePullSecrets":[{"name":"registry"}],"volumes":[{"name":"s","secret":{"secretName":"db","defaultMode":256,"items":[{"key":"a","path":"b","mode":256}]}},{"name":"p","projected":{"sources":[{"serviceAccountToken":{"audience":"a","expirationSeconds":3600,"path":"token"}},{"secret":{"name":"db","items":[{"key":"a","path":"b"}]}}]}}]}}`,
		"images and users":        `{"apiVersion":"v1","kind":"Pod","spec":{"containers":[{"name":"token","image":"ghcr.io/acme/token:v1"}],"serviceAccountName":"token-reader"}}`,
		"a ServiceAccount":        `{"apiVersion":"v1","kind":"ServiceAccount","secrets":[{"name":"a"}],"imagePullSecrets":[{"name":"b"}]}`,
		"the schema of a secret":  `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","spec":{"properties":{"password":{"type":"string","maxLength":5}}}}`,
		"roles about Secrets":     `{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"Role","rules":[{"apiGroups":[""],"resources":["secrets","serviceaccounts/token"],"resourceNames":["db"],"verbs":["get"]}]}`,
		"large and exact numbers": custom(`"n":9007199254740993,"f":1.50,"e":1e3`),
		"TLS of an Ingress":       `{"apiVersion":"networking.k8s.io/v1","kind":"Ingress","spec":{"tls":[{"hosts":["a"],"secretName":"tls"}]}}`,
	} {
		t.Run(name, func(t *testing.T) {
			entry := redacted(t, `{"kind":{"group":"","version":"v1","kind":"Pod"},"name":"a","object":`+object+`,"operation":"CREATE","uid":"1","userInfo":{"username":"system:serviceaccount:secret-ns:token-reader","groups":["token:readers"],"extra":{"authentication.kubernetes.io/credential-id":["JTI=1"]}}}`, recording.Answer{})
			var before, after any
			if err := json.Unmarshal([]byte(object), &before); err != nil {
				t.Fatal(err)
			}
			after = tree(t, entry, "object")
			if diff := cmp.Diff(before, after); diff != "" || len(entry.Replaced) > 0 {
				t.Errorf("%v are replaced: %s", entry.Replaced, diff)
			}
			if user := tree(t, entry, "userInfo", "username"); user != "system:serviceaccount:secret-ns:token-reader" {
				t.Errorf("the user is %v", user)
			}
			for _, number := range []string{"9007199254740993", "1.50", "1e3"} {
				if strings.Contains(object, number) && !strings.Contains(string(entry.Request), number) {
					t.Errorf("%s is gone: %s", number, entry.Request)
				}
			}
		})
	}
}

func TestAPlaceholderKeepsEqualityAndType(t *testing.T) {
	secret := base64.StdEncoding.EncodeToString([]byte("hunter22"))
	entry := redacted(t, `{"object":{"kind":"Secret","data":{"a":"`+secret+`","b":"b3RoZXIx"},"stringData":{"c":"hunter22"}},
		"oldObject":{"kind":"Secret","data":{"a":"`+secret+`"}},"options":{"token":1234,"otherToken":1234}}`,
		recording.Answer{Outcome: recording.Denied, Message: "hunter22 is too weak", Warnings: []string{"weak: " + secret}, Object: json.RawMessage(`{"copied":"hunter22","token":1234}`)})
	a, b, old := tree(t, entry, "object", "data", "a"), tree(t, entry, "object", "data", "b"), tree(t, entry, "oldObject", "data", "a")
	if a != old || a == b || a == secret {
		t.Errorf("data are %v, %v and the old %v", a, b, old)
	}
	plain, err := base64.StdEncoding.DecodeString(a.(string))
	if err != nil || tree(t, entry, "object", "stringData", "c") != string(plain) {
		t.Errorf("%v: %q is not stringData", err, plain)
	}
	if entry.Answer.Message != string(plain)+" is too weak" || entry.Answer.Warnings[0] != "weak: "+a.(string) {
		t.Errorf("the answer is %q and %q", entry.Answer.Message, entry.Answer.Warnings)
	}
	if tree(t, entry, "options", "token") != tree(t, entry, "options", "otherToken") || tree(t, entry, "options", "token") == 1234.0 {
		t.Errorf("the options are %v", tree(t, entry, "options"))
	}
	if !strings.Contains(string(entry.Answer.Object), `"copied":"`+string(plain)+`"`) {
		t.Errorf("the object becomes %s", entry.Answer.Object)
	}
	for _, path := range []string{"request.object.data[a]", "request.options.token", "answer.object.copied", "answer.message"} {
		if !slices.Contains(entry.Replaced, path) {
			t.Errorf("%s is not among %v", path, entry.Replaced)
		}
	}
	again := redacted(t, string(entry.Request), entry.Answer)
	if string(again.Request) != string(entry.Request) || again.Answer.Message != entry.Answer.Message || len(again.Replaced) > 0 {
		t.Errorf("it is redacted again: %v", again.Replaced)
	}
}

func TestAWordThatIsASecretElsewhereStaysWhereItSaysWhatAnObjectIs(t *testing.T) {
	namespace := base64.StdEncoding.EncodeToString([]byte("default"))
	entry := redacted(t, `{"namespace":"default","object":{"kind":"Secret","metadata":{"namespace":"default"},"data":{"namespace":"`+namespace+`"}}}`,
		recording.Answer{Message: "not in default"})
	if entry.Answer.Message != "not in default" || tree(t, entry, "object", "metadata", "namespace") != "default" {
		t.Errorf("got %s and %q", entry.Request, entry.Answer.Message)
	}
}

func FuzzARedactedReviewIsValidAndFinal(f *testing.F) {
	objects, _ := planted()
	for _, object := range objects {
		f.Add(object, "a token: x")
	}
	redactor, err := recording.NewRedactor()
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, object, message string) {
		if !json.Valid([]byte(object)) {
			t.Skip()
		}
		entry := &recording.Entry{Request: json.RawMessage(`{"object":` + object + `}`), Answer: recording.Answer{Message: message, Object: json.RawMessage(object)}}
		if redactor.Entry(entry) != nil {
			t.Skip() // such as duplicate fields
		}
		if !json.Valid(entry.Request) || !json.Valid(entry.Answer.Object) {
			t.Fatalf("%q becomes %q and %q", object, entry.Request, entry.Answer.Object)
		}
		first := fmt.Sprintf("%s %s %s", entry.Request, entry.Answer.Message, entry.Answer.Object)
		if err := redactor.Entry(entry); err != nil {
			t.Fatal(err)
		}
		if second := fmt.Sprintf("%s %s %s", entry.Request, entry.Answer.Message, entry.Answer.Object); second != first {
			t.Fatalf("%q becomes %q, and then %q", object, first, second)
		}
	})
}
