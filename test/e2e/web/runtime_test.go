package web

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/test/env"
	"github.com/engi-dev/engi/test/seed"
)

// TestRuntimeStaysSmall limits the compressed size of the files that pages load to show an interface.
func TestRuntimeStaysSmall(t *testing.T) {
	env.Slow(t)
	const most = 6 << 10
	module, err := os.ReadFile(ui + "/../dist/app/ui/index.js")
	if err != nil {
		env.Need(t, "the dashboard (make web)")
	}
	var packed bytes.Buffer
	z, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := z.Write(module); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	if packed.Len() > most || packed.Len() < 1<<10 {
		t.Errorf("the runtime has %d bytes, compressed, more than %d", packed.Len(), most)
	}
	t.Logf("the runtime has %d bytes, compressed", packed.Len())
}

// packRuntime packs the runtime with npm into a folder, as for a publication.
func packRuntime(t *testing.T, dir string) (file string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "npm", "pack", "--json", "--pack-destination", dir)
	cmd.Dir = ui + "/runtime"
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var packs []struct {
		Name, Filename string
		Files          []struct{ Path string }
	}
	if err := json.Unmarshal(out, &packs); err != nil || len(packs) != 1 {
		t.Fatalf("%v\n%s", err, out)
	}
	var files []string
	for _, f := range packs[0].Files {
		files = append(files, f.Path)
	}
	for _, want := range []string{"package.json", "README.md", "dist/index.js", "dist/index.d.ts", "dist/element.js", "dist/element.d.ts", "dist/react.js", "dist/react.d.ts"} {
		if !slices.Contains(files, want) {
			t.Errorf("%s has no %s: %q", packs[0].Name, want, files)
		}
	}
	return filepath.Join(dir, packs[0].Filename)
}

// A fakePage is a session's page as the API shows it: a log of events, which begins with the
// whole page.
type fakePage struct {
	mu    sync.Mutex
	more  chan struct{} // closed when there are more events
	log   []update
	after []string // Last-Event-ID of each connection, in order
	acts  []json.RawMessage
	keys  map[string]int // number of requests by Idempotency-Key
}

type update struct {
	seq  int // sequence number; 0 for updates that are not kept
	kind string
	data string
}

// tell appends an update. Only kept updates get a sequence number.
func (p *fakePage) tell(kind string, kept bool, members map[string]any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	u := update{kind: kind}
	if kept {
		u.seq = 1
		for _, old := range p.log {
			u.seq = max(u.seq, old.seq+1)
		}
		members["seq"] = u.seq
	}
	data, err := json.Marshal(members)
	if err != nil {
		panic(err) // unreachable: tests send nothing else
	}
	u.data = string(data)
	p.log = append(p.log, u)
	close(p.more)
	p.more = make(chan struct{})
}

func (p *fakePage) patch(run string, patches ...engi.PagePatch) {
	p.tell("patch", true, map[string]any{"run": run, "patches": patches})
}

// A pagesServer serves the pages of sessions, and the files that their hosts load.
type pagesServer struct {
	*httptest.Server
	mux    *http.ServeMux
	mu     sync.Mutex
	pages  map[string]*fakePage
	begin  map[string]string                      // HTML of first pages, by the prefix of a session's name
	act    map[string]func(*fakePage, string)     // functions of actions, called with the run of the action
	cut    func(session string, n int) (most int) // returns the maximum bytes of the n-th connection; 0 means all
	acting sync.WaitGroup
	asked  []string // paths of all other requests
}

func servePages(t *testing.T) *pagesServer {
	s := &pagesServer{pages: map[string]*fakePage{}, begin: map[string]string{}, act: map[string]func(*fakePage, string){}}
	mux := http.NewServeMux()
	s.mux = mux
	mux.Handle("GET /ui/", http.StripPrefix("/ui/", http.FileServer(http.Dir(ui+"/../dist/app/ui"))))
	mux.Handle("GET /preact/", http.StripPrefix("/preact/", http.FileServer(http.Dir(ui+"/node_modules/preact"))))
	host := func(policy string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			if policy != "" {
				w.Header().Set("Content-Security-Policy", policy)
			}
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			fmt.Fprint(w, `<!doctype html><html lang="en"><title>Host</title><link rel="icon" href="data:,"><body>`)
		}
	}
	mux.HandleFunc("GET /strict", host("default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' blob: data:; form-action 'none'; base-uri 'none'"))
	mux.HandleFunc("GET /open", host(""))
	mux.HandleFunc("GET /react", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		fmt.Fprint(w, `<!doctype html><html lang="en"><title>Host</title><link rel="icon" href="data:,"><script type="importmap">{"imports":{`+
			`"react":"/preact/compat/dist/compat.mjs","preact":"/preact/dist/preact.mjs","preact/hooks":"/preact/hooks/dist/hooks.mjs"}}</script><body>`)
	})
	mux.HandleFunc("GET /acts/{id}", func(w http.ResponseWriter, r *http.Request) {
		p := s.page(r.PathValue("id"))
		p.mu.Lock()
		defer p.mu.Unlock()
		_, _ = w.Write(p.acts[len(p.acts)-1])
	})
	mux.HandleFunc("GET /v1/sessions/{id}/page/stream", s.stream)
	mux.HandleFunc("POST /v1/sessions/{id}/page/actions", s.action)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.asked = append(s.asked, r.URL.Path)
		http.NotFound(w, r)
	})
	s.Server = httptest.NewServer(mux)
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
		s.acting.Wait()
	})
	return s
}

