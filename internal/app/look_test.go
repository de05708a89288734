package app_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"image"
	"image/png"
	"iter"
	"strings"
	"testing"

	"github.com/engi-dev/engi/internal/engi"
)

// A fakeBrowser follows instructions in a page: lines with THROW name an error, EMPTY renders
// nothing, FETCH requests from another host. The fixture's field browser overrides them.
type fakeBrowser struct {
	*process
	g             *fakeGuest
	out           chan engi.Chunk
	width, height int
}

func (g *fakeGuest) startBrowser() (engi.Process, error) {
	p := &process{w: g.w, b: g.b, tag: "browser", done: make(chan struct{}), kill: make(chan struct{})}
	f := &fakeBrowser{process: p, g: g, out: make(chan engi.Chunk, 2000)}
	mode := g.w.browser
	if mode == "none" {
		f.out <- engi.Chunk{Stream: engi.Stderr, Data: []byte("the template has no chromium-headless-shell\n")}
		close(p.done)
		return f, g.w.act(g.b, func() error { return g.b.add(p) })
	}
	added := false
	failed := g.w.act(g.b, func() error {
		err := g.b.add(p)
		added = err == nil
		return err
	})
	if !added {
		return nil, failed
	}
	if mode == "flood" {
		f.out <- engi.Chunk{Stream: engi.Stdout, Data: []byte("[")} // before any answer
	}
	go func() {
		defer close(p.done)
		for {
			select {
			case <-p.kill:
				return
			case <-g.b.dead:
				return
			default:
			}
			if mode != "flood" {
				select {
				case <-p.kill:
				case <-g.b.dead:
				}
				return
			}
			select {
			case f.out <- engi.Chunk{Stream: engi.Stdout, Data: bytes.Repeat([]byte("["), 1<<20)}:
			case <-p.kill:
				return
			}
		}
	}()
	return f, failed
}

func (f *fakeBrowser) Output(ctx context.Context, _ int64) iter.Seq2[engi.Chunk, error] {
	return func(yield func(engi.Chunk, error) bool) {
		for {
			select {
			case c := <-f.out:
				if !yield(c, nil) {
					return
				}
				continue
			default:
			}
			select {
			case c := <-f.out:
				if !yield(c, nil) {
					return
				}
			case <-f.done:
				return
			case <-ctx.Done():
				yield(engi.Chunk{}, engi.Errorf(engi.Expired, "%v", ctx.Err()))
				return
			}
		}
	}
}

func (f *fakeBrowser) say(format string, args ...any) {
	// In two pieces, because pipes may split messages.
	text := fmt.Sprintf(format, args...) + "\x00"
	for _, part := range []string{text[:len(text)/2], text[len(text)/2:]} {
		f.out <- engi.Chunk{Stream: engi.Stdout, Data: []byte(part)}
	}
}

func (f *fakeBrowser) Input(ctx context.Context, data []byte) error {
	if err := f.w.step(ctx, "input", f.b); err != nil {
		return err
	}
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	for raw := range bytes.SplitSeq(bytes.TrimSuffix(data, []byte{0}), []byte{0}) {
		var m struct {
			ID     int
			Method string
			Params struct {
				URL, Expression string
				Width, Height   int
			}
		}
		if err := json.Unmarshal(raw, &m); err != nil {
			f.w.t.Error(err)
		}
		result := "{}"
		text := f.b.files[appDir+"/src/App.tsx"].data + f.b.files[appDir+"/main.py"].data
		switch m.Method {
		case "Target.createTarget":
			result = `{"targetId":"t"}`
		case "Target.attachToTarget":
			result = `{"sessionId":"s"}`
		case "Emulation.setDeviceMetricsOverride":
			f.width, f.height = m.Params.Width, m.Params.Height
		case "Page.navigate":
			f.w.shown = append(f.w.shown, m.Params.URL)
			result = fmt.Sprintf(`{"frameId":"f","loaderId":"l%d"}`, m.ID)
			defer f.load(m.ID, m.Params.URL, text)
		case "Runtime.evaluate":
			result = `{"result":{"type":"undefined"}}`
			if strings.Contains(m.Params.Expression, "getElementById") {
				result = fmt.Sprintf(`{"result":{"type":"boolean","value":%v}}`, strings.Contains(text, "EMPTY"))
			}
		case "Page.captureScreenshot":
			var b bytes.Buffer
			if err := png.Encode(&b, image.NewGray(image.Rect(0, 0, f.width, f.height))); err != nil {
				f.w.t.Error(err)
			}
			raw, _ := json.Marshal(map[string]any{"data": b.Bytes()})
			result = string(raw)
		}
		switch f.w.browser {
		case "mute":
			continue
		case "garbage":
			f.say("{]")
		case "forged":
			for range 100 {
				if m.Method != "Page.navigate" {
					break
				}
				f.say(`{"id":-1,"result":[],"method":"Runtime.exceptionThrown","params":{"exceptionDetails":{"text":7}}}`)
				f.say(`{"method":"Runtime.exceptionThrown","params":{"exceptionDetails":{"exception":{"type":"object","description":"Error: %s\u0000\u001b[31m\n    at x (http://localhost:5173/../../etc/passwd:1:1)"}}}}`, strings.Repeat("x", 5000))
				f.say(`{"method":"Fetch.requestPaused","params":{"requestId":"1","resourceType":"Image","request":{"url":"%%zz"}}}`)
			}
		}
		f.say(`{"id":%d,"result":%s}`, m.ID, result)
	}
	return nil
}

