package web

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/agent/llm/scripted"
	"github.com/engi-dev/engi/test/env"
)

// counts is the number of patches that the model of TestReact writes in answer to count.
const counts = 30

// A typist is a model with a page, which writes a line every few milliseconds, and
// pauses in the middle of counting on request.
type typist struct {
	scripted.Server
	holds atomic.Bool
}

func (m *typist) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	patch := func(patches string) string { return `{"type":"patches","patches":[` + patches + `]}` + "\n" }
	switch {
	case bytes.Contains(body, []byte("[NOW] 1. Action: count ")):
		m.write(w, counts, func(i int) string {
			for i == counts/2 && m.holds.Load() && r.Context().Err() == nil {
				time.Sleep(5 * time.Millisecond)
			}
			time.Sleep(5 * time.Millisecond)
			return patch(fmt.Sprintf(`{"selector":"#n","text":"%d"},{"selector":"#list","append":"<li>%[1]d</li>"}`, i+1))
		})
	case bytes.Contains(body, []byte("[NOW] 1. Action: clock ")):
		m.write(w, 60, func(int) string {
			time.Sleep(25 * time.Millisecond)
			return patch(fmt.Sprintf(`{"selector":"#n","text":"%d"}`, time.Now().UnixMilli()))
		})
	default:
		r.Body = io.NopCloser(bytes.NewReader(body))
		m.Server.ServeHTTP(w, r)
	}
}

// write sends n pieces of an answer, each as soon as it exists.
func (m *typist) write(w http.ResponseWriter, n int, piece func(i int) string) {
	w.Header().Set("Content-Type", "text/event-stream")
	for i := range n {
		chunk, err := json.Marshal(map[string]any{"choices": []any{map[string]any{"delta": map[string]any{"content": piece(i)}}}})
		if err != nil {
			panic(err) // unreachable: strings can always be encoded
		}
		fmt.Fprintf(w, "data: %s\n\n", chunk)
		if http.NewResponseController(w).Flush() != nil {
			return
		}
	}
	fmt.Fprint(w, `data: {"choices":[{"delta":{},"finish_reason":"stop"}]}`+"\n\ndata: [DONE]\n\n")
}

func drawPage(c scripted.Conversation) scripted.Answer {
	_, now, _ := strings.Cut(c.Last().Text, "[NOW] ")
	if strings.Contains(now, "Action: draw ") {
		return scripted.Answer{Text: `{"type":"full","html":"<main><h1>Page</h1><p id=\"n\">0</p><form id=\"f\" data-action=\"save\"><input id=\"name\" name=\"name\" aria-label=\"Name\"></form><p id=\"saved\"></p><ul id=\"list\"></ul></main>"}`}
	}
	_, name, _ := strings.Cut(now, `"name":"`)
	name, _, _ = strings.Cut(name, `"`)
	return scripted.Answer{Text: `{"type":"patches","patches":[{"selector":"#saved","text":"` + name + `"}]}`}
}

// buildReact packs the runtime as npm publishes it, installs the package into a separate app
// and builds the app.
func buildReact(t *testing.T) (dist string) {
	t.Helper()
	dir := t.TempDir()
	at, err := filepath.Abs("react")
	if err != nil {
		t.Fatal(err)
	}
	app := filepath.Join(dir, "app")
	run := func(name string, args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Dir = app
		cmd.Env = append(os.Environ(), "NODE_ENV=development") // strict mode mounts everything twice
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
		}
	}
	packed := packRuntime(t, dir)
	if err := os.CopyFS(filepath.Join(app, "src"), os.DirFS("react/src")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"index.html", "tsconfig.json"} {
		text, err := os.ReadFile("react/" + name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(app, name), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	run("npm", "init", "-y")
	run("npm", "install", "--offline", "--no-audit", "--no-fund", "--legacy-peer-deps", "--loglevel=error", packed)
	others, err := os.ReadDir("react/node_modules")
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range others {
		if !strings.HasPrefix(o.Name(), ".") {
			if err := os.Symlink(filepath.Join(at, "node_modules", o.Name()), filepath.Join(app, "node_modules", o.Name())); err != nil {
				t.Fatal(err)
			}
		}
	}
	run("node", "node_modules/typescript/bin/tsc")
	run("node", "node_modules/vite/bin/vite.js", "build", "--mode", "development", "--logLevel", "warn")
	return filepath.Join(app, "dist")
}

// TestReact uses pages from an app of React, with third-party hooks and with those of
// the packed runtime, on a node that is killed meanwhile.
func TestReact(t *testing.T) {
	env.Slow(t)
	tool(t, "npm", "make setup")
	chromium := browser(t, "react/node_modules", ui+"/node_modules/.of")
	typist := &typist{Server: scripted.Server{Play: drawPage}}
	model := httptest.NewServer(typist)
	defer model.Close()
	mux := http.NewServeMux()
	app := httptest.NewServer(mux)
	defer app.Close()
	s := env.Serve(t, env.ServerOptions{Config: "[models]\ndefault = \"play:m\"\n[providers.play]\nurl = \"" + model.URL + "\"\n[cors]\norigins = [\"" + app.URL + "\"]\n"})
	node, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	mux.Handle("/", http.FileServer(http.Dir(buildReact(t))))

	// Connections through this proxy can be cut.
	var mu sync.Mutex
	cut, cutAll := context.WithCancel(t.Context())
	proxy := &httputil.ReverseProxy{FlushInterval: -1, ErrorLog: log.New(io.Discard, "", 0), Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(node) }, ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) }}
	mux.HandleFunc("/v1/", func(w http.ResponseWriter, r *http.Request) {
		// Otherwise the node's answer may come before the end of the body is passed on, which
		// ends the connection.
		body, err := io.ReadAll(r.Body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		mu.Lock()
		until := cut
		mu.Unlock()
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		defer context.AfterFunc(until, cancel)()
		proxy.ServeHTTP(w, r.WithContext(ctx))
	})
	mux.HandleFunc("POST /cut", func(http.ResponseWriter, *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		cutAll()
		cut, cutAll = context.WithCancel(t.Context())
	})
	mux.HandleFunc("POST /hold", func(http.ResponseWriter, *http.Request) { typist.holds.Store(true) })
	mux.HandleFunc("POST /go", func(http.ResponseWriter, *http.Request) { typist.holds.Store(false) })
	mux.HandleFunc("POST /restart", func(http.ResponseWriter, *http.Request) {
		s.Kill()
		s.Start()
	})
	sessions := map[string]string{}
	for _, name := range []string{"chat", "reload", "killed", "page", "clock"} {
		x, err := s.CreateSession(t.Context(), v1.SessionRequest{Name: name})
		if err != nil {
			t.Fatal(err)
		}
		sessions[name] = x.ID
	}
	drive(t, "react.mjs", map[string]any{"url": app.URL, "node": s.URL, "key": s.Key, "sessions": sessions, "counts": counts, "chromium": chromium}, 6)
}
