package guestd_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"io"
	"mime/multipart"
	"net"
	"net/http"
	"net/textproto"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/sandbox/guest/guestd"
	"github.com/engi-dev/engi/internal/sandbox/guest/wire"
)

// e2bClient sends requests in the same way as E2B's SDKs.
type e2bClient struct {
	t    *testing.T
	http *http.Client
	root string
}

func newE2BClient(t *testing.T) *e2bClient {
	t.Helper()
	root := t.TempDir()
	s := guestd.New(guestd.Options{Root: root, Token: "secret", InProcess: true})
	ctx, cancel := context.WithCancel(context.Background())
	tr := &http.Transport{DisableCompression: true, DialContext: func(context.Context, string, string) (net.Conn, error) {
		a, b := net.Pipe()
		go s.Serve(ctx, b)
		return a, nil
	}}
	t.Cleanup(func() { tr.CloseIdleConnections(); cancel(); s.Close() })
	c := &e2bClient{t: t, http: &http.Client{Transport: tr}, root: root}
	resp := c.raw("POST", wire.Prefix+"setup", "application/json", strings.NewReader(`{"user":"user","home":"/home/user","env":{"SANDBOX":"yes"}}`), nil)
	if resp.StatusCode != 204 {
		t.Fatalf("setup: %d", resp.StatusCode)
	}
	return c
}

func (c *e2bClient) raw(method, path, kind string, body io.Reader, header http.Header) *http.Response {
	c.t.Helper()
	req, err := http.NewRequestWithContext(c.t.Context(), method, "http://guest"+path, body)
	if err != nil {
		c.t.Fatal(err)
	}
	for k, v := range header {
		req.Header[k] = v
	}
	req.Header.Set("X-Access-Token", "secret")
	req.Header.Set("Content-Type", kind)
	resp, err := c.http.Do(req)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { resp.Body.Close() })
	return resp
}

func (c *e2bClient) unary(method, in string) (int, map[string]any) {
	c.t.Helper()
	resp := c.raw("POST", "/"+method, "application/json", strings.NewReader(in), nil)
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	out := map[string]any{}
	if err := json.Unmarshal(b, &out); err != nil {
		c.t.Fatalf("%s answered %q: %v", method, b, err)
	}
	return resp.StatusCode, out
}

func frame(s string) io.Reader {
	b := []byte{0, 0, 0, 0, 0}
	binary.BigEndian.PutUint32(b[1:], uint32(len(s)))
	return bytes.NewReader(append(b, s...))
}

// stream returns a function that returns the messages; end is true for the last.
func (c *e2bClient) stream(method, in string, header http.Header) func() (m map[string]any, end bool) {
	c.t.Helper()
	resp := c.raw("POST", "/"+method, "application/connect+json", frame(in), header)
	if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "application/connect+json" {
		c.t.Fatalf("%s: status %d, %s", method, resp.StatusCode, resp.Header.Get("Content-Type"))
	}
	return func() (map[string]any, bool) {
		var h [5]byte
		if _, err := io.ReadFull(resp.Body, h[:]); err != nil {
			c.t.Fatalf("%s: %v", method, err)
		}
		b := make([]byte, binary.BigEndian.Uint32(h[1:]))
		if _, err := io.ReadFull(resp.Body, b); err != nil {
			c.t.Fatalf("%s: %v", method, err)
		}
		m := map[string]any{}
		if err := json.Unmarshal(b, &m); err != nil {
			c.t.Fatalf("%s sent %q: %v", method, b, err)
		}
		return m, h[0] == 2
	}
}

func at(m map[string]any, path ...string) any {
	var v any = m
	for _, p := range path {
		x, _ := v.(map[string]any)
		v = x[p]
	}
	return v
}