// load shows a page. The caller holds the fixture's mu.
func (f *fakeBrowser) load(id int, address, text string) {
	_, path, _ := strings.Cut(strings.TrimPrefix(address, "http://"), "/")
	for i, line := range strings.Split(text, "\n") {
		if _, what, ok := strings.Cut(line, "THROW "); ok {
			raw, _ := json.Marshal(fmt.Sprintf("%s\n    at App (http://localhost:5173/src/App.tsx?t=1:%d:7)", what, i+2))
			f.say(`{"method":"Runtime.exceptionThrown","sessionId":"s","params":{"exceptionDetails":{"text":"Uncaught","exception":{"type":"object","description":%s}}}}`, raw)
			if f.w.forwards {
				f.b.log += fmt.Sprintf("1:02:03 PM [vite] (client) [Unhandled error] %s\n > App src/App.tsx:%d:1\n", what, i+1)
			}
		}
		if _, what, ok := strings.Cut(line, "LOG "); ok {
			raw, _ := json.Marshal(what)
			f.say(`{"method":"Runtime.consoleAPICalled","params":{"type":"error","args":[{"type":"string","value":"%%s is %%o"},{"type":"string","value":%s},{"type":"object","description":"Error: bad\n    at x"}],"stackTrace":{"callFrames":[{"functionName":"x","url":"http://localhost:5173/src/App.tsx","lineNumber":%d,"columnNumber":0}]}}}`, raw, i)
		}
		if _, url, ok := strings.Cut(line, "FETCH "); ok {
			f.say(`{"method":"Fetch.requestPaused","params":{"requestId":"r","resourceType":"Fetch","request":{"url":%q}}}`, url)
		}
		if _, url, ok := strings.Cut(line, "SCRIPT "); ok {
			f.say(`{"method":"Fetch.requestPaused","params":{"requestId":"r","resourceType":"Script","request":{"url":%q}}}`, url)
		}
	}
	if strings.Contains(text, "ONLY /"+path+"\n") {
		f.say(`{"method":"Log.entryAdded","params":{"entry":{"source":"network","level":"error","text":"Failed to load resource: 404","url":"http://localhost:5173/api/items"}}}`)
	}
	if strings.Contains(text, "TABDIES") {
		f.say(`{"method":"Inspector.targetCrashed","params":{}}`)
		return
	}
	f.say(`{"method":"Page.lifecycleEvent","params":{"frameId":"other","loaderId":"x","name":"init"}}`)
	for _, name := range []string{"init", "load", "networkAlmostIdle"} {
		f.say(`{"method":"Page.lifecycleEvent","params":{"frameId":"f","loaderId":"l%d","name":%q}}`, id, name)
	}
}

// problemsOf returns the problems and the warnings of an edit.
func problemsOf(all []engi.AppUpdate) (problems, warnings []engi.AppUpdate) {
	for _, u := range all {
		switch u.Kind {
		case engi.AppProblem:
			problems = append(problems, u)
		case engi.AppWarning:
			warnings = append(warnings, u)
		}
	}
	return problems, warnings
}

