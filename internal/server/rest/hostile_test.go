package rest_test

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/google/go-cmp/cmp"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/test/apitest"
)

// full is a sandbox whose disk takes limit bytes.
type full struct {
	engi.Sandboxes
	limit int64
}

func (f full) Enter(ctx context.Context, viewer engi.Viewer, id engi.SandboxID) (engi.Guest, func(), error) {
	g, release, err := f.Sandboxes.Enter(ctx, viewer, id)
	return fullGuest{g, f.limit}, release, err
}

type fullGuest struct {
	engi.Guest
	limit int64
}

func (g fullGuest) take(r io.Reader) error {
	n, err := io.Copy(io.Discard, io.LimitReader(r, g.limit+1))
	if n > g.limit {
		return engi.Errorf(engi.Exhausted, "write: no space left on device")
	}
	return err
}

func (g fullGuest) Write(ctx context.Context, path string, r io.Reader, o engi.WriteOptions) error {
	return g.take(r)
}
func (g fullGuest) Unpack(ctx context.Context, dir string, r io.Reader) error { return g.take(r) }

func aSandbox(t *testing.T, w *apitest.Fixture) string {
	t.Helper()
	return "/v1/sandboxes/" + read[v1.Sandbox](t, ask(t, w, "POST", "/v1/sandboxes", `{}`), 201).ID
}

func TestHostilePaths(t *testing.T) {
	w := newFixture(t, nil)
	b := aSandbox(t, w)
	read[v1.Written](t, ask(t, w, "PUT", b+"/files?path=/workspace/ok", "x"), 200)
	for name, p := range map[string]string{
		"missing": "", "relative": "etc/passwd", "NUL": "/a\x00b", "long": "/" + strings.Repeat("a", 5000), "dots": "../../etc/passwd",
	} {
		q := "?path=" + url.QueryEscape(p)
		for _, act := range []string{"GET /files", "PUT /files", "DELETE /files", "GET /files/stat", "GET /files/list", "GET /files/watch", "GET /files/archive", "PUT /files/archive"} {
			method, path, _ := strings.Cut(act, " ")
			if p := refused(t, ask(t, w, method, b+path+q, "x"), 400, engi.Invalid); !strings.Contains(p.Detail, "path") {
				t.Errorf("%s, %s: %s", name, act, p.Detail)
			}
		}
		body, _ := json.Marshal(v1.MoveRequest{From: "/workspace/ok", To: p})
		refused(t, ask(t, w, "POST", b+"/files/move", string(body)), 400, engi.Invalid)
		body, _ = json.Marshal(v1.PathRequest{Path: p})
		refused(t, ask(t, w, "POST", b+"/files/mkdir", string(body)), 400, engi.Invalid)
	}
	// Names are bytes; what JSON cannot hold comes in base64 too.
	odd := "/workspace/\xff\xfe odd"
	read[v1.Written](t, ask(t, w, "PUT", b+"/files?path="+url.QueryEscape(odd), "odd"), 200)
	if got := ask(t, w, "GET", b+"/files?path="+url.QueryEscape(odd), "").Body.String(); got != "odd" {
		t.Errorf("read %q", got)
	}
	// "..", however it is written, stays below the root of the sandbox.
	read[v1.Written](t, ask(t, w, "PUT", b+"/files?path="+url.QueryEscape("/workspace/../../../../engi-escape"), "x"), 200)
	if info := read[v1.FileInfo](t, ask(t, w, "GET", b+"/files/stat?path=/engi-escape", ""), 200); info.Size != 1 {
		t.Errorf("%+v", info)
	}
}

