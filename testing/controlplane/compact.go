package controlplane

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
)

// CompactEtcd makes etcd forget every state but the present one, as it does in a
// cluster every few minutes: a watch from an older resourceVersion has expired,
// once kube-apiserver does not have it in memory either (RestartAPIServer).
func (c *ControlPlane) CompactEtcd(ctx context.Context) error {
	var present struct {
		Header struct {
			Revision string `json:"revision"`
		} `json:"header"`
	}
	// Any read tells the revision: here that of the key "\x00", which is not there.
	err := c.askEtcd(ctx, "range", map[string]any{"key": "AA=="}, &present)
	if err == nil {
		err = c.askEtcd(ctx, "compaction", map[string]any{"revision": present.Header.Revision, "physical": true}, nil)
	}
	if err != nil {
		return fmt.Errorf("controlplane: compacting etcd: %w", err)
	}
	return nil
}

// askEtcd makes a call of etcd's KV service, by its JSON gateway
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
	defer response.Body.Close() //nolint:errcheck // it was read
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("etcd answers %s", response.Status)
	}
	if into == nil {
		return nil
	}
	return json.NewDecoder(response.Body).Decode(into)
}
