package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"net/url"
	"path"
	"strings"
	"time"
	"unicode/utf8"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/engi-dev/engi/internal/agent/tool"
	"github.com/engi-dev/engi/internal/engi"
)

type createSandbox struct {
	Template string            `json:"template,omitempty" jsonschema:"name of the template; default: the node's"`
	Timeout  int               `json:"timeout_seconds,omitempty" jsonschema:"seconds until the sandbox is deleted; default: 300"`
	Allow    []string          `json:"allow,omitempty" jsonschema:"hosts that the sandbox can reach, like api.example.com or *.example.com; default: none"`
	Metadata map[string]string `json:"metadata,omitempty" jsonschema:"labels of the sandbox"`
}

type oneSandbox struct {
	Sandbox string `json:"sandbox" jsonschema:"ID"`
}

type portOf struct {
	Sandbox string `json:"sandbox" jsonschema:"ID"`
	Port    int    `json:"port" jsonschema:"port that a program in the sandbox listens on"`
}

type createSession struct {
	Name      string `json:"name,omitempty" jsonschema:"name of the session"`
	Workspace string `json:"workspace,omitempty" jsonschema:"ID or name of your workspace in whose sandbox the session works; default: a sandbox and files of its own"`
}

type oneSession struct {
	Session string `json:"session" jsonschema:"ID or name"`
}

// ownTools returns the tools that engi's own agents do not have.
func (s *Server) ownTools() ([]tool.Tool, error) {
	var all []tool.Tool
	var first error
	add := func(t tool.Tool, err error) {
		if err != nil && first == nil {
			first = err
		}
		all = append(all, t)
	}
	if sandboxes := s.opt.Services.Sandboxes; sandboxes != nil {
		add(tool.Returning[sandbox](tool.New("create_sandbox", "Creates a sandbox, which runs until it is stopped or its timeout ends it, and returns its ID.", func(ctx context.Context, c *tool.Call, a createSandbox) (tool.Result, error) {
			if a.Timeout < 0 || a.Timeout > 24*3600 {
				return tool.Result{}, engi.Errorf(engi.Invalid, "a timeout of %d seconds is not between 1 and a day", a.Timeout)
			}
			spec := engi.SandboxSpec{Owner: c.Owner, Template: a.Template, Metadata: a.Metadata, Lifetime: engi.Lifetime{Timeout: time.Duration(a.Timeout) * time.Second}}
			if len(a.Allow) > 0 {
				spec.Network = engi.NetworkPolicy{Mode: engi.NetworkRestricted, Allow: a.Allow}
			}
			b, err := sandboxes.Create(ctx, spec)
			if err != nil {
				return tool.Result{}, err
			}
			return jsonResult(sandboxOf(b))
		})))
		add(tool.Returning[sandboxList](tool.New("list_sandboxes", "Lists sandboxes.", func(ctx context.Context, c *tool.Call, _ struct{}) (tool.Result, error) {
			list, err := sandboxes.List(ctx, c.Owner.Viewer(), engi.SandboxFilter{Owned: true})
			if err != nil {
				return tool.Result{}, err
			}
			out := make([]sandbox, len(list))
			for i, b := range list {
				out[i] = sandboxOf(b)
			}
			return listResult(out, sandboxList{out})
		})))
		add(tool.New("stop_sandbox", "Deletes a sandbox and everything in it.", func(ctx context.Context, c *tool.Call, a oneSandbox) (tool.Result, error) {
			id, err := engi.ParseSandboxID(a.Sandbox)
			if err != nil {
				return tool.Result{}, err
			}
			if err := sandboxes.Stop(ctx, c.Owner.Viewer(), id); err != nil {
				return tool.Result{}, err
			}
			return tool.Result{Text: "stopped " + a.Sandbox}, nil
		}))
		if s.opt.URL != nil {
			add(tool.Returning[portURL](tool.New("get_port_url", "Returns the URL of a server that runs in a sandbox.", func(ctx context.Context, c *tool.Call, a portOf) (tool.Result, error) {
				id, err := engi.ParseSandboxID(a.Sandbox)
				if err != nil {
					return tool.Result{}, err
				}
				if a.Port < 1 || a.Port > 65535 {
					return tool.Result{}, engi.Errorf(engi.Invalid, "%d is not a port", a.Port)
				}
				if _, err := sandboxes.Get(ctx, c.Owner.Viewer(), id); err != nil {
					return tool.Result{}, err
				}
				at := s.opt.URL(id, a.Port)
				return tool.Result{Text: at, Data: portURL{at}}, nil
			})))
		}
	}
	sessions, about := s.opt.Services.Sessions, "Creates a session for run_code: its files in /workspace outlive its sandboxes. Returns its ID."
	if sessions == nil {
		sessions, about = s.opt.Sessions, "Creates a session, which has a page. Returns its ID."
	}
	if sessions != nil {
		add(tool.Returning[session](tool.New("create_session", about, func(ctx context.Context, c *tool.Call, a createSession) (tool.Result, error) {
			x, err := sessions.Create(ctx, engi.SessionSpec{Owner: c.Owner, Name: a.Name, Workspace: a.Workspace})
			if err != nil {
				return tool.Result{}, err
			}
			return jsonResult(sessionOf(x))
		})))
		add(tool.Returning[sessionList](tool.New("list_sessions", "Lists sessions.", func(ctx context.Context, c *tool.Call, _ struct{}) (tool.Result, error) {
			list, err := sessions.List(ctx, c.Owner.Viewer(), engi.Paging{})
			if err != nil {
				return tool.Result{}, err
			}
			out := make([]session, len(list))
			for i, x := range list {
				out[i] = sessionOf(x)
			}
			return listResult(out, sessionList{out})
		})))
		add(tool.New("end_session", "Deletes a session and its files.", func(ctx context.Context, c *tool.Call, a oneSession) (tool.Result, error) {
			if err := sessions.Terminate(ctx, c.Owner.Viewer(), a.Session); err != nil {
				return tool.Result{}, err
			}
			return tool.Result{Text: "ended " + a.Session}, nil
		}))
	}
	return all, first
}