func TestDiskFull(t *testing.T) {
	w, srv := apitest.Serve(t, func(o *apitest.Options) { o.Sandboxes = full{o.Sandboxes, 1 << 20} })
	b := aSandbox(t, w)
	var zipped bytes.Buffer // 64 MiB of zeros in 64 KiB
	z := gzip.NewWriter(&zipped)
	tw := tar.NewWriter(z)
	tw.WriteHeader(&tar.Header{Name: "bomb", Typeflag: tar.TypeReg, Size: 64 << 20, Mode: 0o644})
	io.CopyN(tw, zeros{}, 64<<20)
	tw.Close()
	z.Close()
	for name, c := range map[string]struct {
		path string
		size int64 // -1: not said
		body func() io.Reader
	}{
		"ten gigabytes":         {"/files?path=/big", 10 << 30, func() io.Reader { return io.LimitReader(zeros{}, 10<<30) }},
		"as much as you like":   {"/files?path=/big", -1, func() io.Reader { return zeros{} }},
		"a little more":         {"/files?path=/big", -1, func() io.Reader { return io.LimitReader(zeros{}, 3<<20) }},
		"a little, not at once": {"/files?path=/big", -1, func() io.Reader { return io.MultiReader(io.LimitReader(zeros{}, 3<<20), never(t.Context().Done())) }},
		"a bomb":                {"/files/archive?path=/d", -1, func() io.Reader { return bytes.NewReader(zipped.Bytes()) }},
		"a large tar":           {"/files/archive?path=/d", -1, func() io.Reader { return io.LimitReader(zeros{}, 1<<30) }},
	} {
		for _, expect := range []string{"", "100-continue"} {
			req, err := http.NewRequestWithContext(t.Context(), "PUT", srv.URL+b+c.path, c.body())
			if err != nil {
				t.Fatal(err)
			}
			req.ContentLength = c.size
			req.Header.Set("Authorization", "Bearer "+w.User)
			if expect != "" {
				req.Header.Set("Expect", expect)
			}
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			isFull(t, name, resp)
			if list := read[v1.List[v1.Sandbox]](t, ask(t, w, "GET", "/v1/sandboxes", ""), 200); len(list.Items) != 1 {
				t.Errorf("%s: the server lost its sandbox", name)
			}
		}
	}

	// Many clients listen only when they have sent everything.
	for _, chunked := range []bool{false, true} {
		resp := sendFirst(t, w, srv.URL, b+"/files?path=/big", 300<<20, chunked)
		isFull(t, fmt.Sprintf("sent first, chunked %v", chunked), resp)
	}
	// Who asks before sending is told before sending.
	conn, in := dial(t, srv.URL)
	fmt.Fprintf(conn, "PUT /v1/nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10737418240\r\nExpect: 100-continue\r\n\r\n")
	resp, err := http.ReadResponse(in, nil)
	if err != nil || resp.StatusCode != 404 {
		t.Fatalf("asked before sending: %v, %v", resp, err)
	}
	io.Copy(io.Discard, resp.Body)
	if _, err := in.ReadByte(); err != io.EOF {
		t.Errorf("the connection goes on: %v", err)
	}
	for name, body := range map[string]string{"nothing": "", "zip": "PK\x03\x04xxxx", "broken gzip": "\x1f\x8bxxxxxxxxxxxxx"} {
		if rec := ask(t, w, "PUT", b+"/files/archive?path=/d", body); rec.Code != 400 && rec.Code != 415 {
			t.Errorf("%s: %d %s", name, rec.Code, rec.Body)
		}
	}
}

// isFull checks that a client was told of a full disk.
func isFull(t *testing.T, name string, resp *http.Response) {
	t.Helper()
	defer resp.Body.Close()
	var p v1.Problem
	if err := json.NewDecoder(resp.Body).Decode(&p); err != nil || resp.StatusCode != http.StatusInsufficientStorage || p.Kind != v1.Exhausted || p.Remedy == "" {
		t.Errorf("%s: %s, %+v, %v", name, resp.Status, p, err)
	}
}

func dial(t *testing.T, to string) (net.Conn, *bufio.Reader) {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(to, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(2 * time.Minute))
	return conn, bufio.NewReader(conn)
}

