package deliver_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/afero"

	"github.com/admitkit/admitkit/extension/deliver"
	"github.com/admitkit/admitkit/internal/testkit"
)

func TestWithoutAQueueAnItemIsTakenWhenTheServerHasIt(t *testing.T) {
	both(t, func(t *testing.T, e encoding) {
		c := newReceiver(t)
		s := e.sender(quick("direct", c.URL, ""))
		send(t, s, "1")
		if got := c.ids(); len(got) != 1 || got[0] != "1" {
			t.Errorf("the server has %v", got)
		}
		answers := map[string]func(http.ResponseWriter, *http.Request, []string) bool{
			"503": status(http.StatusServiceUnavailable), "401 Unauthorized; check the token": status(http.StatusUnauthorized),
		}
		if e.name == "OTLP" {
			answers["receives no OTLP over HTTP at /v1/logs"] = status(http.StatusNotFound)
			answers["rejected the record: no such tenant"] = partially(1, "no such tenant")
		}
		for want, answer := range answers {
			c.set(answer)
			if err := s.put(t.Context(), "2"); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want an error with %q", err, want)
			}
		}
		if e.name == "OTLP" && metric(t, e.rejected, "direct") != 1 {
			t.Errorf("%v records are counted as rejected, want 1", metric(t, e.rejected, "direct"))
		}
	})
}

func TestAFailureDoesNotTellTheAddress(t *testing.T) {
	both(t, func(t *testing.T, e encoding) {
		for _, url := range []string{"http://user:s3cr3t@127.0.0.1:1", "http://127.0.0.1:1/hook?key=s3cr3t"} {
			if err := e.sender(quick("address", url, "")).put(t.Context(), "1"); err == nil || strings.Contains(err.Error(), "s3cr3t") {
				t.Errorf("got %v, want an error without the URL", err)
			}
		}
	})
}

func TestTheQueueOutlivesTheServerAndTheProcess(t *testing.T) {
	both(t, func(t *testing.T, e encoding) {
		c := newReceiver(t)
		c.set(status(http.StatusServiceUnavailable))
		options := quick("queue", c.URL, t.TempDir())
		options.BatchSize = 10
		first := e.sender(options)
		stop, _ := run(t, first)
		var want []string
		for i := range 25 {
			want = append(want, fmt.Sprintf("%03d", i))
		}
		send(t, first, want...)
		send(t, first, "024") // a retry of the API server's
		stop()
		if got := c.ids(); len(got) != 0 {
			t.Fatalf("the server is down and has %v", got)
		}
		if got := metric(t, e.undelivered, "queue"); got != 25 {
			t.Errorf("%v are undelivered, want 25", got)
		}
		second := e.sender(options)
		run(t, second)
		send(t, second, "025", "026")
		c.set(nil)
		c.await(t, "the last one is there", func() bool { return slices.Contains(c.ids(), "026") })
		if got := firsts(c.ids()); !slices.Equal(got, append(want, "025", "026")) {
			t.Errorf("want each, in order, got %v", got)
		}
		if len(c.batches) >= 27 {
			t.Errorf("%d requests for 27: those that wait should go together", len(c.batches))
		}
		if metric(t, e.failures, "queue", "busy") == 0 {
			t.Error("the failures are not counted")
		}
	})
}

// firsts leaves out what came before: the server may still be reading a request that
// was given up when the sender stopped.
func firsts(ids []string) (firsts []string) {
	for _, id := range ids {
		if !slices.Contains(firsts, id) {
			firsts = append(firsts, id)
		}
	}
	return firsts
}

