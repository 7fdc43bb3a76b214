package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
)

func TestTheChatGetsEachEventOnce(t *testing.T) {
	var shown []string
	down := true
	chat := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if down {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		var message struct{ Text string }
		if err := json.NewDecoder(req.Body).Decode(&message); err != nil {
			t.Error(err)
		}
		shown = append(shown, message.Text)
	}))
	defer chat.Close()
	r := newRelay(chat.URL, "s3cr3t")
	send := func(token, body string) int {
		w, req := httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body))
		req.Header.Set("Authorization", "Bearer "+token)
		r.ServeHTTP(w, req)
		return w.Code
	}
	const batch = `[
		{"specversion":"1.0","id":"1","source":"s","type":"dev.admitkit.access.waiting","data":{"step":"waiting","namespace":"shop","name":"a","message":"has 0 of 1 approval (groups: sre)"}},
		{"specversion":"1.0","id":"2","source":"s","type":"dev.admitkit.access.granted","data":{"step":"granted","namespace":"shop","name":"a","message":"alice: @channel <https://evil|help>"}}]`
	for _, c := range []struct {
		token, body string
		down        bool
		want        int
	}{
		{"other", batch, false, http.StatusUnauthorized},
		{"s3cr3t", "[", false, http.StatusBadRequest},
		{"s3cr3t", batch, true, http.StatusServiceUnavailable},
		{"s3cr3t", batch, false, http.StatusOK},
		{"s3cr3t", batch, false, http.StatusOK}, // again
	} {
		down = c.down
		if got := send(c.token, c.body); got != c.want {
			t.Errorf("%+v: answered %d", c, got)
		}
	}
	if want := []string{
		"[waiting] shop/a: has 0 of 1 approval (groups: sre)\nTo decide: kubectl access approve a -n shop",
		"[granted] shop/a: alice: @\u200bchannel &lt;https://evil|help&gt;",
	}; !slices.Equal(shown, want) {
		t.Errorf("the chat shows %q, want %q", shown, want)
	}
}
