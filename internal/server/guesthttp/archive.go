package guesthttp

import (
	"archive/tar"
	"archive/zip"
	"bufio"
	"compress/gzip"
	"io"
	"net/http"
	"path"
	"strings"
	"sync"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/server/httpio"
)

// archives holds the media types of the formats of archives.
var archives = map[string]string{"tar": "application/x-tar", "tar.gz": "application/gzip", "zip": "application/zip"}

// Pack responds with an archive made from in, a tar stream of the file tree at
// p. On an error the response has started, and must be cut off.
func (h *Handler) Pack(p, format string, in io.Reader) error {
	base := path.Base(p)
	if base == "/" {
		base = "root"
	}
	attachment(h.W.Header(), base+"."+format, archives[format])
	w := httpio.DeadlineWriter{W: h.W}
	var err error
	switch format {
	case "tar":
		_, err = io.CopyBuffer(w, onlyReader{in}, make([]byte, copySize))
	case "tar.gz":
		z, _ := gzip.NewWriterLevel(w, gzip.BestSpeed) // fails only for invalid levels
		if _, err = io.CopyBuffer(z, onlyReader{in}, make([]byte, copySize)); err == nil {
			err = z.Close()
		}
	default:
		err = zipOf(w, in)
	}
	if err != nil && !h.gone() {
		return engi.Errorf(engi.Unavailable, "pack %s: %v", p, err)
	}
	return nil
}

// zipOf writes the files, directories and symlinks of a tar stream as a zip
// archive. Zip cannot represent other types, such as devices: they are left out.
func zipOf(w io.Writer, in io.Reader) error {
	z := zip.NewWriter(w)
	t := tar.NewReader(in)
	for {
		h, err := t.Next()
		if err == io.EOF {
			return z.Close()
		}
		if err != nil {
			return err
		}
		f, err := zip.FileInfoHeader(h.FileInfo())
		if err != nil {
			return err
		}
		f.Name = strings.TrimPrefix(h.Name, "/")
		var content io.Reader = t
		switch h.Typeflag {
		case tar.TypeDir:
			f.Name = strings.TrimSuffix(f.Name, "/") + "/"
			content = strings.NewReader("")
		case tar.TypeSymlink:
			content = strings.NewReader(h.Linkname)
		case tar.TypeReg:
			f.Method = zip.Deflate
		default:
			continue
		}
		out, err := z.CreateHeader(f)
		if err != nil {
			return err
		}
		if _, err := io.CopyBuffer(out, onlyReader{content}, make([]byte, 64<<10)); err != nil {
			return err
		}
	}
}

// Unpack passes the request body to extract as a tar stream, decompressed if it
// is gzip. Only the disk space of the destination limits the size of the result.
func (h *Handler) Unpack(extract func(io.Reader) error) error {
	body := httpio.NewBody(h.W, h.R)
	in := &archiveReader{}
	err := in.open(bufio.NewReaderSize(body, 64<<10))
	if err == nil {
		err = extract(in)
	}
	body.Stop()
	if err != nil {
		return h.uploadFailed(body, in.fault(), err)
	}
	// Padding, or any other data, may follow the end of the archive.
	if !body.Complete() {
		httpio.Drain(h.W, h.R)
	}
	return nil
}

// open prepares to read the tar stream from in.
func (b *archiveReader) open(in *bufio.Reader) error {
	b.r = in
	magic, err := in.Peek(4)
	switch {
	case len(magic) >= 2 && magic[0] == 0x1f && magic[1] == 0x8b:
		if b.r, err = gzip.NewReader(in); err != nil {
			return notAnArchive("its gzip header is broken: " + err.Error())
		}
		b.gzip = true
	case len(magic) == 4 && string(magic) == "PK\x03\x04":
		return httpio.Errorf(http.StatusUnsupportedMediaType, "send a tar archive, plain or compressed with gzip", "zip archives cannot be unpacked while they are received")
	case len(magic) == 0 && err == io.EOF:
		return notAnArchive("it is empty")
	}
	return nil
}

func notAnArchive(why string) error {
	return httpio.Errorf(0, "send a tar archive, plain or compressed with gzip", "the body is not an archive: %s", why)
}

// An archiveReader reads an uploaded tar stream, and stores the error if the stream
// was not valid gzip.
type archiveReader struct {
	r    io.Reader
	gzip bool
	mu   sync.Mutex // guards err: an abandoned extraction may still be reading
	err  error
}

func (b *archiveReader) fault() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.err
}

func (b *archiveReader) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if b.gzip && err != nil && err != io.EOF {
		err = notAnArchive(err.Error())
		b.mu.Lock()
		b.err = err
		b.mu.Unlock()
	}
	return n, err
}
