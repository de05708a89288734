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
	src *source
	env tool.Env

	mu      sync.Mutex // held while a session is made
	session *sdk.ClientSession
	leave   []func() // how to let go of it, newest last
	began   int      // sessions
	closed  bool

	telling sync.Mutex
	calls   map[string]*hearer // by progress token
	last    int
}

const (
	// maxSessions is how often a server is started or reached in one run.
	maxSessions = 4
	maxProgress = 64 << 10 // bytes of what one call says while it works
	closeWithin = 2 * time.Second
	// ownFor is how long a server's own sandbox lives if this node does not
	// come back to end it; the run itself ends before.
	ownFor = 2 * time.Hour
)

// deadline bounds a call, and a start.
func (s *source) deadline(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, s.server.Timeout,
		engi.Errorf(engi.Expired, "the MCP server %s did not answer within %v", s.server.Name, s.server.Timeout))
}

// enter returns the session, or makes it.
func (r *session) enter(ctx context.Context) (*sdk.ClientSession, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closed:
		return nil, engi.Errorf(engi.Unavailable, "the run is over")
	case r.session != nil:
		return r.session, nil
	case r.began >= maxSessions:
		return nil, engi.Errorf(engi.Unavailable, "it broke off %d times in this run", r.began)
	}
	r.began++
	transport, errs, abort, err := r.reach(ctx)
	if err != nil {
		r.undo()
		return nil, err
	}
	client := sdk.NewClient(&sdk.Implementation{Name: "engi", Version: r.src.opt.Version}, &sdk.ClientOptions{
		// Nothing is offered to servers: no models, no files, no questions.
		Capabilities:                &sdk.ClientCapabilities{},
		MultiRoundTrip:              &sdk.MultiRoundTripOptions{Disabled: true},
		ProgressNotificationHandler: func(_ context.Context, n *sdk.ProgressNotificationClientRequest) { r.progress(n.Params) },
	})
	session, err := client.Connect(ctx, transport, nil)
	if err != nil {
		if why := errs(); why != "" {
			err = engi.Errorf(engi.Unavailable, "%v; it said: %s", err, why)
		}
		r.undo()
		return nil, broken(ctx, err)
	}
	// First of all the session, then what it stands on. A server that does not
	// listen cannot hold us up.
	r.leave = append(r.leave, func() {
		patience := time.AfterFunc(closeWithin, abort)
		defer patience.Stop()
		_ = session.Close() // it may be gone already
	})
	r.session = session
	return session, nil
}

// undo lets go of what there is. The caller holds r.mu.
func (r *session) undo() {
	for i := len(r.leave) - 1; i >= 0; i-- {
		r.leave[i]()
	}
	r.leave, r.session = nil, nil
}

// drop lets go of a session that broke; the next call makes another.
func (r *session) drop(session *sdk.ClientSession) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.session == session {
		r.undo()
	}
}

// close ends the server's part in the run.
func (r *session) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	r.undo()
}

