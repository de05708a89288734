package remote

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/agent/tool"
)

// A room is one server in one run.
type session struct {
	source *source
	env    tool.Env

	mu       sync.Mutex // held while a session is made
	conn     *sdk.ClientSession
	cleanups []func() // how to let go of it, newest last
	connects int      // sessions
	closed   bool

	progressMu sync.Mutex
	sinks      map[string]*progressSink // by progress token
	lastToken  int
}

const (
	// maxSessions is how often a server is started or reached in one run.
	maxConnects  = 4
	maxProgress  = 64 << 10 // bytes of what one call says while it works
	closeTimeout = 2 * time.Second
	// ownFor is how long a server's own sandbox lives if this node does not
	// come back to end it; the run itself ends before.
	sandboxLifetime = 2 * time.Hour
)

// deadline bounds a call, and a start.
func (s *source) withTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, s.server.Timeout,
		engi.Errorf(engi.Expired, "the MCP server %s did not answer within %v", s.server.Name, s.server.Timeout))
}

// enter returns the session, or makes it.
func (s *session) connection(ctx context.Context) (*sdk.ClientSession, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return nil, engi.Errorf(engi.Unavailable, "the run is over")
	case s.conn != nil:
		return s.conn, nil
	case s.connects >= maxConnects:
		return nil, engi.Errorf(engi.Unavailable, "it broke off %d times in this run", s.connects)
	}
	s.connects++
	transport, errs, abort, err := s.transport(ctx)
	if err != nil {
		s.release()
		return nil, err
	}
	client := sdk.NewClient(&sdk.Implementation{Name: "engi", Version: s.source.opt.Version}, &sdk.ClientOptions{
		// Nothing is offered to servers: no models, no files, no questions.
		Capabilities:                &sdk.ClientCapabilities{},
		MultiRoundTrip:              &sdk.MultiRoundTripOptions{Disabled: true},
		ProgressNotificationHandler: func(_ context.Context, n *sdk.ProgressNotificationClientRequest) { s.progress(n.Params) },
	})
	session, err := client.Connect(ctx, transport, nil)
	if err != nil {
		if why := errs(); why != "" {
			err = engi.Errorf(engi.Unavailable, "%v; it said: %s", err, why)
		}
		s.release()
		return nil, causeOf(ctx, err)
	}
	// First of all the session, then what it stands on. A server that does not
	// listen cannot hold us up.
	s.cleanups = append(s.cleanups, func() {
		patience := time.AfterFunc(closeTimeout, abort)
		defer patience.Stop()
		_ = session.Close() // it may be gone already
	})
	s.conn = session
	return session, nil
}

// undo lets go of what there is. The caller holds r.mu.
func (s *session) release() {
	for i := len(s.cleanups) - 1; i >= 0; i-- {
		s.cleanups[i]()
	}
	s.cleanups, s.conn = nil, nil
}

// drop lets go of a session that broke; the next call makes another.
func (s *session) discard(session *sdk.ClientSession) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn == session {
		s.release()
	}
}

// close ends the server's part in the run.
func (s *session) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.release()
}