func TestAnItemThatTheServerRejectsHoldsUpNoOther(t *testing.T) {
	both(t, func(t *testing.T, e encoding) {
		c := newReceiver(t)
		c.set(func(w http.ResponseWriter, _ *http.Request, ids []string) bool {
			if slices.Contains(ids, "bad") {
				w.WriteHeader(http.StatusBadRequest)
				return false
			}
			return true
		})
		options := quick("rejecting", c.URL, t.TempDir())
		var lost []string
		options.Rejected = func(item []byte) { lost = append(lost, string(item)) }
		s := e.sender(options)
		send(t, s, "1", "bad", "2")
		stop, lines := run(t, s)
		testkit.Eventually(t, "the queue is empty", func(context.Context) bool { return metric(t, e.undelivered, "rejecting") == 0 })
		stop()
		if got := c.ids(); !slices.Equal(got, []string{"1", "2"}) || len(lost) != 1 || !strings.Contains(lost[0], "bad") {
			t.Errorf("the server has %v, and %q are lost", got, lost)
		}
		said := lines.FilterMessage(e.item + " lost: the " + e.receiver + " rejects it").All()
		if len(said) != 1 || said[0].ContextMap()["id"] != "bad" || !strings.Contains(fmt.Sprint(said[0].ContextMap()[e.item]), "bad") {
			t.Errorf("the log has %v", lines.All())
		}
		if got := metric(t, e.rejected, "rejecting"); got != 1 {
			t.Errorf("%v are counted as rejected, want 1", got)
		}
	})
}

func TestAQueueThatIsFullTakesNoMore(t *testing.T) {
	both(t, func(t *testing.T, e encoding) {
		options := quick("full", "http://127.0.0.1:1", "/queue")
		options.MaxQueued, options.Fs = 2, afero.NewMemMapFs()
		s := e.sender(options)
		send(t, s, "1", "2")
		if err := s.put(t.Context(), "3"); err == nil || !strings.Contains(err.Error(), "the queue is full") {
			t.Errorf("got %v, want that the queue is full", err)
		}
	})
}

// fullDisk takes a part of what is written, as write(2) does.
type fullDisk struct{ afero.Fs }

func (d fullDisk) OpenFile(name string, flag int, perm os.FileMode) (afero.File, error) {
	file, err := d.Fs.OpenFile(name, flag, perm)
	return fullFile{file}, err
}

type fullFile struct{ afero.File }

func (f fullFile) Write(p []byte) (int, error) {
	n, _ := f.File.Write(p[:len(p)/2])
	return n, syscall.ENOSPC
}

func TestAQueueOnAFullDiskIsAnError(t *testing.T) {
	both(t, func(t *testing.T, e encoding) {
		options := quick("disk", "http://127.0.0.1:1", t.TempDir())
		options.Fs = fullDisk{afero.NewOsFs()}
		if err := e.sender(options).put(t.Context(), "1"); err == nil || !strings.Contains(err.Error(), "no space left") {
			t.Errorf("got %v, want that the disk is full", err)
		}
	})
}

func TestAnIDNamesNoFileOutsideTheQueue(t *testing.T) {
	both(t, func(t *testing.T, e encoding) {
		options := quick("paths", "http://127.0.0.1:1", "/queue")
		options.Fs = afero.NewMemMapFs()
		send(t, e.sender(options), "../x", "x", "a-x", "../x")
		files, err := afero.ReadDir(options.Fs, "/queue")
		if err != nil || len(files) != 3 {
			t.Errorf("%v: want a file for each of three IDs, got %d", err, len(files))
		}
	})
}

func TestAnAnswerThatDoesNotEndIsNoDelivery(t *testing.T) {
	both(t, func(t *testing.T, e encoding) {
		for want, answer := range map[string]func(http.ResponseWriter, *http.Request){
			"its answer did not end": func(w http.ResponseWriter, r *http.Request) {
				_, _ = w.Write([]byte("a"))
				_ = http.NewResponseController(w).Flush()
				<-r.Context().Done()
			},
			"more than 65536 bytes": func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 64<<10+1)) },
			"":                      func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 64<<10)) },
		} {
			server := httptest.NewServer(http.HandlerFunc(answer))
			t.Cleanup(server.Close)
			limit := time.Minute
			if strings.Contains(want, "did not end") {
				limit = time.Second
			}
			s := e.sender(deliver.Options{Name: "unended", URL: server.URL, Timeout: limit})
			err := s.put(t.Context(), "1")
			if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want %q", err, want)
			}
		}
	})
}