// events reads a process to its end.
func events(t *testing.T, next func() (map[string]any, bool)) (pid float64, out, errs string, end map[string]any, failure any) {
	t.Helper()
	first, _ := next()
	pid, ok := at(first, "event", "start", "pid").(float64)
	if !ok {
		t.Fatalf("the first event is %v", first)
	}
	for {
		m, last := next()
		if last {
			return pid, out, errs, end, m["error"]
		}
		for name, to := range map[string]*string{"stdout": &out, "stderr": &errs, "pty": &out} {
			if s, ok := at(m, "event", "data", name).(string); ok {
				b, err := base64.StdEncoding.DecodeString(s)
				if err != nil {
					t.Fatal(err)
				}
				*to += string(b)
			}
		}
		if e, ok := at(m, "event", "end").(map[string]any); ok {
			end = e
		}
	}
}

func TestE2BNeedsToken(t *testing.T) {
	c := newE2BClient(t)
	for _, path := range []string{"/health", "/files?path=x", "/envs"} {
		resp, err := c.http.Get("http://guest" + path)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != 401 {
			t.Errorf("%s: status %d", path, resp.StatusCode)
		}
	}
	if resp := c.raw("GET", "/health", "", nil, nil); resp.StatusCode != 204 {
		t.Errorf("health: %d", resp.StatusCode)
	}
}

func TestE2BProcess(t *testing.T) {
	c := newE2BClient(t)
	pid, out, errs, end, failure := events(t, c.stream("process.Process/Start",
		`{"process":{"cmd":"/bin/sh","args":["-c","echo $SANDBOX $FOO; echo err >&2; exit 3"],"envs":{"FOO":"bar"}},"stdin":false}`, nil))
	if pid <= 0 || out != "yes bar\n" || errs != "err\n" || end["exitCode"] != 3.0 || end["status"] != "exit status 3" || end["exited"] != true || failure != nil {
		t.Errorf("got %v %q %q %v %v", pid, out, errs, end, failure)
	}
	// Without a stdin field, input is enabled.
	next := c.stream("process.Process/Start", `{"process":{"cmd":"cat"},"tag":"t1"}`, nil)
	next()
	if status, m := c.unary("process.Process/SendInput", `{"process":{"tag":"t1"},"input":{"stdin":"aGk="}}`); status != 200 {
		t.Errorf("send input: %d %v", status, m)
	}
	if m, _ := next(); at(m, "event", "data", "stdout") != "aGk=" {
		t.Errorf("got %v", m)
	}
	_, list := c.unary("process.Process/List", `{}`)
	if ps, _ := list["processes"].([]any); len(ps) != 1 || at(ps[0].(map[string]any), "tag") != "t1" || at(ps[0].(map[string]any), "config", "cmd") != "cat" {
		t.Errorf("list: %v", list)
	}
	if status, m := c.unary("process.Process/SendInput", `{"process":{"tag":"t1"},"input":{"pty":"aGk="}}`); status != 500 || m["code"] != "internal" {
		t.Errorf("terminal input to a pipe: %d %v", status, m)
	}
	c.unary("process.Process/CloseStdin", `{"process":{"tag":"t1"}}`)
	if m, _ := next(); at(m, "event", "end", "status") != "exit status 0" {
		t.Errorf("got %v", m)
	}
	// Signals.
	next = c.stream("process.Process/Start", `{"process":{"cmd":"sleep","args":["100"]},"tag":"t2"}`, nil)
	next()
	c.unary("process.Process/SendSignal", `{"process":{"tag":"t2"},"signal":"SIGNAL_SIGKILL"}`)
	if m, _ := next(); at(m, "event", "end", "exitCode") != -1.0 || at(m, "event", "end", "status") != "signal: killed" {
		t.Errorf("got %v", m)
	}
	for in, want := range map[string]string{
		`{"process":{"pid":999999},"signal":"SIGNAL_SIGKILL"}`: "not_found",
		`{"process":{"tag":"t2"},"signal":"SIGNAL_SIGTERM"}`:   "not_found",
		`{"process":{"tag":"t2"},"signal":"SIGNAL_HUP"}`:       "unimplemented",
		`{"process":`: "invalid_argument",
	} {
		if _, m := c.unary("process.Process/SendSignal", in); m["code"] != want {
			t.Errorf("%s: %v, want %s", in, m, want)
		}
	}
	// Errors of a stream are in its last frame.
	m, last := c.stream("process.Process/Start", `{"process":{"cmd":"true","cwd":"/no/such"}}`, nil)()
	if !last || at(m, "error", "code") != "invalid_argument" || at(m, "error", "message") != "cwd '"+c.root+"/no/such' does not exist" {
		t.Errorf("got %v", m)
	}
	// The client's deadline kills.
	_, _, _, end, failure = events(t, c.stream("process.Process/Start", `{"process":{"cmd":"sleep","args":["100"]}}`, http.Header{"Connect-Timeout-Ms": {"100"}}))
	if end["status"] != "signal: killed" || at(map[string]any{"e": failure}, "e", "code") != "deadline_exceeded" {
		t.Errorf("got %v, %v", end, failure)
	}
}

