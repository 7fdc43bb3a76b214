package main

import (
	"context"
	"encoding/json"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// works runs the agent in an empty folder, as its sandbox does, behind a proxy that sets a key.
func works(t *testing.T, model http.Handler, key string) (printed string, err error) {
	t.Helper()
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Api-Key") != "" {
			t.Error("the agent has a key")
		}
		r.Header.Set("X-Api-Key", key)
		model.ServeHTTP(w, r)
	}))
	defer proxy.Close()
	prompt := filepath.Join(t.TempDir(), "prompt")
	if err := os.WriteFile(prompt, []byte("Mend the build."), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir())
	t.Setenv("ADMITKIT_PROMPT_FILE", prompt)
	t.Setenv("MODEL_URL", proxy.URL)
	var out strings.Builder
	err = run(context.Background(), log.New(&out, "", 0))
	return out.String(), err
}

func TestAnAgentDoesWhatItsModelSays(t *testing.T) {
	printed, err := works(t, model("open-sesame"), "open-sesame")
	if err != nil || !strings.HasSuffix(printed, "notes.md has 25 bytes. I am done.\n") {
		t.Errorf("%v: %s", err, printed)
	}
	if text, err := os.ReadFile("notes.md"); err != nil || string(text) != "# To do\n\nMend the build.\n" {
		t.Errorf("%q, %v", text, err)
	}
}

func TestAModelAnswersNobodyWithoutItsKey(t *testing.T) {
	if _, err := works(t, model("open-sesame"), "another"); err == nil || !strings.Contains(err.Error(), "401 Unauthorized: X-Api-Key is missing or wrong") {
		t.Errorf("got %v", err)
	}
}

func TestAModelReachesNothingOutsideTheFolderAndNeverEndsInVain(t *testing.T) {
	asked := 0
	wild := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var talk conversation
		if err := json.NewDecoder(r.Body).Decode(&talk); err != nil {
			t.Error(err)
		}
		for _, step := range talk.Done {
			if !strings.HasPrefix(step.Result, "error: ") {
				t.Errorf("%+v", step)
			}
		}
		next := step{Read: "/etc/passwd"}
		if asked++; asked%2 == 0 {
			next = step{Write: &file{Name: "../escaped", Text: "text"}}
		}
		_ = json.NewEncoder(w).Encode(next)
	})
	if _, err := works(t, wild, ""); err == nil || !strings.Contains(err.Error(), "not done after 20 steps") {
		t.Errorf("got %v", err)
	}
}
