package guesthttp

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"mime"
	"net/http"
	"path"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/server/httpio"
)

// CheckPath reports Invalid unless p can be the path of a file. Paths are query
// parameters, not part of the URL's path, so that no router cleans them: names
// are bytes.
func CheckPath(field, p string) error {
	switch {
	case p == "":
		return fault(field, "it is missing")
	case p[0] != '/':
		return fault(field, "it is not absolute")
	case len(p) > engi.MaxPath:
		return fault(field, fmt.Sprintf("it is longer than %d bytes", engi.MaxPath))
	case strings.ContainsRune(p, 0):
		return fault(field, "it contains a NUL byte")
	}
	return nil
}

func fault(field, detail string) error {
	return httpio.Invalid([]v1.Fault{{Field: field, Detail: detail}})
}

// InfoOf converts the information about a file.
func InfoOf(x engi.FileInfo) v1.FileInfo {
	f := v1.FileInfo{
		Type: "other", Size: v1.Bytes(max(0, x.Size)), Mode: v1.Mode(x.Mode.Perm()), UID: x.UID, GID: x.GID,
		Owner: x.Owner, Group: x.Group, ModifiedAt: x.Modified.UTC(), Target: strings.ToValidUTF8(x.Target, "\uFFFD"),
	}
	f.Path, f.PathBase64 = name(x.Path)
	switch {
	case x.Mode.IsRegular():
		f.Type = "file"
	case x.Mode.IsDir():
		f.Type = "directory"
	case x.Target != "":
		f.Type = "symlink"
	}
	return f
}

// name returns a path as text, and also as bytes if it is not UTF-8.
func name(p string) (string, []byte) {
	if utf8.ValidString(p) {
		return p, nil
	}
	return strings.ToValidUTF8(p, "\uFFFD"), []byte(p)
}

// Download responds with a file, or with the requested range of it. size is
// -1 if it is unknown.
func (h *Handler) Download(p string, f io.Reader, size int64) error {
	header := h.W.Header()
	attachment(header, path.Base(p), "application/octet-stream")
	header.Set("Accept-Ranges", "bytes")
	from, n, part, err := byteRange(h.R.Header.Get("Range"), size)
	if err != nil {
		return err
	}
	if size >= 0 {
		header.Set(v1.SizeHeader, strconv.FormatInt(size, 10))
	}
	// HTTP/1 excludes Content-Length with a trailer, so a trailer is only sent
	// to clients that announce that they read it.
	sum := &digest{}
	switch {
	case part:
		header.Set("Content-Range", "bytes "+strconv.FormatInt(from, 10)+"-"+strconv.FormatInt(from+n-1, 10)+"/"+strconv.FormatInt(size, 10))
		header.Set("Content-Length", strconv.FormatInt(n, 10))
	case strings.Contains(h.R.Header.Get("TE"), "trailers"):
		sum = &digest{sha256.New(), v1.HashHeader}
		if h.R.Header.Get(v1.WantHeader) == "crc32c" {
			sum = &digest{crc32.New(castagnoli), v1.CRCHeader}
		}
		header.Set("Trailer", sum.header)
	case size >= 0:
		header.Set("Content-Length", strconv.FormatInt(size, 10))
	}
	if part {
		if _, err := io.CopyN(io.Discard, f, from); err != nil {
			return engi.Errorf(engi.Unavailable, "read %s: %v", p, err)
		}
		f = io.LimitReader(f, n)
		h.W.WriteHeader(http.StatusPartialContent)
	}
	return h.copy(f, size, n, part, sum)
}

