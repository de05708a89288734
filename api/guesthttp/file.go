package guesthttp

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
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

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/api/httpio"
	"github.com/engi-dev/engi/api/v1"
)

// CheckPath reports Invalid unless p can be the path of a file. The mux never
// sees it, so nothing has tidied it up, and nothing may: names are bytes.
func CheckPath(field, p string) error {
	switch {
	case p == "":
		return fault(field, "it is missing")
	case p[0] != '/':
		return fault(field, "it is not absolute")
	case len(p) > 4095:
		return fault(field, "it is longer than 4095 bytes")
	case strings.ContainsRune(p, 0):
		return fault(field, "it has a NUL byte in it")
	}
	return nil
}

func fault(field, detail string) error {
	return httpio.Invalid([]v1.Fault{{Field: field, Detail: detail}})
}

// InfoOf translates a file's description.
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

// name returns a path as text, and as bytes too if the text cannot hold them.
func name(p string) (string, []byte) {
	if utf8.ValidString(p) {
		return p, nil
	}
	return strings.ToValidUTF8(p, "\uFFFD"), []byte(p)
}

// Download answers with a file. size is -1 if nobody knows it.
func (d *Handler) Download(p string, f io.Reader, size int64) error {
	h := d.W.Header()
	attachment(h, path.Base(p), "application/octet-stream")
	h.Set("Accept-Ranges", "bytes")
	from, n, part, err := byteRange(d.R.Header.Get("Range"), size)
	if err != nil {
		return err
	}
	if size >= 0 {
		h.Set(v1.SizeHeader, strconv.FormatInt(size, 10))
	}
	// Only who can read trailers is sent one: Content-Length is worth more.
	sum := &digest{}
	switch {
	case part:
		h.Set("Content-Range", "bytes "+strconv.FormatInt(from, 10)+"-"+strconv.FormatInt(from+n-1, 10)+"/"+strconv.FormatInt(size, 10))
		h.Set("Content-Length", strconv.FormatInt(n, 10))
	case strings.Contains(d.R.Header.Get("TE"), "trailers"):
		sum = &digest{sha256.New(), v1.HashHeader}
		if d.R.Header.Get(v1.WantHeader) == "crc32c" {
			sum = &digest{crc32.New(castagnoli), v1.CRCHeader}
		}
		h.Set("Trailer", sum.header)
	case size >= 0:
		h.Set("Content-Length", strconv.FormatInt(size, 10))
	}
	if part {
		if _, err := io.CopyN(io.Discard, f, from); err != nil {
			return engi.Errorf(engi.Unavailable, "read %s: %v", p, err)
		}
		f = io.LimitReader(f, n)
		d.W.WriteHeader(http.StatusPartialContent)
	}
	return d.copy(f, size, n, part, sum)
}

// A digest is a hash and the trailer that carries it; without a header there
// is none.
type digest struct {
	hash.Hash
	header string
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (d *Handler) copy(f io.Reader, size, n int64, part bool, sum *digest) error {
	want := size
	if part {
		want = n
	}
	if sum.header != "" {
		f = io.TeeReader(f, sum)
	}
	sent, err := io.CopyBuffer(httpio.DeadlineWriter{W: d.W}, onlyReader{f}, make([]byte, copySize))
	switch {
	case d.gone():
		return nil
	case err != nil:
		return engi.Errorf(engi.Unavailable, "the file broke off after %d bytes: %v", sent, err)
	case want >= 0 && sent != want:
		return engi.Errorf(engi.Unavailable, "the file broke off after %d of %d bytes", sent, want)
	}
	if sum.header != "" {
		d.W.Header().Set(sum.header, hex.EncodeToString(sum.Sum(nil)))
	}
	return nil
}

// copySize is that of one read and one write of large content.
const copySize = 256 << 10

type onlyReader struct{ io.Reader } // whose size of buffer we choose

// attachment keeps browsers from taking what programs made for a page.
func attachment(h http.Header, name, kind string) {
	h.Set("Content-Type", kind)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Security-Policy", "default-src 'none'; sandbox")
	h.Set("Content-Disposition", "attachment")
	if d := mime.FormatMediaType("attachment", map[string]string{"filename": name}); d != "" {
		h.Set("Content-Disposition", d)
	}
}

// byteRange reads a Range header of one range; part is false if there is none
// to heed. A range that begins after the end has a status of its own.
func byteRange(text string, size int64) (from, n int64, part bool, err error) {
	spec, ok := strings.CutPrefix(text, "bytes=")
	if !ok || size < 0 || strings.Contains(spec, ",") {
		return 0, 0, false, nil // as RFC 9110 has it: what is not understood is ignored
	}
	first, last, ok := strings.Cut(strings.TrimSpace(spec), "-")
	if !ok {
		return 0, 0, false, nil
	}
	end := size - 1
	if first == "" { // the last bytes
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
		e := httpio.Errorf(http.StatusRequestedRangeNotSatisfiable, "ask for bytes that are there", "the file has %d bytes; there is nothing at %d", size, from)
		e.Header = http.Header{"Content-Range": {"bytes */" + strconv.FormatInt(size, 10)}}
		return 0, 0, false, e
	}
	return from, end - from + 1, true, nil
}

// An upload is a body on its way into a file: it is hashed, and ends with an
// error instead of io.EOF if it is not what its sender said.
type upload struct {
	body *httpio.Body
	r    *http.Request
	sum  hash.Hash
	mu   sync.Mutex // guards what follows: a reader that was given up may still be at it
	hex  string     // of all, once it was read
	size int64
	err  error // that the sender is to blame for
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

// SHA256 returns the hash of what was read, once all of it was.
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

// Upload hands the body to write, which must leave things as they were if
// reading fails, and says what arrived.
func (d *Handler) Upload(p string, write func(io.Reader) error) (v1.Written, error) {
	u := &upload{body: httpio.NewBody(d.W, d.R), r: d.R, sum: sha256.New()}
	err := write(u)
	u.body.Stop()
	if err != nil {
		return v1.Written{}, d.refused(u.body, u.fault(), err)
	}
	text, _ := name(p)
	return v1.Written{Path: text, Size: v1.Bytes(u.size), SHA256: u.SHA256()}, nil
}

// refused finds out whose fault it is that a body was not taken.
func (d *Handler) refused(body *httpio.Body, sender, err error) error {
	switch bad := body.Err(); {
	case sender != nil:
		err = sender
	case bad != nil && !errors.Is(bad, http.ErrBodyReadAfterClose):
		return slow(d, bad)
	}
	if engi.KindOf(err) == engi.Exhausted {
		if e, ok := errors.AsType[*engi.Error](err); ok {
			full := engi.Errorf(engi.Exhausted, "%w", err).WithRetry(e.Retry)
			full.Remedy = engi.RemedyOf(err)
			if e.Remedy == "" {
				full.Remedy = "delete something in it, or use one with a larger disk"
			}
			return &httpio.Error{Err: full, Status: http.StatusInsufficientStorage}
		}
	}
	return err
}

// slow says why a body did not arrive.
func slow(d *Handler, err error) error {
	if d.gone() {
		return engi.Errorf(engi.Expired, "the caller left while sending")
	}
	d.W.Header().Set("Connection", "close")
	return httpio.Errorf(http.StatusRequestTimeout, "send the body faster, or in smaller parts", "reading the body: %v", err)
}
