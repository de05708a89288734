package config_test

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/node/config"
)

func TestMCPServers(t *testing.T) {
	m := config.MCP{Servers: []config.MCPServer{
		{Name: "web", URL: "https://mcp.example.com/mcp", KeyEnv: "TOKEN", Headers: map[string]string{"X-Team": "a", "X-Key": "env:TOKEN"}},
		{Name: "git", Command: []string{"npx", "-y", "x"}, Network: []string{"*.example.com:443", "tcp://api.example.org", "10.0.0.0/8", "fd00::1", "192.0.2.1:80"},
			Env: map[string]string{"LEVEL": "debug", "KEY": "secret:git"}},
	}}
	got, err := m.ToolServers(func(name string) (string, bool) { return "s3cret ", name == "TOKEN" })
	if err != nil {
		t.Fatal(err)
	}
	if h := got[0].Header; h.Get("Authorization") != "Bearer s3cret" || h.Get("X-Key") != "s3cret" || h.Get("X-Team") != "a" {
		t.Errorf("%v", h)
	}
	g := got[1].Network.Grants
	if len(g) != 1 || g[0].Secret != "git" || g[0].Env != "KEY" || !slices.Equal(g[0].Hosts, []string{"*.example.com", "api.example.org"}) || got[1].Env["LEVEL"] != "debug" || got[1].Env["KEY"] != "" {
		t.Errorf("%+v", got[1])
	}
	if _, err := m.ToolServers(func(string) (string, bool) { return "", false }); !engi.Is(err, engi.Invalid) || !strings.Contains(err.Error(), "TOKEN") {
		t.Errorf("%v", err)
	}
}

func TestMCPServersThatCannotBe(t *testing.T) {
	cmd := []string{"x"}
	for name, s := range map[string]config.MCPServer{
		"no name":           {URL: "https://x.test"},
		"neither":           {Name: "x"},
		"where":             {Name: "x", Command: cmd, Where: "there"},
		"url where":         {Name: "x", URL: "https://x.test", Where: "run"},
		"template in a run": {Name: "x", Command: cmd, Where: "run", Template: "base"},
		"secret in a run":   {Name: "x", Command: cmd, Where: "run", Env: map[string]string{"A": "secret:b"}},
		"secret nowhere":    {Name: "x", Command: cmd, Env: map[string]string{"A": "secret:b"}},
		"key of command":    {Name: "x", Command: cmd, KeyEnv: "A"},
		"private command":   {Name: "x", Command: cmd, Private: true},
		"timeout":           {Name: "x", Command: cmd, Timeout: -1},
	} {
		c := config.Defaults()
		c.MCP.Servers = []config.MCPServer{s}
		if err := c.Validate(); !engi.Is(err, engi.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	c := config.Defaults()
	c.MCP.Servers = []config.MCPServer{{Name: "x", Command: cmd, Where: "run"}, {Name: "y", URL: "http://127.0.0.1:1/mcp"}}
	if err := c.Validate(); err != nil {
		t.Error(err)
	}
}

// TestMCPServersAreJudged asks a server on this host, by address and by redirect.
func TestMCPServersAreJudged(t *testing.T) {
	asked := 0
	here := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked++ }))
	defer here.Close()
	for _, private := range []bool{false, true} {
		client := config.MCP{Servers: []config.MCPServer{
			{Name: "x", URL: here.URL + "/mcp", Private: private}, {Name: "y", URL: "https://mcp.example.com", Private: !private},
		}}.Client()
		resp, err := client.Get(here.URL + "/mcp")
		if err == nil {
			resp.Body.Close()
		}
		if private != (err == nil) || !private && (!engi.Is(err, engi.Denied) || !strings.Contains(engi.RemedyOf(err), "private = true")) {
			t.Errorf("private %v: %v", private, err)
		}
	}
	if asked != 1 {
		t.Errorf("the server was asked %d times", asked)
	}
}
