package rest

import (
	"embed"
	"encoding/json"
	"net/http"
)

// docs is a viewer of /openapi.json that needs nothing from elsewhere.
//
//go:embed docs
var docs embed.FS

const docsPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

func (s *server) serveDocs() {
	spec, err := json.Marshal(s.api.OpenAPI())
	if err != nil {
		panic(err) // a schema that cannot be written; every test would show it
	}
	s.route("GET /openapi.json", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-cache")
		_, _ = w.Write(spec)
	})
	s.route("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "/docs", http.StatusFound)
	})
	s.route("GET /docs", func(w http.ResponseWriter, r *http.Request) { s.docsFile(w, r, "index.html") })
	s.route("GET /docs/{file}", func(w http.ResponseWriter, r *http.Request) { s.docsFile(w, r, r.PathValue("file")) })
}

var docsTypes = map[string]string{
	"index.html": "text/html; charset=utf-8",
	"docs.js":    "text/javascript; charset=utf-8",
	"docs.css":   "text/css; charset=utf-8",
}

func (s *server) docsFile(w http.ResponseWriter, r *http.Request, name string) {
	kind, ok := docsTypes[name]
	if !ok {
		s.stray(w, r)
		return
	}
	body, err := docs.ReadFile("docs/" + name)
	if err != nil {
		s.fail(w, r, err) // unreachable: the table names what is embedded
		return
	}
	h := w.Header()
	h.Set("Content-Type", kind)
	h.Set("Content-Security-Policy", docsPolicy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-cache")
	_, _ = w.Write(body)
}
