// Package mcp serves engi to external agents by the Model Context Protocol,
// over streamable HTTP: sandboxes, programs and sessions as tools, files and
// outputs as resources, the output of programs as progress, and pages of sessions as
// apps. The tools are those
// of engi's own agents (package internal/agent/tool), and others that create and delete
// sandboxes and sessions.
//
// Requests act for the owner of their API key. Requests of an administrator act for
// the node itself, not for all owners. For clients that use standard
// input and output, the command engi mcp forwards messages to
// this server.
//
// Sessions belong to the protocol's library. They are restored from the store when a
// client comes back after a restart. Interrupted calls are repeated
// if their tools allow it; see keyServer.
package mcp

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/engi-dev/engi/internal/agent/tool"
	"github.com/engi-dev/engi/internal/clip"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/server/httpio"
)

// Options configures a [Server]. Keys and Clients are required.
type Options struct {
	Services tool.Services
	Keys     engi.Keys
	Clients  engi.ToolClients                         // stores sessions
	Events   engi.EventLog                            // records an event for each call; nil records nothing
	URL      func(id engi.SandboxID, port int) string // returns the public address of a port; nil if ports have none
	Pages    engi.Pages                               // pages of sessions; nil if the node has none
	Sessions engi.Sessions                            // sessions of pages, if Services has none
	View     []byte                                   // script that shows pages in clients with the extension for apps; nil if there is none
	Hosts    []string                                 // accepted host names in addition to localhost; * accepts any
	Version  string
	Log      *slog.Logger  // nil discards
	Idle     time.Duration // time without use after which a client's session ends; 0 means 1 h
}

// A Server is an http.Handler for one path. It is safe for concurrent use.
type Server struct {
	opt    Options
	tools  []tool.Tool
	bodies *engi.Shares // bytes of the bodies being read
	view   string       // document that shows pages; empty if there is none

	watches httpio.Limiter // limits watches of pages

	mu   sync.Mutex
	keys map[string]*keyServer // by ID of the key
}

const (
	maxKeys     = 1024 // maximum number of keys served at a time
	maxSessions = 128  // maximum number of sessions of one key, and of its concurrent requests outside of sessions
	maxBatch    = 100  // maximum number of messages in one request
	maxBody     = 16 << 20
	maxBodies   = 4 * maxBody // maximum bytes of all bodies being read
)

// New returns a server.
func New(opt Options) (*Server, error) {
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	if opt.Idle == 0 {
		opt.Idle = time.Hour
	}
	builtin, err := tool.Builtin(opt.Services)
	if err != nil {
		return nil, err
	}
	s := &Server{opt: opt, keys: map[string]*keyServer{}, bodies: engi.NewShares(maxBodies)}
	for _, t := range builtin {
		if t.Name != "read_result" { // results are not stored for clients
			s.tools = append(s.tools, t)
		}
	}
	own, err := s.ownTools()
	if err != nil {
		return nil, err
	}
	if opt.Pages != nil && opt.View != nil {
		if s.view, err = viewOf(opt.View); err != nil {
			return nil, err
		}
	}
	pages, err := s.pageTools()
	if err != nil {
		return nil, err
	}
	s.tools = slices.Concat(s.tools, own, pages)
	return s, nil
}

// ServeHTTP serves one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	r, stop := httpio.TimedBody(w, r)
	defer stop()
	k, err := s.admit(r)
	if err == nil && r.Body != nil {
		body := &sharedBody{ReadCloser: r.Body, shares: s.bodies, owner: k.key.Owner}
		defer body.release()
		r.Body = body
	}
	var m message
	if err == nil {
		m, err = peek(r)
	}
	if err == nil {
		ctx, release := s.opt.Keys.Valid(r.Context(), secretOf(r))
		defer release()
		if err = k.serve(w, r.WithContext(ctx), m); err == nil {
			return
		}
	}
	p := httpio.Describe(err, "")
	if p.Status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	if p.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.FormatInt(int64((p.RetryAfter.Std()+time.Second-1)/time.Second), 10))
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(p.Status)
	if err := json.NewEncoder(w).Encode(p); err != nil {
		s.opt.Log.DebugContext(r.Context(), "answer an MCP client", "error", err)
	}
}

// A sharedBody counts the bytes read from it against the share of an owner, until it is
// released.
type sharedBody struct {
	io.ReadCloser
	shares *engi.Shares
	owner  engi.Owner
	taken  int64
}

// Read implements io.Reader. It reports Exhausted if the owner's share is used up.
func (b *sharedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if !b.shares.Take(b.owner, int64(n)) {
		return 0, engi.Errorf(engi.Exhausted, "the server is reading too many large requests of yours already").WithRetry(engi.Retry{AfterMillis: 1000})
	}
	b.taken += int64(n)
	return n, err
}

