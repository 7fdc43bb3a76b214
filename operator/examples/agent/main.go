// Command agent is work for a sandbox: it asks a model what to do, does it in the working
// directory, tells the model what came of it, and so on until the model is done. It has no
// key of the model: the proxy of its run sets that. See README.md.
//
//	agent        works on the prompt in $ADMITKIT_PROMPT_FILE, with the model at $MODEL_URL
//	agent model  is a model that has learned little, for trying this out
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

const (
	// maxSteps is after how many steps an agent gives up: a model may never be done.
	maxSteps = 20
	// maxBytes is how much of an answer, and of a file, is read.
	maxBytes = 1 << 20
)

// conversation is what a model is asked.
type conversation struct {
	Model  string `json:"model,omitempty"`
	Prompt string `json:"prompt"`
	Done   []done `json:"done,omitempty"`
}

// step is what a model wants: at most one of reading and writing.
type step struct {
	Say   string `json:"say,omitempty"`
	Read  string `json:"read,omitempty"`
	Write *file  `json:"write,omitempty"`
	End   bool   `json:"end,omitempty"`
}

type file struct {
	Name string `json:"name"`
	Text string `json:"text"`
}

// done is a step with what came of it.
type done struct {
	step

	Result string `json:"result"`
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	work := func() error { return run(ctx, log.New(os.Stdout, "", 0)) }
	if len(os.Args) > 1 && os.Args[1] == "model" {
		work = func() error { return serve(ctx, os.Args[2:]) }
	}
	err := work()
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "agent:", err)
		os.Exit(1)
	}
}

// run works on the prompt, and prints what it does.
func run(ctx context.Context, out *log.Logger) error {
	prompt, err := os.ReadFile(os.Getenv("ADMITKIT_PROMPT_FILE")) //nolint:gosec // whoever starts an agent says where its prompt is
	if err != nil {
		return fmt.Errorf("ADMITKIT_PROMPT_FILE: %w", err)
	}
	folder, err := os.OpenRoot(".") // a model has no business outside
	if err != nil {
		return err
	}
	defer folder.Close() //nolint:errcheck // it is only read
	talk := conversation{Model: os.Getenv("ADMITKIT_MODEL"), Prompt: string(prompt)}
	for range maxSteps {
		next, err := ask(ctx, os.Getenv("MODEL_URL"), &talk)
		if err != nil {
			return fmt.Errorf("the model: %w", err)
		}
		if next.Say != "" {
			out.Print(next.Say)
		}
		if next.End {
			return conclude(next.Say)
		}
		talk.Done = append(talk.Done, done{*next, do(folder, next, out)})
	}
	return fmt.Errorf("the model is not done after %d steps", maxSteps)
}

// conclude writes the output of a run, which is what its container leaves there.
func conclude(text string) error {
	if os.Getenv("ADMITKIT_RUN") == "" {
		return nil // outside of a sandbox
	}
	return os.WriteFile("/dev/termination-log", []byte(text), 0o600)
}

// do does a step, and returns what came of it: the model is to know what failed.
func do(folder *os.Root, next *step, out *log.Logger) string {
	switch {
	case next.Write != nil:
		out.Printf("> writes %s, %d bytes", next.Write.Name, len(next.Write.Text))
		if err := folder.WriteFile(next.Write.Name, []byte(next.Write.Text), 0o600); err != nil {
			return "error: " + err.Error()
		}
		return "written"
	case next.Read != "":
		out.Printf("> reads %s", next.Read)
		opened, err := folder.Open(next.Read)
		if err != nil {
			return "error: " + err.Error()
		}
		defer opened.Close() //nolint:errcheck // it is only read
		text, err := io.ReadAll(io.LimitReader(opened, maxBytes))
		if err != nil {
			return "error: " + err.Error()
		}
		return string(text)
	}
	return ""
}

// ask asks the model for the next step. Nothing here knows of the proxy: its address and its
// certificate are in variables that each HTTP client obeys.
func ask(ctx context.Context, url string, talk *conversation) (*step, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	body, err := json.Marshal(talk)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/steps", bytes.NewReader(body)) //nolint:gosec // and where its model is
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req) //nolint:gosec // as above
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close() //nolint:errcheck // it is only read
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxBytes))
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", resp.Status, bytes.TrimSpace(text))
	}
	next := &step{}
	return next, json.Unmarshal(text, next)
}