type sandbox struct {
	Sandbox  string            `json:"sandbox"`
	State    string            `json:"state"`
	Template string            `json:"template"`
	Deadline time.Time         `json:"deadline_at,omitzero"`
	Metadata map[string]string `json:"metadata,omitempty"`
}

func sandboxOf(b engi.Sandbox) sandbox {
	return sandbox{Sandbox: string(b.ID), State: string(b.State), Template: b.Template, Deadline: b.Deadline, Metadata: b.Metadata}
}

type session struct {
	Session string    `json:"session"`
	Name    string    `json:"name,omitempty"`
	State   string    `json:"state"`
	Expires time.Time `json:"expires_at,omitzero"`
}

func sessionOf(x engi.Session) session {
	return session{string(x.ID), x.Name, string(x.State), x.Expires}
}

// Structured results are objects: older revisions of the protocol allow no other type.
type (
	sandboxList struct {
		Sandboxes []sandbox `json:"sandboxes"`
	}
	sessionList struct {
		Sessions []session `json:"sessions"`
	}
	portURL struct {
		URL string `json:"url"`
	}
)

func jsonResult(v any) (tool.Result, error) { return listResult(v, v) }

// listResult returns a result whose text is the JSON of text.
func listResult(text, data any) (tool.Result, error) {
	raw, err := json.MarshalIndent(text, "", " ")
	if err != nil {
		return tool.Result{}, engi.Errorf(engi.Internal, "marshal the result: %v", err)
	}
	return tool.Result{Text: string(raw), Data: data}, nil
}

const (
	fileScheme = "engi://sandboxes/"
	runScheme  = "engi://executions/"
	maxBlob    = 8 << 20
)

