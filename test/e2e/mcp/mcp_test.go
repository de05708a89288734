// Package mcp tests engi's tools with the protocol's own client for
// JavaScript, over both transports, in real sandboxes.
package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/client"
	"github.com/engi-dev/engi/internal/node/config"
	"github.com/engi-dev/engi/test/env"
)

func settings(t *testing.T) config.Config {
	t.Helper()
	env.Machine(t, "ENGI_BIN")
	if _, err := os.Stat("js/node_modules/@modelcontextprotocol/sdk"); err != nil {
		env.Need(t, "the packages below js (make packages)")
	}
	return env.Config(t, "")
}

// build builds the templates of the apps and services in these tests, because clients of
// tools would not wait for a build.
func build(t *testing.T, n *env.Running) {
	t.Helper()
	c := client.New(n.Endpoint().URL, n.AdminKey())
	for _, name := range []string{"node-api", "service-mongodb", "service-postgres", "service-redis"} {
		for _, err := range c.BuildTemplate(t.Context(), v1.TemplateRequest{Name: name}) {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestClient uses all tools with the client over HTTP and over standard input
// and output.
func TestClient(t *testing.T) {
	env.Slow(t)
	n := env.Run(t, settings(t))
	build(t, n)
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
