package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/client"
	"github.com/engi-dev/engi/internal/clock"
	"github.com/engi-dev/engi/internal/engi"
)

// AppTimes is the result of the benchmark of apps. Times are of whole requests over
// HTTP, by operation.
type AppTimes struct {
	Bench    string             `json:"bench"`
	Template string             `json:"template"`
	Browser  string             `json:"browser" doc:"that has shown the pages; empty if they were fetched without one"`
	Times    map[string]Sampled `json:"times"`
	Host     Host               `json:"host"`
}

// AppActs lists the operations in the order in which they are measured.
var AppActs = []string{
	"create, nothing ready", createToPage, pageCreated, pageAnswered, pageLoaded, pageShown, "its sandbox alone", "page with modules, the first time", "page with modules", "apply 1 file", "apply 10 files", "apply 50 files",
	shownReload, "hot reload of a file", "hot reload of an apply", "reconnect", "reconnect, sandbox asleep", "open", "open, sandbox lost",
}

// One sample is the time from the request for an app to its page, with its parts.
// The last three parts concern a page in a browser.
const (
	createToPage = "create, to the page"
	pageCreated  = "  of that: create"
	pageAnswered = "  of that: page answered"
	pageLoaded   = "  of that: modules loaded"
	pageShown    = "  of that: rendered"
	shownReload  = "hot reload, shown"
)

// appTemplate is the template of the app, whose pages have hot reload.
const appTemplate = "vite-react"

// Apps measures an app, n samples of each operation. base is the address of the node. Pages
// are shown in b, or fetched with all their modules if b is nil.
func Apps(ctx context.Context, c *client.Client, pools engi.Pools, base string, n int, b *Browser) (t AppTimes, err error) {
	t = AppTimes{Bench: "app", Template: appTemplate, Times: map[string]Sampled{}}
	if b != nil {
		t.Browser = b.Name
	}
	samples := map[string][]time.Duration{}
	record := func(act string, took time.Duration, err error) {
		s := t.Times[act]
		if s.N++; err != nil {
			if s.Failures++; s.Failure == "" {
				s.Failure = err.Error()
			}
		} else {
			samples[act] = append(samples[act], took)
		}
		t.Times[act] = s
	}
	timed := func(act string, f func() error) error {
		began := time.Now()
		err := f()
		record(act, time.Since(began), err)
		return err
	}
	defer func() {
		for act, all := range samples {
			s := t.Times[act]
			s.Ms = Summarize(all)
			t.Times[act] = s
		}
	}()
	var app v1.App
	create := func() (err error) {
		app, err = c.CreateApp(ctx, v1.AppRequest{Template: appTemplate})
		return err
	}
	if err := timed("create, nothing ready", create); err != nil {
		return t, err
	}
	for range n {
		if err := untilReady(ctx, pools); err != nil {
			return t, err
		}
		if err := c.RemoveApp(ctx, app.ID); err != nil {
			return t, err
		}
		if b != nil {
			if err := b.fresh(); err != nil {
				return t, err
			}
		}
		if err := timed(createToPage, func() error {
			if err := timed(pageCreated, create); err != nil {
				return err
			}
			if b == nil {
				return timed("page with modules, the first time", func() error { return modules(ctx, base, app) })
			}
			x, err := b.open(app.PreviewURL)
			for act, took := range map[string]time.Duration{pageAnswered: x.answered, pageLoaded: x.loaded, pageShown: x.shown} {
				record(act, took, err)
			}
			return err
		}); err != nil {
			return t, err
		}
	}
	for range n {
		if err := untilReady(ctx, pools); err != nil {
			return t, err
		}
		var s v1.Sandbox
		if err := timed("its sandbox alone", func() (err error) {
			s, err = c.CreateSandbox(ctx, v1.SandboxRequest{Template: appTemplate})
			return err
		}); err != nil {
			return t, err
		}
		if err := c.StopSandbox(ctx, s.ID); err != nil {
			return t, err
		}
	}
	for i := range n {
		if err := timed("page with modules", func() error { return modules(ctx, base, app) }); err != nil {
			return t, err
		}
		for _, files := range []int{1, 10, 50} {
			act := fmt.Sprintf("apply %d files", files)
			if files == 1 {
				act = "apply 1 file"
			}
			time.Sleep(500 * time.Millisecond) // wait until the repository in the sandbox is up to date
			if err := timed(act, func() error { return applyFiles(ctx, c, app.ID, files, i) }); err != nil {
				return t, err
			}
		}
	}
	if b != nil {
		if err := shownReloads(ctx, c, b, app, n, record); err != nil {
			return t, err
		}
	}
	if err := reloads(ctx, c, base, app, n, timed); err != nil {
		return t, err
	}
	for range n {
		if err := timed("open", func() error { _, err := c.OpenApp(ctx, app.ID); return err }); err != nil {
			return t, err
		}
	}
	for range min(n, 3) {
		if err := untilReady(ctx, pools); err != nil {
			return t, err
		}
		if err := c.StopSandbox(ctx, app.SandboxID); err != nil {
			return t, err
		}
		if err := timed("open, sandbox lost", func() (err error) { app, err = c.OpenApp(ctx, app.ID); return err }); err != nil {
			return t, err
		}
	}
	return t, c.RemoveApp(ctx, app.ID)
}