// sendFirst puts size bytes and reads nothing before all are sent.
func sendFirst(t *testing.T, w *apitest.Fixture, to, path string, size int64, chunked bool) *http.Response {
	t.Helper()
	conn, in := dial(t, to)
	length := fmt.Sprintf("Content-Length: %d", size)
	if chunked {
		length = "Transfer-Encoding: chunked"
	}
	fmt.Fprintf(conn, "PUT %s HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n%s\r\n\r\n", path, w.User, length)
	out := io.Writer(conn)
	if chunked {
		out = httputil.NewChunkedWriter(conn)
	}
	n, err := io.CopyBuffer(struct{ io.Writer }{out}, io.LimitReader(zeros{}, size), make([]byte, 1<<20))
	if chunked && err == nil {
		_, err = io.WriteString(conn, "0\r\n\r\n")
	}
	if err != nil {
		t.Fatalf("after %d of %d bytes: %v", n, size, err)
	}
	resp, err := http.ReadResponse(in, nil)
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

// never has nothing to read before its channel is closed.
type never <-chan struct{}

func (n never) Read(p []byte) (int, error) { <-n; return 0, io.EOF }

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestHostileArchives(t *testing.T) {
	w := newFixture(t, nil)
	b := aSandbox(t, w)
	for name, h := range map[string]tar.Header{
		"upwards":       {Name: "../../out", Typeflag: tar.TypeReg, Mode: 0o644},
		"absolute link": {Name: "l", Typeflag: tar.TypeLink, Linkname: "/etc/passwd"},
	} {
		var buf bytes.Buffer
		tw := tar.NewWriter(&buf)
		if err := tw.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		tw.Close()
		if rec := ask(t, w, "PUT", b+"/files/archive?path=/workspace/in", buf.String()); rec.Code < 400 || rec.Code >= 500 {
			t.Errorf("%s: %d %s", name, rec.Code, rec.Body)
		}
	}
}

func TestHashesAreCompared(t *testing.T) {
	w := newFixture(t, nil)
	b := aSandbox(t, w)
	f := b + "/files?path=/workspace/f"
	read[v1.Written](t, ask(t, w, "PUT", f, "first"), 200)
	if p := refused(t, ask(t, w, "PUT", f, "second", v1.HashHeader, strings.Repeat("0", 64)), 400, engi.Invalid); !strings.Contains(p.Detail, "SHA-256") {
		t.Errorf("%s", p.Detail)
	}
	if got := ask(t, w, "GET", f, "").Body.String(); got != "first" {
		t.Errorf("the file is %q after an upload that was damaged", got)
	}
	for spec, want := range map[string]struct {
		status int
		body   string
	}{
		"bytes=0-0": {206, "f"}, "bytes=1-": {206, "irst"}, "bytes=-2": {206, "st"}, "bytes=3-99": {206, "st"}, "bytes=5-": {416, ""}, "bytes=9-10": {416, ""},
		"bytes=-0": {416, ""}, "bytes=2-1": {200, "first"}, "bytes=0-1,3-4": {200, "first"}, "bytes=x": {200, "first"}, "lines=1-2": {200, "first"}, "bytes=-99": {206, "first"},
	} {
		rec := ask(t, w, "GET", f, "", "Range", spec)
		if rec.Code != want.status || want.status < 400 && rec.Body.String() != want.body {
			t.Errorf("Range %q: %d %q, want %d %q", spec, rec.Code, rec.Body, want.status, want.body)
		}
	}
}

func TestDownloadsEndWithTheHashAskedFor(t *testing.T) {
	w := newFixture(t, nil)
	f := aSandbox(t, w) + "/files?path=/workspace/f"
	read[v1.Written](t, ask(t, w, "PUT", f, "123456789"), 200)
	const sha = "15e2b0d3c33891ebb0f1ef609ec419420c20e320ce94c65fbc8c3312448eb225"
	for want, trailer := range map[string]http.Header{
		"": {v1.HashHeader: {sha}}, "sha256": {v1.HashHeader: {sha}}, "crc32c": {v1.CRCHeader: {"e3069283"}},
	} {
		header := []string{"TE", "trailers"}
		if want != "" {
			header = append(header, v1.WantHeader, want)
		}
		resp := ask(t, w, "GET", f, "", header...).Result()
		if b, err := io.ReadAll(resp.Body); string(b) != "123456789" || err != nil {
			t.Errorf("%s: %q, %v", want, b, err)
		}
		if d := cmp.Diff(trailer, resp.Trailer); d != "" {
			t.Errorf("%s (-want +got):\n%s", want, d)
		}
	}
	refused(t, ask(t, w, "GET", f, "", "TE", "trailers", v1.WantHeader, "md5"), 400, engi.Invalid)
}

func TestCrowdsAreBounded(t *testing.T) {
	w, srv := apitest.Serve(t, nil)
	b := aSandbox(t, w)
	read[v1.FileInfo](t, ask(t, w, "POST", b+"/files/mkdir", `{"path":"/workspace/w"}`), 201)
	ctx, cancel := context.WithCancel(t.Context())
	var mu sync.Mutex
	codes := map[int]int{}
	var all sync.WaitGroup
	first := make(chan v1.Problem, 1)
	tr := &http.Transport{}
	defer tr.CloseIdleConnections()
	for range 700 { // stands for any number: the bound is 512
		all.Go(func() {
			req, _ := http.NewRequestWithContext(ctx, "GET", srv.URL+b+"/files/watch?path=/workspace/w", nil)
			req.Header.Set("Authorization", "Bearer "+w.User)
			resp, err := (&http.Client{Transport: tr}).Do(req)
			if err != nil {
				return
			}
			defer resp.Body.Close()
			mu.Lock()
			codes[resp.StatusCode]++
			n := codes[200] + codes[429]
			mu.Unlock()
			if resp.StatusCode == 429 {
				var p v1.Problem
				if json.NewDecoder(resp.Body).Decode(&p) == nil {
					select {
					case first <- p:
					default:
					}
				}
			}
			if n >= 700 {
				cancel()
			}
			io.Copy(io.Discard, resp.Body)
		})
	}
	select {
	case p := <-first:
		if p.Kind != v1.Exhausted || !strings.Contains(p.Detail, "512 streams") || p.Remedy == "" {
			t.Errorf("problem %+v", p)
		}
	case <-time.After(time.Minute):
		t.Error("nobody is refused")
	}
	if rec := ask(t, w, "GET", b+"/files/stat?path=/workspace/w", ""); rec.Code != 200 {
		t.Errorf("others are served no more: %d %s", rec.Code, rec.Body)
	}
	cancel()
	all.Wait()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		rec := askSoon(t, w, w.User, "GET", b+"/files/watch?path=/workspace/w", "")
		if rec.Code == 200 {
			break // who left counts no more
		}
		if time.Now().After(deadline) {
			t.Fatalf("streams that ended still count: %s", rec.Body)
		}
	}
}

