package web

import (
	"bytes"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/client"
	"github.com/engi-dev/engi/internal/agent/llm/scripted"
	"github.com/engi-dev/engi/test/env"
)

var nowPattern = regexp.MustCompile(`\[NOW\] 1\. Action: (\S+)`)

// play is a model that draws more than the demo model: a page with a link and a form,
// and changes that arrive while a user types.
func play(c scripted.Conversation) scripted.Answer {
	now := nowPattern.FindStringSubmatch(c.Last().Text)
	if now == nil {
		return scripted.Demo(c)
	}
	switch now[1] {
	case "draw":
		return scripted.Answer{Text: `{"type":"full","html":"<main><h1>Drawn</h1><a href=\"https://example.com/x\">out</a><form data-action=\"save\"><input id=\"name\" name=\"name\"><button id=\"ok\">Save</button></form><button id=\"go\" data-action=\"churn\">Go</button><ul id=\"list\"></ul></main>"}` + "\n"}
	case "churn":
		var b strings.Builder
		for i := range 30 {
			fmt.Fprintf(&b, `{"type":"patches","patches":[{"selector":"#list","append":"<li>%d</li>"},{"selector":"h1","text":"Step %d"}]}`+"\n", i, i)
		}
		return scripted.Answer{Text: b.String(), Pace: 10 * time.Millisecond}
	case "save":
		return scripted.Answer{Text: `{"type":"patches","patches":[{"selector":"h1","text":"Saved"},{"selector":"#list","html":""}]}` + "\n"}
	}
	return scripted.Demo(c)
}

// TestApps shows pages in programs that support MCP Apps, with the protocol's own library
// and MCP-UI's component, and with A2UI's renderer, all unchanged, in Chromium.
func TestApps(t *testing.T) {
	env.Slow(t)
	chromium := browser(t, "apps/node_modules")
	models := httptest.NewServer(&scripted.Server{Play: play})
	t.Cleanup(models.Close)
	n := env.Run(t, env.Config(t, "[models]\ndefault = \"openai:m1\"\n[providers.openai]\nurl = \""+models.URL+"/v1\"\n"))
	u, err := url.Parse(n.Endpoint().URL)
	if err != nil {
		t.Fatal(err)
	}
	admin := client.New(u.String(), n.AdminKey())
	key, err := admin.CreateKey(t.Context(), v1.KeyRequest{Name: "program", Owner: "ann", Scopes: []string{"agents", "sandboxes"}})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	build := exec.CommandContext(t.Context(), "apps/node_modules/.bin/esbuild", "apps/bridge.mjs", "apps/renderer.mjs", "apps/a2ui.mjs", "--bundle", "--format=esm", "--outdir="+dir, "--log-level=warning",
		"--define:process.env.NODE_ENV=\"production\"")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	page := func(policy, text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			w.Header().Set("Content-Security-Policy", policy)
			fmt.Fprint(w, text)
		}
	}
	// The program around an interface reaches the node; the interface does not.
	outer := http.NewServeMux()
	for _, name := range []string{"bridge", "renderer", "a2ui"} {
		outer.HandleFunc("GET /"+name, page("", `<!doctype html><link rel="icon" href="data:,"><title>`+name+`</title><body><script type="module" src="/`+name+`.js"></script>`))
		outer.HandleFunc("GET /"+name+".js", func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, filepath.Join(dir, name+".js")) })
	}
	proxy := &httputil.ReverseProxy{FlushInterval: -1, ErrorLog: log.New(io.Discard, "", 0), Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(&url.URL{Scheme: u.Scheme, Host: u.Host})
		r.Out.Header.Del("Origin")
		r.Out.Header.Set("Authorization", "Bearer "+key.Secret)
	}}
	pass := func(w http.ResponseWriter, r *http.Request) {
		// Otherwise the node's answer may come before the end of the body is passed on, which
		// ends the connection, and the program waits for the answer for a minute.
		body, err := io.ReadAll(r.Body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		proxy.ServeHTTP(w, r)
	}
	outer.HandleFunc("/mcp", pass)
	outer.HandleFunc("/v1/", pass)
	// The intermediate frame of the specification, with another origin. Its content may not even send forms.
	inner := http.NewServeMux()
	inner.HandleFunc("GET /sandbox", page("default-src 'none'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; media-src 'self' data:; connect-src 'none'; frame-src 'self'",
		`<!doctype html><link rel="icon" href="data:,"><style>body,iframe{margin:0;border:0;width:100%;height:100%}</style><body><script>
const view = document.createElement('iframe')
view.sandbox = 'allow-scripts'
addEventListener('message', ({ source, data }) => {
  if (source === view.contentWindow) parent.postMessage(data, '*')
  else if (source !== parent) return
  else if (data.method === 'ui/notifications/sandbox-resource-ready') {
    view.srcdoc = data.params.html
    document.body.append(view)
  } else view.contentWindow.postMessage(data, '*')
})
parent.postMessage({ jsonrpc: '2.0', method: 'ui/notifications/sandbox-proxy-ready', params: {} }, '*')
</script>`))
	programs, frames := httptest.NewServer(outer), httptest.NewServer(inner)
	t.Cleanup(programs.Close)
	t.Cleanup(frames.Close)
	drive(t, "apps.mjs", map[string]any{"chromium": chromium, "url": programs.URL, "sandbox": frames.URL + "/sandbox", "node": u.String(), "key": key.Secret}, 12)
}