// resources adds files of sandboxes and outputs of programs.
func (s *Server) resources(server *sdk.Server, key engi.Key) {
	if s.opt.Services.Sandboxes != nil {
		server.AddResourceTemplate(&sdk.ResourceTemplate{
			Name: "file", Title: "A file in a sandbox", URITemplate: fileScheme + "{sandbox}/files{+path}", Description: "the content of a file, or the names in a directory",
		}, func(ctx context.Context, req *sdk.ReadResourceRequest) (*sdk.ReadResourceResult, error) {
			return s.file(ctx, key, req.Params.URI)
		})
		server.AddResourceTemplate(&sdk.ResourceTemplate{
			Name: "log", Title: "What a process in a sandbox printed", URITemplate: fileScheme + "{sandbox}/processes/{process}/log", MIMEType: "text/plain",
			Description: "by ID or tag of a process that was started in the sandbox; - as process lists them",
		}, func(ctx context.Context, req *sdk.ReadResourceRequest) (*sdk.ReadResourceResult, error) {
			return s.log(ctx, key, req.Params.URI)
		})
	}
	if s.opt.Services.Executions != nil {
		server.AddResourceTemplate(&sdk.ResourceTemplate{
			Name: "output", Title: "What a program printed", URITemplate: runScheme + "{execution}/output", MIMEType: "text/plain",
		}, func(ctx context.Context, req *sdk.ReadResourceRequest) (*sdk.ReadResourceResult, error) {
			return s.output(ctx, key, req.Params.URI)
		})
	}
}

// escapeURIs escapes characters that are invalid in the address of a resource,
// like spaces and umlauts, since some clients send them unescaped.
func escapeURIs(next sdk.MethodHandler) sdk.MethodHandler {
	return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
		if r, ok := req.(*sdk.ReadResourceRequest); ok && r.Params != nil {
			var b strings.Builder
			for i := range len(r.Params.URI) {
				if c := r.Params.URI[i]; c <= ' ' || c > '~' || strings.IndexByte("\"<>\\^`{|}", c) >= 0 {
					fmt.Fprintf(&b, "%%%02X", c)
				} else {
					b.WriteByte(c)
				}
			}
			r.Params.URI = b.String()
		}
		return next(ctx, method, req)
	}
}

func (s *Server) file(ctx context.Context, key engi.Key, uri string) (*sdk.ReadResourceResult, error) {
	rest, _ := strings.CutPrefix(uri, fileScheme)
	name, file, ok := strings.Cut(rest, "/files")
	id, err := engi.ParseSandboxID(name)
	if err == nil {
		file, err = url.PathUnescape(file)
	}
	if !ok || err != nil || !strings.HasPrefix(file, "/") {
		return nil, sdk.ResourceNotFoundError(uri)
	}
	if err := key.May(engi.ScopeSandboxes, false); err != nil {
		return nil, err
	}
	g, release, err := s.opt.Services.Sandboxes.Enter(ctx, key.Owner.Viewer(), id)
	if err != nil {
		return nil, missing(uri, err)
	}
	defer release()
	fi, err := g.Stat(ctx, file)
	if err != nil {
		return nil, missing(uri, err)
	}
	out := &sdk.ResourceContents{URI: uri, MIMEType: "text/plain"}
	if fi.Mode.IsDir() {
		list, err := g.List(ctx, file, 1)
		if err != nil {
			return nil, missing(uri, err)
		}
		var b strings.Builder
		for _, f := range list {
			b.WriteString(f.Path)
			if f.Mode.IsDir() {
				b.WriteString("/")
			}
			b.WriteString("\n")
		}
		out.Text = b.String()
		return &sdk.ReadResourceResult{Contents: []*sdk.ResourceContents{out}}, nil
	}
	f, err := g.Open(ctx, file)
	if err != nil {
		return nil, missing(uri, err)
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, maxBlob+1))
	if err != nil {
		return nil, missing(uri, err)
	}
	if len(raw) > maxBlob {
		return nil, engi.Errorf(engi.Invalid, "%s has more than %d bytes", file, maxBlob)
	}
	if kind, _, _ := strings.Cut(mime.TypeByExtension(path.Ext(file)), ";"); kind != "" {
		out.MIMEType = kind
	}
	if utf8.Valid(raw) && !strings.ContainsRune(string(raw), 0) {
		out.Text = string(raw)
	} else {
		out.Blob = raw
		if strings.HasPrefix(out.MIMEType, "text/") {
			out.MIMEType = "application/octet-stream"
		}
	}
	return &sdk.ReadResourceResult{Contents: []*sdk.ResourceContents{out}}, nil
}