// untilReady waits until the pool has a sandbox of the template ready.
func untilReady(ctx context.Context, pools engi.Pools) error {
	for {
		for _, p := range pools.Pools(ctx) {
			if p.Template == appTemplate && p.Ready > 0 {
				return nil
			}
		}
		if clock.Sleep(ctx, 20*time.Millisecond) != nil {
			return engi.Errorf(engi.Expired, "wait for a sandbox that is kept ready: %v", ctx.Err())
		}
	}
}

// applyFiles applies files of a version to an app, and waits for the end.
func applyFiles(ctx context.Context, c *client.Client, id string, files, version int) error {
	var text strings.Builder
	for i := range files {
		if i == 0 {
			fmt.Fprintf(&text, "<file path=\"src/App.tsx\">\nexport default function App() {\n  return <h1 className=\"p-4\">files %d version %d</h1>\n}\n</file>\n", files, version)
			continue
		}
		fmt.Fprintf(&text, "<file path=\"src/parts/Part%d.tsx\">\nexport const Part%d = () => <p className=\"m-%d\">version %d of %d</p>\n</file>\n", i, i, i, version, files)
	}
	seq, err := c.ApplyToApp(ctx, id, v1.ApplyRequest{Text: text.String()}, "")
	if err != nil {
		return err
	}
	for u, err := range c.WatchApp(ctx, id, seq) {
		switch {
		case err != nil:
			return err
		case u.Type == v1.AppDone && u.Apply == seq: // other updates are about an earlier change by hand
			return nil
		case u.Type == v1.AppError && u.Error != nil:
			return engi.Errorf(engi.Unavailable, "%s", u.Error.Detail)
		}
	}
	return engi.Errorf(engi.Unavailable, "the stream ended before the apply")
}

// page returns the response of an app at a path, through its preview.
func page(ctx context.Context, base string, app v1.App, path string) (string, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, base+path, nil)
	if err != nil {
		return "", engi.Errorf(engi.Internal, "%v", err)
	}
	if r.Host, err = previewHost(app); err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return "", engi.Errorf(engi.Unavailable, "%v", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 4<<20))
	if err != nil || resp.StatusCode != http.StatusOK {
		return "", engi.Errorf(engi.Unavailable, "GET %s: %s, %v", path, resp.Status, err)
	}
	return string(body), nil
}

func previewHost(app v1.App) (string, error) {
	u, err := url.Parse(app.PreviewURL)
	if err != nil {
		return "", engi.Errorf(engi.Internal, "%v", err)
	}
	return u.Host, nil
}

var reloadToken = regexp.MustCompile(`wsToken = "([^"]+)"`)

// A reloader receives the messages of an app's development server to its pages.
type reloader struct {
	c        *websocket.Conn
	messages chan string // closed when the connection ends
}

// listen connects as a page does.
func listen(ctx context.Context, base string, app v1.App) (*reloader, error) {
	text, err := page(ctx, base, app, "/@vite/client")
	if err != nil {
		return nil, err
	}
	host, err := previewHost(app)
	if err != nil {
		return nil, err
	}
	token := reloadToken.FindStringSubmatch(text)
	if token == nil {
		return nil, engi.Errorf(engi.Unavailable, "the development server has no token for its socket")
	}
	c, _, err := websocket.Dial(ctx, "ws"+strings.TrimPrefix(base, "http")+"/?token="+token[1], &websocket.DialOptions{
		Host: host, Subprotocols: []string{"vite-hmr"}, HTTPHeader: http.Header{"Origin": {"http://" + host}},
	})
	if err != nil {
		return nil, engi.Errorf(engi.Unavailable, "%v", err)
	}
	r := &reloader{c, make(chan string, 1000)}
	go func() {
		defer close(r.messages)
		for {
			_, data, err := c.Read(ctx)
			if err != nil {
				return
			}
			r.messages <- string(data)
		}
	}()
	return r, r.wait("connected")
}

func (r *reloader) close() {
	r.c.CloseNow()
	for range r.messages {
	}
}