func TestPagesAreLookedAt(t *testing.T) {
	const routes = "import { Route } from 'react-router-dom'\nexport default () => <><Route path=\"/cart\" element={<Cart/>} /><Route path=\"/item/:id\" element={<Cart/>} /></>\n"
	tests := map[string]struct {
		text     string // content of src/App.tsx
		forwards bool
		want     []string // problems
		warning  string
	}{
		"well":       {"export default 1\n", false, nil, ""},
		"throws":     {"// 1\nTHROW TypeError: x is undefined\n", false, []string{"src/App.tsx:3 TypeError: x is undefined"}, ""},
		"forwarded":  {"// 1\nTHROW TypeError: x is undefined\n", true, []string{"src/App.tsx:2 TypeError: x is undefined"}, ""},
		"logs":       {"LOG it\n", false, []string{"src/App.tsx:1 it is Error: bad"}, ""},
		"empty":      {"EMPTY\n", false, []string{"src/main.tsx:0 the page is empty"}, ""},
		"waits":      {"EMPTY\nFETCH https://example.com/items\n", false, nil, ""},
		"one page":   {routes + "// ONLY /cart\n", false, []string{":0 Request failed: /api/items: Failed to load resource: 404\non the page /cart"}, ""},
		"crash":      {"TABDIES\n", false, nil, "was not looked at: the page has ended the browser"},
		"elsewhere":  {"THROW ReferenceError: L is not defined\nSCRIPT https://unpkg.com/leaflet\n", false, nil, "scripts of unpkg.com"},
		"both":       {"THROW ReferenceError: L is not defined\nSCRIPT https://unpkg.com/leaflet\n", true, nil, "scripts of unpkg.com"},
		"many pages": {strings.Replace(routes, "<>", "<>"+strings.Repeat("<Route path=\"/a\" element={<Cart/>} /><Route path=\"/b\" element={<Cart/>} /><Route path=\"/c\" element={<Cart/>} /><Route path=\"/d\" element={<Cart/>} />", 2), 1), false, nil, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newFixture(t)
			w.models, w.forwards = &writer{answers: []string{file("src/App.tsx", tt.text)}}, tt.forwards
			s, _ := w.begin(t)
			create(t, s, "shop")
			all, last := edit(t, s, "shop", engi.EditSpec{Rounds: 1})
			problems, warnings := problemsOf(all)
			if (last.Error == nil) != (len(tt.want) == 0) || len(problems) != len(tt.want) {
				t.Fatalf("it ended with %v and the problems %+v", last.Error, problems)
			}
			for i, want := range tt.want {
				if p := problems[i]; p.Source != "browser" || !strings.HasPrefix(fmt.Sprintf("%s:%d %s", p.Path, p.Line, p.Text), want) {
					t.Errorf("%+v, want %s", p, want)
				}
			}
			if (len(warnings) == 0) != (tt.warning == "") || len(warnings) > 1 || tt.warning != "" && !strings.Contains(warnings[0].Text, tt.warning) {
				t.Errorf("the warnings are %+v", warnings)
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			if n := len(w.shown); n > 5 || name == "many pages" && n != 5 || name == "one page" && n != 2 || n > 0 && w.shown[0] != "http://localhost:5173/" {
				t.Errorf("it has shown %v", w.shown)
			}
			for _, b := range w.boxes {
				for _, p := range b.procs {
					if p.tag == "browser" && !p.ended() {
						t.Error("a browser was not ended")
					}
				}
			}
		})
	}
}

// TestBrowsersThatFail checks that edits continue, and report once that no page was viewed.
func TestBrowsersThatFail(t *testing.T) {
	for mode, want := range map[string]string{
		"none": "the template has no chromium-headless-shell", "garbage": "the browser sent a message that it may not send", "flood": "the browser sent a message that it may not send", "forged": "",
	} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			w := newFixture(t)
			w.browser = mode
			w.models = &writer{answers: []string{file("src/App.tsx", "CRASH 1\n"), file("src/App.tsx", "CRASH 2\n"), file("src/App.tsx", "export default 1\n")}}
			s, _ := w.begin(t)
			create(t, s, "shop")
			all, last := edit(t, s, "shop", engi.EditSpec{Rounds: 3})
			problems, warnings := problemsOf(all)
			if want == "" {
				if len(problems) == 0 || len(problems) > 3*20 || last.Revision != 4 {
					t.Fatalf("it ended with %+v and %d problems", last, len(problems))
				}
				for _, p := range problems {
					if len(p.Text) > 1100 || strings.ContainsAny(p.Path, "\x00\x1b") || strings.Contains(p.Path, "..") {
						t.Errorf("%+v", p)
					}
				}
				return
			}
			if last.Error != nil || last.Round != 3 || last.Revision != 4 || len(problems) != 2 {
				t.Fatalf("it ended with %+v, %v", last, last.Error)
			}
			if len(warnings) != 1 || !strings.Contains(warnings[0].Text, want) {
				t.Errorf("the warnings are %+v", warnings)
			}
		})
	}
}

