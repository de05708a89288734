package rest

import (
	"embed"
	"net/http"
)

// docs is a viewer of /openapi.json that loads nothing from other hosts.
//
//go:embed docs
var docs embed.FS

const docsPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

type docsFile struct {
	File string `path:"file"`
}

// pages returns the routes of the description and of its viewer.
func pages(spec func() []byte) Resource {
	page := func(pattern string, serve func(*call, *none, none) error) Route {
		return raw(Route{Pattern: pattern, Access: open, Objects: Shared}, serve)
	}
	return Resource{routes: []Route{
		page("GET /openapi.json", func(c *call, _ *none, _ none) error {
			c.Header().Set("Content-Type", "application/json")
			c.Header().Set("Cache-Control", "no-cache")
			_, _ = c.Write(spec()) // an error means that the caller has left
			return nil
		}),
		page("GET /{$}", func(c *call, _ *none, _ none) error {
			http.Redirect(c, c.r, "/docs", http.StatusFound)
			return nil
		}),
		page("GET /docs", func(c *call, _ *none, _ none) error { return c.docsFile("index.html") }),
		raw(Route{Pattern: "GET /docs/{file}", Access: open, Objects: Shared}, func(c *call, in *docsFile, _ none) error { return c.docsFile(in.File) }),
	}}
}

var docsTypes = map[string]string{
	"index.html": "text/html; charset=utf-8",
	"docs.js":    "text/javascript; charset=utf-8",
	"docs.css":   "text/css; charset=utf-8",
}

func (c *call) docsFile(name string) error {
	kind, ok := docsTypes[name]
	if !ok {
		return errNothing(c.r)
	}
	body, err := docs.ReadFile("docs/" + name)
	if err != nil {
		return err // unreachable: the table names embedded files
	}
	h := c.Header()
	h.Set("Content-Type", kind)
	h.Set("Content-Security-Policy", docsPolicy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-cache")
	_, _ = c.Write(body)
	return nil
}
