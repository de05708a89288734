// Package guest is the host side of a sandbox. A Client talks to the guest
// program over streams that a machine opens, and implements [engi.Guest]. It
// also runs programs in warm interpreters, collects artifacts, and quiesces the
// guest before a checkpoint. Package internal/sandbox/guest/wire is the protocol, internal/sandbox/guest/guestd
// the guest program.
//
// Package provider starts machines; package fleet decides on which node a sandbox runs.
// Everything a guest sends is treated as hostile: sizes, paths, digests and
// texts are checked, and every read is bounded.
package guest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/engi-dev/engi/internal/clip"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/guest/wire"
)

// A Client talks to one guest. It is safe for concurrent use.
type Client struct {
	token string
	http  *http.Client
	hello wire.Hello
	end   atomic.Pointer[func() engi.Cause] // returns the cause of a lost machine; see OnLoss

	mu     sync.Mutex
	conns  map[*trackedConn]bool
	closed bool
	work   sync.WaitGroup // goroutines that copy port streams
}

var (
	_ engi.Guest           = (*Client)(nil)
	_ engi.GuestHTTP       = (*Client)(nil)
	_ engi.Process         = (*Run)(nil)
	_ engi.TerminalProcess = (*process)(nil)
)

// stalled is the time without progress of a write to a guest after which its
// connection is closed.
var stalled = 30 * time.Second

// Open connects to a guest over streams that dial opens, checks token and
// version, and returns once the guest has sent its Hello. The client owns its
// connections; close it. Open reports Anonymous for a wrong token, Unsupported
// for another version, and Unavailable if there is no answer.
func Open(ctx context.Context, dial func(context.Context) (net.Conn, error), token string) (*Client, error) {
	c := &Client{token: token, conns: map[*trackedConn]bool{}}
	var p http.Protocols
	p.SetUnencryptedHTTP2(true)
	c.http = &http.Client{
		Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				for {
					conn, err := dial(ctx)
					if err != nil {
						return nil, err
					}
					if alive(conn) {
						return c.track(conn)
					}
					conn.Close()
					if ctx.Err() != nil {
						return nil, ctx.Err()
					}
				}
			},
			Protocols:          &p,
			DisableCompression: true,
			WriteBufferSize:    64 << 10,
			HTTP2: &http.HTTP2Config{
				MaxReadFrameSize:              256 << 10,
				MaxReceiveBufferPerConnection: 32 << 20,
				MaxReceiveBufferPerStream:     4 << 20,
				// Otherwise a guest that does not read blocks a call for ever even though its
				// context has ended, because the cancellation is a write, too.
				WriteByteTimeout: stalled,
			},
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	if err := c.call(ctx, "GET", "hello", nil, &c.hello); err != nil {
		c.Close()
		return nil, engi.Errorf(engi.KindOf(err), "open guest: %w", err)
	}
	if c.hello.Version != wire.Version {
		c.Close()
		return nil, engi.Errorf(engi.Unsupported, "open guest: it speaks version %d, not %d", c.hello.Version, wire.Version).
			WithRemedy("replace the sandbox: it was started by another version of engi")
	}
	return c, nil
}

// trackedConn records that either side has closed it.
type trackedConn struct {
	net.Conn
	c      *Client
	once   sync.Once
	closed chan struct{}
}

func (c *Client) track(conn net.Conn) (net.Conn, error) {
	w := &trackedConn{Conn: conn, c: c, closed: make(chan struct{})}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		conn.Close()
		return nil, net.ErrClosed
	}
	c.conns[w] = true
	return w, nil
}

func (w *trackedConn) Read(b []byte) (int, error) {
	n, err := w.Conn.Read(b)
	if err != nil {
		w.untrack()
	}
	return n, err
}

func (w *trackedConn) Close() error {
	w.untrack()
	return w.Conn.Close()
}

func (w *trackedConn) untrack() {
	w.once.Do(func() {
		close(w.closed)
		w.c.mu.Lock()
		delete(w.c.conns, w)
		w.c.mu.Unlock()
	})
}

// Close closes the connections. Runs and processes in the sandbox continue.
func (c *Client) Close() error {
	for _, w := range c.refuse() {
		w.Close()
	}
	c.http.CloseIdleConnections()
	c.work.Wait()
	return nil
}

// refuse refuses further connections and returns the open connections.
func (c *Client) refuse() []*trackedConn {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	return slices.Collect(maps.Keys(c.conns))
}

// OnLoss sets the function that returns the cause of a lost guest: the reason for which its
// machine died, or empty if the machine is alive. If the machine ran out of memory, a process that
// died with it is reported as if it had died alone.
func (c *Client) OnLoss(cause func() engi.Cause) { c.end.Store(&cause) }

// Hello returns the guest's description of itself.
func (c *Client) Hello() wire.Hello { return c.hello }

// Setup sets the user and the directory of programs. Call it before anything
// else. A later call changes the settings of its non-zero fields, and replaces Env as a
// whole if it is not nil. It applies to processes started later. In this way a sandbox that has
// already booted gets its owner's environment. See [wire.Setup].
func (c *Client) Setup(ctx context.Context, s wire.Setup) error {
	return c.call(ctx, "POST", "setup", s, nil)
}

// Prepare starts an interpreter and returns once it is waiting for code. It
// reports Unsupported for a language whose interpreters cannot wait.
func (c *Client) Prepare(ctx context.Context, p wire.Prepare) error {
	return c.call(ctx, "POST", "prepare", p, nil)
}