// broken prefers why ctx ended to that it did.
func causeOf(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// reach opens the way to the server. errs returns what it has complained
// about, abort breaks everything off.
func (s *session) transport(ctx context.Context) (t sdk.Transport, errs func() string, abort func(), err error) {
	server := s.source.server
	if server.URL != "" {
		gone, cancel := context.WithCancel(context.WithoutCancel(ctx))
		s.cleanups = append(s.cleanups, cancel)
		return &sdk.StreamableClientTransport{
			Endpoint: server.URL, HTTPClient: newHTTPClient(gone, server, s.source.opt.Transport), MaxRetries: 2, DisableStandaloneSSE: true, MaxEventSize: maxMessage,
		}, func() string { return "" }, cancel, nil
	}
	g, err := s.enterGuest(ctx)
	if err != nil {
		return nil, nil, nil, err
	}
	p, err := startPipe(ctx, g, server, s.progress)
	if err != nil {
		return nil, nil, nil, err
	}
	s.cleanups = append(s.cleanups, func() { p.stop(!server.InRunSandbox) })
	return p, p.stderrTail, func() { p.cancel(io.EOF) }, nil
}

// guest enters the sandbox that the server runs in, which may have to be made.
func (s *session) enterGuest(ctx context.Context) (engi.Guest, error) {
	id, opt := s.env.Sandbox, s.source.opt
	switch {
	case s.source.server.InRunSandbox && s.env.Session != "" && opt.Sessions != nil:
		g, release, err := opt.Sessions.Enter(ctx, s.env.Owner, s.env.Session)
		if err != nil {
			return nil, err
		}
		s.cleanups = append(s.cleanups, release)
		return g, nil
	case opt.Sandboxes == nil || s.source.server.InRunSandbox && id == "":
		return nil, engi.Errorf(engi.Unsupported, "there is no sandbox for it")
	case !s.source.server.InRunSandbox:
		var err error
		if id, err = s.createSandbox(ctx); err != nil {
			return nil, err
		}
	}
	g, release, err := opt.Sandboxes.Enter(ctx, s.env.Owner, id)
	if err != nil {
		return nil, err
	}
	s.cleanups = append(s.cleanups, release)
	return g, nil
}

// Words by which a server's own sandbox is found again after a crash.
const (
	metadataServer = "engi.mcp-server"
	metadataRun    = "engi.run"
)

// own makes the sandbox of a server's own, which is the run's owner's. One that
// a crash has left is ended first.
func (s *session) createSandbox(ctx context.Context) (engi.SandboxID, error) {
	boxes, words := s.source.opt.Sandboxes, map[string]string{metadataServer: s.source.server.Name, metadataRun: string(s.env.Run)}
	left, err := boxes.List(ctx, s.env.Owner, engi.SandboxFilter{Owned: true, Metadata: words})
	if err != nil {
		return "", err
	}
	for _, b := range left {
		if err := boxes.Stop(ctx, s.env.Owner, b.ID); err != nil && engi.KindOf(err) != engi.NotFound {
			return "", err
		}
	}
	server := s.source.server
	b, err := boxes.Create(ctx, engi.SandboxSpec{
		Owner: s.env.Owner, Template: server.Template, Network: server.Network, Metadata: words,
		Lifetime: engi.Lifetime{Timeout: sandboxLifetime}, Ports: engi.PortPolicy{Private: true},
	})
	if err != nil {
		return "", err
	}
	s.cleanups = append(s.cleanups, func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		defer cancel()
		if err := boxes.Stop(ctx, s.env.Owner, b.ID); err != nil && engi.KindOf(err) != engi.NotFound {
			s.source.opt.Log.WarnContext(ctx, "end the sandbox of an MCP server", "server", server.Name, "sandbox", b.ID, "err", err)
		}
	})
	return b.ID, nil
}

// call uses a tool. What goes wrong with the server is a result.
func (s *session) call(ctx context.Context, c *tool.Call, o remoteTool, args json.RawMessage) (tool.Result, error) {
	run := ctx
	ctx, cancel := s.source.withTimeout(ctx)
	defer cancel()
	session, err := s.connection(ctx)
	if err != nil {
		return s.failure(run, err)
	}
	token := s.subscribe(c)
	defer s.unsubscribe(token)
	p := &sdk.CallToolParams{Name: o.remoteName, Arguments: args}
	p.SetProgressToken(token)
	answer, err := session.CallTool(ctx, p)
	if err == nil {
		return result(answer), nil
	}
	var theirs *jsonrpc.Error
	if ctx.Err() == nil && !errors.As(err, &theirs) {
		s.discard(session)
		err = engi.Errorf(engi.Unavailable, "it broke off, and it is unknown how far it came: %v", err)
	}
	return s.failure(run, causeOf(ctx, err))
}

// failure is what a model sees of an error; the end of the run is none.
func (s *session) failure(run context.Context, err error) (tool.Result, error) {
	if run.Err() != nil {
		return tool.Result{}, context.Cause(run)
	}
	s.source.opt.Log.WarnContext(run, "a call of an MCP server failed", "server", s.source.server.Name, "run", string(s.env.Run), "err", errorText(err))
	return tool.Result{Text: fmt.Sprintf("the MCP server %s: %s", s.source.server.Name, errorText(err)), Failed: true}, nil
}

// A hearer is a call that hears what is said while it works.
type progressSink struct {
	call *tool.Call
	left int // bytes left
}

func (s *session) subscribe(c *tool.Call) (token string) {
	s.progressMu.Lock()
	defer s.progressMu.Unlock()
	if s.sinks == nil {
		s.sinks = map[string]*progressSink{}
	}
	s.lastToken++
	token = fmt.Sprintf("call-%d", s.lastToken)
	s.sinks[token] = &progressSink{c, maxProgress}
	return token
}

// unlisten returns when nothing more is said to the call.
func (s *session) unsubscribe(token string) {
	s.progressMu.Lock()
	defer s.progressMu.Unlock()
	delete(s.sinks, token)
}

// progress passes on what a server says about a call.
func (s *session) progress(n *sdk.ProgressNotificationParams) {
	token, _ := n.ProgressToken.(string)
	s.progressMu.Lock()
	defer s.progressMu.Unlock()
	h := s.sinks[token]
	if h == nil || h.left <= 0 {
		return
	}
	text := n.Message
	if text == "" && n.Total > 0 {
		text = fmt.Sprintf("%g of %g", n.Progress, n.Total)
	}
	if text == "" {
		return
	}
	text = truncate(strings.ToValidUTF8(text, "\ufffd"), h.left) + "\n"
	h.left -= len(text)
	h.call.Out(engi.Stdout, []byte(text))
}
