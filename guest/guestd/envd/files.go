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

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/guest/guestd/tree"
)

func (h *Handler) download(w http.ResponseWriter, r *http.Request) error {
	path, _, err := h.file(r, r.URL.Query().Get("path"))
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
	var out io.Writer = w
	if accepts(r, "gzip") && shrinks(f, fi.Size()) {
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
		panic(http.ErrAbortHandler) // the answer has begun: break it
	}
	return nil
}

// sample is how much is looked at of the beginning, the middle and the end of
// a file.
const sample = 32 << 10

// shrinks reports whether compressing a file is worth it, going by samples.
// Packing what is packed already costs both sides much, and Node.js unpacks
// long answers many times slower than they come.
func shrinks(f io.ReaderAt, size int64) bool {
	var packed counter
	zw, err := gzip.NewWriterLevel(&packed, gzip.BestSpeed)
	if err != nil {
		return false // unreachable: the level exists
	}
	seen, buf := int64(0), make([]byte, min(size, sample))
	for _, at := range []int64{0, (size - sample) / 2, size - sample} {
		n, err := f.ReadAt(buf, max(0, at))
		if err != nil && err != io.EOF {
			return false // reading it will tell
		}
		zw.Write(buf[:n])
		if seen += int64(n); size <= sample {
			break
		}
	}
	zw.Close()
	return int64(packed) < seen*7/8
}

// counter counts what is written.
type counter int64

func (c *counter) Write(p []byte) (int, error) {
	*c += counter(len(p))
	return len(p), nil
}

func accepts(r *http.Request, encoding string) bool {
	for e := range strings.SplitSeq(r.Header.Get("Accept-Encoding"), ",") {
		name, q, _ := strings.Cut(strings.TrimSpace(e), ";")
		if strings.TrimSpace(name) == encoding && strings.ReplaceAll(q, " ", "") != "q=0" {
			return true
		}
	}
	return false
}

type written struct {
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
	done := []written{}
	kind, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || kind != "multipart/form-data" {
		one, err := h.store(r, r.URL.Query().Get("path"), body, meta)
		if err != nil {
			return err
		}
		return answer(w, append(done, one))
	}
	mr := multipart.NewReader(body, params["boundary"])
	for {
		part, err := mr.NextPart()
		if err == io.EOF {
			return answer(w, done)
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

// partPath returns the file name of a part as it is. The standard library
// would cut its directories off, but here it is the whole path.
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

func (h *Handler) store(r *http.Request, path string, body io.Reader, meta map[string]string) (written, error) {
	resolved, o, err := h.file(r, path)
	if err != nil {
		return written{}, err
	}
	if err := tree.Overwrite(resolved, body, o); err != nil {
		return written{}, err
	}
	if len(meta) > 0 {
		if err := tree.SetMetadata(resolved, meta); err != nil {
			return written{}, err
		}
	}
	return written{Name: filepath.Base(resolved), Path: h.box.Inside(resolved), Type: "file", Metadata: meta}, nil
}

const metadataHeader = "X-Metadata-"

// metadata returns what a request says about its files.
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