// broken prefers why ctx ended to that it did.
func broken(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// reach opens the way to the server. errs returns what it has complained
// about, abort breaks everything off.
func (r *session) reach(ctx context.Context) (t sdk.Transport, errs func() string, abort func(), err error) {
	s := r.src.server
	if s.URL != "" {
		gone, cancel := context.WithCancel(context.WithoutCancel(ctx))
		r.leave = append(r.leave, cancel)
		return &sdk.StreamableClientTransport{
			Endpoint: s.URL, HTTPClient: web(gone, s, r.src.opt.Transport), MaxRetries: 2, DisableStandaloneSSE: true, MaxEventSize: maxMessage,
		}, func() string { return "" }, cancel, nil
	}
	g, err := r.guest(ctx)
	if err != nil {
		return nil, nil, nil, err
	}
	p, err := start(ctx, g, s, r.progress)
	if err != nil {
		return nil, nil, nil, err
	}
	r.leave = append(r.leave, func() { p.end(!s.Inside) })
	return p, p.complaints, func() { p.cancel(io.EOF) }, nil
}

// guest enters the sandbox that the server runs in, which may have to be made.
func (r *session) guest(ctx context.Context) (engi.Guest, error) {
	id, opt := r.env.Sandbox, r.src.opt
	switch {
	case r.src.server.Inside && r.env.Session != "" && opt.Sessions != nil:
		g, release, err := opt.Sessions.Enter(ctx, r.env.Owner, r.env.Session)
		if err != nil {
			return nil, err
		}
		r.leave = append(r.leave, release)
		return g, nil
	case opt.Sandboxes == nil || r.src.server.Inside && id == "":
		return nil, engi.Errorf(engi.Unsupported, "there is no sandbox for it")
	case !r.src.server.Inside:
		var err error
		if id, err = r.own(ctx); err != nil {
			return nil, err
		}
	}
	g, release, err := opt.Sandboxes.Enter(ctx, r.env.Owner, id)
	if err != nil {
		return nil, err
	}
	r.leave = append(r.leave, release)
	return g, nil
}

// Words by which a server's own sandbox is found again after a crash.
const (
	wordServer = "engi.mcp-server"
	wordRun    = "engi.run"
)

// own makes the sandbox of a server's own, which is the run's owner's. One that
// a crash has left is ended first.
func (r *session) own(ctx context.Context) (engi.SandboxID, error) {
	boxes, words := r.src.opt.Sandboxes, map[string]string{wordServer: r.src.server.Name, wordRun: string(r.env.Run)}
	left, err := boxes.List(ctx, r.env.Owner, engi.SandboxFilter{Owned: true, Metadata: words})
	if err != nil {
		return "", err
	}
	for _, b := range left {
		if err := boxes.Stop(ctx, r.env.Owner, b.ID); err != nil && engi.KindOf(err) != engi.NotFound {
			return "", err
		}
	}
	s := r.src.server
	b, err := boxes.Create(ctx, engi.SandboxSpec{
		Owner: r.env.Owner, Template: s.Template, Network: s.Network, Metadata: words,
		Lifetime: engi.Lifetime{Timeout: ownFor}, Ports: engi.PortPolicy{Private: true},
	})
	if err != nil {
		return "", err
	}
	r.leave = append(r.leave, func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		defer cancel()
		if err := boxes.Stop(ctx, r.env.Owner, b.ID); err != nil && engi.KindOf(err) != engi.NotFound {
			r.src.opt.Log.WarnContext(ctx, "end the sandbox of an MCP server", "server", s.Name, "sandbox", b.ID, "err", err)
		}
	})
	return b.ID, nil
}

// call uses a tool. What goes wrong with the server is a result.
func (r *session) call(ctx context.Context, c *tool.Call, o offer, args json.RawMessage) (tool.Result, error) {
	run := ctx
	ctx, cancel := r.src.deadline(ctx)
	defer cancel()
	session, err := r.enter(ctx)
	if err != nil {
		return r.failure(run, err)
	}
	token := r.listen(c)
	defer r.unlisten(token)
	p := &sdk.CallToolParams{Name: o.theirs, Arguments: args}
	p.SetProgressToken(token)
	answer, err := session.CallTool(ctx, p)
	if err == nil {
		return result(answer), nil
	}
	var theirs *jsonrpc.Error
	if ctx.Err() == nil && !errors.As(err, &theirs) {
		r.drop(session)
		err = engi.Errorf(engi.Unavailable, "it broke off, and it is unknown how far it came: %v", err)
	}
	return r.failure(run, broken(ctx, err))
}

// failure is what a model sees of an error; the end of the run is none.
func (r *session) failure(run context.Context, err error) (tool.Result, error) {
	if run.Err() != nil {
		return tool.Result{}, context.Cause(run)
	}
	r.src.opt.Log.WarnContext(run, "a call of an MCP server failed", "server", r.src.server.Name, "run", string(r.env.Run), "err", told(err))
	return tool.Result{Text: fmt.Sprintf("the MCP server %s: %s", r.src.server.Name, told(err)), Failed: true}, nil
}

// A hearer is a call that hears what is said while it works.
type hearer struct {
	call *tool.Call
	room int // bytes left
}

func (r *session) listen(c *tool.Call) (token string) {
	r.telling.Lock()
	defer r.telling.Unlock()
	if r.calls == nil {
		r.calls = map[string]*hearer{}
	}
	r.last++
	token = fmt.Sprintf("call-%d", r.last)
	r.calls[token] = &hearer{c, maxProgress}
	return token
}

// unlisten returns when nothing more is said to the call.
func (r *session) unlisten(token string) {
	r.telling.Lock()
	defer r.telling.Unlock()
	delete(r.calls, token)
}

// progress passes on what a server says about a call.
func (r *session) progress(n *sdk.ProgressNotificationParams) {
	token, _ := n.ProgressToken.(string)
	r.telling.Lock()
	defer r.telling.Unlock()
	h := r.calls[token]
	if h == nil || h.room <= 0 {
		return
	}
	text := n.Message
	if text == "" && n.Total > 0 {
		text = fmt.Sprintf("%g of %g", n.Progress, n.Total)
	}
	if text == "" {
		return
	}
	text = cut(strings.ToValidUTF8(text, "\ufffd"), h.room) + "\n"
	h.room -= len(text)
	h.call.Out(engi.Stdout, []byte(text))
}
