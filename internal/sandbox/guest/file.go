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

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/guest/wire"
)

// Open reads a regular file. The caller closes it.
func (c *Client) Open(ctx context.Context, path string) (io.ReadCloser, error) {
	resp, err := c.doFile(ctx, "GET", "file", path, nil)
	if err != nil {
		return nil, err
	}
	return sized{buffered(resp.Body), resp.ContentLength}, nil
}

// sized is a file whose size is known before it is read.
type sized struct {
	io.ReadCloser
	size int64 // -1 if unknown
}

// Size returns the size of the file in bytes at the time of its opening, or -1 if unknown.
func (s sized) Size() int64 { return s.size }

// buffered reads body in large pieces, however small the caller's reads are:
// HTTP/2 acknowledges each read, and each acknowledgement wakes the guest.
func buffered(body io.ReadCloser) io.ReadCloser {
	return struct {
		io.Reader
		io.Closer
	}{bufio.NewReaderSize(body, 256<<10), body}
}

func (c *Client) doFile(ctx context.Context, method, act, path string, body io.Reader, pairs ...string) (*http.Response, error) {
	if err := wire.CheckAbsolute(path); err != nil {
		return nil, err
	}
	resp, err := c.do(ctx, method, act+query(append(pairs, "path", path)...), body)
	if err != nil {
		return nil, engi.Errorf(engi.KindOf(err), "%s %s: %w", act, path, err)
	}
	return resp, nil
}

// Write replaces a file's content with all of r, or leaves the file unchanged.
func (c *Client) Write(ctx context.Context, path string, r io.Reader, o engi.WriteOptions) error {
	if err := wire.CheckAbsolute(path); err != nil {
		return err
	}
	body := &hashingReader{r: r}
	if known, ok := r.(interface{ SHA256() string }); ok {
		body.sum = known.SHA256 // the reader computes the digest already
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

// hashingReader puts the digest of the bytes it read into a trailer.
type hashingReader struct {
	r       io.Reader
	sum     func() string // returns the digest; valid once all has been read
	trailer http.Header
}

func (b *hashingReader) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if err == io.EOF {
		b.trailer.Set(wire.HashHeader, b.sum())
	}
	return n, err
}

func info(w wire.FileInfo) engi.FileInfo {
	return engi.FileInfo{Path: w.Path, Size: w.Size, Mode: fs.FileMode(w.Mode), UID: w.UID, GID: w.GID,
		Owner: sanitize(w.Owner), Group: sanitize(w.Group), Modified: w.Modified, Changed: w.Changed, Target: w.Target}
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

// List returns the files below dir, depth levels deep, in path order. A depth of
// 0 means 1. It reports Exhausted if they do not fit into one answer.
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

func (c *Client) postFile(ctx context.Context, act, path string, pairs ...string) error {
	resp, err := c.doFile(ctx, "POST", act, path, nil, pairs...)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// MakeDir creates a directory and its parents. It reports Conflict if the directory exists.
func (c *Client) MakeDir(ctx context.Context, path string) error {
	return c.postFile(ctx, "mkdir", path)
}

// Move renames from to to, creating the parents of to.
func (c *Client) Move(ctx context.Context, from, to string) error {
	if err := wire.CheckAbsolute(to); err != nil {
		return err
	}
	return c.postFile(ctx, "move", from, "to", to)
}

// Remove deletes path and everything below it. A missing path is not an error.
func (c *Client) Remove(ctx context.Context, path string) error {
	return c.postFile(ctx, "remove", path)
}

// Watch yields changes below path until ctx ends. The watch begins when the
// iteration begins.
func (c *Client) Watch(ctx context.Context, path string, recursive bool) iter.Seq2[engi.FileChange, error] {
	return func(yield func(engi.FileChange, error) bool) {
		fail := func(err error) { yield(engi.FileChange{}, engi.Errorf(engi.KindOf(err), "watch %s: %w", path, err)) }
		if err := wire.CheckAbsolute(path); err != nil {
			fail(err)
			return
		}
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		resp, err := c.doFile(ctx, "GET", "watch", path, nil, "recursive", strconv.FormatBool(recursive))
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
				fail(engi.Errorf(engi.Unavailable, "the guest closed the stream"))
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

// Pack returns path and everything below it as a tar stream. Names are
// relative to path's parent directory. The caller closes it.
func (c *Client) Pack(ctx context.Context, path string) (io.ReadCloser, error) {
	resp, err := c.doFile(ctx, "GET", "pack", path, nil)
	if err != nil {
		return nil, err
	}
	return buffered(resp.Body), nil
}

// Unpack extracts a tar stream below dir, which it creates if missing. It reports Invalid for a name
// that leads out of dir; files extracted before remain.
func (c *Client) Unpack(ctx context.Context, dir string, r io.Reader) error {
	resp, err := c.doFile(ctx, "POST", "unpack", dir, io.NopCloser(r))
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// Dial connects to a TCP port on the sandbox's loopback. It reports Unavailable
// if nothing listens there.
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

	streamCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	up, body := io.Pipe()
	resp, err := c.do(streamCtx, "POST", "port/"+strconv.Itoa(port), up)
	if !stop() && err == nil {
		resp.Body.Close()
		err = engi.Errorf(engi.Expired, "%v", context.Cause(ctx))
	}
	if err != nil {
		cancel()
		c.work.Add(-2)
		return nil, engi.Errorf(engi.KindOf(err), "dial %d: %w", port, callerExpired(ctx, "port", err))
	}
	local, remote := net.Pipe()
	conn := &portConn{Conn: local, remote: remote, port: port, cancel: cancel}
	go func() {
		defer c.work.Done()
		_, err := io.Copy(body, remote)
		if !conn.writeClosed() && err == nil {
			cancel() // both directions are closed
		}
		body.Close()
	}()
	go func() {
		defer c.work.Done()
		io.CopyBuffer(struct{ io.Writer }{remote}, struct{ io.Reader }{resp.Body}, make([]byte, 64<<10)) // the reader sees the end of the stream, whatever its cause
		resp.Body.Close()
		remote.Close()
	}()
	return conn, nil
}

// portConn is one end of a pipe whose other end is copied to and from the
// guest. Its deadlines are those of the pipe.
type portConn struct {
	net.Conn
	remote net.Conn
	port   int
	cancel context.CancelFunc

	mu          sync.Mutex
	closedWrite bool
}

func (p *portConn) writeClosed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closedWrite
}

// Write implements net.Conn.
func (p *portConn) Write(b []byte) (int, error) {
	if p.writeClosed() {
		return 0, net.ErrClosed
	}
	return p.Conn.Write(b)
}

// CloseWrite tells the service in the sandbox that no more data will be sent.
func (p *portConn) CloseWrite() error {
	p.mu.Lock()
	p.closedWrite = true
	p.mu.Unlock()
	// The copying goroutine has read all written data; the deadline ends its next read.
	return p.remote.SetReadDeadline(time.Unix(1, 0))
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
