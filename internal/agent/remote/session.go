package remote

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/engi-dev/engi/internal/agent/tool"
	"github.com/engi-dev/engi/internal/clip"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/place"
)

// A session is the use of one server by one run. It connects for the first
// call or list of tools, and again when the connection breaks.
type session struct {
	source *source
	env    tool.Env

	mu       sync.Mutex // also held while connecting
	conn     *sdk.ClientSession
	cleanups []func() // functions that clean up conn, newest last
	connects int      // number of connections so far
	closed   bool

	progressMu sync.Mutex
	sinks      map[string]*progressSink // receivers of progress messages by progress token
	lastToken  int
}

const (
	// maxConnects is the maximum number of connections of one run to a server.
	maxConnects  = 4
	maxProgress  = 64 << 10 // maximum bytes of progress messages for one call
	closeTimeout = 2 * time.Second
	// sandboxLifetime is the time after which a server's own sandbox ends if this node cannot
	// stop it. It is longer than a run.
	sandboxLifetime = 2 * time.Hour
)

// withTimeout limits the time of a call, or of connecting.
func (s *source) withTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, s.server.Timeout,
		engi.Errorf(engi.Expired, "the MCP server %s did not answer within %v", s.server.Name, s.server.Timeout))
}

// connection returns the current connection, or a new one.
func (s *session) connection(ctx context.Context) (*sdk.ClientSession, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return nil, engi.Errorf(engi.Unavailable, "the run has ended")
	case s.conn != nil:
		return s.conn, nil
	case s.connects >= maxConnects:
		return nil, engi.Errorf(engi.Unavailable, "the connection broke %d times in this run", s.connects)
	}
	s.connects++
	transport, stderr, abort, err := s.transport(ctx)
	if err != nil {
		s.disconnectLocked()
		return nil, err
	}
	client := sdk.NewClient(&sdk.Implementation{Name: "engi", Version: s.source.opt.Version}, &sdk.ClientOptions{
		// Servers have no access to the client's models, files or user input.
		Capabilities:                &sdk.ClientCapabilities{},
		MultiRoundTrip:              &sdk.MultiRoundTripOptions{Disabled: true},
		ProgressNotificationHandler: func(_ context.Context, n *sdk.ProgressNotificationClientRequest) { s.progress(n.Params) },
	})
	conn, err := client.Connect(ctx, transport, nil)
	if err != nil {
		if text := stderr(); text != "" {
			err = engi.Errorf(engi.Unavailable, "%v; its standard error: %s", err, text)
		}
		s.disconnectLocked()
		return nil, causeOf(ctx, err)
	}
	// The connection is closed before its program or transport. A server that does not
	// react is disconnected.
	s.cleanups = append(s.cleanups, func() {
		timer := time.AfterFunc(closeTimeout, abort)
		defer timer.Stop()
		_ = conn.Close() // an error means that the connection is broken
	})
	s.conn = conn
	return conn, nil
}

// disconnectLocked undoes the effects of connecting. The caller holds mu.
func (s *session) disconnectLocked() {
	for _, f := range slices.Backward(s.cleanups) {
		f()
	}
	s.cleanups, s.conn = nil, nil
}

// discard drops a broken connection, so that the next call makes a new one.
func (s *session) discard(conn *sdk.ClientSession) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn == conn {
		s.disconnectLocked()
	}
}

// close ends the use of the server. Further calls do nothing.
func (s *session) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.disconnectLocked()
}

