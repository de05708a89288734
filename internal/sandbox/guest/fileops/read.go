package fileops

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/engi-dev/engi/internal/clip"
	"github.com/engi-dev/engi/internal/engi"
)

// A ReadRequest reads a part of a file.
type ReadRequest struct {
	Path     string
	Offset   int  // number of the first line, from 1; 0 means 1, -n means the last n lines
	Limit    int  // maximum number of lines; 0 means 2000
	Numbered bool // each line of Text is prefixed with its number and a tab
	MaxLine  int  // bytes; longer lines are truncated; 0 means 2000
}

// A Kind is a kind of content.
type Kind string

const (
	Text   Kind = "text"
	Image  Kind = "image"
	Binary Kind = "binary" // any other content; only its size and type are known
)

// A Content is the result of Read.
type Content struct {
	Path   string
	Kind   Kind
	MIME   string
	Size   int64  // size of the whole file in bytes
	SHA256 string // digest of the whole file; empty for Binary

	// The fields below are set for Text. Bytes that are not UTF-8 are replaced by U+FFFD.
	Text       string
	First      int  // number of the first line in Text; 0 if Text is empty
	Last       int  // number of the last line in Text
	TotalLines int  // number of lines of the file
	LongLines  int  // number of lines in Text that were truncated
	Truncated  bool // the file has lines after Last

	Data []byte // content of an image; nil for other kinds
}

const (
	defaultLines   = 2000
	defaultLineLen = 2000
	sniffLen       = 8 << 10 // bytes inspected to tell text from other content
)

// Read reads a file. It reports Invalid for a directory and for a file that is
// too large, and NotFound for a missing file.
func Read(ctx context.Context, g engi.Guest, q ReadRequest) (_ Content, err error) {
	defer engi.Annotate(&err, "read")
	name, err := cleanPath(q.Path)
	if err != nil {
		return Content{}, err
	}
	if q.Limit < 0 || q.MaxLine < 0 {
		return Content{}, engi.Errorf(engi.Invalid, "a limit is negative")
	}
	raw, size, err := readHead(ctx, g, name)
	if err != nil {
		return Content{}, err
	}
	c := Content{Path: name, Size: size, MIME: http.DetectContentType(raw)}
	switch {
	case strings.HasPrefix(c.MIME, "image/"):
		c.Kind = Image
		if size > MaxImage {
			return Content{}, tooLarge(name, MaxImage)
		}
		if c.Data, err = readAll(ctx, g, name, MaxImage); err != nil {
			return Content{}, err
		}
		c.Size, c.SHA256 = int64(len(c.Data)), digest(c.Data)
		return c, nil
	case isBinary(raw):
		c.Kind = Binary
		if strings.HasPrefix(c.MIME, "text/plain; charset=utf-8") {
			c.MIME = "application/octet-stream"
		}
		return c, nil
	}
	c.Kind = Text
	if raw, err = readAll(ctx, g, name, MaxText); err != nil {
		return Content{}, err
	}
	c.Size, c.SHA256 = int64(len(raw)), digest(raw)
	c.lines(raw, q)
	return c, nil
}

// readHead returns the beginning of a file, and its size.
func readHead(ctx context.Context, g engi.Guest, name string) ([]byte, int64, error) {
	fi, err := g.Stat(ctx, name)
	if err != nil {
		return nil, 0, err
	}
	if fi.Mode.IsDir() {
		return nil, 0, engi.Errorf(engi.Invalid, "%s is a directory", name).WithRemedy("use glob to list its files")
	}
	r, err := g.Open(ctx, name)
	if err != nil {
		return nil, 0, err
	}
	defer r.Close()
	buf := make([]byte, sniffLen)
	n, err := readFull(r, buf)
	if err != nil {
		return nil, 0, engi.Errorf(engi.KindOf(err), "read %s: %v", name, err)
	}
	size := fi.Size
	if s, ok := r.(interface{ Size() int64 }); ok && s.Size() >= 0 {
		size = s.Size() // size of the target if the file is a link
	}
	return buf[:n], max(size, int64(n)), nil
}

// isBinary reports whether content that begins with head is not text.
func isBinary(head []byte) bool {
	return bytes.IndexByte(head[:min(len(head), sniffLen)], 0) >= 0
}

// lines sets the text of c to the requested part of raw.
func (c *Content) lines(raw []byte, q ReadRequest) {
	limit, width := q.Limit, q.MaxLine
	if limit == 0 {
		limit = defaultLines
	}
	if width == 0 {
		width = defaultLineLen
	}
	c.TotalLines = bytes.Count(raw, []byte("\n"))
	if len(raw) > 0 && raw[len(raw)-1] != '\n' {
		c.TotalLines++
	}
	first := max(q.Offset, 1)
	if q.Offset < 0 {
		first = max(1, c.TotalLines+1+q.Offset)
	}
	var out strings.Builder
	n := 0
	for text := range bytes.Lines(raw) {
		if n++; n < first {
			continue
		}
		if n-first >= limit || out.Len() > MaxAnswer {
			c.Truncated = true
			break
		}
		line, end := string(bytes.TrimSuffix(text, []byte("\n"))), ""
		if len(line) < len(text) {
			end = "\n"
		}
		long := len(line) > width
		if long {
			line = clip.Bytes(line, width) + "…"
			c.LongLines++
		}
		if q.Numbered {
			fmt.Fprintf(&out, "%d\t", n)
		}
		out.WriteString(strings.ToValidUTF8(line, "\uFFFD"))
		out.WriteString(end)
		if c.First == 0 {
			c.First = n
		}
		c.Last = n
	}
	c.Text = out.String()
}
