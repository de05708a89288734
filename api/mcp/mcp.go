// Package mcp serves engi to other people's agents by the Model Context
// Protocol, over streamable HTTP: sandboxes, what is in them, programs and
// sessions as tools; files and outputs as resources; what programs print as
// progress. It uses the tools that engi's own agents use (package tool of
// room agent) and adds those that make and end sandboxes, which our agents do
// not have.
//
// Everything is done in the name of the key that a request brings. Standard
// input and output are for cmd/engi, which passes messages on to here.
package mcp

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/agent/tool"
	"github.com/engi-dev/engi/api/httpio"
)

// Options are what the surface serves.
type Options struct {
	Places  tool.Services
	Keys    engi.Keys
	URL     func(id engi.SandboxID, port int) string // where a port is seen from outside; nil means nowhere
	Hosts   []string                                 // names that requests may use beside loopback ones; * accepts any
	Version string
	Log     *slog.Logger  // nil discards
	Idle    time.Duration // a client's session ends after that; 0 means 1 h
}

// A Server is an http.Handler for one path. It is safe for concurrent use.
type Server struct {
	opt   Options
	tools []tool.Tool

	mu    sync.Mutex
	doors map[string]*services // by ID of key
}

// A door is what one key sees: sessions of one are not there for another.
type services struct {
	handler http.Handler
	used    time.Time
}

// maxDoors bounds the keys that are served at once.
const maxDoors = 1024

// New returns the surface.
func New(opt Options) (*Server, error) {
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	if opt.Idle == 0 {
		opt.Idle = time.Hour
	}
	builtin, err := tool.Builtin(opt.Places)
	if err != nil {
		return nil, err
	}
	s := &Server{opt: opt, doors: map[string]*services{}}
	for _, t := range builtin {
		if t.Name != "read_result" { // clients keep results themselves
			s.tools = append(s.tools, t)
		}
	}
	own, err := s.own()
	if err != nil {
		return nil, err
	}
	s.tools = append(s.tools, own...)
	return s, nil
}

// ServeHTTP serves one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	d, err := s.admit(r)
	if err == nil {
		d.ServeHTTP(w, r)
		return
	}
	p := httpio.Describe(err, "")
	if p.Status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(p.Status)
	if err := json.NewEncoder(w).Encode(p); err != nil {
		s.opt.Log.DebugContext(r.Context(), "answer an MCP client", "err", err)
	}
}

// admit finds out who is calling, and by what name.
func (s *Server) admit(r *http.Request) (http.Handler, error) {
	if err := httpio.CheckHost(r, s.opt.Hosts); err != nil {
		return nil, err
	}
	if err := httpio.CheckOrigin(r, s.opt.Hosts); err != nil {
		return nil, err
	}
	secret, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if secret == "" {
		secret = r.Header.Get("X-API-Key")
	}
	key, err := s.opt.Keys.Authenticate(r.Context(), secret)
	if err != nil {
		return nil, err
	}
	return s.door(key)
}

func (s *Server) door(key engi.Key) (http.Handler, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if d := s.doors[key.ID]; d != nil {
		d.used = now
		return d.handler, nil
	}
	if len(s.doors) >= maxDoors {
		for id, d := range s.doors {
			if now.Sub(d.used) > s.opt.Idle {
				delete(s.doors, id)
			}
		}
		if len(s.doors) >= maxDoors {
			return nil, engi.Errorf(engi.Exhausted, "%d keys have clients here", len(s.doors)).WithRetry(engi.Retry{AfterMillis: 60_000})
		}
	}
	server := s.server(key)
	h := sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return server }, &sdk.StreamableHTTPOptions{
		SessionTimeout: s.opt.Idle,
		// Names are judged by admit, which knows those that the node was given.
		DisableLocalhostProtection:   true,
		MaxRequestBodyBytes:          16 << 20,
		PropagateRequestCancellation: true,
	})
	s.doors[key.ID] = &services{h, now}
	return h, nil
}

const instructions = `engi runs code in sandboxes.
execute_code runs a whole program in a sandbox of its own and throws it away; use it for anything that stands alone.
For work that goes on, make a sandbox with create_sandbox and give its ID to the tools that work on files and commands; end it with stop_sandbox.`

// server is what one key sees.
func (s *Server) server(key engi.Key) *sdk.Server {
	server := sdk.NewServer(&sdk.Implementation{Name: "engi", Title: "engi sandboxes", Version: s.opt.Version}, &sdk.ServerOptions{
		Instructions: instructions, Capabilities: &sdk.ServerCapabilities{},
	})
	for _, t := range s.tools {
		server.AddTool(describe(t), func(ctx context.Context, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			return s.call(ctx, key, t, req)
		})
	}
	s.resources(server, key)
	return server
}

// scope is what a key must be for to use a tool, and whether the tool changes
// anything.
func scope(t tool.Tool) (engi.Scope, bool) {
	switch t.Name {
	case "execute_code":
		return engi.ScopeExecutions, true
	case "read_file", "list_files", "glob", "grep", "list_sandboxes", "list_sessions":
		return engi.ScopeSandboxes, false
	case "search_docs", "save_module":
		return engi.ScopeDocs, t.Name == "save_module"
	case "fetch_url":
		return "", true
	}
	return engi.ScopeSandboxes, true
}

