package preview

import (
	"context"
	"io"
	"net/http"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

// Apps serves published pages, which need no sandbox. [engi.Apps] implements it.
type Apps interface {
	Get(ctx context.Context, viewer engi.Viewer, app string) (engi.App, error)
	Published(ctx context.Context, viewer engi.Viewer, app, path string, gzip bool) (engi.PublishedFile, error)
}

const indexPage = "index.html"

// servePage serves the published page of an app.
func (p *Proxy) servePage(w http.ResponseWriter, r *http.Request, t target) {
	none := func() { p.refuse(w, r, t, http.StatusNotFound, notPublished) }
	if p.o.Apps == nil || t.app == "" {
		none()
		return
	}
	a, err := p.o.Apps.Get(r.Context(), engi.Everyone, string(t.app))
	switch {
	case err != nil && !engi.Is(err, engi.NotFound):
		p.respondError(w, r, t, err)
		return
	case err != nil || a.Published.Revision == 0:
		none()
		return
	}
	who := access{owner: a.Owner, private: a.Published.Private}
	if done := p.authorize(w, r, t, who); done {
		return
	}
	p.serveFiles(w, r, t, who, string(t.app), func(name string, packed bool) (engi.PublishedFile, error) {
		return p.o.Apps.Published(r.Context(), engi.Everyone, string(t.app), name, packed)
	})
}

// serveFiles serves files that need no sandbox to an authorized client. of is the ID of their app or
// workspace, by which connections are counted.
func (p *Proxy) serveFiles(w http.ResponseWriter, r *http.Request, t target, who access, of string, get func(name string, packed bool) (engi.PublishedFile, error)) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		p.refuse(w, r, t, http.StatusMethodNotAllowed, "Published pages are read-only")
		return
	}
	r, release := p.whileValid(r, who)
	defer release()
	p.mu.Lock()
	leave, err := p.admit(p.connsOf(of))
	p.mu.Unlock()
	if err != nil {
		p.respondError(w, r, t, err)
		return
	}
	defer leave()
	f, moved, err := findPage(r, get)
	switch {
	case engi.Is(err, engi.NotFound):
		p.refuse(w, r, t, http.StatusNotFound, noSuchFile)
	case err != nil:
		p.respondError(w, r, t, err)
	case moved != "":
		w.Header().Set("Location", moved)
		w.Header().Set("Cache-Control", "no-cache")
		w.WriteHeader(http.StatusFound)
	default:
		p.sendPage(w, r, f, p.o.Private || who.private)
	}
}

// findPage returns the requested file, or the address to which it moved. Page loads at addresses without
// a file get the index page of the root, which routes them.
func findPage(r *http.Request, file func(name string, packed bool) (engi.PublishedFile, error)) (f engi.PublishedFile, moved string, err error) {
	// Ranges refer to the uncompressed file.
	packed := r.Header.Get("Range") == "" && acceptsGzip(r.Header)
	get := func(name string) (engi.PublishedFile, error) { return file(name, packed) }
	name := strings.TrimPrefix(r.URL.Path, "/")
	dir := name == "" || strings.HasSuffix(name, "/")
	if dir {
		name += indexPage
	}
	if f, err = get(name); !engi.Is(err, engi.NotFound) {
		return f, "", err
	}
	if path.Clean("/"+name) != "/"+name {
		return f, "", err
	}
	if !dir {
		if other, e := get(name + "/" + indexPage); e == nil {
			done(other)
			return f, localRef(r.URL.EscapedPath()+"/", r.URL.RawQuery), nil
		}
	}
	if looks(r) && (dir || path.Ext(name) == "") {
		f, err = get(indexPage)
	}
	return f, "", err
}

// done ends the use of a file.
func done(f engi.PublishedFile) {
	if c, ok := f.Content.(io.Closer); ok {
		_ = c.Close() // the file was only read
	}
}

// looks reports whether a request may be for a page, and not for a resource of a page.
func looks(r *http.Request) bool {
	if mode := r.Header.Get("Sec-Fetch-Mode"); mode != "" {
		return mode == "navigate"
	}
	accept := r.Header.Get("Accept")
	return accept == "" || strings.Contains(accept, "text/html") || strings.Contains(accept, "*/*")
}

// sendPage sends a file, or the requested range of it.
func (p *Proxy) sendPage(w http.ResponseWriter, r *http.Request, f engi.PublishedFile, private bool) {
	defer done(f)
	h := w.Header()
	h.Set("Content-Type", typeOf(f.Path))
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Vary", "Accept-Encoding")
	h.Set("ETag", `"`+f.Digest[:min(len(f.Digest), 32)]+`"`)
	cache := "public, "
	if private {
		cache = "private, "
	}
	if f.Fixed {
		cache += "max-age=31536000, immutable"
	} else {
		cache += "no-cache" // clients revalidate the file, and receive it only if it changed
	}
	h.Set("Cache-Control", cache)
	if f.Gzip {
		h.Set("Content-Encoding", "gzip")
		h.Set("Content-Length", strconv.FormatInt(f.Size, 10))
	}
	slow := &slowWriter{w, http.NewResponseController(w), p.o.IdleTimeout}
	http.ServeContent(slow, r, "", time.Time{}, f.Content)
	_ = slow.rc.SetWriteDeadline(time.Time{}) // only writers of tests do not support deadlines
}

// A slowWriter gives up on a client that accepts no data for too long.
type slowWriter struct {
	http.ResponseWriter
	rc      *http.ResponseController
	timeout time.Duration
}

func (s *slowWriter) Write(b []byte) (int, error) {
	_ = s.rc.SetWriteDeadline(time.Now().Add(s.timeout))
	return s.ResponseWriter.Write(b)
}

// acceptsGzip reports whether a client accepts contents compressed with gzip.
func acceptsGzip(h http.Header) bool {
	for c := range strings.SplitSeq(strings.Join(h["Accept-Encoding"], ","), ",") {
		name, rest, _ := strings.Cut(c, ";")
		if name = strings.ToLower(strings.TrimSpace(name)); name != "gzip" && name != "*" {
			continue
		}
		q, weighed := strings.CutPrefix(strings.ReplaceAll(rest, " ", ""), "q=")
		weight, err := strconv.ParseFloat(q, 64)
		return !weighed || err == nil && weight > 0
	}
	return false
}

// types maps extensions of the files of pages to media types. The machine's own table is
// not used, so that all nodes send the same types.
var types = map[string]string{
	".html": "text/html; charset=utf-8", ".htm": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".mjs": "text/javascript; charset=utf-8",
	".json": "application/json", ".map": "application/json", ".webmanifest": "application/manifest+json", ".xml": "application/xml", ".txt": "text/plain; charset=utf-8",
	".md": "text/markdown; charset=utf-8", ".csv": "text/csv; charset=utf-8", ".wasm": "application/wasm", ".pdf": "application/pdf",
	".svg": "image/svg+xml", ".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".gif": "image/gif", ".webp": "image/webp", ".avif": "image/avif", ".ico": "image/x-icon",
	".woff": "font/woff", ".woff2": "font/woff2", ".ttf": "font/ttf", ".otf": "font/otf",
	".mp3": "audio/mpeg", ".wav": "audio/wav", ".ogg": "audio/ogg", ".mp4": "video/mp4", ".webm": "video/webm",
}

func typeOf(name string) string {
	if t := types[strings.ToLower(path.Ext(name))]; t != "" {
		return t
	}
	return "application/octet-stream"
}