// wait waits for a message of a type.
func (r *reloader) wait(kind string) error {
	late := time.After(time.Minute)
	for {
		select {
		case m, ok := <-r.messages:
			if !ok {
				return engi.Errorf(engi.Unavailable, "the connection has ended before the message %q", kind)
			}
			if strings.Contains(m, `"`+kind+`"`) {
				return nil
			}
		case <-late:
			return engi.Errorf(engi.Expired, "no message %q came", kind)
		}
	}
}

// shownReloads measures the time from the answer to a request that writes a file until a
// browser shows the new content.
func shownReloads(ctx context.Context, c *client.Client, b *Browser, app v1.App, n int, record func(act string, took time.Duration, err error)) error {
	t, err := c.Template(ctx, app.Template)
	if err != nil {
		return err
	}
	if err := b.fresh(); err != nil {
		return err
	}
	if _, err := b.open(app.PreviewURL); err != nil {
		return err
	}
	for i := range n {
		text := fmt.Sprintf("shown %d", i)
		seen, err := b.await(text)
		if err != nil {
			return err
		}
		_, err = c.Files(app.SandboxID).Write(ctx, t.WorkDir+"/src/App.tsx", strings.NewReader("export default function App() {\n  return <h1>"+text+"</h1>\n}\n"))
		began := time.Now()
		if err == nil {
			err = seen()
		}
		if record(shownReload, time.Since(began), err); err != nil {
			return err
		}
	}
	return nil
}

// reloads measures the time from a change until a page was notified and has the module, and
// the time from the end of the connection until a page has reloaded everything.
func reloads(ctx context.Context, c *client.Client, base string, app v1.App, n int, timed func(act string, f func() error) error) error {
	r, err := listen(ctx, base, app)
	if err != nil {
		return err
	}
	defer func() { r.close() }()
	// The server sends messages only about modules that a page has loaded.
	if err := modules(ctx, base, app); err != nil {
		return err
	}
	t, err := c.Template(ctx, app.Template)
	if err != nil {
		return err
	}
	files := c.Files(app.SandboxID)
	took := func(text string) error {
		for {
			if err := r.wait("update"); err != nil {
				return err
			}
			code, err := page(ctx, base, app, fmt.Sprintf("/src/App.tsx?t=%d", time.Now().UnixMilli()))
			if err != nil || strings.Contains(code, text) {
				return err
			}
		}
	}
	for i := range n {
		text := fmt.Sprintf("export default function App() {\n  return <h1>written %d</h1>\n}\n", i)
		if err := timed("hot reload of a file", func() error {
			if _, err := files.Write(ctx, t.WorkDir+"/src/App.tsx", strings.NewReader(text)); err != nil {
				return err
			}
			return took(fmt.Sprintf("written %d", i))
		}); err != nil {
			return err
		}
		var applied error
		done := make(chan struct{})
		err := timed("hot reload of an apply", func() error {
			go func() {
				defer close(done)
				applied = applyFiles(ctx, c, app.ID, 1, 1000+i)
			}()
			return took(fmt.Sprintf("files 1 version %d", 1000+i))
		})
		if <-done; err != nil || applied != nil {
			return errors.Join(err, applied)
		}
	}
	for _, act := range []string{"reconnect", "reconnect, sandbox asleep"} {
		for range min(n, 5) {
			if act == "reconnect" {
				r.close()
			} else if _, err := c.HibernateSandbox(ctx, app.SandboxID, false); err != nil {
				return err
			}
			if err := timed(act, func() error {
				again, err := listen(ctx, base, app)
				if err != nil {
					return err
				}
				r.close()
				r = again
				return modules(ctx, base, app)
			}); err != nil {
				return err
			}
		}
	}
	return nil
}

var moduleImport = regexp.MustCompile(`(?:\bfrom|\bimport)\s*\(?\s*["'](/[^"'\s]+)["']|<script[^>]+src="(/[^"\s]+)"`)

// modules gets the page of an app with all its modules, six at a time, as a browser does.
func modules(ctx context.Context, base string, app v1.App) error {
	seen, level := map[string]bool{}, []string{"/"}
	for len(level) > 0 {
		texts, errs := make([]string, len(level)), make([]error, len(level))
		var work sync.WaitGroup
		slots := make(chan struct{}, 6)
		for i, path := range level {
			slots <- struct{}{}
			work.Go(func() {
				texts[i], errs[i] = page(ctx, base, app, path)
				<-slots
			})
		}
		work.Wait()
		if err := errors.Join(errs...); err != nil {
			return err
		}
		level = nil
		for _, m := range moduleImport.FindAllStringSubmatch(strings.Join(texts, "\n"), -1) {
			if path := m[1] + m[2]; !seen[path] {
				seen[path] = true
				level = append(level, path)
			}
		}
	}
	return nil
}
