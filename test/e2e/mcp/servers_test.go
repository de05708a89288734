package mcp

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/engi-dev/engi/client"
	"github.com/engi-dev/engi/internal/agent/llm/scripted"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/node/config"
	"github.com/engi-dev/engi/test/env"
)

// closure packs packages and all their dependencies.
func closure(t *testing.T, names ...string) io.Reader {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	seen := map[string]bool{}
	for len(names) > 0 {
		name := names[0]
		names = names[1:]
		if seen[name] {
			continue
		}
		seen[name] = true
		raw, err := os.ReadFile(packages + name + "/package.json")
		if err != nil {
			env.Need(t, "the packages below js (.ci/packages)")
		}
		var about struct{ Dependencies map[string]string }
		if err := json.Unmarshal(raw, &about); err != nil {
			t.Fatal(err)
		}
		for need := range about.Dependencies {
			if _, err := os.Stat(packages + name + "/node_modules/" + need); err != nil {
				names = append(names, need)
			}
		}
		err = filepath.WalkDir(packages+name, func(path string, d os.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() || strings.HasSuffix(path, ".map") || strings.HasSuffix(path, ".d.ts") {
				return err
			}
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			if err := w.WriteHeader(&tar.Header{Name: strings.TrimPrefix(path, "js/"), Mode: 0o644, Size: int64(len(data))}); err != nil {
				return err
			}
			_, err = w.Write(data)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &b
}

// TestServersOfOthers: an agent uses servers from the registry of packages
// in its own sandbox, one in a separate sandbox, and one on the
// network.
func TestServersOfOthers(t *testing.T) {
	env.Slow(t)
	c := settings(t)
	small, err := os.ReadFile("js/small.cjs")
	if err != nil {
		t.Fatal(err)
	}
	canary := filepath.Join(t.TempDir(), "canary")
	if err := os.WriteFile(canary, nil, 0o644); err != nil {
		t.Fatal(err)
	}

	const secret = "canary-mcp-3f7a"
	t.Setenv("ENGI_TEST_MCP_KEY", secret)
	far := sdk.NewServer(&sdk.Implementation{Name: "far", Version: "1"}, nil)
	sdk.AddTool(far, &sdk.Tool{Name: "weather", Description: "of a city"}, func(_ context.Context, _ *sdk.CallToolRequest, a struct {
		City string `json:"city"`
	}) (*sdk.CallToolResult, any, error) {
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: "sunny in " + a.City}}}, nil, nil
	})
	inner := sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return far }, nil)
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+secret {
			http.Error(w, "no", http.StatusUnauthorized)
			return
		}
		inner.ServeHTTP(w, r)
	}))
	defer web.Close()

	call := func(name, args string) scripted.Call { return scripted.Call{Name: name, Arguments: args} }
	turns := [][]scripted.Call{
		{call("files_write_file", `{"path":"/workspace/a.txt","content":"forty-two"}`), call("web_weather", `{"city":"Ulm"}`), call("own_where", `{}`)},
		{call("files_read_text_file", `{"path":"/workspace/a.txt"}`), call("every_echo", `{"message":"hello"}`), call("files_read_text_file", `{"path":"/workspace/../etc/passwd"}`), call("own_die", `{}`)},
		{call("own_where", `{}`), call("every_get-sum", `{"a":40,"b":2}`), call("every_none", `{}`)},
	}
	model := &scripted.Server{Play: func(c scripted.Conversation) scripted.Answer {
		n := 0
		for _, turn := range c.Turns {
			if turn.Role == "assistant" {
				n++
			}
		}
		if n < len(turns) {
			return scripted.Answer{Text: "Let me see.", Calls: turns[n]}
		}
		return scripted.Answer{Text: "All is said."}
	}}
	brain := httptest.NewServer(model)
	defer brain.Close()

	at := "/workspace/" + strings.TrimPrefix(packages, "js/") + "@modelcontextprotocol/"
	c.Providers = map[string]config.Provider{"script": {Dialect: "openai", URL: brain.URL + "/v1"}}
	c.Models.Default = "script:m"
	c.Agents = []config.Agent{{Name: "user", Tools: []string{"files", "every", "own", "web"}}}
	c.MCP.Servers = []config.MCPServer{
		{Name: "files", Command: []string{"node", at + "server-filesystem/dist/index.js", "/workspace"}, Where: "run", Tools: []string{"read_text_file", "write_file", "list_directory"}},
		{Name: "every", Command: []string{"node", at + "server-everything/dist/index.js"}, Where: "run"},
		{Name: "own", Command: []string{"node", "-e", string(small)}, Env: map[string]string{"CANARY": canary}},
		{Name: "web", URL: web.URL, Private: true, KeyEnv: "ENGI_TEST_MCP_KEY"},
	}
	n := env.Run(t, c)
	box, err := n.Sandboxes().Create(t.Context(), engi.SandboxSpec{Owner: "ann"})
	if err != nil {
		t.Fatal(err)
	}
	g, release, err := n.Sandboxes().Enter(t.Context(), "ann", box.ID)
	if err != nil {
		t.Fatal(err)
	}
	err = g.Unpack(t.Context(), "/workspace", closure(t, "@modelcontextprotocol/server-filesystem", "@modelcontextprotocol/server-everything"))
	release()
	if err != nil {
		t.Fatal(err)
	}
	x, err := n.Agents().Start(t.Context(), engi.RunSpec{Owner: "ann", Input: "use them all", Sandbox: box.ID})
	if err != nil {
		t.Fatal(err)
	}
	for e, err := range n.Agents().Watch(t.Context(), "ann", x.ID, 0) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Run != nil {
			x = *e.Run
		}
	}
	if x.State != engi.RunDone || x.Text != "All is said." {
		t.Fatalf("%+v %v", x, x.Error)
	}
	said, err := n.Agents().Messages(t.Context(), "ann", x.ID)
	if err != nil {
		t.Fatal(err)
	}
	results := map[string][]engi.ToolResult{}
	for _, m := range said {
		for _, r := range m.Results {
			results[r.Name] = append(results[r.Name], r)
		}
	}
	for name, want := range map[string][]string{
		"files_write_file": {"Successfully wrote"}, "web_weather": {"sunny in Ulm"}, "files_read_text_file": {"forty-two", "denied"}, "every_echo": {"hello"},
		"own_where": {`"canary":false`, `"canary":false`}, "own_die": {"connection broke"}, "every_get-sum": {"42"}, "every_none": {"no tool"},
	} {
		got := results[name]
		if len(got) != len(want) {
			t.Errorf("%s: %+v", name, got)
			continue
		}
		for i := range want {
			text := got[i].Text
			if i > 0 && strings.Contains(text, want[0]) && want[0] != want[i] {
				text = got[0].Text // the calls ran concurrently
			}
			if !strings.Contains(text, want[i]) && !strings.Contains(got[len(got)-1-i].Text, want[i]) {
				t.Errorf("%s: %+v", name, got)
			}
		}
	}
	all, err := json.Marshal(said)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range model.Seen() {
		all = append(all, c.Raw...)
	}
	if bytes.Contains(all, []byte(secret)) {
		t.Error("the model or the transcript has the secret")
	}
	servers, err := client.New(n.Endpoint().URL, n.AdminKey()).ToolServers(t.Context())
	if err != nil || len(servers) != 4 {
		t.Errorf("%+v %v", servers, err)
	}
	for _, s := range servers {
		if s.State != "ready" || len(s.Tools) == 0 {
			t.Errorf("%+v", s)
		}
	}
	// The sandboxes of the servers are gone.
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		left, err := n.Sandboxes().List(t.Context(), "ann", engi.SandboxFilter{Owned: true})
		if err != nil {
			t.Fatal(err)
		}
		if len(left) == 1 && left[0].ID == box.ID {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("left: %+v", left)
		}
	}
}