func (s *pagesServer) page(id string) *fakePage {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.pages[id]
	if p == nil {
		p = &fakePage{more: make(chan struct{}), keys: map[string]int{}}
		s.pages[id] = p
		kind, _, _ := strings.Cut(id, "-")
		p.tell("html", true, map[string]any{"html": s.begin[kind]})
	}
	return p
}

func (s *pagesServer) stream(w http.ResponseWriter, r *http.Request) {
	p := s.page(r.PathValue("id"))
	last := r.Header.Get("Last-Event-ID")
	p.mu.Lock()
	p.after = append(p.after, last)
	n, old := len(p.after), len(p.log)
	p.mu.Unlock()
	after, err := strconv.Atoi(cmp.Or(last, "0"))
	if err != nil || r.URL.Query().Get("format") != "engi" || r.Header.Get("Authorization") == "" && r.Header.Get("Engi-Dashboard") == "" {
		http.Error(w, `{"detail":"this is no request of the runtime"}`, http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	left := 0
	if s.cut != nil {
		left = s.cut(r.PathValue("id"), n)
	}
	cut := left > 0
	for at := 0; ; {
		p.mu.Lock()
		fresh, more := p.log[at:], p.more
		at = len(p.log)
		p.mu.Unlock()
		var b strings.Builder
		for i, u := range fresh {
			if u.seq != 0 && u.seq <= after || u.seq == 0 && at-len(fresh)+i < old {
				continue
			}
			if u.seq != 0 {
				fmt.Fprintf(&b, "id: %d\n", u.seq)
			}
			fmt.Fprintf(&b, "event: %s\ndata: %s\n\n", u.kind, u.data)
		}
		text := b.String()
		if cut && len(text) >= left {
			fmt.Fprint(w, text[:left])
			_ = http.NewResponseController(w).Flush() // fails only if the client has left
			time.Sleep(100 * time.Millisecond)        // when a connection breaks, a browser drops data that it has not delivered
			panic(http.ErrAbortHandler)
		}
		left -= len(text)
		fmt.Fprint(w, text)
		if http.NewResponseController(w).Flush() != nil {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-more:
		}
	}
}

func (s *pagesServer) action(w http.ResponseWriter, r *http.Request) {
	p := s.page(r.PathValue("id"))
	var body json.RawMessage
	var a struct{ Action string }
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil || json.Unmarshal(body, &a) != nil {
		http.Error(w, `{"detail":"this is no action"}`, http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if a.Action == "refused" {
		w.WriteHeader(http.StatusUnprocessableEntity)
		fmt.Fprint(w, `{"detail":"no such action","remedy":"do another"}`)
		return
	}
	key := r.Header.Get("Idempotency-Key")
	p.mu.Lock()
	seq, again := p.keys[key]
	if !again {
		p.acts = append(p.acts, body)
	}
	p.mu.Unlock()
	if !again {
		p.tell("action", true, map[string]any{"action": a.Action})
		p.mu.Lock()
		seq = p.log[len(p.log)-1].seq
		p.keys[key] = seq
		p.mu.Unlock()
	}
	if a.Action == "lost" && !again {
		panic(http.ErrAbortHandler) // the answer does not arrive
	}
	w.WriteHeader(http.StatusAccepted)
	fmt.Fprintf(w, `{"seq":%d}`, seq)
	if !again {
		s.acting.Go(func() {
			run := fmt.Sprintf("run_%d", seq)
			if act := s.act[a.Action]; act != nil {
				act(p, run)
			}
			p.tell("done", true, map[string]any{"run": run, "state": "done"})
		})
	}
}

func ptr[T any](v T) *T { return &v }

// TestRuntime drives a browser that shows pages of a scripted server.
func TestRuntime(t *testing.T) {
	env.Slow(t)
	chromium := browser(t, ui+"/node_modules/preact")
	s := servePages(t)
	random := rand.New(rand.NewPCG(seed.Of(t, "ENGI_UI_SEED", 1), 1))

	const form = `<form id="f" data-action="save" data-list="7"><label>Name <input id="name" name="name"></label><label>Text <textarea id="text" name="text"></textarea></label>` +
		`<label><input type="checkbox" id="big" name="big"> big</label><select id="size" name="size"><option>s</option><option>m</option></select><button id="ok">Save</button></form>`
	const rest = `<details id="more"><summary>More</summary><p>that is hidden</p></details><div id="box" style="height: 60px; overflow: auto"><p style="height: 400px">tall</p></div>`
	s.begin["typing"] = `<main><h1>Begin</h1><ul id="list"></ul>` + form + rest + `<button id="go" data-action="churn" data-step-size="2">Go</button></main>`
	// All elements around the form change, in every way.
	s.act["churn"] = func(p *fakePage, run string) {
		for i := range 120 {
			switch i % 6 {
			case 0:
				p.patch(run, engi.PagePatch{Selector: "h1", Text: ptr(fmt.Sprint("Step ", i))}, engi.PagePatch{Selector: "#list", Append: ptr(fmt.Sprintf("<li>%d</li>", i))})
			case 1:
				p.patch(run, engi.PagePatch{Selector: "#f", Before: ptr("<p class=note>before</p>")})
			case 2:
				p.patch(run, engi.PagePatch{Selector: "#f", Attr: map[string]*string{"class": ptr(fmt.Sprint("c", i))}})
			case 3:
				p.tell("html", false, map[string]any{"run": run, "partial": true, "html": fmt.Sprintf("<main><h1>Whole %d</h1><section>new</section>", i)})
			case 4:
				p.tell("html", true, map[string]any{"run": run, "html": fmt.Sprintf(`<main><h1>Whole %d</h1><section>new</section><ul id="list"></ul>`, i) + form + rest + `<button id="go" data-action="churn">Go</button></main>`})
			case 5:
				p.patch(run, engi.PagePatch{Selector: "#f", Move: &engi.PageMove{To: "main", Place: []string{"append", "prepend"}[i/6%2]}}, engi.PagePatch{Selector: "#name", Value: ptr("from the model")})
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
	s.begin["flood"] = `<ul id="list"></ul><p id="n">0</p>`
	s.act["flood"] = func(p *fakePage, run string) {
		for begin, i := time.Now(), 0; i < 600; i++ {
			p.patch(run, engi.PagePatch{Selector: "#n", Text: ptr(strconv.Itoa(i))}, engi.PagePatch{Selector: "#list", Append: ptr(fmt.Sprintf(`<li class="row">%d <b>bold</b></li>`, i))})
			time.Sleep(time.Until(begin.Add(time.Duration(i) * 5 * time.Millisecond)))
		}
	}
	s.act["clock"] = func(p *fakePage, run string) {
		for range 60 {
			p.patch(run, engi.PagePatch{Selector: "#n", Text: ptr(strconv.FormatInt(time.Now().UnixMilli(), 10))})
			time.Sleep(25 * time.Millisecond)
		}
	}
	s.begin["cut"] = `<ol id="list"></ol>`
	s.act["count"] = func(p *fakePage, run string) {
		for i := range 300 {
			p.patch(run, engi.PagePatch{Selector: "#list", Append: ptr(fmt.Sprintf("<li>%d größer</li>", i))})
			time.Sleep(2 * time.Millisecond)
		}
	}
	var mu sync.Mutex
	s.cut = func(session string, n int) int {
		mu.Lock()
		defer mu.Unlock()
		if !strings.HasPrefix(session, "cut-") || n > 8 {
			return 0
		}
		return 800 + random.IntN(4000)
	}
	s.begin["act"] = `<main>` + form + `<button id="plus" data-action="plus" data-by="2" data-item-id="a b">+</button><a id="link" href="https://example.com/" data-action="link">l</a>` +
		`<input type="checkbox" id="done" data-action="done" data-id="3"><select id="pick" data-action="pick" name="colour"><option>red</option><option>blue</option></select>` +
		`<form id="plain"><input name="x"><button id="send">x</button></form><a id="out" href="https://example.com/out">out</a><a id="down" href="#end">down</a><p style="margin-top: 3000px" id="end">end</p>` +
		`<form data-action="many" id="many"><input name="nodeName" value="1"><input name="attributes" value="2"><input name="firstChild" value="3"><input name="tag" value="4"><input name="tag" value="5"><input type="file" name="file"><input name="must" id="must" required><button id="sendmany" name="by" value="button">s</button></form></main>`
	s.begin["partial"] = `<h1>Old</h1><p>page</p>`
	s.act["stops"] = func(p *fakePage, run string) {
		p.patch(run, engi.PagePatch{Selector: "p", After: ptr("<p>more</p>")})
		p.tell("html", false, map[string]any{"run": run, "partial": true, "html": "<h1>Half</h1><section>of"})
		p.tell("stdout", false, map[string]any{"run": run, "text": "unrelated"})
		time.Sleep(300 * time.Millisecond)
		p.tell("error", true, map[string]any{"run": run, "text": "the answer ends in the middle of a line"})
	}
	s.begin["styles"] = `<p id="p" style="color: rgb(1, 2, 3); position: fixed; background: url(/leak)">p</p><div id="d"></div>`
	drive(t, "runtime.mjs", map[string]any{"url": s.URL, "chromium": chromium}, 8)

	if got := len(s.page("act-lost").acts); got != 1 {
		t.Errorf("an action whose answer was lost was done %d times", got)
	}
	if n := len(s.page("cut-1").after); n < 6 {
		t.Errorf("there were just %d connections", n)
	}
	if len(s.asked) > 0 {
		t.Errorf("pages asked for %q", s.asked)
	}
}
