package bench

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/coder/websocket"

	"github.com/engi-dev/engi"
	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/client"
)

// AppTimes is the result of the benchmark of apps. Times are of whole requests over
// HTTP, by operation.
type AppTimes struct {
	Bench    string             `json:"bench"`
	Template string             `json:"template"`
	Times    map[string]Sampled `json:"times"`
	Host     Host               `json:"host"`
}

// AppActs are the operations in the order in which they are measured.
var AppActs = []string{"create, nothing ready", "create", "page", "apply 1 file", "apply 10 files", "apply 50 files", "hot reload", "open", "open, sandbox lost"}

// appTemplate is the template of the app, whose pages have hot reload.
const appTemplate = "vite-react"

// Apps measures an app, n samples of each operation. base is the address of the node.
func Apps(ctx context.Context, c *client.Client, pools engi.Pools, base string, n int) (t AppTimes, err error) {
	t = AppTimes{Bench: "app", Template: appTemplate, Times: map[string]Sampled{}}
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
	create := func(act string) error {
		return timed(act, func() (err error) {
			app, err = c.CreateApp(ctx, v1.AppRequest{Template: appTemplate})
			return err
		})
	}
	if err := create("create, nothing ready"); err != nil {
		return t, err
	}
	for range n {
		if err := untilReady(ctx, pools); err != nil {
			return t, err
		}
		if err := c.RemoveApp(ctx, app.ID); err != nil {
			return t, err
		}
		if err := create("create"); err != nil {
			return t, err
		}
	}
	for i := range n {
		if err := timed("page", func() error { _, err := page(ctx, base, app, "/"); return err }); err != nil {
			return t, err
		}
		for _, files := range []int{1, 10, 50} {
			act := fmt.Sprintf("apply %d files", files)
			if files == 1 {
				act = "apply 1 file"
			}
			time.Sleep(500 * time.Millisecond) // until the repository in the sandbox is up to date
			if err := timed(act, func() error { return applyFiles(ctx, c, app.ID, files, i, nil) }); err != nil {
				return t, err
			}
		}
	}
	if err := reloads(ctx, c, base, app, n, func(took time.Duration, err error) { record("hot reload", took, err) }); err != nil {
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

// untilReady waits until a sandbox of the template is kept ready.
func untilReady(ctx context.Context, pools engi.Pools) error {
	for {
		for _, p := range pools.Pools(ctx) {
			if p.Template == appTemplate && p.Ready > 0 {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return engi.Errorf(engi.Expired, "wait for a sandbox that is kept ready: %v", ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// applyFiles applies files in a version to an app, and waits for the end. seen is called
// when they are written.
func applyFiles(ctx context.Context, c *client.Client, id string, files, version int, seen func()) error {
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
		case u.Type == v1.AppWritten && seen != nil:
			seen()
			seen = nil
		case u.Type == v1.AppDone:
			return nil
		case u.Type == v1.AppError && u.Error != nil:
			return engi.Errorf(engi.Unavailable, "%s", u.Error.Detail)
		}
	}
	return engi.Errorf(engi.Unavailable, "the stream ended before the apply")
}

// page returns what an app serves at a path, through its preview.
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

// reloads measures the time from when it is told that a file is written to the message
// with which a page takes it over, which is 0 if the message is there before.
func reloads(ctx context.Context, c *client.Client, base string, app v1.App, n int, sample func(time.Duration, error)) error {
	text, err := page(ctx, base, app, "/@vite/client")
	if err != nil {
		return err
	}
	host, err := previewHost(app)
	if err != nil {
		return err
	}
	token := reloadToken.FindStringSubmatch(text)
	if token == nil {
		return engi.Errorf(engi.Unavailable, "the development server has no token for its socket")
	}
	ws, _, err := websocket.Dial(ctx, "ws"+strings.TrimPrefix(base, "http")+"/?token="+token[1], &websocket.DialOptions{
		Host: host, Subprotocols: []string{"vite-hmr"}, HTTPHeader: http.Header{"Origin": {"http://" + host}},
	})
	if err != nil {
		return engi.Errorf(engi.Unavailable, "%v", err)
	}
	came := make(chan time.Time, 1000)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			_, data, err := ws.Read(ctx)
			if err != nil {
				return
			}
			if strings.Contains(string(data), `"update"`) {
				came <- time.Now()
			}
		}
	}()
	defer func() {
		ws.CloseNow()
		<-done
	}()
	// The server tells of modules that a page has.
	for _, path := range []string{"/src/main.tsx", "/src/App.tsx"} {
		if _, err := page(ctx, base, app, path); err != nil {
			return err
		}
	}
	for i := range n {
		var written time.Time
		if err := applyFiles(ctx, c, app.ID, 1, 1000+i, func() { written = time.Now() }); err != nil {
			return err
		}
		select {
		case at := <-came:
			sample(max(0, at.Sub(written)), nil)
		case <-time.After(10 * time.Second):
			sample(0, engi.Errorf(engi.Expired, "no hot reload came"))
		}
		for len(came) > 0 {
			<-came
		}
	}
	return nil
}