// A digest is a hash and the name of its trailer; an empty header means no trailer.
type digest struct {
	hash.Hash
	header string
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (h *Handler) copy(f io.Reader, size, n int64, part bool, sum *digest) error {
	want := size
	if part {
		want = n
	}
	if sum.header != "" {
		f = io.TeeReader(f, sum)
	}
	sent, err := io.CopyBuffer(httpio.DeadlineWriter{W: h.W}, onlyReader{f}, make([]byte, copySize))
	switch {
	case h.gone():
		return nil
	case err != nil:
		return engi.Errorf(engi.Unavailable, "reading the file failed after %d bytes: %v", sent, err)
	case want >= 0 && sent != want:
		return engi.Errorf(engi.Unavailable, "the file ended after %d of %d bytes", sent, want)
	}
	if sum.header != "" {
		h.W.Header().Set(sum.header, hex.EncodeToString(sum.Sum(nil)))
	}
	return nil
}

const copySize = 256 << 10 // bytes per read and write of large contents

// onlyReader hides WriteTo, so that io.CopyBuffer uses its buffer.
type onlyReader struct{ io.Reader }

// attachment keeps browsers from rendering files of sandboxes as pages of this
// server.
func attachment(h http.Header, name, kind string) {
	h.Set("Content-Type", kind)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Security-Policy", "default-src 'none'; sandbox")
	h.Set("Content-Disposition", "attachment")
	if d := mime.FormatMediaType("attachment", map[string]string{"filename": name}); d != "" {
		h.Set("Content-Disposition", d)
	}
}

// byteRange parses a Range header. part is false if the response is the whole
// file: RFC 9110 lets servers ignore ranges, as this one does with several, and
// requires it for malformed ones. A range that begins after the end is an error
// with status 416.
func byteRange(text string, size int64) (from, n int64, part bool, err error) {
	spec, ok := strings.CutPrefix(text, "bytes=")
	if !ok || size < 0 || strings.Contains(spec, ",") {
		return 0, 0, false, nil
	}
	first, last, ok := strings.Cut(strings.TrimSpace(spec), "-")
	if !ok {
		return 0, 0, false, nil
	}
	end := size - 1
	if first == "" { // a suffix range: the last bytes
		k, err := strconv.ParseUint(last, 10, 63)
		if err != nil {
			return 0, 0, false, nil
		}
		from = max(0, size-int64(k))
		if k == 0 {
			from = size
		}
	} else {
		k, err := strconv.ParseUint(first, 10, 63)
		if err != nil {
			return 0, 0, false, nil
		}
		from = int64(k)
		if last != "" {
			k, err := strconv.ParseUint(last, 10, 63)
			if err != nil || int64(k) < from {
				return 0, 0, false, nil
			}
			end = min(end, int64(k))
		}
	}
	if from >= size {
		e := httpio.Errorf(http.StatusRequestedRangeNotSatisfiable, "ask for a range within the file", "the file has %d bytes; the offset %d is beyond its end", size, from)
		e.Header = http.Header{"Content-Range": {"bytes */" + strconv.FormatInt(size, 10)}}
		return 0, 0, false, e
	}
	return from, end - from + 1, true, nil
}

// An upload reads and hashes a body that is written to a file. It ends with
// an error instead of io.EOF if the hash differs from the client's.
type upload struct {
	body *httpio.Body
	r    *http.Request
	sum  hash.Hash
	mu   sync.Mutex // guards the fields below: an abandoned write may still be reading
	hex  string     // hash of the whole body, once it was read
	size int64
	err  error // error caused by the client
}

func (u *upload) Read(p []byte) (int, error) {
	if err := u.fault(); err != nil {
		return 0, err
	}
	n, err := u.body.Read(p)
	u.sum.Write(p[:n])
	u.mu.Lock()
	defer u.mu.Unlock()
	u.size += int64(n)
	if err == io.EOF && u.hex == "" {
		u.hex = hex.EncodeToString(u.sum.Sum(nil))
		want := u.r.Trailer.Get(v1.HashHeader)
		if want == "" {
			want = u.r.Header.Get(v1.HashHeader)
		}
		if want != "" && !strings.EqualFold(want, u.hex) {
			u.err = httpio.Errorf(0, "send the file again", "%d bytes arrived with the SHA-256 %s, not %.80q", u.size, u.hex, want)
			return n, u.err
		}
	}
	return n, err
}

// SHA256 returns the hash of the whole body. Call it after the body was read.
func (u *upload) SHA256() string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.hex
}

func (u *upload) fault() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.err
}

// Upload passes the request body to write, which must change nothing if reading
// fails.
func (h *Handler) Upload(p string, write func(io.Reader) error) (v1.Written, error) {
	u := &upload{body: httpio.NewBody(h.W, h.R), r: h.R, sum: sha256.New()}
	err := write(u)
	u.body.Stop()
	if err != nil {
		return v1.Written{}, h.uploadFailed(u.body, u.fault(), err)
	}
	text, _ := name(p)
	return v1.Written{Path: text, Size: v1.Bytes(u.size), SHA256: u.SHA256()}, nil
}

// uploadFailed returns the error for a body that could not be stored. invalid
// is the fault of its content, or nil, and err the error of storing it.
func (h *Handler) uploadFailed(body *httpio.Body, invalid, err error) error {
	switch bad := body.Err(); {
	case invalid != nil:
		err = invalid
	case bad != nil && !errors.Is(bad, http.ErrBodyReadAfterClose):
		return h.receiveFailed(bad)
	}
	if engi.Is(err, engi.Exhausted) {
		if e, ok := errors.AsType[*engi.Error](err); ok {
			full := engi.Errorf(engi.Exhausted, "%w", err).WithRetry(e.Retry)
			full.Remedy = engi.RemedyOf(err)
			if e.Remedy == "" {
				full.Remedy = "delete files in it, or use one with a larger disk"
			}
			return &httpio.Error{Err: full, Status: http.StatusInsufficientStorage}
		}
	}
	return err
}

// receiveFailed returns the error for a body that could not be read.
func (h *Handler) receiveFailed(err error) error {
	if h.gone() {
		return engi.Errorf(engi.Expired, "the client disconnected while sending the body")
	}
	h.W.Header().Set("Connection", "close")
	return httpio.Errorf(http.StatusRequestTimeout, "send the body faster, or in smaller parts", "reading the body: %v", err)
}