func TestSlowUploads(t *testing.T) {
	w, srv := apitest.Serve(t, nil)
	b := aSandbox(t, w)
	conn, err := net.Dial("tcp", strings.TrimPrefix(srv.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	// Whoever hangs up in the middle leaves nothing behind.
	fmt.Fprintf(conn, "PUT %s/files?path=/workspace/slow HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Length: 1000\r\n\r\nhalf", b, w.User)
	files := func() int {
		return len(read[v1.List[v1.FileInfo]](t, ask(t, w, "GET", b+"/files/list?path=/workspace", ""), 200).Items)
	}
	until(t, "the upload has begun", func() bool { return files() > 0 })
	conn.Close()
	until(t, "nothing is left behind", func() bool { return files() == 0 })
	big := strings.Repeat("x", 128<<10)
	if rec := ask(t, w, "POST", b+"/processes", `{"args":["true"],"env":{"A":"`+strings.Repeat("x", 48<<20)+`"}}`); rec.Code != 413 {
		t.Errorf("a body over the limit: %d", rec.Code)
	}
	req, _ := http.NewRequestWithContext(t.Context(), "GET", srv.URL+b, nil)
	req.Header.Set("X-Large", big)
	if resp, err := http.DefaultClient.Do(req); err == nil {
		if resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
			t.Errorf("large headers: %s", resp.Status)
		}
		resp.Body.Close()
	}
}

func TestTerminals(t *testing.T) {
	w, srv := apitest.Serve(t, nil)
	b := aSandbox(t, w)
	p := read[v1.Process](t, ask(t, w, "POST", b+"/processes", `{"args":["/bin/sh","-c","echo begin; read x; echo got $x; read y; exit 5"],"terminal":{"cols":80,"rows":24},"detach":true}`), 201)
	dial := func(key, query string) (*websocket.Conn, *http.Response, error) {
		return websocket.Dial(t.Context(), srv.URL+b+"/processes/"+p.ID+"/terminal"+query, &websocket.DialOptions{HTTPHeader: http.Header{"Authorization": {"Bearer " + key}}})
	}
	// Neither a stranger nor who only reads.

	_, secret, err := w.Keys.Create(t.Context(), engi.Key{Owner: "ann", Scopes: []engi.Scope{engi.ScopeRead}})
	if err != nil {
		t.Fatal(err)
	}
	for key, status := range map[string]int{w.Other: 404, secret: 403, "": 401} {
		if _, resp, err := dial(key, ""); err == nil || resp == nil || resp.StatusCode != status {
			t.Errorf("a terminal of somebody else: %v, %v, want %d", resp, err, status)
		}
	}
	var shown [3]strings.Builder
	until := func(i int, ws *websocket.Conn, text string) {
		t.Helper()
		for !strings.Contains(shown[i].String(), text) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			kind, data, err := ws.Read(ctx)
			cancel()
			if err != nil {
				t.Fatalf("viewer %d: %v; it saw %q", i, err, shown[i].String())
			}
			if kind == websocket.MessageText {
				data = append([]byte("<"), append(data, '>')...)
			}
			shown[i].Write(data)
		}
	}
	one, _, err := dial(w.User, "")
	if err != nil {
		t.Fatal(err)
	}
	defer one.CloseNow()
	until(0, one, "begin")
	two, _, err := dial(w.Admin, "?read_only=true") // comes later and sees it all
	if err != nil {
		t.Fatal(err)
	}
	defer two.CloseNow()
	until(1, two, "begin")
	if err := two.Write(t.Context(), websocket.MessageBinary, []byte("hijack\n")); err != nil {
		t.Fatal(err)
	}
	time.Sleep(50 * time.Millisecond)
	if err := one.Write(t.Context(), websocket.MessageBinary, []byte("hello\n")); err != nil {
		t.Fatal(err)
	}
	until(0, one, "got hello")
	until(1, two, "got hello")
	// What makes no sense ends that view only.
	three, _, err := dial(w.User, "?offset=0")
	if err != nil {
		t.Fatal(err)
	}
	defer three.CloseNow()
	if err := three.Write(t.Context(), websocket.MessageText, []byte(`{"type":"resize","cols":0}`)); err != nil {
		t.Fatal(err)
	}
	until(2, three, `"error"`)
	one.Write(t.Context(), websocket.MessageBinary, []byte("x\n"))
	until(0, one, `"exit_code":5`)
	until(1, two, `"exit_code":5`)
	if strings.Contains(shown[0].String(), "hijack") {
		t.Errorf("who only reads typed: %q", shown[0].String())
	}
	if _, _, err := one.Read(t.Context()); websocket.CloseStatus(err) != websocket.StatusNormalClosure {
		t.Errorf("the end is %v", err)
	}
}

