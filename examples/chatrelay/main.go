// Command chatrelay posts admitkit's notifications about access requests to a chat, by a
// webhook that takes {"text": "..."}, as those of Slack, Mattermost and Rocket.Chat do.
// It needs nothing but Go's standard library.
//
//	CHAT_WEBHOOK=https://chat.example.com/hooks/x RELAY_TOKEN=... chatrelay -cert tls.crt -key tls.key
//
// admitkit then has --access-notify-url=https://chatrelay.chat.svc/ and the same token in
// the file of --access-notify-token-file.
package main

import (
	"bytes"
	"context"
	"crypto/subtle"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// event is what the relay reads of a CloudEvent; access.Notification documents the data.
type event struct {
	ID, Source, Type string
	Data             struct {
		Step, Namespace, Name, Message string
	}
}

func main() {
	address := flag.String("address", ":8443", "where to listen")
	cert, key := flag.String("cert", "", "file with the certificate, in PEM"), flag.String("key", "", "file with its key")
	flag.Usage = func() {
		_, _ = fmt.Fprintln(flag.CommandLine.Output(), "Usage: CHAT_WEBHOOK=URL RELAY_TOKEN=TOKEN chatrelay [flags]\n\n"+
			"CHAT_WEBHOOK is where the chat takes messages. RELAY_TOKEN is the bearer token that admitkit sends. Both must be set.\n\nFlags:")
		flag.PrintDefaults()
	}
	flag.Parse()
	webhook, token := os.Getenv("CHAT_WEBHOOK"), os.Getenv("RELAY_TOKEN")
	if webhook == "" || token == "" {
		log.Fatal("CHAT_WEBHOOK and RELAY_TOKEN must be set") // anybody could post to the chat
	}
	server := &http.Server{Addr: *address, Handler: newRelay(webhook, token), ReadTimeout: 30 * time.Second}
	log.Fatal(server.ListenAndServeTLS(*cert, *key))
}

// relay posts events to a chat.
type relay struct {
	webhook, token string
	client         *http.Client

	mu sync.Mutex
	// posted has the last events: one may come again.
	posted []string
}

func newRelay(webhook, token string) *relay {
	return &relay{webhook: webhook, token: token, client: &http.Client{Timeout: 5 * time.Second}}
}

// remembered is how many events are known to be posted.
const remembered = 10_000

// ServeHTTP takes a batch of CloudEvents. While the chat takes none it answers 503, so that
// the batch comes again.
func (r *relay) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if subtle.ConstantTimeCompare([]byte(req.Header.Get("Authorization")), []byte("Bearer "+r.token)) != 1 {
		http.Error(w, "the token is another", http.StatusUnauthorized)
		return
	}
	var events []event
	if err := json.NewDecoder(http.MaxBytesReader(w, req.Body, 10<<20)).Decode(&events); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range events {
		if err := r.post(req.Context(), &events[i]); err != nil {
			log.Print(err)
			http.Error(w, "the chat does not answer", http.StatusServiceUnavailable)
			return
		}
	}
}

// post posts an event, once.
func (r *relay) post(ctx context.Context, e *event) error {
	id := e.Source + " " + e.ID
	if slices.Contains(r.posted, id) {
		return nil
	}
	body, err := json.Marshal(map[string]string{"text": textOf(e)})
	if err != nil {
		return err
	}
	post, err := http.NewRequestWithContext(ctx, http.MethodPost, r.webhook, bytes.NewReader(body))
	if err != nil {
		return err
	}
	post.Header.Set("Content-Type", "application/json")
	response, err := r.client.Do(post)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, 64<<10))
	if response.StatusCode >= 300 {
		return fmt.Errorf("the chat answered %s", response.Status)
	}
	r.posted = append(r.posted, id)
	r.posted = r.posted[max(0, len(r.posted)-remembered):]
	return nil
}

// textOf is what the chat shows. Users write reasons: they must not mention everybody, nor
// make a link look like another.
func textOf(e *event) string {
	harmless := strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", "@", "@\u200b", "`", "'").Replace
	d := &e.Data
	text := fmt.Sprintf("[%s] %s/%s: %s", d.Step, d.Namespace, d.Name, d.Message)
	if d.Step == "waiting" {
		text += fmt.Sprintf("\nTo decide: kubectl access approve %s -n %s", d.Name, d.Namespace)
	}
	return harmless(text)
}