func TestE2BConnect(t *testing.T) {
	c := newE2BClient(t)
	next := c.stream("process.Process/Start", `{"process":{"cmd":"sh","args":["-c","echo old; read x; echo new"]},"tag":"c"}`, nil)
	next()
	next()
	again := c.stream("process.Process/Connect", `{"process":{"tag":"c"}}`, nil)
	again()
	c.unary("process.Process/SendInput", `{"process":{"tag":"c"},"input":{"stdin":"Cg=="}}`)
	if m, _ := again(); at(m, "event", "data", "stdout") != base64.StdEncoding.EncodeToString([]byte("new\n")) {
		t.Errorf("got %v, want new output only", m)
	}
	if m, _ := again(); at(m, "event", "end", "exited") != true {
		t.Errorf("got %v", m)
	}
}

func TestE2BTerminal(t *testing.T) {
	c := newE2BClient(t)
	next := c.stream("process.Process/Start", `{"process":{"cmd":"sh","args":["-c","stty size; read x; stty size"]},"pty":{"size":{"cols":80,"rows":24}},"tag":"p"}`, nil)
	next()
	seen := ""
	for m, last := next(); !last; m, last = next() {
		s, _ := at(m, "event", "data", "pty").(string)
		b, _ := base64.StdEncoding.DecodeString(s)
		if before := seen; !strings.Contains(before, "24 80") && strings.Contains(before+string(b), "24 80") {
			c.unary("process.Process/Update", `{"process":{"tag":"p"},"pty":{"size":{"cols":100,"rows":40}}}`)
			c.unary("process.Process/SendInput", `{"process":{"tag":"p"},"input":{"pty":"Cg=="}}`)
		}
		seen += string(b)
	}
	if !strings.Contains(seen, "40 100") {
		t.Errorf("the terminal showed %q", seen)
	}
}

