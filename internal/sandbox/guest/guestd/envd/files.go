package envd

import (
	"compress/gzip"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/guest/guestd/tree"
	"github.com/engi-dev/engi/internal/sandbox/guest/wire"
)

func (h *Handler) download(w http.ResponseWriter, r *http.Request) error {
	path, _, err := h.resolve(r, r.URL.Query().Get("path"))
	if err != nil {
		return err
	}
	f, err := tree.OpenRegular(path)
	if err != nil {
		return err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return tree.Classify(err, "stat", path)
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Disposition", mime.FormatMediaType("inline", map[string]string{"filename": filepath.Base(path)}))
	w.Header().Set("Vary", "Accept-Encoding")
	if fi.Size() == 0 {
		if all := tree.Unsized(f); all != nil {
			if _, err := io.Copy(w, all); err != nil {
				panic(http.ErrAbortHandler) // the answer has begun: abort it
			}
			return nil
		}
	}
	var out io.Writer = w
	if acceptsEncoding(r, "gzip") && compresses(f, fi.Size()) {
		w.Header().Set("Content-Encoding", "gzip")
		zw, err := gzip.NewWriterLevel(w, gzip.BestSpeed)
		if err != nil {
			return engi.Errorf(engi.Internal, "download: %v", err) // unreachable: the level exists
		}
		defer zw.Close()
		out = zw
	} else {
		w.Header().Set("Content-Length", strconv.FormatInt(fi.Size(), 10))
	}
	n, err := io.CopyBuffer(struct{ io.Writer }{out}, struct{ io.Reader }{io.LimitReader(f, fi.Size())}, make([]byte, 256<<10))
	if err != nil || n != fi.Size() {
		panic(http.ErrAbortHandler) // the answer has begun: abort it
	}
	return nil
}

// sampleSize is the size of the samples that compresses reads at the beginning, the middle and the
// end of a file, in bytes.
const sampleSize = 32 << 10

// compresses reports, by samples, whether compression of a file is worthwhile. With
// already compressed data both sides waste time, and Node.js decompresses
// many times slower than the data arrives.
func compresses(f io.ReaderAt, size int64) bool {
	var packed counter
	zw, err := gzip.NewWriterLevel(&packed, gzip.BestSpeed)
	if err != nil {
		return false // unreachable: the level exists
	}
	seen, buf := int64(0), make([]byte, min(size, sampleSize))
	for _, at := range []int64{0, (size - sampleSize) / 2, size - sampleSize} {
		n, err := f.ReadAt(buf, max(0, at))
		if err != nil && err != io.EOF {
			return false // the download will report it
		}
		zw.Write(buf[:n])
		if seen += int64(n); size <= sampleSize {
			break
		}
	}
	zw.Close()
	return int64(packed) < seen*7/8
}

// counter counts the bytes written to it.
type counter int64

func (c *counter) Write(p []byte) (int, error) {
	*c += counter(len(p))
	return len(p), nil
}

func acceptsEncoding(r *http.Request, encoding string) bool {
	for e := range strings.SplitSeq(r.Header.Get("Accept-Encoding"), ",") {
		name, q, _ := strings.Cut(strings.TrimSpace(e), ";")
		if strings.TrimSpace(name) == encoding && strings.ReplaceAll(q, " ", "") != "q=0" {
			return true
		}
	}
	return false
}

type uploadInfo struct {
	Name     string            `json:"name"`
	Path     string            `json:"path"`
	Type     string            `json:"type"`
	Metadata map[string]string `json:"metadata,omitempty"`
}

// maxUploads bounds the files of one request.
const maxUploads = 10_000

func (h *Handler) upload(w http.ResponseWriter, r *http.Request) error {
	body := io.Reader(r.Body)
	if r.Header.Get("Content-Encoding") == "gzip" {
		zr, err := gzip.NewReader(body)
		if err != nil {
			return engi.Errorf(engi.Invalid, "the body is not gzip: %v", err)
		}
		body = zr
	}
	meta, err := metadata(r)
	if err != nil {
		return err
	}
	done := []uploadInfo{}
	kind, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || kind != "multipart/form-data" {
		one, err := h.store(r, r.URL.Query().Get("path"), body, meta)
		if err != nil {
			return err
		}
		return wire.WriteJSON(w, append(done, one))
	}
	mr := multipart.NewReader(body, params["boundary"])
	for {
		part, err := mr.NextPart()
		if err == io.EOF {
			return wire.WriteJSON(w, done)
		}
		if err != nil {
			return engi.Errorf(engi.Invalid, "the form is damaged: %v", err)
		}
		if part.FormName() != "file" {
			continue
		}
		if len(done) >= maxUploads {
			return engi.Errorf(engi.Invalid, "more than %d files in one request", maxUploads)
		}
		path := r.URL.Query().Get("path")
		if path == "" {
			if path, err = partPath(part.Header.Get("Content-Disposition")); err != nil {
				return err
			}
		}
		one, err := h.store(r, path, part, meta)
		if err != nil {
			return err
		}
		done = append(done, one)
	}
}

// partPath returns the whole file name of a part, which is a path here. The
// standard library would remove its directories.
func partPath(disposition string) (string, error) {
	_, params, err := mime.ParseMediaType(disposition)
	if err != nil {
		return "", engi.Errorf(engi.Invalid, "a part has no file name: %v", err)
	}
	name := params["filename"]
	if name == "" {
		return "", engi.Errorf(engi.Invalid, "a part has no file name")
	}
	return name, nil
}

func (h *Handler) store(r *http.Request, path string, body io.Reader, meta map[string]string) (uploadInfo, error) {
	resolved, o, err := h.resolve(r, path)
	if err != nil {
		return uploadInfo{}, err
	}
	if err := tree.Overwrite(resolved, body, o); err != nil {
		return uploadInfo{}, err
	}
	if err := tree.SetMetadata(resolved, meta); err != nil {
		return uploadInfo{}, err
	}
	return uploadInfo{Name: filepath.Base(resolved), Path: h.sandbox.Inside(resolved), Type: "file", Metadata: meta}, nil
}

const metadataHeader = "X-Metadata-"

// metadata returns the metadata for files in a request's headers.
func metadata(r *http.Request) (map[string]string, error) {
	var meta map[string]string
	for name, values := range r.Header {
		rest, ok := strings.CutPrefix(http.CanonicalHeaderKey(name), metadataHeader)
		if !ok || rest == "" || len(values) == 0 {
			continue
		}
		if len(rest) > 200 || len(values[0]) > 4096 {
			return nil, engi.Errorf(engi.Invalid, "metadata %.40q is too long", rest)
		}
		if meta == nil {
			meta = map[string]string{}
		}
		meta[strings.ToLower(rest)] = values[0]
	}
	return meta, nil
}
