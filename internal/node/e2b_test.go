package node

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/engi-dev/engi/internal/idempotency"
)

// TestE2BCreatesOnce sends the same request of E2B's SDK with one Idempotency-Key four times at
// once: it creates one object, and another request with the key is a conflict.
func TestE2BCreatesOnce(t *testing.T) {
	c, o := fakeNode(t)
	n, err := Open(t.Context(), c, o)
	if err != nil {
		t.Fatal(err)
	}
	start(t, n)
	admin := apiClient{t, n.Endpoint().URL, n.AdminKey()}
	ann := admin.make("/v1/keys", `{"name":"ann","owner":"ann"}`, "secret")
	create := func(path, body string) (int, map[string]any) {
		r, err := http.NewRequestWithContext(t.Context(), "POST", admin.url+path, strings.NewReader(body))
		if err != nil {
			t.Error(err)
			return 0, nil
		}
		r.Header.Set("X-API-Key", ann)
		r.Header.Set(idempotency.Header, "key-of-"+path)
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Error(err)
			return 0, nil
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Error(err)
		}
		var m map[string]any
		if err := json.Unmarshal(text, &m); err != nil {
			t.Errorf("POST %s: %q", path, text)
		}
		return resp.StatusCode, m
	}
	for path, c := range map[string]struct{ body, other, id string }{
		"/sandboxes":       {`{"templateID":"host","timeout":3600,"metadata":{"a":"1"}}`, `{"templateID":"host","timeout":3600,"metadata":{"a":"2"}}`, "sandboxID"},
		"/v2/sandboxes":    {`{"templateID":"host","timeout":3600,"envVars":{"A":"1"}}`, `{"templateID":"host","timeout":3600}`, "sandboxID"},
		"/v3/templates":    {`{"name":"one"}`, `{"name":"two"}`, "buildID"},
		"/secrets":         {`{"name":"one","value":"1"}`, `{"name":"one","value":"2"}`, "secretID"},
		"/events/webhooks": {`{"name":"one","url":"https://example.com","enabled":false,"events":["sandbox.lifecycle.created"],"signatureSecret":"12345678901234567890123456789012"}`, `{"name":"two","url":"https://example.com","enabled":false,"events":["sandbox.lifecycle.created"],"signatureSecret":"12345678901234567890123456789012"}`, "id"},
	} {
		ids := make([]any, 4)
		var all sync.WaitGroup
		for i := range ids {
			all.Go(func() {
				status, m := create(path, c.body)
				if ids[i] = m[c.id]; status/100 != 2 || ids[i] == nil {
					t.Errorf("POST %s: %d %v", path, status, m)
				}
			})
		}
		all.Wait()
		for _, id := range ids {
			if id != ids[0] {
				t.Errorf("POST %s creates %v, want one", path, ids)
			}
		}
		if status, m := create(path, c.other); status != http.StatusConflict {
			t.Errorf("POST %s with another body: %d %v", path, status, m)
		}
	}
	var list struct{ Items []struct{ ID string } }
	_, answer := apiClient{t, admin.url, ann}.ask("GET", "/v1/sandboxes", "") // without those of pools
	if err := json.Unmarshal([]byte(answer), &list); err != nil || len(list.Items) != 2 {
		t.Errorf("there are %d sandboxes, want 2: %s", len(list.Items), answer)
	}
}