// place is where a tool works, as an argument beside its own.
type place struct {
	Sandbox string `json:"sandbox"`
	Session string `json:"session"`
}

// describe is a tool as clients see it: where it works is an argument.
func describe(t tool.Tool) *sdk.Tool {
	_, writes := scope(t)
	return &sdk.Tool{
		Name: t.Name, Description: t.Description, InputSchema: placed(t),
		Annotations: &sdk.ToolAnnotations{ReadOnlyHint: !writes, IdempotentHint: t.Repeatable, OpenWorldHint: new(t.Name == "fetch_url"), DestructiveHint: new(writes)},
	}
}

// placed is the schema of a tool's arguments with those that say where.
func placed(t tool.Tool) json.RawMessage {
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

// split takes where a tool works out of its arguments.
func split(t tool.Tool, raw json.RawMessage) (place, string, error) {
	if len(raw) == 0 {
		raw = json.RawMessage("{}")
	}
	if t.Needs == tool.NeedNothing {
		return place{}, string(raw), nil
	}
	var p place
	var rest map[string]json.RawMessage
	if json.Unmarshal(raw, &rest) != nil || json.Unmarshal(raw, &p) != nil {
		return p, "", engi.Errorf(engi.Invalid, "the arguments are no object, or sandbox or session is no text")
	}
	delete(rest, "sandbox")
	delete(rest, "session")
	own, err := json.Marshal(rest)
	if err != nil {
		return p, "", engi.Errorf(engi.Invalid, "the arguments are no object")
	}
	if (p.Sandbox == "") == (p.Session == "") && t.Needs != tool.WantSession {
		return p, "", engi.Errorf(engi.Invalid, "it must be said where: sandbox or session, one of them").WithRemedy("create_sandbox makes a sandbox")
	}
	if p.Sandbox != "" {
		if _, err := engi.ParseSandboxID(p.Sandbox); err != nil {
			return p, "", err
		}
	}
	return p, string(own), nil
}

// maxText is how much of a result goes out.
const maxText = 128 << 10

func (s *Server) call(ctx context.Context, key engi.Key, t tool.Tool, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
	answer := func(r tool.Result) *sdk.CallToolResult {
		text := strings.ToValidUTF8(r.Text, "\ufffd")
		if len(text) > maxText {
			cut := len(text) - maxText
			text = strings.ToValidUTF8(text[:maxText/2], "") + "\n[… cut …]\n" + strings.ToValidUTF8(text[maxText/2+cut:], "")
		}
		out := &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: text}}, IsError: r.Failed}
		for _, img := range r.Images {
			out.Content = append(out.Content, &sdk.ImageContent{Data: img.Data, MIMEType: img.MediaType})
		}
		return out
	}
	if err := key.May(scope(t)); err != nil {
		return answer(tool.Failure(err)), nil
	}
	where, own, err := split(t, req.Params.Arguments)
	if err != nil {
		return answer(tool.Failure(err)), nil
	}
	p := &progress{ctx: ctx, session: req.Session, token: req.Params.GetProgressToken()}
	c := &tool.Call{
		Env: tool.Env{Owner: key.Owner, Run: engi.NewRunID(), Sandbox: engi.SandboxID(where.Sandbox), Session: where.Session},
		ID:  "mcp", Out: p.out,
	}
	began := time.Now()
	r, err := t.Run(ctx, c, own)
	p.flush()
	s.opt.Log.InfoContext(ctx, "mcp call", "tool", t.Name, "key", key.ID, "owner", string(key.Owner), "failed", r.Failed || err != nil, "ms", time.Since(began).Milliseconds())
	if err != nil {
		return nil, err
	}
	return answer(r), nil
}

// progress tells a client what a program prints, not more often than somebody
// can read.
type progress struct {
	ctx     context.Context
	session *sdk.ServerSession
	token   any

	mu    sync.Mutex
	text  []byte // that has not been told
	total float64
	told  time.Time
}

const (
	tellEvery = 100 * time.Millisecond
	maxTell   = 4 << 10
)

func (p *progress) out(_ engi.Stream, data []byte) {
	if p.token == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.total += float64(len(data))
	p.text = append(p.text, data...)
	if len(p.text) > maxTell {
		p.text = p.text[len(p.text)-maxTell:]
	}
	if time.Since(p.told) >= tellEvery {
		p.tell()
	}
}

func (p *progress) flush() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.text) > 0 {
		p.tell()
	}
}

func (p *progress) tell() {
	p.told = time.Now()
	// A client that does not listen any more gets its result, or not.
	_ = p.session.NotifyProgress(p.ctx, &sdk.ProgressNotificationParams{
		ProgressToken: p.token, Progress: p.total, Message: strings.ToValidUTF8(string(p.text), "\ufffd"),
	})
	p.text = p.text[:0]
}