// PrepareKernels starts the kernels of the code interpreter's default contexts
// and returns once they are waiting for code, so that the first execution in
// each language starts at once.
func (c *Client) PrepareKernels(ctx context.Context, languages []string) error {
	return c.call(ctx, "POST", "kernels", wire.Kernels{Languages: languages}, nil)
}

// Usage reports the resources that the sandbox uses, as counted by the guest. The numbers are
// never negative, but a hostile guest may invent them.
func (c *Client) Usage(ctx context.Context) (wire.Usage, error) {
	var u wire.Usage
	if err := c.call(ctx, "GET", "usage", nil, &u); err != nil {
		return wire.Usage{}, err
	}
	return wire.Usage{
		CPU: max(0, u.CPU), Memory: max(0, u.Memory), MemoryCache: max(0, u.MemoryCache),
		DiskUsed: max(0, u.DiskUsed), DiskTotal: max(0, u.DiskTotal), Processes: max(0, u.Processes),
	}, nil
}

// Quiesce makes the guest close all its connections, and returns once they
// are closed, so that its machine can be saved. The client cannot be used
// afterwards: close it, and open another one after the restore.
func (c *Client) Quiesce(ctx context.Context) error {
	if err := c.call(ctx, "POST", "quiesce", nil, nil); err != nil {
		return err
	}
	for _, w := range c.refuse() {
		select {
		case <-w.closed:
		case <-ctx.Done():
			return engi.Errorf(engi.Expired, "quiesce: the guest keeps a connection: %v", ctx.Err())
		}
	}
	return nil
}

// RoundTrip sends a request to an E2B API of the guest, see
// [engi.GuestHTTP]. Only path, query, headers and body of r are used. Requests
// of the host's own protocol are refused with Denied.
func (c *Client) RoundTrip(r *http.Request) (*http.Response, error) {
	if p := path.Clean("/" + r.URL.Path); p+"/" == wire.Prefix || strings.HasPrefix(p, wire.Prefix) {
		return nil, engi.Errorf(engi.Denied, "%.80q is not a path of the E2B APIs", p)
	}
	req := r.Clone(r.Context())
	req.URL.Scheme, req.URL.Host, req.Host, req.RequestURI = "http", "guest", "", ""
	req.Header.Set(wire.TokenHeader, c.token)
	resp, err := c.http.Transport.RoundTrip(req)
	if err != nil {
		return nil, connError(r.Context(), r.URL.Path, err)
	}
	return resp, nil
}

// PowerOff ends the guest program, and with it the machine.
func (c *Client) PowerOff(ctx context.Context) error {
	return c.call(ctx, "POST", "poweroff", nil, nil)
}

// call sends in as JSON unless it is nil, and decodes the answer into out
// unless out is nil.
func (c *Client) call(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return engi.Errorf(engi.Internal, "%s: %v", path, err)
		}
		body = bytes.NewReader(b)
	}
	resp, err := c.do(ctx, method, path, body)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, wire.MaxJSON+1))
	if err != nil {
		return connError(ctx, path, err)
	}
	if out == nil {
		return nil
	}
	if len(b) > wire.MaxJSON {
		return engi.Errorf(engi.Unavailable, "%s: the guest's answer is over %d bytes", path, wire.MaxJSON)
	}
	if err := json.Unmarshal(b, out); err != nil {
		return engi.Errorf(engi.Unavailable, "%s: the guest's answer cannot be decoded: %v", path, err)
	}
	return nil
}

// do sends a request. An error in the answer is returned as an error. The caller
// closes the body.
func (c *Client) do(ctx context.Context, method, path string, body io.Reader, more ...func(*http.Request)) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://guest"+wire.Prefix+path, body)
	if err != nil {
		return nil, engi.Errorf(engi.Internal, "%s: %v", path, err)
	}
	req.Header.Set(wire.TokenHeader, c.token)
	req.Header["User-Agent"] = nil
	for _, f := range more {
		f(req)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, connError(ctx, path, err)
	}
	if resp.StatusCode < 300 {
		return resp, nil
	}
	defer resp.Body.Close()
	const most = 128 << 10
	b, err := io.ReadAll(io.LimitReader(resp.Body, most))
	if err != nil {
		return nil, connError(ctx, path, err)
	}
	if resp.Header.Get(wire.ErrorHeader) == "" {
		return nil, engi.Errorf(engi.Unavailable, "%s: the guest answered status %d", path, resp.StatusCode)
	}
	return nil, wire.DecodeError(b)
}

// connError classifies a failed connection. An error that already has a kind,
// such as one from dial, keeps it.
func connError(ctx context.Context, act string, err error) error {
	if ctx.Err() != nil {
		return engi.Errorf(engi.Expired, "%s: %v", act, context.Cause(ctx))
	}
	if ours, ok := errors.AsType[*engi.Error](err); ok {
		return engi.Errorf(ours.Kind, "%s: %w", act, ours)
	}
	return engi.Errorf(engi.Unavailable, "%s: the guest does not answer: %v", act, err)
}

func query(pairs ...string) string {
	v := url.Values{}
	for i := 0; i < len(pairs); i += 2 {
		v.Set(pairs[i], pairs[i+1])
	}
	return "?" + v.Encode()
}

// sanitize makes text from a guest safe to show: bounded, and valid UTF-8.
func sanitize(s string) string {
	return clip.Text(s, 4<<10)
}

// Number and interval of attempts to resume a broken stream before its guest
// counts as lost.
const (
	maxReconnects  = 5
	reconnectDelay = 100 * time.Millisecond
)