// causeOf returns the cause of ctx if it has ended, and else err.
func causeOf(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// transport returns a transport to the server. stderr returns the end of the
// program's standard error, abort cuts the transport off.
func (s *session) transport(ctx context.Context) (t sdk.Transport, stderr func() string, abort func(), err error) {
	server := s.source.server
	if server.URL != "" {
		until, cancel := context.WithCancel(context.WithoutCancel(ctx))
		s.cleanups = append(s.cleanups, cancel)
		return &sdk.StreamableClientTransport{
			Endpoint: server.URL, HTTPClient: newHTTPClient(until, server, s.source.opt.Transport), MaxRetries: 2, DisableStandaloneSSE: true, MaxEventSize: maxMessage,
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

// enterGuest enters the sandbox of the server's program, and creates the sandbox if
// the server has its own.
func (s *session) enterGuest(ctx context.Context) (engi.Guest, error) {
	opt, at := s.source.opt, s.env.Place()
	if !s.source.server.InRunSandbox {
		if opt.Sandboxes == nil {
			return nil, engi.Errorf(engi.Unsupported, "this node has no sandbox for it")
		}
		id, err := s.createSandbox(ctx)
		if err != nil {
			return nil, err
		}
		at = place.Place{Sandbox: id}
	}
	g, release, err := opt.Places.Enter(ctx, s.env.Owner.Viewer(), at)
	if err == nil {
		s.cleanups = append(s.cleanups, release)
	}
	return g, err
}

// Metadata of a server's own sandbox, by which it is found after a crash.
const (
	metadataServer = "engi.mcp-server"
	metadataRun    = "engi.run"
)

// createSandbox creates the server's own sandbox, for the owner of the run. It
// first stops a sandbox left over from before a crash.
func (s *session) createSandbox(ctx context.Context) (engi.SandboxID, error) {
	sandboxes, metadata := s.source.opt.Sandboxes, map[string]string{metadataServer: s.source.server.Name, metadataRun: string(s.env.Run)}
	old, err := sandboxes.List(ctx, s.env.Owner.Viewer(), engi.SandboxFilter{Owned: true, Metadata: metadata})
	if err != nil {
		return "", err
	}
	for _, b := range old {
		if err := engi.Ignore(sandboxes.Stop(ctx, s.env.Owner.Viewer(), b.ID), engi.NotFound); err != nil {
			return "", err
		}
	}
	server := s.source.server
	b, err := sandboxes.Create(ctx, engi.SandboxSpec{
		Owner: s.env.Owner, Template: server.Template, Network: server.Network, Metadata: metadata,
		Lifetime: engi.Lifetime{Timeout: sandboxLifetime}, Ports: engi.PortPolicy{Private: true},
	})
	if err != nil {
		return "", err
	}
	s.cleanups = append(s.cleanups, func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		defer cancel()
		if err := engi.Ignore(sandboxes.Stop(ctx, s.env.Owner.Viewer(), b.ID), engi.NotFound); err != nil {
			s.source.opt.Log.WarnContext(ctx, "stop the sandbox of an MCP server", "server", server.Name, "sandbox", b.ID, "error", err)
		}
	})
	return b.ID, nil
}

// call calls a tool. An error of the server is a failed result.
func (s *session) call(ctx context.Context, c *tool.Call, t remoteTool, args json.RawMessage) (tool.Result, error) {
	run := ctx
	ctx, cancel := s.source.withTimeout(ctx)
	defer cancel()
	conn, err := s.connection(ctx)
	if err != nil {
		return s.failure(run, err)
	}
	token := s.subscribe(c)
	defer s.unsubscribe(token)
	p := &sdk.CallToolParams{Name: t.remoteName, Arguments: args}
	p.SetProgressToken(token)
	answer, err := conn.CallTool(ctx, p)
	if err == nil {
		return result(answer), nil
	}
	if _, answered := errors.AsType[*jsonrpc.Error](err); !answered && ctx.Err() == nil {
		s.discard(conn)
		err = engi.Errorf(engi.Unavailable, "the connection broke; the call may have been done in part: %v", err)
	}
	return s.failure(run, causeOf(ctx, err))
}

// failure returns the result that a model sees for an error, or the error that ended the
// run.
func (s *session) failure(run context.Context, err error) (tool.Result, error) {
	if run.Err() != nil {
		return tool.Result{}, context.Cause(run)
	}
	s.source.opt.Log.WarnContext(run, "a call of an MCP server failed", "server", s.source.server.Name, "run", string(s.env.Run), "error", errorText(err))
	return tool.Result{Text: fmt.Sprintf("the MCP server %s: %s", s.source.server.Name, errorText(err)), Failed: true}, nil
}

// A progressSink is a call that receives progress messages.
type progressSink struct {
	call *tool.Call
	left int // bytes left until the limit
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

// unsubscribe ends the messages for a call: none arrives after it returns.
func (s *session) unsubscribe(token string) {
	s.progressMu.Lock()
	defer s.progressMu.Unlock()
	delete(s.sinks, token)
}

// progress passes a progress message on to its call.
func (s *session) progress(n *sdk.ProgressNotificationParams) {
	token, _ := n.ProgressToken.(string)
	s.progressMu.Lock()
	defer s.progressMu.Unlock()
	sink := s.sinks[token]
	if sink == nil || sink.left <= 0 {
		return
	}
	text := n.Message
	if text == "" && n.Total > 0 {
		text = fmt.Sprintf("%g of %g", n.Progress, n.Total)
	}
	if text == "" {
		return
	}
	text = clip.Text(strings.ToValidUTF8(text, "\ufffd"), sink.left) + "\n"
	sink.left -= len(text)
	sink.call.Out(engi.Stdout, []byte(text))
}
