package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
)

// Post runs each program with one POST, whose response is the result. This is the
// request whose performance is documented.
func Post(url, key string) Run {
	return post[v1.ExecutionRequest, v1.Execution](url+"/v1/executions", key)
}

// PostScript runs scripts in the same way.
func PostScript(url, key string) func(context.Context, v1.ScriptRequest) (v1.ScriptResult, error) {
	return post[v1.ScriptRequest, v1.ScriptResult](url+"/v1/scripts", key)
}

func post[Q, X any](url, key string) func(context.Context, Q) (X, error) {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 1024
	transport.MaxIdleConns = 1024
	h := &http.Client{Transport: transport}
	return func(ctx context.Context, q Q) (x X, err error) {
		body, err := json.Marshal(q)
		if err != nil {
			return x, engi.Errorf(engi.Internal, "%v", err)
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
		if err != nil {
			return x, engi.Errorf(engi.Internal, "%v", err)
		}
		req.Header.Set("Authorization", "Bearer "+key)
		req.Header.Set("Content-Type", "application/json")
		resp, err := h.Do(req)
		if err != nil {
			return x, engi.Errorf(engi.Unavailable, "%v", err)
		}
		defer resp.Body.Close()
		answer, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
		if err != nil {
			return x, engi.Errorf(engi.Unavailable, "%v", err)
		}
		if after := resp.Header.Get("Retry-After"); after != "" && (resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode == http.StatusServiceUnavailable) {
			return x, &Refusal{resp.Status, after}
		}
		if resp.StatusCode != http.StatusOK {
			return x, engi.Errorf(engi.Unavailable, "%s: %.500s", resp.Status, answer)
		}
		if err := json.Unmarshal(answer, &x); err != nil {
			return x, engi.Errorf(engi.Internal, "%v: %.500s", err, answer)
		}
		return x, nil
	}
}

// A Refusal is the error of an overloaded node, with the time after which to retry.
type Refusal struct{ Status, After string }

// Error implements error.
func (r *Refusal) Error() string { return fmt.Sprintf("%s, retry after %s s", r.Status, r.After) }