func TestOutputFromAnywhere(t *testing.T) {
	w := newFixture(t, nil)
	b := aSandbox(t, w)
	p := read[v1.Process](t, ask(t, w, "POST", b+"/processes", `{"command":"printf '\\342\\202'; sleep 0.05; printf '\\254 done'","detach":true,"tag":"x"}`), 201)
	for _, from := range []int{0, 2, 5} {
		rec := ask(t, w, "GET", fmt.Sprintf("%s/processes/%s/events?offset=%d", b, p.ID, from), "")
		var out, last string
		for line := range strings.Lines(rec.Body.String()) {
			var e v1.ProcessUpdate
			if err := json.Unmarshal([]byte(line), &e); err != nil {
				t.Fatal(err)
			}
			if last = e.Type; e.Type == v1.EventStdout {
				out += e.Data + string(e.DataBase64)
			}
		}
		want := map[int]string{0: "€ done", 2: "\xac done", 5: "one"}[from]
		if out != want || last != v1.EventExit {
			t.Errorf("from %d: %q, last event %s; want %q", from, out, last, want)
		}
	}
	refused(t, ask(t, w, "GET", b+"/processes/"+p.ID+"/events?offset=1000000", ""), 400, engi.Invalid)
	refused(t, ask(t, w, "GET", b+"/processes/nope/events", ""), 404, engi.NotFound)
	refused(t, ask(t, w, "POST", b+"/processes", `{"args":["/no/such/program"],"detach":true}`), 404, engi.NotFound)
	refused(t, ask(t, w, "POST", b+"/processes", `{"args":["true"],"command":"true"}`), 400, engi.Invalid)
	if rec := ask(t, w, "GET", b+"/processes/"+p.ID+"/terminal", ""); rec.Code != http.StatusUpgradeRequired {
		t.Errorf("a terminal without a WebSocket: %d", rec.Code)
	}
}

