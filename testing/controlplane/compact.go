package controlplane

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
)

// CompactEtcd makes etcd forget every state but the current one, as happens in a
// cluster every few minutes. To expire watches from an older resourceVersion, also
// call [ControlPlane.RestartAPIServer], because kube-apiserver keeps recent states
// in memory.
func (c *ControlPlane) CompactEtcd(ctx context.Context) error {
	var current struct {
		Header struct {
			Revision string `json:"revision"`
		} `json:"header"`
	}
	// Every read returns the revision. This one reads the key "\x00", which does not
	// exist.
	err := c.askEtcd(ctx, "range", map[string]any{"key": "AA=="}, &current)
	if err == nil {
		err = c.askEtcd(ctx, "compaction", map[string]any{"revision": current.Header.Revision, "physical": true}, nil)
	}
	if err != nil {
		return fmt.Errorf("controlplane: compacting etcd: %w", err)
	}
	return nil
}

// askEtcd calls a method of etcd's KV service through its JSON gateway
// (https://etcd.io/docs/v3.6/dev-guide/api_grpc_gateway/).
func (c *ControlPlane) askEtcd(ctx context.Context, method string, body, into any) error {
	encoded, err := json.Marshal(body)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.plane.Etcd.URL.JoinPath("v3", "kv", method).String(), bytes.NewReader(encoded))
	if err != nil {
		return err
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close() //nolint:errcheck // the body has been read
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("etcd answered %s", response.Status)
	}
	if into == nil {
		return nil
	}
	return json.NewDecoder(response.Body).Decode(into)
}
