package guest

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"io/fs"
	"iter"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/guest/wire"
)

// Open reads a regular file. The caller closes it.
func (c *Client) Open(ctx context.Context, path string) (io.ReadCloser, error) {
	resp, err := c.file(ctx, "GET", "file", path, nil)
	if err != nil {
		return nil, err
	}
	return sized{gulp(resp.Body), resp.ContentLength}, nil
}

// sized is a file whose size is known before it was read.
type sized struct {
	io.ReadCloser
	size int64 // -1 if the guest did not say
}

// Size returns the bytes of the file when it was opened; -1 if unknown.
func (s sized) Size() int64 { return s.size }

// gulp reads in large pieces, however small those asked for are: HTTP/2
// acknowledges each read, and each acknowledgement wakes the guest.
func gulp(body io.ReadCloser) io.ReadCloser {
	return struct {
		io.Reader
		io.Closer
	}{bufio.NewReaderSize(body, 256<<10), body}
}

func (c *Client) file(ctx context.Context, method, act, path string, body io.Reader, pairs ...string) (*http.Response, error) {
	if err := wire.CheckAbsolute(path); err != nil {
		return nil, err
	}
	resp, err := c.do(ctx, method, act+query(append(pairs, "path", path)...), body)
	if err != nil {
		return nil, engi.Errorf(engi.KindOf(err), "%s %s: %w", act, path, err)
	}
	return resp, nil
}

// Write replaces a file's content with all of r, or leaves the file as it was.
func (c *Client) Write(ctx context.Context, path string, r io.Reader, o engi.WriteOptions) error {
	if err := wire.CheckAbsolute(path); err != nil {
		return err
	}
	body := &hashing{r: r}
	if known, ok := r.(interface{ SHA256() string }); ok {
		body.sum = known.SHA256 // the reader counts already
	} else {
		h := sha256.New()
		body.r = io.TeeReader(r, h)
		body.sum = func() string { return hex.EncodeToString(h.Sum(nil)) }
	}
	resp, err := c.do(ctx, "PUT", "file"+query("path", path, "mode", strconv.FormatUint(uint64(o.Mode.Perm()), 8), "user", o.User), body,
		func(req *http.Request) {
			req.ContentLength = -1
			req.Trailer = http.Header{wire.HashHeader: nil}
			body.trailer = req.Trailer
		})
	if err != nil {
		return engi.Errorf(engi.KindOf(err), "write %s: %w", path, err)
	}
	return resp.Body.Close()
}

// hashing puts the digest of what it read into a trailer.
type hashing struct {
	r       io.Reader
	sum     func() string // of all, once it was read
	trailer http.Header
}

func (b *hashing) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if err == io.EOF {
		b.trailer.Set(wire.HashHeader, b.sum())
	}
	return n, err
}

func info(w wire.FileInfo) engi.FileInfo {
	return engi.FileInfo{Path: w.Path, Size: w.Size, Mode: fs.FileMode(w.Mode), UID: w.UID, GID: w.GID,
		Owner: text(w.Owner), Group: text(w.Group), Modified: w.Modified, Target: w.Target}
}

// Stat describes a file without following a final link.
func (c *Client) Stat(ctx context.Context, path string) (engi.FileInfo, error) {
	if err := wire.CheckAbsolute(path); err != nil {
		return engi.FileInfo{}, err
	}
	var w wire.FileInfo
	if err := c.call(ctx, "GET", "stat"+query("path", path), nil, &w); err != nil {
		return engi.FileInfo{}, engi.Errorf(engi.KindOf(err), "stat %s: %w", path, err)
	}
	return info(w), nil
}

// List yields what is below dir, depth levels deep, in path order; a depth of
// 0 means 1. It reports Exhausted for more than fits into one answer.
func (c *Client) List(ctx context.Context, dir string, depth int) ([]engi.FileInfo, error) {
	if err := wire.CheckAbsolute(dir); err != nil {
		return nil, err
	}
	var ws []wire.FileInfo
	if err := c.call(ctx, "GET", "list"+query("path", dir, "depth", strconv.Itoa(depth)), nil, &ws); err != nil {
		return nil, engi.Errorf(engi.KindOf(err), "list %s: %w", dir, err)
	}
	all := make([]engi.FileInfo, len(ws))
	for i, w := range ws {
		all[i] = info(w)
	}
	return all, nil
}

