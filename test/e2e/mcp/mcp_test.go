// Package mcp tests engi's tools with the protocol's own client for
// JavaScript, over both transports, in real sandboxes.
package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/engi-dev/engi/node"
	"github.com/engi-dev/engi/node/config"
	"github.com/engi-dev/engi/test/env"
)

func settings(t *testing.T) config.Config {
	t.Helper()
	env.Machine(t, "ENGI_RUNSC", "ENGI_GUEST", "ENGI_BIN")
	if _, err := os.Stat("js/node_modules/@modelcontextprotocol/sdk"); err != nil {
		env.Need(t, "the packages below js (.ci/packages)")
	}
	dir, err := os.MkdirTemp("", "engi-mcp-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	c, _, err := config.Load(config.From{Env: os.Environ()})
	if err != nil {
		t.Fatal(err)
	}
	c.DataDir, c.Listen, c.Pools = filepath.Join(dir, "d"), "127.0.0.1:0", nil
	if ok, err := node.HasTemplate(c, "base"); err != nil || !ok {
		env.Need(t, "the template base (make template)")
	}
	return c
}

// serve runs a node until the test ends.
func serve(t *testing.T, c config.Config) *node.Node {
	t.Helper()
	n, err := node.Open(t.Context(), c, node.Options{Version: "test", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- n.Run(ctx, func() { close(ready) }) }()
	select {
	case <-ready:
	case err := <-done:
		t.Fatalf("the node: %v", err)
	}
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the node: %v", err)
		}
		if _, err := node.Destroy(context.Background(), c); err != nil {
			t.Error(err)
		}
	})
	return n
}

// TestClient has the client use all tools over HTTP and over standard input
// and output.
func TestClient(t *testing.T) {
	n := serve(t, settings(t))
	url := n.Endpoint().URL
	for name, args := range map[string][]string{
		"http":  {"http", url + "/mcp", n.AdminKey()},
		"stdio": {"stdio", os.Getenv("ENGI_BIN")},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, "node", append([]string{"js/client.mjs"}, args...)...)
			cmd.Env = append(os.Environ(), "ENGI_URL="+url, "ENGI_KEY="+n.AdminKey())
			var out, errs bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &errs
			if err := cmd.Run(); err != nil {
				t.Fatalf("%v\n%s", err, errs.String())
			}
			var got struct {
				Listed, Used       []string
				Progress           string
				Cancelled, Refused bool
			}
			if err := json.Unmarshal(out.Bytes(), &got); err != nil {
				t.Fatalf("%v in %s", err, out.String())
			}
			if !slices.Equal(got.Listed, got.Used) {
				t.Errorf("listed %v, used %v", got.Listed, got.Used)
			}
			if !strings.Contains(got.Progress, "step 0") || !got.Cancelled || !got.Refused {
				t.Errorf("%+v", got)
			}
		})
	}
}
