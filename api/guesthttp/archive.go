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

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/api/httpio"
)

// Formats of archives, with their types.
var archives = map[string]string{"tar": "application/x-tar", "tar.gz": "application/gzip", "zip": "application/zip"}

// Pack answers with an archive out of a tar stream of p and all below it.
func (d *Handler) Pack(p, format string, in io.Reader) error {
	base := path.Base(p)
	if base == "/" {
		base = "root"
	}
	attachment(d.W.Header(), base+"."+format, archives[format])
	w := httpio.DeadlineWriter{W: d.W}
	var err error
	switch format {
	case "tar":
		_, err = io.CopyBuffer(w, onlyReader{in}, make([]byte, copySize))
	case "tar.gz":
		z, _ := gzip.NewWriterLevel(w, gzip.BestSpeed) // the level is good
		if _, err = io.CopyBuffer(z, onlyReader{in}, make([]byte, copySize)); err == nil {
			err = z.Close()
		}
	default:
		err = zipOf(w, in)
	}
	if err != nil && !d.gone() {
		return engi.Errorf(engi.Unavailable, "pack %s: %v", p, err) // the answer has begun: it is cut off
	}
	return nil
}

// zipOf writes the files, directories and links of a tar stream as a zip
// archive. What zip has no form for, such as devices, is left out.
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

// Unpack hands the body to extract as a tar stream, unpacked if it is
// compressed with gzip. How much comes out is bounded by the disk it goes to.
func (d *Handler) Unpack(extract func(io.Reader) error) error {
	body := httpio.NewBody(d.W, d.R)
	in := &classify{}
	err := inflate(bufio.NewReaderSize(body, 64<<10), in)
	if err == nil {
		err = extract(in)
	}
	body.Stop()
	if err != nil {
		return d.refused(body, in.fault(), err)
	}
	// After the archive's end there may be more: padding, or anything.
	if !body.Whole() {
		httpio.Drain(d.W, d.R)
	}
	return nil
}

// inflate makes out read the tar stream in in.
func inflate(in *bufio.Reader, out *classify) error {
	out.r = in
	magic, err := in.Peek(4)
	switch {
	case len(magic) >= 2 && magic[0] == 0x1f && magic[1] == 0x8b:
		if out.r, err = gzip.NewReader(in); err != nil {
			return notAnArchive("its gzip header is broken: " + err.Error())
		}
		out.z = true
	case len(magic) == 4 && string(magic) == "PK\x03\x04":
		return httpio.Errorf(http.StatusUnsupportedMediaType, "send a tar archive, plain or compressed with gzip", "zip archives cannot be unpacked while they arrive")
	case len(magic) == 0 && err == io.EOF:
		return notAnArchive("it is empty")
	}
	return nil
}

func notAnArchive(why string) error {
	return httpio.Errorf(0, "send a tar archive, plain or compressed with gzip", "the body is no archive: %s", why)
}

// blame remembers what is wrong with compressed data.
type classify struct {
	r   io.Reader
	z   bool
	mu  sync.Mutex // guards err: a reader that was given up may still be at it
	err error
}

func (b *classify) fault() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.err
}

func (b *classify) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if b.z && err != nil && err != io.EOF {
		err = notAnArchive(err.Error())
		b.mu.Lock()
		b.err = err
		b.mu.Unlock()
	}
	return n, err
}
