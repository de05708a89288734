package hostile

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/client"
	"github.com/engi-dev/engi/internal/node"
	"github.com/engi-dev/engi/test/env"
)

// A fixture is a private node and a client of it.
type fixture struct {
	*client.Client
	node *node.Private
	dir  string
	url  string
}

var shared env.Shared

func TestMain(m *testing.M) { os.Exit(shared.Main(m)) }

func open(t *testing.T) *fixture {
	t.Helper()
	p := shared.Node(t)
	url := p.Endpoint().URL
	return &fixture{Client: client.New(url, p.AdminKey(), client.WithRetries(0)), node: p, dir: shared.Dir, url: url}
}

// sandbox creates a sandbox that ends with the test.
func (w *fixture) sandbox(t *testing.T) v1.Sandbox {
	t.Helper()
	s, err := w.CreateSandbox(t.Context(), v1.SandboxRequest{
		Template: "base", VCPUs: 1, Memory: 512 << 20, Disk: 1 << 30,
		Lifetime: v1.Lifetime{Timeout: v1.Duration(20 * time.Minute)},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := w.StopSandbox(ctx, s.ID); err != nil {
			t.Error(err)
		}
	})
	return s
}

// request sends a request, which must be answered soon for every body.
func (w *fixture) request(t *testing.T, method, path string, body io.Reader, size int64, header ...string) *http.Response {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, method, w.url+path, body)
	if err != nil {
		t.Fatal(err)
	}
	if body != nil {
		req.ContentLength = size
	}
	req.Header.Set("Authorization", "Bearer "+w.node.AdminKey())
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	return resp
}

// agent returns the headers with which E2B's clients name a sandbox.
func (w *fixture) agent(t *testing.T, id string) []string {
	t.Helper()
	label := strings.TrimPrefix(id, "sbx_")
	resp := w.request(t, "POST", "/sandboxes/"+label+"/connect", strings.NewReader(`{"timeout":1200}`), -1,
		"X-Api-Key", w.node.AdminKey(), "Content-Type", "application/json")
	var box struct{ EnvdAccessToken string }
	if err := json.NewDecoder(resp.Body).Decode(&box); err != nil || box.EnvdAccessToken == "" {
		t.Fatalf("connect: %s, %v", resp.Status, err)
	}
	return []string{"E2b-Sandbox-Id", label, "E2b-Sandbox-Port", "49983", "X-Access-Token", box.EnvdAccessToken}
}

// serves checks that a sandbox works, and the node with it.
func (w *fixture) serves(t *testing.T, id string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r, err := w.Exec(ctx, id, v1.ProcessRequest{Args: []string{"echo", "fine"}})
	if err != nil || r.Stdout != "fine\n" {
		t.Errorf("%s: %q, %v", id, r.Stdout, err)
	}
}