func (b *sharedBody) release() { b.shares.Give(b.owner, b.taken) }

// admit authenticates a request and returns the server of its key.
func (s *Server) admit(r *http.Request) (*keyServer, error) {
	if err := httpio.CheckHost(r, s.opt.Hosts); err != nil {
		return nil, err
	}
	if err := httpio.CheckOrigin(r, s.opt.Hosts); err != nil {
		return nil, err
	}
	key, err := s.opt.Keys.Authenticate(r.Context(), secretOf(r))
	if err != nil {
		return nil, err
	}
	return s.keyServer(key)
}

// secretOf returns the key that r carries; empty if it has none.
func secretOf(r *http.Request) string {
	secret, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	return cmp.Or(secret, r.Header.Get("X-API-Key"))
}

func (s *Server) keyServer(key engi.Key) (*keyServer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if k := s.keys[key.ID]; k != nil {
		k.used = now
		return k, nil
	}
	if len(s.keys) >= maxKeys {
		for id, k := range s.keys {
			if now.Sub(k.used) > s.opt.Idle {
				delete(s.keys, id)
			}
		}
		if len(s.keys) >= maxKeys {
			return nil, engi.Errorf(engi.Exhausted, "clients with %d keys are connected already", len(s.keys)).WithRetry(engi.Retry{AfterMillis: 60_000})
		}
	}
	k := s.newKeyServer(key)
	k.used = now
	s.keys[key.ID] = k
	return k, nil
}

const instructions = `engi runs code in sandboxes.
execute_code runs a whole program in a sandbox of its own and throws it away; use it for anything that stands alone.
For work that goes on, make a sandbox with create_sandbox and give its ID to the tools that work on files and commands; end it with stop_sandbox.
Work on files that stay, or that need a database, belongs in a workspace: make one with create_workspace and give its name to the same tools.`

// server returns the MCP server for one key. Sessions get their IDs from nextID.
func (s *Server) server(key engi.Key, nextID func() string) *sdk.Server {
	capabilities := &sdk.ServerCapabilities{Tools: &sdk.ToolCapabilities{}, Resources: &sdk.ResourceCapabilities{}, Prompts: &sdk.PromptCapabilities{}}
	capabilities.AddExtension(tasksExtension, nil)
	if s.view != "" {
		capabilities.AddExtension(appsExtension, nil)
	}
	server := sdk.NewServer(&sdk.Implementation{Name: "engi", Title: "engi sandboxes", Version: s.opt.Version}, &sdk.ServerOptions{
		Instructions: instructions, GetSessionID: nextID,
		// The capabilities never change while the server runs. The library answers
		// requests for prompts, although there are none.
		Capabilities: capabilities,
	})
	for _, t := range s.tools {
		described := describe(t)
		if s.view != "" {
			described.Meta = appMeta(t.Name)
		}
		server.AddTool(described, func(ctx context.Context, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			return s.call(ctx, key, t, req)
		})
	}
	s.resources(server, key)
	s.views(server, key)
	server.AddReceivingMiddleware(escapeURIs)
	s.addTasks(server, key)
	return server
}

// scope returns the scope that a key needs for a tool, and whether the tool
// changes anything.
func scope(t tool.Tool) (engi.Scope, bool) {
	switch t.Name {
	case "list_sandboxes", "list_sessions":
		return engi.ScopeSandboxes, false
	case "show_page", "act_on_page", watchPage:
		return engi.ScopeAgents, t.Name == "act_on_page"
	case "fetch_url": // needs no scope
		return "", true
	}
	return t.Scope()
}

// A location is the place in which a tool works. Clients send it in additional arguments.
type location struct {
	Sandbox   string `json:"sandbox"`
	Session   string `json:"session"`
	Workspace string `json:"workspace"`
}

// An effect is the effect of a tool on existing things, as its annotations declare it.
type effect struct {
	writes      bool // the tool changes something
	destructive bool // the tool changes or deletes existing things, and does not only add new ones
	idempotent  bool // a repeated call changes nothing more
	open        bool // the tool may reach hosts other than this node
}