func TestARedirectIsAFailureThatKeepsSecrets(t *testing.T) {
	both(t, func(t *testing.T, e encoding) {
		elsewhere, c := newReceiver(t), newReceiver(t)
		c.set(func(w http.ResponseWriter, r *http.Request, _ []string) bool {
			http.Redirect(w, r, strings.Replace(elsewhere.URL, "http://", "http://user:s3cr3t@", 1)+"/v1/logs?key=s3cr3t", http.StatusPermanentRedirect)
			return false
		})
		s := e.sender(deliver.Options{
			Name: "redirect", URL: c.URL, Header: http.Header{"Authorization": {"Bearer s3cr3t"}},
			// Even a client that would follow them does not.
			Client: &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return nil }},
		})
		err := s.put(t.Context(), "1")
		if err == nil || !strings.Contains(err.Error(), "308 Permanent Redirect, to "+elsewhere.URL+"; redirects are not followed") || strings.Contains(err.Error(), "s3cr3t") {
			t.Errorf("got %v, want an error that names the target without its secrets", err)
		}
		if got := elsewhere.ids(); len(got) != 0 {
			t.Errorf("the target of the redirect got %v", got)
		}
		if got := metric(t, e.failures, "redirect", "redirect"); got != 1 {
			t.Errorf("%v failures are counted, want 1", got)
		}
	})
}

func TestWrongOptionsAreNamed(t *testing.T) {
	const url = "https://collector:4318"
	both(t, func(t *testing.T, e encoding) {
		for want, o := range map[string]deliver.Options{
			"URL is missing":                                          {Name: "x"},
			"URL cannot be parsed":                                    {Name: "x", URL: "https://x:s3cr3t@%"},
			`URL "collector:4318" must be such as`:                    {Name: "x", URL: "collector:4318"},
			`URL "http://example.com" must be https, or http on this`: {Name: "x", URL: "http://example.com"},
			"CertFile and KeyFile must be set together":               {Name: "x", URL: url, KeyFile: "k"},
			"Timeout -1ns must be positive":                           {Name: "x", URL: url, Timeout: -1},
			"Name is missing":                                         {URL: url},
			"MaxQueued, BatchSize and Backoff must be positive":       {Name: "x", URL: url, MaxQueued: -1},
			"Dir and Memory exclude each other":                       {Name: "x", URL: url, Dir: "/queue", Memory: true},
		} {
			if err := e.sender(o).Validate(); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3cr3t") {
				t.Errorf("got %v, want an error with %q", err, want)
			}
		}
		for _, right := range []string{url, "http://127.0.0.1:1", "http://localhost:4318"} {
			if err := e.sender(deliver.Options{Name: "x", URL: right}).Validate(); err != nil {
				t.Errorf("%s: %v", right, err)
			}
		}
	})
	if err := deliver.NewEvents(deliver.EventOptions{Options: deliver.Options{Name: "x", URL: url}}).Validate(); err == nil || !strings.Contains(err.Error(), "Source is missing") {
		t.Errorf("got %v, want that the source is missing", err)
	}
}

func TestWrongOptionsOfOTLPAreNamed(t *testing.T) {
	many := map[string]string{}
	for i := range 33 {
		many[fmt.Sprint(i)] = "x"
	}
	const url = "https://collector:4318"
	for want, o := range map[string]deliver.OTLPOptions{
		"must not have a query":                      {Options: deliver.Options{URL: url + "?key=s3cr3t"}},
		"CAFile and CertFile have no effect by http": {Options: deliver.Options{URL: "http://127.0.0.1", CAFile: "ca"}},
		"set Insecure to send by http":               {Options: deliver.Options{URL: "http://collector:4318"}},
		"could read the credentials":                 {Options: deliver.Options{URL: "http://x:s3cr3t@collector:4318"}, Insecure: true},
		"Resource has 33 attributes; it can have 32": {Options: deliver.Options{URL: url}, Resource: many},
		`Resource: the attribute "a"`:                {Options: deliver.Options{URL: url}, Resource: map[string]string{"a": strings.Repeat("b", 1024)}},
	} {
		o.Name = "x"
		if err := deliver.NewLogs(o).Validate(); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3cr3t") {
			t.Errorf("got %v, want an error with %q", err, want)
		}
	}
	for _, o := range []deliver.OTLPOptions{{Options: deliver.Options{URL: "http://collector:4318"}, Insecure: true}, {Options: deliver.Options{URL: url + "/v1/logs/"}}} {
		o.Name = "x"
		if err := deliver.NewLogs(o).Validate(); err != nil {
			t.Errorf("%s: %v", o.URL, err)
		}
	}
}