func TestE2BFilesystem(t *testing.T) {
	c := newE2BClient(t)
	const fs = "filesystem.Filesystem/"
	if status, m := c.unary(fs+"MakeDir", `{"path":"d/e"}`); status != 200 || at(m, "entry", "type") != "FILE_TYPE_DIRECTORY" || at(m, "entry", "path") != "/home/user/d/e" {
		t.Errorf("make: %d %v", status, m)
	}
	if status, m := c.unary(fs+"MakeDir", `{"path":"/home/user/d/e"}`); status != 409 || m["code"] != "already_exists" {
		t.Errorf("make again: %d %v", status, m)
	}
	if err := os.WriteFile(filepath.Join(c.root, "home/user/d/f"), []byte("12345"), 0o640); err != nil {
		t.Fatal(err)
	}
	_, m := c.unary(fs+"Stat", `{"path":"~/d/f"}`)
	if at(m, "entry", "size") != "5" || at(m, "entry", "permissions") != "-rw-r-----" || at(m, "entry", "mode") != 416.0 || at(m, "entry", "name") != "f" {
		t.Errorf("stat: %v", m)
	}
	if status, m := c.unary(fs+"Stat", `{"path":"nothing"}`); status != 404 || m["code"] != "not_found" {
		t.Errorf("stat nothing: %d %v", status, m)
	}
	_, m = c.unary(fs+"ListDir", `{"path":"d","depth":1}`)
	if es, _ := m["entries"].([]any); len(es) != 2 {
		t.Errorf("list: %v", m)
	}
	if _, m := c.unary(fs+"ListDir", `{"path":"d/f"}`); m["code"] != "invalid_argument" {
		t.Errorf("list a file: %v", m)
	}
	if _, m := c.unary(fs+"Move", `{"source":"d/f","destination":"x/y/g"}`); at(m, "entry", "path") != "/home/user/x/y/g" {
		t.Errorf("move: %v", m)
	}
	// Both kinds of watch see a file.
	next := c.stream(fs+"WatchDir", `{"path":"d","includeEntry":true}`, nil)
	if m, _ := next(); m["start"] == nil {
		t.Errorf("the first message is %v", m)
	}
	_, m = c.unary(fs+"CreateWatcher", `{"path":"d"}`)
	id, _ := m["watcherId"].(string)
	if err := os.WriteFile(filepath.Join(c.root, "home/user/d/new"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if m, _ := next(); at(m, "filesystem", "name") != "new" || at(m, "filesystem", "type") != "EVENT_TYPE_CREATE" || at(m, "filesystem", "entry", "name") != "new" {
		t.Errorf("watch: %v", m)
	}
	deadline := time.Now().Add(time.Minute)
	for {
		_, m := c.unary(fs+"GetWatcherEvents", `{"watcherId":"`+id+`"}`)
		if es, _ := m["events"].([]any); len(es) > 0 {
			if at(es[0].(map[string]any), "name") != "new" {
				t.Errorf("events: %v", m)
			}
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the watcher saw nothing")
		}
		time.Sleep(10 * time.Millisecond)
	}
	c.unary(fs+"RemoveWatcher", `{"watcherId":"`+id+`"}`)
	if _, m := c.unary(fs+"GetWatcherEvents", `{"watcherId":"`+id+`"}`); m["code"] != "not_found" {
		t.Errorf("a removed watcher: %v", m)
	}
	for range 2 {
		if status, m := c.unary(fs+"Remove", `{"path":"d"}`); status != 200 {
			t.Errorf("remove: %d %v", status, m)
		}
	}
}

func TestE2BFiles(t *testing.T) {
	c := newE2BClient(t)
	var form bytes.Buffer
	w := multipart.NewWriter(&form)
	for _, name := range []string{"a/b.txt", "/tmp/c d.txt"} {
		h := textproto.MIMEHeader{"Content-Disposition": {`form-data; name="file"; filename="` + name + `"`}}
		p, err := w.CreatePart(h)
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(p, "content of "+name)
	}
	w.Close()
	resp := c.raw("POST", "/files", w.FormDataContentType(), &form, nil)
	b, _ := io.ReadAll(resp.Body)
	if want := `[{"name":"b.txt","path":"/home/user/a/b.txt","type":"file"},{"name":"c d.txt","path":"/tmp/c d.txt","type":"file"}]`; resp.StatusCode != 200 || string(b) != want {
		t.Errorf("upload: %d %s", resp.StatusCode, b)
	}
	resp = c.raw("GET", "/files?path=a/b.txt", "", nil, nil)
	if b, _ := io.ReadAll(resp.Body); string(b) != "content of a/b.txt" {
		t.Errorf("download: %d %s", resp.StatusCode, b)
	}
	// Files that compress well are compressed for clients that accept it.
	noise := make([]byte, 200<<10)
	rand.Read(noise)
	for name, f := range map[string]struct {
		data, encoding string
	}{
		"text":  {strings.Repeat("the same again ", 10_000), "gzip"},
		"noise": {string(noise), ""},
		"tiny":  {"x", ""},
	} {
		if resp := c.raw("POST", "/files?path=z/"+name, "application/octet-stream", strings.NewReader(f.data), nil); resp.StatusCode != 200 {
			t.Fatalf("%s: %d", name, resp.StatusCode)
		}
		resp = c.raw("GET", "/files?path=z/"+name, "", nil, http.Header{"Accept-Encoding": {"gzip, deflate"}})
		if got := resp.Header.Get("Content-Encoding"); got != f.encoding {
			t.Errorf("%s is encoded as %q, want %q", name, got, f.encoding)
			continue
		}
		body := io.Reader(resp.Body)
		if f.encoding != "" {
			zr, err := gzip.NewReader(body)
			if err != nil {
				t.Fatal(err)
			}
			body = zr
		}
		if b, err := io.ReadAll(body); err != nil || string(b) != f.data {
			t.Errorf("%s: %d of %d bytes, %v", name, len(b), len(f.data), err)
		}
	}
	if resp := c.raw("POST", "/files?path=e", "application/octet-stream", strings.NewReader(""), nil); resp.StatusCode != 200 {
		t.Errorf("an empty file: %d", resp.StatusCode)
	}
	if resp := c.raw("GET", "/files?path=e", "", nil, nil); resp.ContentLength != 0 {
		t.Errorf("an empty file has length %d", resp.ContentLength)
	}
	for path, want := range map[string]int{"/files?path=nothing": 404, "/files?path=a": 400, "/files?path=": 400, "/files?path=%00": 400} {
		if resp := c.raw("GET", path, "", nil, nil); resp.StatusCode != want {
			t.Errorf("%s: %d, want %d", path, resp.StatusCode, want)
		}
	}
	resp = c.raw("GET", "/envs", "", nil, nil)
	if b, _ := io.ReadAll(resp.Body); string(b) != `{"SANDBOX":"yes"}` {
		t.Errorf("envs: %s", b)
	}
	resp = c.raw("GET", "/metrics", "", nil, nil)
	if b, _ := io.ReadAll(resp.Body); !strings.Contains(string(b), `"mem_total":`) {
		t.Errorf("metrics: %s", b)
	}
}

func FuzzE2B(f *testing.F) {
	f.Add([]byte(`{"process":{"cmd":""}}`), byte(0))
	f.Add([]byte(`{"start":{"process":{"pid":1}}}`), byte(0))
	f.Add([]byte("\xff\xff"), byte(1))
	s := guestd.New(guestd.Options{Root: f.TempDir(), Token: "secret", InProcess: true})
	f.Cleanup(func() { s.Close() })
	a, b := net.Pipe()
	go s.Serve(context.Background(), b)
	tr := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return a, nil }, MaxConnsPerHost: 1}
	f.Fuzz(func(t *testing.T, body []byte, flags byte) {
		for _, method := range []string{"process.Process/Connect", "process.Process/StreamInput", "filesystem.Filesystem/Stat"} {
			b := append([]byte{flags, 0, 0, byte(len(body) >> 8), byte(len(body))}, body...)
			req, err := http.NewRequest("POST", "http://guest/"+method, bytes.NewReader(b))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("X-Access-Token", "secret")
			resp, err := tr.RoundTrip(req)
			if err != nil {
				t.Fatal(err) // the server must answer every request
			}
			io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}
	})
}