// effects holds the effect of each tool. A tool that runs programs has the worst effect that they can have.
var effects = map[string]effect{
	"create_sandbox": {writes: true}, "stop_sandbox": {writes: true, destructive: true, idempotent: true}, "list_sandboxes": {}, "get_port_url": {},
	"create_session": {writes: true}, "end_session": {writes: true, destructive: true, idempotent: true}, "list_sessions": {},
	"execute_code": {writes: true, open: true},
	"run_code":     {writes: true, destructive: true, open: true}, "run_command": {writes: true, destructive: true, open: true},
	"read_file": {}, "list_files": {}, "glob": {}, "grep": {}, "search_docs": {},
	"write_file": {writes: true, destructive: true, idempotent: true}, "edit_file": {writes: true, destructive: true}, "remove_file": {writes: true, destructive: true, idempotent: true},
	"create_app": {writes: true}, "apply_to_app": {writes: true, destructive: true, open: true}, "read_app": {},
	"create_workspace": {writes: true}, "read_workspace": {}, "write_workspace": {writes: true, destructive: true}, "move_workspace_file": {writes: true, destructive: true}, "add_service": {writes: true}, "describe_tables": {},
	"enable_preview": {writes: true, open: true, idempotent: true}, "run_sql": {writes: true, destructive: true}, "query_collection": {writes: true, destructive: true}, "run_redis_command": {writes: true, destructive: true},
	"submit_for_review": {writes: true}, "submit_review": {writes: true, destructive: true}, "get_review_feedback": {},
	"save_module": {writes: true, destructive: true, idempotent: true},
	"fetch_url":   {open: true},
	"show_page":   {}, watchPage: {}, "act_on_page": {writes: true, destructive: true, open: true},
}

// describe returns a tool in the form of clients.
func describe(t tool.Tool) *sdk.Tool {
	e, known := effects[t.Name]
	if !known {
		e = effect{writes: true, destructive: true, open: true}
	}
	out := &sdk.Tool{
		Name: t.Name, Description: t.Description, InputSchema: inputSchema(t),
		Annotations: &sdk.ToolAnnotations{ReadOnlyHint: !e.writes, IdempotentHint: e.idempotent || !e.writes, OpenWorldHint: &e.open, DestructiveHint: &e.destructive},
	}
	if t.Output != nil {
		out.OutputSchema = t.Output
	}
	return out
}

// inputSchema returns the schema of a tool's arguments and its location.
func inputSchema(t tool.Tool) json.RawMessage {
	if t.Needs == tool.NeedNothing {
		return t.Schema
	}
	var schema map[string]any
	if json.Unmarshal(t.Schema, &schema) != nil {
		return t.Schema
	}
	properties, _ := schema["properties"].(map[string]any)
	if properties == nil {
		properties = map[string]any{}
		schema["properties"] = properties
	}
	switch t.Needs {
	case tool.NeedGuest:
		properties["sandbox"] = map[string]any{"type": "string", "description": "ID of the sandbox to work in"}
		properties["session"] = map[string]any{"type": "string", "description": "instead of sandbox: ID or name of a session"}
		properties["workspace"] = map[string]any{"type": "string", "description": "instead of sandbox: name of a workspace, which is started if it does not run"}
	case tool.WantSession:
		properties["session"] = map[string]any{"type": "string", "description": "ID or name of the session it is for, if there is one"}
	default:
		properties["session"] = map[string]any{"type": "string", "description": "ID or name of the session to work in"}
		required, _ := schema["required"].([]any)
		schema["required"] = append(required, "session")
	}
	raw, err := json.Marshal(schema)
	if err != nil {
		return t.Schema
	}
	return raw
}

// split separates the location from the tool's own arguments.
func split(t tool.Tool, raw json.RawMessage) (location, string, error) {
	if len(raw) == 0 {
		raw = json.RawMessage("{}")
	}
	if t.Needs == tool.NeedNothing {
		return location{}, string(raw), nil
	}
	var p location
	var rest map[string]json.RawMessage
	if json.Unmarshal(raw, &rest) != nil || json.Unmarshal(raw, &p) != nil {
		return p, "", engi.Errorf(engi.Invalid, "the arguments are not an object, or sandbox, session or workspace is not a string")
	}
	given := 0
	for _, where := range []string{p.Sandbox, p.Session, p.Workspace} {
		if where != "" {
			given++
		}
	}
	for _, name := range []string{"sandbox", "session", "workspace"} {
		delete(rest, name)
	}
	own, err := json.Marshal(rest)
	if err != nil {
		return p, "", engi.Errorf(engi.Invalid, "the arguments are not an object")
	}
	if given != 1 && t.Needs != tool.WantSession {
		return p, "", engi.Errorf(engi.Invalid, "the tool needs either sandbox or session or workspace").WithRemedy("create_sandbox creates a sandbox")
	}
	if p.Sandbox != "" {
		if _, err := engi.ParseSandboxID(p.Sandbox); err != nil {
			return p, "", err
		}
	}
	return p, string(own), nil
}

const maxText = 128 << 10 // maximum bytes of text in a result