func (c *Client) change(ctx context.Context, act, path string, pairs ...string) error {
	resp, err := c.file(ctx, "POST", act, path, nil, pairs...)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// MakeDir makes a directory and its parents; Conflict if it exists.
func (c *Client) MakeDir(ctx context.Context, path string) error {
	return c.change(ctx, "mkdir", path)
}

// Move renames, making parents of to.
func (c *Client) Move(ctx context.Context, from, to string) error {
	if err := wire.CheckAbsolute(to); err != nil {
		return err
	}
	return c.change(ctx, "move", from, "to", to)
}

// Remove deletes path and all below it; a missing path is no error.
func (c *Client) Remove(ctx context.Context, path string) error {
	return c.change(ctx, "remove", path)
}

// Watch yields changes below path until ctx ends. It begins when the first
// value is asked for.
func (c *Client) Watch(ctx context.Context, path string, recursive bool) iter.Seq2[engi.FileChange, error] {
	return func(yield func(engi.FileChange, error) bool) {
		fail := func(err error) { yield(engi.FileChange{}, engi.Errorf(engi.KindOf(err), "watch %s: %w", path, err)) }
		if err := wire.CheckAbsolute(path); err != nil {
			fail(err)
			return
		}
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		resp, err := c.file(ctx, "GET", "watch", path, nil, "recursive", strconv.FormatBool(recursive))
		if err != nil {
			fail(err)
			return
		}
		defer resp.Body.Close()
		in := wire.NewReader(resp.Body)
		for {
			kind, payload, err := in.Next()
			switch {
			case ctx.Err() != nil:
				return
			case err == io.EOF:
				fail(engi.Errorf(engi.Unavailable, "the guest broke off"))
				return
			case err != nil:
				fail(err)
				return
			}
			switch kind {
			case wire.Change:
				var ch wire.FileChange
				if err := wire.Decode(payload, &ch); err != nil {
					fail(err)
					return
				}
				if !yield(engi.FileChange{Path: ch.Path, Op: ch.Op}, nil) {
					return
				}
			case wire.Failure:
				fail(wire.DecodeError(payload))
				return
			}
		}
	}
}

// Pack returns path and all below it as a tar stream. Names in it are
// relative to path's parent directory. The caller closes it.
func (c *Client) Pack(ctx context.Context, path string) (io.ReadCloser, error) {
	resp, err := c.file(ctx, "GET", "pack", path, nil)
	if err != nil {
		return nil, err
	}
	return gulp(resp.Body), nil
}

// Unpack extracts a tar stream below dir, which it makes if it is missing.
// Names that lead out of dir are Invalid; what came before them stays.
func (c *Client) Unpack(ctx context.Context, dir string, r io.Reader) error {
	resp, err := c.file(ctx, "POST", "unpack", dir, io.NopCloser(r))
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// Dial connects to a TCP port that listens on loopback inside; Unavailable if
// none does.
func (c *Client) Dial(ctx context.Context, port int) (net.Conn, error) {
	if port < 1 || port > 65535 {
		return nil, engi.Errorf(engi.Invalid, "dial: %d is not a port", port)
	}
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil, engi.Errorf(engi.Unavailable, "dial %d: the client is closed", port)
	}
	c.work.Add(2)
	c.mu.Unlock()

	long, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	up, body := io.Pipe()
	resp, err := c.do(long, "POST", "port/"+strconv.Itoa(port), up)
	if !stop() && err == nil {
		resp.Body.Close()
		err = engi.Errorf(engi.Expired, "%v", context.Cause(ctx))
	}
	if err != nil {
		cancel()
		c.work.Add(-2)
		return nil, engi.Errorf(engi.KindOf(err), "dial %d: %w", port, unExpire(ctx, "port", err))
	}
	near, far := net.Pipe()
	conn := &portConn{Conn: near, far: far, port: port, cancel: cancel}
	go func() {
		defer c.work.Done()
		_, err := io.Copy(body, far)
		if !conn.half() && err == nil {
			cancel() // closed altogether
		}
		body.Close()
	}()
	go func() {
		defer c.work.Done()
		io.CopyBuffer(struct{ io.Writer }{far}, struct{ io.Reader }{resp.Body}, make([]byte, 64<<10)) // whatever ends it, the reader sees the end
		resp.Body.Close()
		far.Close()
	}()
	return conn, nil
}

// portConn is one side of a pipe whose other side is copied to and from the
// guest. Deadlines are the pipe's.
type portConn struct {
	net.Conn
	far    net.Conn
	port   int
	cancel context.CancelFunc

	mu     sync.Mutex
	closed bool // for writing only
}

func (p *portConn) half() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closed
}

// Write implements net.Conn.
func (p *portConn) Write(b []byte) (int, error) {
	if p.half() {
		return 0, net.ErrClosed
	}
	return p.Conn.Write(b)
}

// CloseWrite tells the service inside that nothing more comes.
func (p *portConn) CloseWrite() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	// What was written has been taken by the copier; this ends its next read.
	return p.far.SetReadDeadline(time.Unix(1, 0))
}

// Close implements net.Conn.
func (p *portConn) Close() error {
	err := p.Conn.Close()
	p.cancel()
	return err
}

type portAddr int

func (a portAddr) Network() string { return "tcp" }
func (a portAddr) String() string  { return net.JoinHostPort("127.0.0.1", strconv.Itoa(int(a))) }

// RemoteAddr implements net.Conn.
func (p *portConn) RemoteAddr() net.Addr { return portAddr(p.port) }