// TestStreamsEndWithTheirKey opens everything that stays open, and revokes the key.
func TestStreamsEndWithTheirKey(t *testing.T) {
	w, srv := apitest.Serve(t, nil)
	b := aSandbox(t, w)
	read[v1.FileInfo](t, ask(t, w, "POST", b+"/files/mkdir", `{"path":"/workspace/w"}`), 201)
	proc := read[v1.Process](t, ask(t, w, "POST", b+"/processes", `{"args":["/bin/sh","-c","echo begin; sleep 60"],"terminal":{"cols":80,"rows":24},"detach":true}`), 201)
	run := read[v1.Execution](t, ask(t, w, "POST", "/v1/executions", `{"language":"python","code":"echo begin; sleep 60s","async":true}`), 202)
	mine, secret, err := w.Keys.Create(t.Context(), engi.Key{Owner: "ann"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	type end struct{ name, text string }
	begun, ends := make(chan string, 20), make(chan end, 20)
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	n := 0
	open := func(name, key, accept, method, path, body string) {
		n++
		all.Go(func() {
			r, err := http.NewRequestWithContext(ctx, method, srv.URL+path, strings.NewReader(body))
			if err != nil {
				t.Error(err)
				return
			}
			r.Header.Set("Authorization", "Bearer "+key)
			r.Header.Set("Accept", accept)
			if accept == "application/json" { // its header comes at the end
				begun <- name
			}
			res, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Errorf("%s: %v", name, err)
				return
			}
			defer res.Body.Close()
			if accept != "application/json" {
				begun <- name
			}
			text, _ := io.ReadAll(res.Body)
			ends <- end{name, string(text)}
		})
	}
	for _, form := range []string{"application/x-ndjson", "text/event-stream"} {
		for _, c := range [][3]string{
			{"GET", "/v1/events"},
			{"GET", b + "/network/events?follow=true"},
			{"GET", b + "/files/watch?path=/workspace/w"},
			{"GET", b + "/processes/" + proc.ID + "/events"},
			{"POST", b + "/processes", `{"args":["/bin/sleep","60"]}`},
			{"POST", "/v1/executions", program("sleep 60s")},
			{"GET", "/v1/executions/" + run.ID + "/events"},
		} {
			open(c[0]+" "+c[1]+" "+form, secret, form, c[0], c[1], c[2])
		}
	}
	open("wait", secret, "application/json", "GET", "/v1/executions/"+run.ID+"?wait=60s", "")
	n++
	ws, _, err := websocket.Dial(ctx, srv.URL+b+"/processes/"+proc.ID+"/terminal", &websocket.DialOptions{HTTPHeader: http.Header{"Authorization": {"Bearer " + secret}}})
	if err != nil {
		t.Fatal(err)
	}
	defer ws.CloseNow()
	begun <- "terminal"
	all.Go(func() {
		text := ""
		for {
			_, data, err := ws.Read(ctx)
			if err != nil {
				ends <- end{"terminal", text}
				return
			}
			text += string(data)
		}
	})
	for range n {
		select {
		case <-begun:
		case <-ctx.Done():
			t.Fatal("not all begin")
		}
	}
	open("another key's", w.User, "application/x-ndjson", "GET", "/v1/events", "")
	<-begun
	if err := w.Keys.Revoke(ctx, "ann", mine.ID); err != nil {
		t.Fatal(err)
	}
	for i := 1; i < n; i++ {
		select {
		case e := <-ends:
			if !strings.Contains(e.text, mine.ID+" was revoked") || !strings.Contains(e.text, `"kind":"anonymous"`) || e.name == "another key's" {
				t.Errorf("%s ends with %q", e.name, e.text)
			}
		case <-ctx.Done():
			t.Fatalf("%d of %d have ended", i-1, n-1)
		}
	}
	select {
	case e := <-ends:
		t.Errorf("%s ends, too: %q", e.name, e.text)
	default:
	}
}
