package main

import (
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"time"
)

// serve is a model server until ctx ends. It wants the key in $MODEL_KEY, if that is set.
func serve(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("agent model", flag.ExitOnError)
	address := flags.String("address", "127.0.0.1:8080", "where to listen")
	cert := flags.String("cert", "", "file with the certificate; without it the server speaks plain HTTP")
	key := flags.String("key", "", "file with the key of the certificate")
	if err := flags.Parse(args); err != nil {
		return err
	}
	server := &http.Server{Addr: *address, Handler: model(os.Getenv("MODEL_KEY")), ReadHeaderTimeout: time.Minute}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	fmt.Println("serving at", *address)
	var err error
	if *cert != "" {
		err = server.ListenAndServeTLS(*cert, *key)
	} else {
		err = server.ListenAndServe()
	}
	if errors.Is(err, http.ErrServerClosed) { // as was asked for
		return nil
	}
	return err
}

// model answers whoever has the key: it notes what it was asked, looks whether that is there, and is done.
func model(key string) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/steps", func(w http.ResponseWriter, r *http.Request) {
		if subtle.ConstantTimeCompare([]byte(r.Header.Get("X-Api-Key")), []byte(key)) != 1 {
			http.Error(w, "X-Api-Key is missing or wrong", http.StatusUnauthorized)
			return
		}
		var talk conversation
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxSteps*maxBytes)).Decode(&talk); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		_ = json.NewEncoder(w).Encode(think(&talk))
	})
	return mux
}

func think(talk *conversation) step {
	const notes = "notes.md"
	switch len(talk.Done) {
	case 0:
		return step{Say: "I shall note that.", Write: &file{notes, "# To do\n\n" + talk.Prompt + "\n"}}
	case 1:
		return step{Say: "Let me see whether it is there.", Read: notes}
	}
	return step{Say: fmt.Sprintf("%s has %d bytes. I am done.", notes, len(talk.Done[1].Result)), End: true}
}