// call runs a call of a client that waits for it.
func (s *Server) call(ctx context.Context, key engi.Key, t tool.Tool, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
	p := &progress{ctx: ctx, session: req.Session, token: req.Params.GetProgressToken()}
	run := engi.NewRunID()
	if req.Extra != nil && req.Extra.Header.Get(runHeader) != "" {
		run = engi.RunID(req.Extra.Header.Get(runHeader))
	}
	patience := time.Duration(0)
	if knowsTasks(req) {
		patience = taskPatience
	}
	r, err := s.run(ctx, key, t, run, patience, req.Params.Arguments, p.out)
	p.flush()
	return r, err
}

// run runs a call. A call that is repeated after a restart finds the objects that it created before.
func (s *Server) run(ctx context.Context, key engi.Key, t tool.Tool, run engi.RunID, patience time.Duration, args json.RawMessage, out func(engi.Stream, []byte)) (*sdk.CallToolResult, error) {
	if err := key.May(scope(t)); err != nil {
		return resultOf(tool.Failure(err)), nil
	}
	where, own, err := split(t, args)
	if err != nil {
		return resultOf(tool.Failure(err)), nil
	}
	c := &tool.Call{
		Env: tool.Env{Owner: key.Owner, Run: run, Sandbox: engi.SandboxID(where.Sandbox), Session: where.Session, Workspace: where.Workspace, Scopes: key.Scopes},
		ID:  "mcp", Out: out, Patience: patience,
	}
	began := time.Now()
	ctx = engi.WithActor(ctx, key.ID)
	r, err := t.Run(ctx, c, own)
	if t.Name != watchPage { // apps call this tool all the time
		s.record(ctx, c.Env, t.Name, r.Failed || err != nil, time.Since(began))
	}
	s.opt.Log.InfoContext(ctx, "mcp call", "tool", t.Name, "key", key.ID, "owner", string(key.Owner), "failed", r.Failed || err != nil, "ms", time.Since(began).Milliseconds())
	if err != nil {
		return nil, err
	}
	return resultOf(r), nil
}

// resultOf returns a result in the form of clients.
func resultOf(r tool.Result) *sdk.CallToolResult {
	text := strings.ToValidUTF8(r.Text, "\ufffd")
	if len(text) > maxText {
		text = clip.Bytes(text, maxText/2) + "\n[… cut …]\n" + clip.Tail(text, maxText/2)
	}
	out := &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: text}}, IsError: r.Failed}
	if r.Data != nil {
		out.StructuredContent = r.Data
	}
	if r.GoesOn != "" {
		out.Meta = sdk.Meta{taskMeta: r.GoesOn}
	}
	for _, img := range r.Images {
		out.Content = append(out.Content, &sdk.ImageContent{Data: img.Data, MIMEType: img.MediaType})
	}
	return out
}

// record appends the event of a tool call, without its arguments and result, which may be
// secret. The changes of the call have events of their own.
func (s *Server) record(ctx context.Context, env tool.Env, name string, failed bool, took time.Duration) {
	if s.opt.Events == nil {
		return
	}
	data, err := json.Marshal(map[string]any{
		"tool": name, "failed": failed, "duration_ms": took.Milliseconds(), "sandbox_id": env.Sandbox, "session": fmt.Sprintf("%.128s", env.Session), "client": "mcp",
	})
	if err == nil {
		_, err = s.opt.Events.Append(context.WithoutCancel(ctx), engi.EventSpec{Owner: env.Owner, Subject: engi.ActorOf(ctx), Type: engi.EventToolResult, Data: data})
	}
	if err != nil {
		s.opt.Log.ErrorContext(ctx, "append that a tool was called", "tool", name, "error", err)
	}
}

// progress reports the output of a program to a client.
type progress struct {
	ctx     context.Context
	session *sdk.ServerSession
	token   any

	mu       sync.Mutex
	text     []byte // output that was not reported yet
	total    float64
	reported time.Time
}

const (
	reportInterval = 100 * time.Millisecond
	maxReport      = 4 << 10
)

func (p *progress) out(_ engi.Stream, data []byte) {
	if p.token == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.total += float64(len(data))
	p.text = append(p.text, data...)
	if len(p.text) > maxReport {
		p.text = p.text[len(p.text)-maxReport:]
	}
	if time.Since(p.reported) >= reportInterval {
		p.report()
	}
}

func (p *progress) flush() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.text) > 0 {
		p.report()
	}
}

func (p *progress) report() {
	p.reported = time.Now()
	// Progress is best effort: a client that has left will not get the result either.
	_ = p.session.NotifyProgress(p.ctx, &sdk.ProgressNotificationParams{
		ProgressToken: p.token, Progress: p.total, Message: strings.ToValidUTF8(string(p.text), "\ufffd"),
	})
	p.text = p.text[:0]
}
