// Package remote gives agents the tools of MCP servers: servers on the network,
// and programs, which run in sandboxes and never on the host. Servers are
// not trusted: their data is limited, and the names of their tools get a prefix.
//
// Package internal/server/mcp does the opposite: it serves engi's tools by MCP.
package remote

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/engi-dev/engi/internal/agent/tool"
	"github.com/engi-dev/engi/internal/clip"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/place"
)

// A Server configures an MCP server. It has either a URL or a Command.
type Server struct {
	Name    string        // prefix of the names of its tools
	Tools   []string      // names of the tools to offer; empty means all
	Timeout time.Duration // maximum time of a call, and of connecting; 0 means 1 min

	URL    string
	Header http.Header // headers sent to the host of URL only; may be secret

	Command      []string          // program and arguments
	Env          map[string]string // environment of the program
	InRunSandbox bool              // the program runs in the sandbox or session of the run instead of its own sandbox
	Template     string            // template of the server's own sandbox; empty means the node's default
	Network      engi.NetworkPolicy
}

// Options configures a Remote.
type Options struct {
	Servers   []Server
	Sandboxes engi.Sandboxes    // has the servers' own sandboxes
	Places    place.Resolver    // finds the places in which runs work
	Transport http.RoundTripper // transport to servers on the network; nil means the default
	Version   string            // version of this build, sent to servers
	Log       *slog.Logger      // nil discards
}

// A Remote holds the configured servers. It implements [engi.ToolServers] and is
// safe for concurrent use.
type Remote struct {
	opt     Options
	sources []*source
}

var _ engi.ToolServers = (*Remote)(nil)

var (
	serverNames = regexp.MustCompile(`^[a-z][a-z0-9-]{0,31}$`)
	toolNames   = regexp.MustCompile(`[^a-zA-Z0-9_-]+`)
)

const (
	defaultTimeout = time.Minute
	maxServers     = 64
)

// New returns the servers of opt. It does not connect. It reports Invalid for a bad configuration.
func New(opt Options) (*Remote, error) {
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	if opt.Transport == nil {
		opt.Transport = http.DefaultTransport
	}
	if len(opt.Servers) > maxServers {
		return nil, engi.Errorf(engi.Invalid, "there are %d MCP servers; the limit is %d", len(opt.Servers), maxServers)
	}
	r := &Remote{opt: opt}
	for _, s := range opt.Servers {
		if err := s.Validate(); err != nil {
			return nil, err
		}
		if slices.ContainsFunc(r.sources, func(o *source) bool { return o.server.Name == s.Name }) {
			return nil, engi.Errorf(engi.Invalid, "there are two MCP servers named %s", s.Name)
		}
		if s.Timeout == 0 {
			s.Timeout = defaultTimeout
		}
		kind := engi.ToolServerURL
		if len(s.Command) > 0 {
			kind = engi.ToolServerCommand
		}
		r.sources = append(r.sources, &source{opt: opt, server: s, state: engi.ToolServer{Name: s.Name, Kind: kind, State: engi.ToolServerUnused}})
	}
	return r, nil
}

// Validate reports Invalid for a bad configuration.
func (s Server) Validate() error {
	bad := func(format string, args ...any) *engi.Error {
		return engi.Errorf(engi.Invalid, "the MCP server %.40q: "+format, append([]any{s.Name}, args...)...)
	}
	switch {
	case !serverNames.MatchString(s.Name):
		return bad("bad name").WithRemedy("use lower-case letters, digits and dashes, 32 at most, a letter first")
	case (s.URL == "") == (len(s.Command) == 0):
		return bad("it needs either a url or a command")
	case s.Timeout < 0 || s.Timeout > time.Hour:
		return bad("a timeout of %v is not between 0 and an hour", s.Timeout)
	case s.URL == "":
		if s.Command[0] == "" || len(s.Header) > 0 {
			return bad("a command needs a program and has no headers")
		}
		return nil
	case s.InRunSandbox || len(s.Env) > 0 || s.Template != "" || s.Network.Mode != "":
		return bad("where, env, template and network are for commands")
	}
	u, err := url.Parse(s.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.Fragment != "" {
		return bad("bad url").WithRemedy("write it like https://mcp.example.com/mcp, and credentials as headers")
	}
	return nil
}

// Sources returns the servers as sources of tools.
func (r *Remote) Sources() []tool.Source {
	all := make([]tool.Source, len(r.sources))
	for i, s := range r.sources {
		all[i] = s
	}
	return all
}

// Servers implements [engi.ToolServers].
func (r *Remote) Servers() []engi.ToolServer {
	all := make([]engi.ToolServer, len(r.sources))
	for i, s := range r.sources {
		s.mu.Lock()
		all[i] = s.state
		s.mu.Unlock()
	}
	return all
}

// A source is one server. It implements [tool.Source].
type source struct {
	opt    Options
	server Server

	mu         sync.Mutex
	state      engi.ToolServer
	tools      []remoteTool // tools of the last list
	validUntil time.Time    // end of the validity of tools
}

// cacheFor is the time for which a list of tools is used.
const cacheFor = time.Minute

// Name implements [tool.Source].
func (s *source) Name() string { return s.server.Name }

// Open implements [tool.Source]. If the list of tools is cached, the server is
// not contacted until one of them is called.
func (s *source) Open(ctx context.Context, e tool.Env) ([]tool.Tool, func(), error) {
	if s.server.InRunSandbox && (!e.Has(tool.NeedGuest) || e.May(engi.ScopeSandboxes, true) != nil) {
		return nil, func() {}, nil // omitted, like built-in tools that need a sandbox
	}
	r := &session{source: s, env: e}
	listed, ok := s.cached()
	if !ok {
		var err error
		if listed, err = r.list(ctx); err != nil {
			r.close()
			err = engi.Errorf(engi.Unavailable, "the MCP server %s: %s", s.server.Name, errorText(err)).
				WithRemedy("'engi mcp servers' shows its state")
			s.update(nil, nil, err)
			return nil, nil, err
		}
	}
	tools := make([]tool.Tool, 0, len(listed))
	for _, o := range listed {
		t, err := tool.FromSchema(o.name, o.description, o.schema, func(ctx context.Context, c *tool.Call, args json.RawMessage) (tool.Result, error) {
			return r.call(ctx, c, o, args)
		})
		if err != nil { // unreachable: list has checked the names
			s.opt.Log.WarnContext(ctx, "skip a tool of an MCP server", "server", s.server.Name, "tool", o.name, "error", err)
			continue
		}
		t.Repeatable = o.repeatable
		tools = append(tools, t)
	}
	return tools, r.close, nil
}

// cached returns the cached list of tools. A server in the sandbox of the run is
// never cached: its tools may differ between sandboxes.
func (s *source) cached() ([]remoteTool, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tools, !s.server.InRunSandbox && time.Now().Before(s.validUntil)
}

// update records the result of listing the tools.
func (s *source) update(offers []remoteTool, skipped []string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now().UTC()
	s.state.Checked = now
	if err != nil {
		s.state.State, s.state.Error, s.validUntil = engi.ToolServerFailed, err.Error(), time.Time{}
		return
	}
	s.state.State, s.state.Error, s.state.Skipped = engi.ToolServerReady, "", skipped
	s.state.Tools = make([]string, len(offers))
	for i, o := range offers {
		s.state.Tools[i] = o.name
	}
	s.tools, s.validUntil = offers, now.Add(cacheFor)
}

// errorText returns the text of a server's error in one line of limited length.
func errorText(err error) string { return clip.Line(err.Error(), maxError) }

const maxError = 1 << 10
