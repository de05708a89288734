// Package guest is the host's side of a sandbox: a Client speaks to the guest
// program over streams that a machine opens and implements [engi.Guest]; it
// also runs programs with warm interpreters, collects artifacts and quiesces
// the guest before a checkpoint. Package guest/wire is the protocol,
// guest/guestd the program inside.
//
// It is not for starting machines (package provider) nor for deciding what
// runs where (package fleet). Everything a guest says is taken as hostile:
// sizes, paths, digests and texts are checked, and nothing is read without a
// bound.
package guest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"path"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/guest/wire"
)

// A Client speaks to one guest. It is safe for concurrent use.
type Client struct {
	token string
	http  *http.Client
	hello wire.Hello

	mu     sync.Mutex
	conns  map[*watchedConn]bool
	closed bool
	work   sync.WaitGroup // copies of port streams
}

var (
	_ engi.Guest     = (*Client)(nil)
	_ engi.GuestHTTP = (*Client)(nil)
	_ engi.Process   = (*Run)(nil)
	_ engi.Process   = (*process)(nil)
)

// Open speaks to a guest over streams that dial opens, checks token and
// version, and returns once the guest said hello. The client owns its
// connections; Close it. It reports Anonymous for a wrong token, Unsupported
// for another version, Unavailable if nobody answers.
func Open(ctx context.Context, dial func(context.Context) (net.Conn, error), token string) (*Client, error) {
	c := &Client{token: token, conns: map[*watchedConn]bool{}}
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
						return c.own(conn)
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

// watchedConn knows when it was closed, by whichever side.
type watchedConn struct {
	net.Conn
	c    *Client
	once sync.Once
	gone chan struct{}
}

func (c *Client) own(conn net.Conn) (net.Conn, error) {
	w := &watchedConn{Conn: conn, c: c, gone: make(chan struct{})}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		conn.Close()
		return nil, net.ErrClosed
	}
	c.conns[w] = true
	return w, nil
}

func (w *watchedConn) Read(b []byte) (int, error) {
	n, err := w.Conn.Read(b)
	if err != nil {
		w.forget()
	}
	return n, err
}

func (w *watchedConn) Close() error {
	w.forget()
	return w.Conn.Close()
}

func (w *watchedConn) forget() {
	w.once.Do(func() {
		close(w.gone)
		w.c.mu.Lock()
		delete(w.c.conns, w)
		w.c.mu.Unlock()
	})
}

// Close closes the connections. Runs and processes inside go on.
func (c *Client) Close() error {
	c.mu.Lock()
	c.closed = true
	var open []*watchedConn
	for w := range c.conns {
		open = append(open, w)
	}
	c.mu.Unlock()
	for _, w := range open {
		w.Close()
	}
	c.http.CloseIdleConnections()
	c.work.Wait()
	return nil
}

// Hello returns what the guest said of itself.
func (c *Client) Hello() wire.Hello { return c.hello }

// Setup says who programs run as; call it before all else. Called again it
// changes what its non-zero fields name, a non-nil Env as a whole, for what is
// started from then on: so a sandbox can get its owner's environment after it
// booted. See [wire.Setup].
func (c *Client) Setup(ctx context.Context, s wire.Setup) error {
	return c.call(ctx, "POST", "setup", s, nil)
}

// Prepare starts an interpreter and returns once it waits for code. It
// reports Unsupported for a language whose interpreters cannot wait.
func (c *Client) Prepare(ctx context.Context, p wire.Prepare) error {
	return c.call(ctx, "POST", "prepare", p, nil)
}

// PrepareKernels starts the kernels of the code interpreter's default contexts
// and returns once they wait for code, so that the first execution of each
// language answers at once.
func (c *Client) PrepareKernels(ctx context.Context, languages []string) error {
	return c.call(ctx, "POST", "kernels", wire.Kernels{Languages: languages}, nil)
}

// Usage reports what the sandbox uses, as the guest counts it. No number is
// negative, but each may be a lie.
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
// are closed, so that its machine can be saved. The client is of no more use:
// Close it and open another after the restore.
func (c *Client) Quiesce(ctx context.Context) error {
	if err := c.call(ctx, "POST", "quiesce", nil, nil); err != nil {
		return err
	}
	c.mu.Lock()
	c.closed = true // no new one must be dialed
	var open []*watchedConn
	for w := range c.conns {
		open = append(open, w)
	}
	c.mu.Unlock()
	for _, w := range open {
		select {
		case <-w.gone:
		case <-ctx.Done():
			return engi.Errorf(engi.Expired, "quiesce: the guest keeps a connection: %v", ctx.Err())
		}
	}
	return nil
}

// RoundTrip sends a request in a foreign dialect to the guest, see
// [engi.Agent]: only path, query, headers and body of r are used. Requests of
// the host's own protocol are Denied.
func (c *Client) RoundTrip(r *http.Request) (*http.Response, error) {
	if p := path.Clean("/" + r.URL.Path); p+"/" == wire.Prefix || strings.HasPrefix(p, wire.Prefix) {
		return nil, engi.Errorf(engi.Denied, "%.80q is not a path of a dialect", p)
	}
	req := r.Clone(r.Context())
	req.URL.Scheme, req.URL.Host, req.Host, req.RequestURI = "http", "guest", "", ""
	req.Header.Set(wire.TokenHeader, c.token)
	resp, err := c.http.Transport.RoundTrip(req)
	if err != nil {
		return nil, broken(r.Context(), r.URL.Path, err)
	}
	return resp, nil
}

// PowerOff ends the guest program and with it the machine.
func (c *Client) PowerOff(ctx context.Context) error {
	return c.call(ctx, "POST", "poweroff", nil, nil)
}

// call sends in as JSON, if it is not nil, and decodes the answer into out, if
// that is not nil.
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
		return broken(ctx, path, err)
	}
	if out == nil {
		return nil
	}
	if len(b) > wire.MaxJSON {
		return engi.Errorf(engi.Unavailable, "%s: the guest's answer is over %d bytes", path, wire.MaxJSON)
	}
	if err := json.Unmarshal(b, out); err != nil {
		return engi.Errorf(engi.Unavailable, "%s: the guest's answer makes no sense: %v", path, err)
	}
	return nil
}

// do sends a request; an answer that is an error comes back as one. The
// caller closes the body.
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
		return nil, broken(ctx, path, err)
	}
	if resp.StatusCode < 300 {
		return resp, nil
	}
	defer resp.Body.Close()
	const most = 128 << 10
	b, err := io.ReadAll(io.LimitReader(resp.Body, most))
	if err != nil {
		return nil, broken(ctx, path, err)
	}
	if resp.Header.Get(wire.ErrorHeader) == "" {
		return nil, engi.Errorf(engi.Unavailable, "%s: the guest answered status %d", path, resp.StatusCode)
	}
	return nil, wire.DecodeError(b)
}

// broken classifies a failure of the connection. An error of ours that dial
// returned keeps its kind.
func broken(ctx context.Context, act string, err error) error {
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

// text makes a guest's text fit to show: bounded and valid.
func text(s string) string {
	const most = 4 << 10
	if len(s) > most {
		s = s[:most] + "…"
	}
	if !utf8.ValidString(s) {
		s = string(bytes.ToValidUTF8([]byte(s), []byte("�")))
	}
	return s
}

// reconnects is how often, and how far apart, a broken stream is taken up
// again before its guest counts as gone.
const (
	reconnects   = 5
	reconnectGap = 100 * time.Millisecond
)