// used returns the bytes that the node's data uses on the host's disk.
func (w *fixture) used(t *testing.T) (n int64) {
	t.Helper()
	err := filepath.WalkDir(w.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil // the file has been removed meanwhile
		}
		if info, err := d.Info(); err == nil {
			if st, ok := info.Sys().(*syscall.Stat_t); ok && d.Type().IsRegular() {
				n += st.Blocks * 512
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	return n
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

const tenGB = 10 << 30

// packed returns ten gigabytes of zeros after a header, in a few megabytes: a member
// of gzip, repeated.
func packed(t *testing.T, header []byte) io.Reader {
	t.Helper()
	member := func(r io.Reader) []byte {
		var b bytes.Buffer
		z, err := gzip.NewWriterLevel(&b, gzip.BestSpeed)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(z, r); err != nil {
			t.Fatal(err)
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	parts := []io.Reader{bytes.NewReader(member(bytes.NewReader(header)))}
	const each = 64 << 20
	zeroes := member(io.LimitReader(zeros{}, each))
	for range tenGB / each {
		parts = append(parts, bytes.NewReader(zeroes))
	}
	return io.MultiReader(parts...)
}

func tarHeader(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := tar.NewWriter(&b).WriteHeader(&tar.Header{Name: "bomb", Typeflag: tar.TypeReg, Size: tenGB, Mode: 0o644, Format: tar.FormatGNU}); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestTenGigabytes sends ten gigabytes to a disk of one, in all possible ways.
func TestTenGigabytes(t *testing.T) {
	env.Slow(t)
	w := open(t)
	victim, witness := w.sandbox(t), w.sandbox(t)
	base := "/v1/sandboxes/" + victim.ID + "/files"
	agent := w.agent(t, victim.ID)
	big := url.QueryEscape("/home/user/big")
	form := "--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"/home/user/big\"\r\n\r\n"

	for _, c := range []struct {
		name, method, path string
		body               func() io.Reader
		size               int64 // size in the request; -1 means no size
		header             []string
		e2b                bool
	}{
		{name: "with its length", method: "PUT", path: base + "?path=" + big, body: func() io.Reader { return io.LimitReader(zeros{}, tenGB) }, size: tenGB},
		{name: "without its length", method: "PUT", path: base + "?path=" + big, body: func() io.Reader { return io.LimitReader(zeros{}, tenGB) }, size: -1},
		{name: "asking before", method: "PUT", path: base + "?path=" + big, body: func() io.Reader { return io.LimitReader(zeros{}, tenGB) }, size: tenGB, header: []string{"Expect", "100-continue"}},
		{name: "as a tar", method: "PUT", path: base + "/archive?path=" + url.QueryEscape("/home/user/d"), size: -1,
			body: func() io.Reader { return io.MultiReader(bytes.NewReader(tarHeader(t)), io.LimitReader(zeros{}, tenGB)) }},
		{name: "as a bomb", method: "PUT", path: base + "/archive?path=" + url.QueryEscape("/home/user/d"), body: func() io.Reader { return packed(t, tarHeader(t)) }, size: -1},
		{name: "E2B", method: "POST", path: "/files?path=" + big, body: func() io.Reader { return io.LimitReader(zeros{}, tenGB) }, size: tenGB,
			header: append([]string{"Content-Type", "application/octet-stream"}, agent...), e2b: true},
		{name: "E2B, as a form", method: "POST", path: "/files", size: -1,
			body:   func() io.Reader { return io.MultiReader(strings.NewReader(form), io.LimitReader(zeros{}, tenGB)) },
			header: append([]string{"Content-Type", "multipart/form-data; boundary=x"}, agent...), e2b: true},
		{name: "E2B, as a bomb", method: "POST", path: "/files?path=" + big, body: func() io.Reader { return packed(t, nil) }, size: -1,
			header: append([]string{"Content-Type", "application/octet-stream", "Content-Encoding", "gzip"}, agent...), e2b: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			resp := w.request(t, c.method, c.path, c.body(), c.size, c.header...)
			b, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
			if err != nil || resp.StatusCode != http.StatusInsufficientStorage {
				t.Fatalf("%s %s, %v", resp.Status, b, err)
			}
			isFull(t, b, c.e2b)
			if n := w.used(t); n > 5<<28 {
				t.Errorf("a disk of a gigabyte takes %d MiB of the host's", n>>20)
			}
			w.serves(t, witness.ID)
			if _, err := w.Exec(t.Context(), victim.ID, v1.ProcessRequest{Args: []string{"rm", "-rf", "/home/user/big", "/home/user/d"}}); err != nil {
				t.Fatal(err)
			}
			w.serves(t, victim.ID)
		})
	}

	t.Run("curl", func(t *testing.T) {
		curl, err := exec.LookPath("curl")
		if err != nil {
			env.Need(t, "curl")
		}
		for _, more := range [][]string{{}, {"-H", "Expect:"}} {
			cmd := exec.CommandContext(t.Context(), curl, append([]string{"-sS", "--max-time", "300", "-T", "-", "-H", "Authorization: Bearer " + w.node.AdminKey(),
				"-w", "%{stderr}%{http_code}", w.url + base + "?path=" + big}, more...)...)
			cmd.Stdin = io.LimitReader(zeros{}, tenGB)
			var out, status bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &status
			err := cmd.Run() // the command may report that it could not send all data
			if status.String() != "507" {
				t.Errorf("curl %v: %q %s, %v", more, &status, &out, err)
				continue
			}
			isFull(t, out.Bytes(), false)
		}
		w.serves(t, victim.ID)
	})

	t.Run("zip", func(t *testing.T) {
		resp := w.request(t, "PUT", base+"/archive?path=/home/user/d", strings.NewReader("PK\x03\x04"+strings.Repeat("\x00", 1<<20)), -1)
		if resp.StatusCode != http.StatusUnsupportedMediaType {
			t.Error(resp.Status)
		}
	})

	// A client that sends everything before it reads is read to the end, and then receives the error.
	t.Run("sent first", func(t *testing.T) {
		conn, err := net.Dial("tcp", strings.TrimPrefix(w.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(5 * time.Minute))
		const size = 2 << 30
		fmt.Fprintf(conn, "PUT %s?path=%s HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n", base, big, w.node.AdminKey(), size)
		if n, err := io.CopyBuffer(struct{ io.Writer }{conn}, io.LimitReader(zeros{}, size), make([]byte, 1<<20)); err != nil {
			t.Fatalf("after %d bytes: %v", n, err)
		}
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || resp.StatusCode != http.StatusInsufficientStorage {
			t.Fatalf("%v, %v", resp, err)
		}
		w.serves(t, victim.ID)
	})

	// The disk is as large as before.
	if _, err := w.Files(victim.ID).Write(t.Context(), "/home/user/most", io.LimitReader(zeros{}, 800<<20)); err != nil {
		t.Error(err)
	}
}

// TestTenGigabytesForAVolume sends ten gigabytes to a volume of 64 MiB.
func TestTenGigabytesForAVolume(t *testing.T) {
	env.Slow(t)
	w := open(t)
	v, err := w.CreateVolume(t.Context(), v1.VolumeRequest{Name: "small", Capacity: 64 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := w.RemoveVolume(context.Background(), v.Name); err != nil {
			t.Error(err)
		}
	}()
	for _, size := range []int64{tenGB, -1} {
		resp := w.request(t, "PUT", "/v1/volumes/small/files?path=/big", io.LimitReader(zeros{}, tenGB), size)
		b, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
		if err != nil || resp.StatusCode != http.StatusInsufficientStorage {
			t.Errorf("%s %s, %v", resp.Status, b, err)
			continue
		}
		isFull(t, b, false)
	}
	if _, err := w.VolumeFiles("small").Write(t.Context(), "/fits", io.LimitReader(zeros{}, 32<<20)); err != nil {
		t.Error("nothing fits any more:", err)
	}
}

func isFull(t *testing.T, answer []byte, e2b bool) {
	t.Helper()
	if e2b {
		var p struct {
			Code    int
			Message string
		}
		if err := json.Unmarshal(answer, &p); err != nil || p.Code != http.StatusInsufficientStorage || !strings.Contains(p.Message, "space") {
			t.Errorf("%s, %v", answer, err)
		}
		return
	}
	var p v1.Problem
	if err := json.Unmarshal(answer, &p); err != nil || p.Status != http.StatusInsufficientStorage || p.Kind != v1.Exhausted || p.Remedy == "" {
		t.Errorf("%s, %v", answer, err)
	}
}

// attackers are many streams of the same kind.
type attackers struct {
	t      *testing.T
	w      *fixture
	client *http.Client
	path   string
	header []string
	body   string

	mu      sync.Mutex
	granted []context.CancelFunc
	refused int
	odd     map[string]int
	stop    sync.WaitGroup
}

// ask requests n streams, from atOnce goroutines, and keeps the granted ones.
func (c *attackers) ask(n, atOnce int) {
	c.t.Helper()
	c.odd = map[string]int{}
	jobs := make(chan struct{}, n)
	for range n {
		jobs <- struct{}{}
	}
	close(jobs)
	var all sync.WaitGroup
	for range atOnce {
		all.Go(func() {
			for range jobs {
				c.one()
			}
		})
	}
	all.Wait()
	for what, n := range c.odd {
		c.t.Errorf("%d times: %s", n, what)
	}
}

func (c *attackers) one() {
	ctx, cancel := context.WithCancel(c.t.Context())
	method, body := "GET", io.Reader(nil)
	if c.body != "" {
		method, body = "POST", strings.NewReader(c.body)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.w.url+c.path, body)
	if err != nil {
		cancel()
		c.t.Error(err)
		return
	}
	req.Header.Set("Authorization", "Bearer "+c.w.node.AdminKey())
	for i := 0; i < len(c.header); i += 2 {
		req.Header.Set(c.header[i], c.header[i+1])
	}
	resp, err := c.client.Do(req)
	if err != nil {
		cancel()
		c.note(err.Error())
		return
	}
	switch resp.StatusCode {
	case http.StatusOK:
		c.mu.Lock()
		defer c.mu.Unlock()
		c.granted = append(c.granted, cancel)
		c.stop.Go(func() {
			defer resp.Body.Close()
			io.Copy(io.Discard, resp.Body) // read until the request is cancelled
		})
		return
	case http.StatusTooManyRequests:
		defer cancel()
		b, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		var p struct {
			v1.Problem
			Code    int
			Message string
		}
		if err != nil || json.Unmarshal(b, &p) != nil {
			c.note(fmt.Sprintf("%s, %v", b, err))
			return
		}
		own := p.Kind == v1.Exhausted && p.Remedy != ""
		e2b := p.Code == http.StatusTooManyRequests && p.Message != "" && p.Remedy != ""
		if !own && !e2b {
			c.note(string(b))
			return
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.refused++
	default:
		defer cancel()
		b, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		c.note(resp.Status + " " + string(b))
	}
}

func (c *attackers) note(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.odd[what]++
}

// leave ends all streams.
func (c *attackers) leave() {
	for _, cancel := range c.granted {
		cancel()
	}
	c.stop.Wait()
	c.granted, c.refused = nil, 0
}

// TestTenThousandWatchers requests ten thousand streams of one sandbox.
func TestTenThousandWatchers(t *testing.T) {
	env.Slow(t)
	w := open(t)
	victim, witness := w.sandbox(t), w.sandbox(t)
	const most = 512
	for _, c := range []*attackers{
		{path: "/v1/sandboxes/" + victim.ID + "/files/watch?recursive=true&path=/home/user"},
		{path: "/filesystem.Filesystem/WatchDir", body: "\x00\x00\x00\x00\x15" + `{"path":"/home/user"}`,
			header: append([]string{"Content-Type", "application/connect+json", "Connect-Protocol-Version", "1"}, w.agent(t, victim.ID)...)},
	} {
		name, _, _ := strings.Cut(c.path, "?")
		t.Run(filepath.Base(name), func(t *testing.T) {
			tr := &http.Transport{MaxIdleConnsPerHost: 64}
			defer tr.CloseIdleConnections()
			c.t, c.w, c.client = t, w, &http.Client{Transport: tr}
			defer c.leave()
			c.ask(most, 32)
			if len(c.granted) != most || c.refused != 0 {
				t.Fatalf("of the first %d, %d were refused", most, c.refused)
			}
			before := runtime.NumGoroutine()
			c.ask(10_000-most, 32)
			if len(c.granted) != most || c.refused != 10_000-most {
				t.Errorf("%d granted, %d refused", len(c.granted), c.refused)
			}
			w.serves(t, witness.ID)
			w.serves(t, victim.ID)
			if _, err := w.Files(victim.ID).Write(t.Context(), "/home/user/f", strings.NewReader("x")); err != nil {
				t.Error(err)
			}
			if n := runtime.NumGoroutine(); n > before+500 {
				t.Errorf("%d goroutines more after refusals", n-before)
			}
			c.leave()
			// Clients that left are no longer counted.
			deadline := time.Now().Add(time.Minute)
			for {
				c.ask(most, 32)
				if len(c.granted) == most && c.refused == 0 {
					break
				}
				if time.Now().After(deadline) {
					t.Fatalf("after all have left, %d are granted", len(c.granted))
				}
				c.leave()
				time.Sleep(100 * time.Millisecond)
			}
			w.serves(t, victim.ID)
		})
	}
}