func TestCheck(t *testing.T) {
	w := newFixture(t)
	s, _ := w.begin(t)
	a := create(t, s, "shop")
	ctx := t.Context()
	if c, err := s.Check(ctx, "ann", "shop"); err != nil || len(c.Problems) != 0 || c.Warning != "" || c.Revision != 1 {
		t.Fatalf("%+v, %v", c, err)
	}
	w.change(a.Sandbox, func(b *fakeSandbox) { // manually
		b.put("package.json", `{"dependencies":{"react":"19"},"scripts":{"check":"tsc"}}`)
		b.put("src/App.tsx", "THROW Error: late\nTYPEERROR\nimport './BROKEN.tsx'\n")
	})
	c, err := s.Check(ctx, "ann", "shop")
	sources := map[string]bool{}
	for _, p := range c.Problems {
		sources[p.Source] = true
	}
	if err != nil || len(sources) < 2 || !sources["vite"] || !sources["browser"] {
		t.Errorf("%+v, %v", c, err)
	}
	w.change(a.Sandbox, func(b *fakeSandbox) { b.server = false; b.put("vite.config.ts", "DIES") })
	if c, err := s.Check(ctx, "ann", "shop"); err != nil || len(c.Problems) != 1 || c.Problems[0].Source != "server" {
		t.Errorf("%+v, %v", c, err)
	}
	if _, err := s.Check(ctx, "eve", "shop"); !engi.Is(err, engi.NotFound) {
		t.Errorf("of somebody else: %v", err)
	}
}

func TestScreenshot(t *testing.T) {
	w := newFixture(t)
	s, _ := w.begin(t)
	create(t, s, "shop")
	ctx := t.Context()
	image, err := s.Screenshot(ctx, engi.ScreenshotSpec{Viewer: "ann", App: "shop", Path: "/cart?a=b", Width: 390})
	if err != nil {
		t.Fatal(err)
	}
	if c, err := png.DecodeConfig(bytes.NewReader(image)); err != nil || c.Width != 390 || c.Height != 800 || w.shown[0] != "http://localhost:5173/cart?a=b" {
		t.Errorf("%+v, %v of %v", c, err, w.shown)
	}
	for _, path := range []string{"cart", "//evil.example", "http://evil.example/", "/\x00", "/" + strings.Repeat("x", 600)} {
		if _, err := s.Screenshot(ctx, engi.ScreenshotSpec{Viewer: "ann", App: "shop", Path: path}); !engi.Is(err, engi.Invalid) {
			t.Errorf("%q: %v", path, err)
		}
	}
	if _, err := s.Screenshot(ctx, engi.ScreenshotSpec{Viewer: "ann", App: "shop", Width: 1 << 20}); !engi.Is(err, engi.Invalid) {
		t.Error(err)
	}
	w.browser = "none"
	if _, err := s.Screenshot(ctx, engi.ScreenshotSpec{Viewer: "ann", App: "shop"}); !engi.Is(err, engi.Unavailable) {
		t.Error(err)
	}
}

// TestCheckReadsWhatThereIs changes files in the sandbox and restarts the node, which
// then has none of them in memory.
func TestCheckReadsWhatThereIs(t *testing.T) {
	for name, tt := range map[string]struct {
		put    map[string]string
		source string
	}{
		"a module": {map[string]string{"src/App.tsx": "BROKEN\n"}, "vite"},
		"types":    {map[string]string{"src/App.tsx": "TYPEERROR\n", "package.json": `{"dependencies":{"react":"19"},"scripts":{"check":"tsc"}}`}, "tsc"},
	} {
		for _, again := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", started again: ", again), func(t *testing.T) {
				w := newFixture(t)
				s, stop := w.begin(t)
				a := create(t, s, "shop")
				w.change(a.Sandbox, func(b *fakeSandbox) {
					for p, text := range tt.put {
						b.put(p, text)
					}
				})
				if again {
					stop()
					s, _ = w.begin(t)
				}
				c, err := s.Check(t.Context(), "ann", "shop")
				if err != nil || len(c.Problems) != 1 || c.Problems[0].Source != tt.source || c.Revision != 2 {
					t.Errorf("the check found %+v (%v)", c, err)
				}
			})
		}
	}
}
