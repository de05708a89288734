package web

import (
	"crypto/sha256"
	"encoding/hex"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"strconv"
	"strings"
)

// A file is an output of the build, compressed in advance.
type file struct {
	kind, tag string
	plain     []byte
	packed    []packed // compressed forms, the best first
}

type packed struct {
	coding string
	bytes  []byte
}

// codings maps the endings of packed files to their codings.
var codings = []struct{ coding, end string }{{"br", ".br"}, {"gzip", ".gz"}}

// load returns the page as "", and the other files by folder and name.
func load(from fs.FS) map[string]*file {
	read := func(name string) (*file, bool) {
		plain, err := fs.ReadFile(from, name)
		if err != nil {
			return nil, false
		}
		sum := sha256.Sum256(plain)
		f := &file{kind: mime.TypeByExtension(path.Ext(name)), tag: hex.EncodeToString(sum[:8]), plain: plain}
		for _, c := range codings {
			if b, err := fs.ReadFile(from, name+c.end); err == nil {
				f.packed = append(f.packed, packed{c.coding, b})
			}
		}
		return f, true
	}
	page, ok := read("dist/app/index.html")
	if !ok {
		page, _ = read("dist/placeholder.html") // this file always exists
	}
	all := map[string]*file{"": page}
	names, err := fs.Glob(from, "dist/app/*/*")
	if err != nil {
		panic(err) // unreachable: the pattern is valid
	}
	for _, name := range names {
		if end := path.Ext(name); end != ".br" && end != ".gz" {
			all[strings.TrimPrefix(name, "dist/app/")], _ = read(name)
		}
	}
	return all
}

// serve answers with the file, in the best coding that the client accepts.
func (f *file) serve(w http.ResponseWriter, r *http.Request, status int) {
	h, tag, body := w.Header(), f.tag, f.plain
	accept := strings.Join(r.Header.Values("Accept-Encoding"), ",")
	for _, p := range f.packed {
		if reads(accept, p.coding) {
			h.Set("Content-Encoding", p.coding)
			tag, body = tag+"-"+p.coding, p.bytes
			break
		}
	}
	h.Set("Vary", "Accept-Encoding")
	h.Set("Content-Type", f.kind)
	h.Set("ETag", `"`+tag+`"`)
	if status == http.StatusOK && strings.Contains(r.Header.Get("If-None-Match"), `"`+tag+`"`) {
		h.Del("Content-Encoding")
		w.WriteHeader(http.StatusNotModified)
		return
	}
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	if r.Method != http.MethodHead {
		_, _ = w.Write(body) // an error means that the caller has left
	}
}

// reads reports whether an Accept-Encoding lists a coding with a weight other than 0.
func reads(accept, coding string) bool {
	for part := range strings.SplitSeq(accept, ",") {
		name, weight, _ := strings.Cut(part, ";")
		if strings.EqualFold(strings.TrimSpace(name), coding) {
			q, ok := strings.CutPrefix(strings.ReplaceAll(weight, " ", ""), "q=")
			f, err := strconv.ParseFloat(q, 64)
			return !ok || err == nil && f > 0
		}
	}
	return false
}
