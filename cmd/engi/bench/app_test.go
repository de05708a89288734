package bench

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/coder/websocket"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/client"
	"github.com/engi-dev/engi/internal/engi"
)

// A fakeNode has one app at a time, whose page shows what its src/App.tsx says and is told
// when that changes.
type fakeNode struct {
	url string

	mu      sync.Mutex
	text    string // guarded by mu, like all below
	seq     int64
	made    int
	removed int
	files   []int // of each apply
	pages   map[chan string]bool
	refuse  bool // whatever is applied
}

var heading = regexp.MustCompile(`<h1[^>]*>(.*)</h1>`)

// say has the page show what a file says.
func (f *fakeNode) say(code string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.text = heading.FindStringSubmatch(code)[1]
	for p := range f.pages {
		p <- `{"type":"update"}`
	}
}

func (f *fakeNode) app() v1.App {
	return v1.App{ID: fmt.Sprint("app_", f.made), Template: appTemplate, SandboxID: "sbx_1", State: v1.AppReady, PreviewURL: strings.Replace(f.url, "127.0.0.1", "shop.localhost", 1) + "/"}
}

func (f *fakeNode) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	answer := func(x any) {
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(x) // a client that has left needs none
	}
	f.mu.Lock()
	made := f.app()
	f.mu.Unlock()
	switch path := r.Method + " " + r.URL.Path; {
	case path == "POST /v1/apps":
		f.mu.Lock()
		f.made++
		made = f.app()
		f.text = "first"
		f.mu.Unlock()
		answer(made)
	case r.Method == "DELETE":
		f.mu.Lock()
		f.removed++
		f.mu.Unlock()
		w.WriteHeader(http.StatusNoContent)
	case strings.HasSuffix(path, "/apply"):
		var q v1.ApplyRequest
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		f.mu.Lock()
		f.seq += 2
		seq := f.seq - 1
		f.files = append(f.files, strings.Count(q.Text, "<file "))
		f.mu.Unlock()
		f.say(q.Text)
		answer(v1.Applying{Seq: seq})
	case strings.HasSuffix(path, "/stream"):
		var seq int64
		fmt.Sscan(r.URL.Query().Get("after"), &seq)
		w.Header().Set("Content-Type", "application/x-ndjson")
		end := v1.AppUpdate{Type: v1.AppDone, Seq: seq + 1, Apply: seq}
		if f.refuse {
			end.Type, end.Error = v1.AppError, &v1.Problem{Kind: v1.Conflict, Detail: "it does not work"}
		}
		answer(end)
	case path == "POST /v1/sandboxes":
		answer(v1.Sandbox{ID: "sbx_2"})
	case strings.HasPrefix(path, "PUT /v1/sandboxes/"):
		code, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		f.say(string(code))
		sum := sha256.Sum256(code)
		answer(v1.Written{SHA256: hex.EncodeToString(sum[:])})
	case strings.HasPrefix(path, "GET /v1/templates/"):
		answer(v1.Template{Name: appTemplate, WorkDir: "/app"})
	case strings.HasPrefix(path, "POST /v1/"): // open, hibernate
		answer(made)
	case path == "GET /" && r.URL.Query().Has("token"):
		f.page(w, r)
	case path == "GET /":
		io.WriteString(w, `<!doctype html><div id="root"></div><script type="module" src="/src/main.tsx"></script>`)
	case path == "GET /@vite/client":
		io.WriteString(w, `const wsToken = "secret"`)
	case path == "GET /src/main.tsx":
		w.Header().Set("Content-Type", "text/javascript")
		io.WriteString(w, `const show = async (again) => {
  const { text } = await import('/src/App.tsx' + again)
  document.getElementById('root').replaceChildren(Object.assign(document.createElement('h1'), { textContent: text }))
}
let n = 0
// The first message says that others will come: until then, a change would be missed.
new WebSocket('ws://' + location.host + '/?token=secret', 'vite-hmr').onmessage = () => show(n++ ? '?t=' + n : '')`)
	case path == "GET /src/App.tsx":
		f.mu.Lock()
		defer f.mu.Unlock()
		w.Header().Set("Content-Type", "text/javascript")
		fmt.Fprintf(w, "export const text = %q", f.text)
	default:
		http.NotFound(w, r)
	}
}