// fileInfo returns the result of Stat for a file.
func (c *e2bClient) fileInfo(path string) map[string]any {
	c.t.Helper()
	status, m := c.unary("filesystem.Filesystem/Stat", `{"path":"`+path+`"}`)
	entry, _ := m["entry"].(map[string]any)
	if status != 200 || entry == nil {
		c.t.Fatalf("stat %s: %d %v", path, status, m)
	}
	return entry
}

func TestE2BOverwriteRemovesMetadata(t *testing.T) {
	c := newE2BClient(t)
	upload := func(header http.Header) {
		t.Helper()
		if resp := c.raw("POST", "/files?path=/f", "application/octet-stream", strings.NewReader("x"), header); resp.StatusCode != 200 {
			b, _ := io.ReadAll(resp.Body)
			if bytes.Contains(b, []byte("operation not supported")) && os.Getenv("ENGI_TEST_REQUIRE") == "" {
				t.Skip("this file system has no extended attributes")
			}
			t.Fatalf("upload: %d %s", resp.StatusCode, b)
		}
	}
	upload(http.Header{"X-Metadata-Author": {"ann"}, "X-Metadata-Kind": {"a"}})
	if m, _ := c.fileInfo("/f")["metadata"].(map[string]any); len(m) != 2 || m["author"] != "ann" {
		t.Errorf("metadata: %v", m)
	}
	upload(http.Header{"X-Metadata-Kind": {"b"}})
	if m, _ := c.fileInfo("/f")["metadata"].(map[string]any); len(m) != 1 || m["kind"] != "b" {
		t.Errorf("metadata of another upload: %v", m)
	}
	upload(nil)
	if m, there := c.fileInfo("/f")["metadata"]; there {
		t.Errorf("metadata after an upload without: %v", m)
	}
}