const logTime = 500 * time.Millisecond // maximum time to read the log of a running process

func (s *Server) log(ctx context.Context, key engi.Key, uri string) (*sdk.ReadResourceResult, error) {
	rest, _ := strings.CutPrefix(uri, fileScheme)
	sandboxName, process, ok := strings.Cut(rest, "/processes/")
	process, isLog := strings.CutSuffix(process, "/log")
	id, err := engi.ParseSandboxID(sandboxName)
	if err == nil {
		process, err = url.PathUnescape(process)
	}
	if !ok || !isLog || err != nil || process == "" || strings.Contains(process, "/") {
		return nil, sdk.ResourceNotFoundError(uri)
	}
	if err := key.May(engi.ScopeSandboxes, false); err != nil {
		return nil, err
	}
	g, release, err := s.opt.Services.Sandboxes.Enter(ctx, key.Owner.Viewer(), id)
	if err != nil {
		return nil, missing(uri, err)
	}
	defer release()
	var b strings.Builder
	if process == "-" {
		list, err := g.Processes(ctx)
		if err != nil {
			return nil, missing(uri, err)
		}
		for _, p := range list {
			fmt.Fprintf(&b, "%s\tended=%v\t%s\t%.200q\n", p.ID, p.Ended, p.Tag, p.Args)
		}
	} else {
		p, err := g.Attach(ctx, process)
		if err != nil {
			return nil, missing(uri, err)
		}
		soon, cancel := context.WithTimeout(ctx, logTime)
		defer cancel()
		for c, err := range p.Output(soon, engi.OldestOutput) {
			if err != nil && soon.Err() == nil {
				return nil, missing(uri, err)
			}
			if b.Write(c.Data); err != nil || b.Len() > maxBlob {
				break
			}
		}
	}
	return &sdk.ReadResourceResult{Contents: []*sdk.ResourceContents{{URI: uri, MIMEType: "text/plain", Text: strings.ToValidUTF8(b.String(), "\ufffd")}}}, nil
}

func (s *Server) output(ctx context.Context, key engi.Key, uri string) (*sdk.ReadResourceResult, error) {
	name, ok := strings.CutSuffix(strings.TrimPrefix(uri, runScheme), "/output")
	id, err := engi.ParseExecutionID(name)
	if !ok || err != nil {
		return nil, sdk.ResourceNotFoundError(uri)
	}
	if err := key.May(engi.ScopeExecutions, false); err != nil {
		return nil, err
	}
	x, err := s.opt.Services.Executions.Get(ctx, key.Owner.Viewer(), id)
	if err != nil {
		return nil, missing(uri, err)
	}
	text := fmt.Sprintf("%s\n", x.State)
	if x.Result != nil {
		text += string(x.Result.Stdout) + string(x.Result.Stderr)
	}
	return &sdk.ReadResourceResult{Contents: []*sdk.ResourceContents{{URI: uri, MIMEType: "text/plain", Text: strings.ToValidUTF8(text, "\ufffd")}}}, nil
}

func missing(uri string, err error) error {
	if engi.Is(err, engi.NotFound) {
		return sdk.ResourceNotFoundError(uri)
	}
	if engi.Is(err, engi.Internal) {
		return engi.Errorf(engi.Internal, "an internal error")
	}
	return err
}