// page tells a page of changes.
func (f *fakeNode) page(w http.ResponseWriter, r *http.Request) {
	c, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{"vite-hmr"}, InsecureSkipVerify: true})
	if err != nil {
		return
	}
	defer c.CloseNow()
	ctx := c.CloseRead(r.Context())
	p := make(chan string, 1000)
	f.mu.Lock()
	f.pages[p] = true
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.pages, p)
	}()
	for m := `{"type":"connected"}`; ; {
		if c.Write(ctx, websocket.MessageText, []byte(m)) != nil {
			return
		}
		select {
		case m = <-p:
		case <-ctx.Done():
			return
		}
	}
}

// kept is a pool that always has a sandbox of the template.
type kept struct{}

func (kept) Warm(context.Context) error { return nil }

func (kept) Pools(context.Context) []engi.PoolStatus {
	return []engi.PoolStatus{{Template: appTemplate, Ready: 1}}
}

func newFakeNode(t *testing.T) *fakeNode {
	f := &fakeNode{pages: map[chan string]bool{}}
	s := httptest.NewServer(f)
	t.Cleanup(s.Close)
	f.url = s.URL
	return f
}

// TestApps has as many samples of everything as were asked for, each of what it says.
func TestApps(t *testing.T) {
	for _, with := range []string{"no browser", "a browser"} {
		t.Run(with, func(t *testing.T) {
			var b *Browser
			if with == "a browser" {
				if testing.Short() {
					t.Skip("slow: make test-all")
				}
				var err error
				if b, err = OpenBrowser(t.Context()); err != nil {
					t.Fatal(err)
				}
				if b == nil {
					if os.Getenv("ENGI_TEST_REQUIRE") == "1" {
						t.Fatal("needs Chromium (make setup)")
					}
					t.Skip("needs Chromium (make setup)")
				}
				defer b.Close()
			}
			f := newFakeNode(t)
			const n = 2
			got, err := Apps(t.Context(), client.New(f.url, "key"), kept{}, f.url, n, b)
			if err != nil {
				t.Fatal(err)
			}
			shown := map[string]bool{pageAnswered: true, pageLoaded: true, pageShown: true, shownReload: true}
			for _, act := range AppActs {
				want := n
				switch {
				case act == "create, nothing ready":
					want = 1
				case shown[act] && b == nil, act == "page with modules, the first time" && b != nil:
					want = 0
				}
				if s := got.Times[act]; s.N != want || s.Failures != 0 || want > 0 && s.Ms.P50 <= 0 {
					t.Errorf("%s: %+v, want %d samples", act, s, want)
				}
			}
			if len(got.Times) > len(AppActs) || (got.Browser != "") != (b != nil) {
				t.Errorf("%+v", got)
			}
			whole, part := got.Times[createToPage].Ms, got.Times[pageCreated].Ms
			if whole.Max < part.Max {
				t.Errorf("to the page it took %+v, and to create it %+v", whole, part)
			}
			f.mu.Lock()
			defer f.mu.Unlock()
			files := fmt.Sprint(f.files)
			if f.made != 1+n || f.removed != f.made+n+n || !strings.HasPrefix(files, "[1 10 50 1 10 50") || len(f.files) != 4*n {
				t.Errorf("%d apps were made, %d things removed, and files applied: %s", f.made, f.removed, files)
			}
		})
	}
}

// TestAppsTellOfFailures has nothing that is applied work.
func TestAppsTellOfFailures(t *testing.T) {
	f := newFakeNode(t)
	f.refuse = true
	got, err := Apps(t.Context(), client.New(f.url, "key"), kept{}, f.url, 1, nil)
	if s := got.Times["apply 1 file"]; err == nil || s.Failures != 1 || !strings.Contains(s.Failure, "it does not work") {
		t.Errorf("%+v, %v", got, err)
	}
}
