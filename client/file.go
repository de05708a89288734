package client

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/engi-dev/engi/api/v1"
)

// Files gives access to the files of a sandbox or of a volume. Paths are absolute in it. It is
// safe for concurrent use.
type Files struct {
	c    *Client
	path string
}

// Files returns the files of a sandbox.
func (c *Client) Files(sandbox string) *Files {
	return &Files{c, sandboxes + segment(sandbox) + "/files"}
}

// VolumeFiles returns the files of a volume, whether or not a sandbox uses it.
// Move, Watch, Pack and Unpack work for sandboxes only.
func (c *Client) VolumeFiles(name string) *Files {
	return &Files{c, volumes + segment(name) + "/files"}
}

// at returns the query for a path and other parameters.
func at(path string, pairs ...string) url.Values { return set(append(pairs, "path", path)...) }

// A File is the content of a file during a download. At its end, the hash is
// compared: a Read that would return io.EOF reports a mismatch instead.
type File struct {
	Size int64 // size in bytes; -1 if unknown

	resp *http.Response
	hash hash.Hash
	name string // name of the trailer with the hash
	n    int64
}

// A ReadOption changes how a file is read.
type ReadOption func(*reading)

type reading struct {
	hash         hash.Hash
	name, header string
}

// WithSHA256 compares SHA-256 hashes, which [File.SHA256] then returns, at two
// thirds of the speed. The default is CRC-32C, which detects accidental damage.
func WithSHA256() ReadOption {
	return func(r *reading) { *r = reading{sha256.New(), v1.HashHeader, "sha256"} }
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Open downloads a file. The caller closes it.
func (f *Files) Open(ctx context.Context, path string, opts ...ReadOption) (*File, error) {
	r := reading{crc32.New(castagnoli), v1.CRCHeader, "crc32c"}
	for _, o := range opts {
		o(&r)
	}
	resp, err := f.c.do(ctx, &call{
		method: http.MethodGet, path: f.path, query: at(path),
		header: http.Header{"Accept": {"application/octet-stream, */*;q=0.1"}, "Te": {"trailers"}, v1.WantHeader: {r.header}},
	})
	if err != nil {
		return nil, err
	}
	size, err := strconv.ParseInt(resp.Header.Get(v1.SizeHeader), 10, 64)
	if err != nil {
		size = resp.ContentLength
	}
	return &File{Size: size, resp: resp, hash: r.hash, name: r.name}, nil
}

// OpenRange downloads n bytes of a file from an offset on, or fewer at its end.
// The caller closes them.
func (f *Files) OpenRange(ctx context.Context, path string, from, n int64) (io.ReadCloser, error) {
	resp, err := f.c.do(ctx, &call{
		method: http.MethodGet, path: f.path, query: at(path),
		header: http.Header{"Accept": {"application/octet-stream, */*;q=0.1"}, "Range": {fmt.Sprintf("bytes=%d-%d", from, from+n-1)}},
	})
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// Read implements io.Reader.
func (f *File) Read(p []byte) (int, error) {
	n, err := f.resp.Body.Read(p)
	f.hash.Write(p[:n])
	f.n += int64(n)
	switch {
	case err == nil:
	case err != io.EOF:
		err = failure(v1.Unavailable, "try again", "the file broke off after %d bytes: %v", f.n, err)
	case f.Size >= 0 && f.n != f.Size:
		err = failure(v1.Unavailable, "try again", "the file broke off after %d of %d bytes", f.n, f.Size)
	default:
		if want, have := f.resp.Trailer.Get(f.name), hex.EncodeToString(f.hash.Sum(nil)); want != "" && !strings.EqualFold(want, have) {
			err = failure(v1.Unavailable, "try again", "%d bytes arrived with the hash %s, not %s", f.n, have, want)
		}
	}
	return n, err
}

// SHA256 returns the hash of the bytes read so far, in hex; empty unless the
// file was opened [WithSHA256].
func (f *File) SHA256() string {
	if f.name != v1.HashHeader {
		return ""
	}
	return hex.EncodeToString(f.hash.Sum(nil))
}

// Close implements io.Closer.
func (f *File) Close() error { return f.resp.Body.Close() }

// A WriteOption changes how a file is written.
type WriteOption func(*call)

// WithMode sets the permission bits of a written file; the default is 0644.
func WithMode(m v1.Mode) WriteOption { return func(q *call) { q.query.Set("mode", m.String()) } }

// WithUser sets the owner of a written file; the default is the template's user.
func WithUser(name string) WriteOption { return func(q *call) { q.query.Set("user", name) } }

// WithSize sets the number of bytes, so that a file that does not fit is
// refused at once.
func WithSize(n int64) WriteOption { return func(q *call) { q.length = n } }

// Write uploads all of r and creates parent directories. It replaces an existing file when
// all bytes have arrived, and else leaves it unchanged. Hashes are compared.
func (f *Files) Write(ctx context.Context, path string, r io.Reader, opts ...WriteOption) (v1.Written, error) {
	sum := &summing{r: r, h: sha256.New()}
	q := &call{method: http.MethodPut, path: f.path, query: at(path), stream: sum, length: -1, once: true}
	for _, o := range opts {
		o(q)
	}
	if q.length < 0 {
		sum.trailer = http.Header{v1.HashHeader: nil}
		q.trailer = sum.trailer
	}
	w, err := ask[v1.Written](ctx, f.c, q)
	if err != nil {
		return w, err
	}
	if have := hex.EncodeToString(sum.h.Sum(nil)); w.SHA256 != have {
		return w, failure(v1.Unavailable, "send the file again", "%s arrived with the SHA-256 %s, not %s", path, w.SHA256, have)
	}
	return w, nil
}

// A summing puts the hash of the bytes read into a trailer.
type summing struct {
	r       io.Reader
	h       hash.Hash
	trailer http.Header
}

func (s *summing) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	s.h.Write(p[:n])
	if err == io.EOF && s.trailer != nil {
		s.trailer.Set(v1.HashHeader, hex.EncodeToString(s.h.Sum(nil)))
	}
	return n, err
}

// Stat describes a file without following a final link.
func (f *Files) Stat(ctx context.Context, path string) (v1.FileInfo, error) {
	return get[v1.FileInfo](ctx, f.c, f.path+"/stat", at(path))
}

// List returns the entries below dir, depth levels deep, ordered by path.
func (f *Files) List(ctx context.Context, dir string, depth int) ([]v1.FileInfo, error) {
	return list[v1.FileInfo](ctx, f.c, f.path+"/list", at(dir, "depth", strconv.Itoa(max(1, depth))))
}

// MakeDir creates a directory and its parents.
func (f *Files) MakeDir(ctx context.Context, path string) error {
	_, err := once[v1.FileInfo](ctx, f.c, f.path+"/mkdir", v1.PathRequest{Path: path})
	return err
}

// Move renames a file or directory and creates parents of to.
func (f *Files) Move(ctx context.Context, from, to string) error {
	_, err := once[v1.FileInfo](ctx, f.c, f.path+"/move", v1.MoveRequest{From: from, To: to})
	return err
}

// Remove deletes path and everything below it.
func (f *Files) Remove(ctx context.Context, path string) error {
	return f.c.act(ctx, &call{method: http.MethodDelete, path: f.path, query: at(path)})
}

// Watch yields changes of files below dir until ctx ends: started when
// the watch is in place, then changes. A broken connection is an error, since
// changes may have been lost.
func (f *Files) Watch(ctx context.Context, dir string, recursive bool) iter.Seq2[v1.FileChange, error] {
	x := &call{method: http.MethodGet, path: f.path + "/watch", query: at(dir, "recursive", yes(recursive)), header: ndjson()}
	return events(ctx, f.c, x, "watch again and look what has changed meanwhile",
		func(e v1.FileChange) (string, *v1.Problem) { return e.Type, e.Error }, func(v1.FileChange) bool { return false })
}

// Pack downloads path and everything below it as an archive: "tar", "tar.gz" or
// "zip". Names in it start with the last element of path. The caller closes
// it.
func (f *Files) Pack(ctx context.Context, path, format string) (io.ReadCloser, error) {
	resp, err := f.c.do(ctx, &call{method: http.MethodGet, path: f.path + "/archive", query: at(path, "format", format), header: http.Header{"Accept": {"*/*"}}})
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// Unpack extracts a tar stream, plain or compressed with gzip, below dir.
func (f *Files) Unpack(ctx context.Context, dir string, r io.Reader) error {
	return f.c.act(ctx, &call{method: http.MethodPut, path: f.path + "/archive", query: at(dir), stream: r, length: -1, once: true})
}