func TestE2BLinksShowTheirTargets(t *testing.T) {
	c := newE2BClient(t)
	if err := os.MkdirAll(filepath.Join(c.root, "d"), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(c.root, "d/f"), []byte("12345"), 0o640); err != nil {
		t.Fatal(err)
	}
	for link, to := range map[string]string{"file": "d/f", "dir": "d", "chain": "file", "broken": "none"} {
		if err := os.Symlink(to, filepath.Join(c.root, link)); err != nil {
			t.Fatal(err)
		}
	}
	for path, want := range map[string]struct {
		kind   string
		mode   float64
		target any
	}{
		"/file":   {"FILE_TYPE_FILE", 0o640, "/d/f"},
		"/dir":    {"FILE_TYPE_DIRECTORY", 0o750, "/d"},
		"/chain":  {"FILE_TYPE_FILE", 0o640, "/d/f"},
		"/broken": {"FILE_TYPE_SYMLINK", 0o777, "/none"},
		"/d/f":    {"FILE_TYPE_FILE", 0o640, nil},
	} {
		e := c.fileInfo(path)
		if link := want.target != nil; e["type"] != want.kind || e["mode"] != want.mode || e["symlinkTarget"] != want.target || (e["isSymlink"] == true) != link || strings.HasPrefix(e["permissions"].(string), "L") != link {
			t.Errorf("%s: %v", path, e)
		}
	}
	_, m := c.unary("filesystem.Filesystem/ListDir", `{"path":"/"}`)
	kinds := map[any]any{}
	for _, e := range m["entries"].([]any) {
		kinds[at(e.(map[string]any), "name")] = at(e.(map[string]any), "type")
	}
	if kinds["file"] != "FILE_TYPE_FILE" || kinds["dir"] != "FILE_TYPE_DIRECTORY" || kinds["broken"] != "FILE_TYPE_SYMLINK" {
		t.Errorf("listed as %v", kinds)
	}
}

// TestE2BFilesWithoutSize reads files whose content is generated on read.
func TestE2BFilesWithoutSize(t *testing.T) {
	c := newE2BClient(t)
	if err := os.Symlink("/proc/self/status", filepath.Join(c.root, "status")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(c.root, "empty"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{"/status": "Name:", "/empty": ""} {
		for _, header := range []http.Header{nil, {"Accept-Encoding": {"gzip"}}} {
			resp := c.raw("GET", "/files?path="+path, "", nil, header)
			b, err := io.ReadAll(resp.Body)
			if err != nil || resp.StatusCode != 200 || !strings.HasPrefix(string(b), want) || (want == "") != (len(b) == 0) {
				t.Errorf("%s: %d %q, %v", path, resp.StatusCode, b, err)
			}
		}
	}
}

// TestWatchesEndWhileMuchChanges ends watches of directories that are created and removed meanwhile.
func TestWatchesEndWhileMuchChanges(t *testing.T) {
	c := newE2BClient(t)
	top := filepath.Join(c.root, "home/user/d")
	if err := os.MkdirAll(top, 0o755); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var changing sync.WaitGroup
	changing.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			p := filepath.Join(top, strconv.Itoa(i%10))
			if os.Mkdir(p, 0o755) != nil {
				os.Remove(p)
			}
		}
	})
	for range 40 {
		resp := c.raw("POST", "/filesystem.Filesystem/WatchDir", "application/connect+json", frame(`{"path":"d","recursive":true}`), nil)
		if _, err := io.CopyN(io.Discard, resp.Body, 2000); err != nil {
			t.Error(err)
		}
		resp.Body.Close()
	}
	close(stop)
	changing.Wait()
	if status, _ := c.unary("filesystem.Filesystem/ListDir", `{"path":"d"}`); status != 200 {
		t.Errorf("afterwards: status %d", status)
	}
}
