package preview

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/client"

	"github.com/engi-dev/engi/test/env"
)

// dial connects to the node for every host name.
func (w *fixture) dial(ctx context.Context, network, _ string) (net.Conn, error) {
	return (&net.Dialer{}).DialContext(ctx, network, w.url.Host)
}

// service starts service.ts in a separate sandbox.
func (w *fixture) service(t *testing.T, ports *v1.PortPolicy) v1.Sandbox {
	t.Helper()
	s := w.sandbox(t, ports)
	src, err := os.Open("service.ts")
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	if _, err := w.Files(s.ID).Write(t.Context(), "/home/user/service.ts", src, client.WithUser("user")); err != nil {
		t.Fatal(err)
	}
	w.background(t, s, "/home/user", "exec deno run --no-prompt --allow-net service.ts")
	w.listens(t, s, 8000)
	return s
}

func fetch(t *testing.T, c *http.Client, address string, header ...string) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), "GET", address, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	res, err := c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res, string(b)
}

func TestEverythingHTTPCarries(t *testing.T) {
	w := open(t)
	s := w.service(t, nil)
	at, c := w.address(s, 8000), browserless(t, w)

	t.Run("headers", func(t *testing.T) {
		_, body := fetch(t, c, at+"/headers", "Authorization", "Bearer "+w.node.AdminKey(), "Origin", at)
		var h map[string]string
		if err := json.Unmarshal([]byte(body), &h); err != nil {
			t.Fatal(err, body)
		}
		if h["host"] != "localhost:8000" || h["origin"] != "http://localhost:8000" || h["authorization"] != "" || h["x-forwarded-for"] != "127.0.0.1" {
			t.Errorf("the service sees %v", h)
		}
		if res, _ := fetch(t, c, at+"/cookie"); res.Header.Get("Set-Cookie") != "a=1; Path=/" {
			t.Errorf("cookie %q", res.Header.Get("Set-Cookie"))
		}
	})
	t.Run("by header", func(t *testing.T) {
		res, body := fetch(t, c, w.url.String()+"/", "E2b-Sandbox-Id", strings.TrimPrefix(s.ID, "sbx_"), "E2b-Sandbox-Port", "8000")
		if res.StatusCode != 200 || body != "hello\n" {
			t.Errorf("%d %q", res.StatusCode, body)
		}
	})
	t.Run("ports", func(t *testing.T) {
		ports, err := w.Ports(t.Context(), s.ID)
		if err != nil || len(ports) != 1 || ports[0].Port != 8000 || ports[0].URL != at+"/" {
			t.Errorf("%+v, %v", ports, err)
		}
	})
	t.Run("nothing listens", func(t *testing.T) {
		res, body := fetch(t, c, w.address(s, 8001)+"/")
		want := `{"sandboxId":"` + strings.TrimPrefix(s.ID, "sbx_") + `","message":"The sandbox is running but port is not open","port":8001,"code":502}`
		if res.StatusCode != 502 || strings.TrimSpace(body) != want {
			t.Errorf("%d %s", res.StatusCode, body)
		}
	})
	t.Run("WebSocket", func(t *testing.T) {
		ws, _, err := websocket.Dial(t.Context(), "ws"+strings.TrimPrefix(at, "http")+"/echo", &websocket.DialOptions{
			HTTPClient: c, HTTPHeader: http.Header{"Origin": {at}},
		})
		if err != nil {
			t.Fatal(err)
		}
		defer ws.CloseNow()
		ws.SetReadLimit(2 << 20)
		for _, size := range []int{1, 1000, 1 << 20} {
			want := strings.Repeat("é", size/2)
			if err := ws.Write(t.Context(), websocket.MessageText, []byte(want)); err != nil {
				t.Fatal(err)
			}
			if _, got, err := ws.Read(t.Context()); err != nil || string(got) != want {
				t.Fatalf("%d bytes came back as %d, %v", len(want), len(got), err)
			}
		}
	})
	t.Run("events come one by one", func(t *testing.T) {
		res, err := c.Get(at + "/events")
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		in := bufio.NewScanner(res.Body)
		for n := 0; n < 5; {
			if !in.Scan() {
				t.Fatal(in.Err())
			}
			if line, ok := strings.CutPrefix(in.Text(), "data: "); ok {
				if line != strconv.Itoa(n) {
					t.Fatalf("event %q, want %d", line, n)
				}
				n++
			}
		}
	})
	t.Run("HTTP/2", func(t *testing.T) {
		tr := &http.Transport{DialContext: w.dial, Protocols: new(http.Protocols)}
		tr.Protocols.SetUnencryptedHTTP2(true)
		defer tr.CloseIdleConnections()
		res, body := fetch(t, &http.Client{Transport: tr}, at+"/")
		if res.ProtoMajor != 2 || body != "hello\n" {
			t.Errorf("%s %q", res.Proto, body)
		}
	})
	t.Run("a gibibyte down", func(t *testing.T) {
		const size = 1 << 30
		began := time.Now()
		res, err := c.Get(at + "/bytes?n=" + strconv.Itoa(size))
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		got := sha256.New()
		n, err := io.Copy(got, res.Body)
		took := time.Since(began)
		if err != nil || n != size || !bytes.Equal(got.Sum(nil), patternSum(size)) {
			t.Fatalf("%d bytes, %v; or other bytes", n, err)
		}
		t.Logf("%.0f MiB/s", float64(size>>20)/took.Seconds())
	})
	t.Run("a quarter up", func(t *testing.T) {
		const size = 256 << 20
		began := time.Now()
		res, err := c.Post(at+"/sum", "application/octet-stream", io.LimitReader(&pattern{}, size))
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		var got struct {
			Bytes  int
			SHA256 string
		}
		if err := json.NewDecoder(res.Body).Decode(&got); err != nil || got.Bytes != size || got.SHA256 != hex.EncodeToString(patternSum(size)) {
			t.Fatalf("%+v, %v", got, err)
		}
		t.Logf("%.0f MiB/s", float64(size>>20)/time.Since(began).Seconds())
	})
	t.Run("how long one takes", func(t *testing.T) {
		var took []time.Duration
		for range 300 {
			began := time.Now()
			fetch(t, c, at+"/")
			took = append(took, time.Since(began))
		}
		slices.Sort(took)
		t.Logf("p50 %v, p99 %v", took[len(took)/2], took[len(took)*99/100])
	})
}

// pattern is the data that service.ts sends.
type pattern struct{ at int }

func (p *pattern) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = byte((p.at + i) * 7)
	}
	p.at += len(b)
	return len(b), nil
}

func patternSum(size int64) []byte {
	h := sha256.New()
	io.CopyBuffer(struct{ io.Writer }{h}, io.LimitReader(&pattern{}, size), make([]byte, 1<<20))
	return h.Sum(nil)
}

func TestPrivatePorts(t *testing.T) {
	w := open(t)
	s := w.service(t, &v1.PortPolicy{Private: true})
	at, c := w.address(s, 8000), browserless(t, w)
	if res, body := fetch(t, c, at+"/"); res.StatusCode != 403 {
		t.Errorf("without anything: %d %s", res.StatusCode, body)
	}
	other, err := w.CreateKey(t.Context(), v1.KeyRequest{Name: "other", Owner: "other"})
	if err != nil {
		t.Fatal(err)
	}
	for secret, want := range map[string]int{w.node.AdminKey(): 200, other.Secret: 403, "engi_nonsense": 403} {
		if res, body := fetch(t, c, at+"/", "Authorization", "Bearer "+secret); res.StatusCode != want {
			t.Errorf("with a key: %d %s, want %d", res.StatusCode, body, want)
		}
	}
	link, err := w.LinkPort(t.Context(), s.ID, 8000, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if res, body := fetch(t, c, link.URL); res.StatusCode != 200 || body != "hello\n" {
		t.Errorf("with a link: %d %s", res.StatusCode, body)
	}
	res, _ := fetch(t, c, link.URL, "Accept", "text/html", "Sec-Fetch-Mode", "navigate")
	if res.StatusCode != 303 || res.Header.Get("Location") != "/" || len(res.Cookies()) != 1 {
		t.Fatalf("a browser with a link: %d %v", res.StatusCode, res.Header)
	}
	if res, body := fetch(t, c, at+"/headers", "Cookie", res.Cookies()[0].String()+"; b=1"); res.StatusCode != 200 || strings.Contains(body, "engi_preview") || !strings.Contains(body, "b=1") {
		t.Errorf("with the cookie: %d %s", res.StatusCode, body)
	}
}

// TestKillingBreaksStreams checks that callers notice the end: an answer that was cut off
// must not look complete, and the next one contains the reason.
func TestKillingBreaksStreams(t *testing.T) {
	env.Slow(t)
	w := open(t)
	s := w.service(t, nil)
	at, c := w.address(s, 8000), browserless(t, w)
	res, err := c.Get(at + "/events")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if _, err := io.ReadFull(res.Body, make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	ws, _, err := websocket.Dial(t.Context(), "ws"+strings.TrimPrefix(at, "http")+"/echo", &websocket.DialOptions{HTTPClient: c})
	if err != nil {
		t.Fatal(err)
	}
	defer ws.CloseNow()
	if err := w.StopSandbox(t.Context(), s.ID); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { res.Body.Close() })
	_, err = io.Copy(io.Discard, res.Body)
	if !stop() || err == nil {
		t.Errorf("the stream of a killed sandbox ended with %v", err)
	}
	if _, _, err := ws.Read(ctx); err == nil || ctx.Err() != nil {
		t.Errorf("the socket of a killed sandbox: %v, %v", err, ctx.Err())
	}
	gone, body := fetch(t, c, at+"/")
	want := `{"sandboxId":"` + strings.TrimPrefix(s.ID, "sbx_") + `","message":"The sandbox was not found","code":502}`
	if gone.StatusCode != 502 || strings.TrimSpace(body) != want {
		t.Errorf("%d %s", gone.StatusCode, body)
	}
	if page, body := fetch(t, c, at+"/", "Accept", "text/html"); page.StatusCode != 502 || !strings.Contains(body, "The sandbox was not found") {
		t.Errorf("%d %s", page.StatusCode, body)
	}
}

// TestRequestsWakeSleepers checks that the same service continues: its count goes on.
func TestRequestsWakeSleepers(t *testing.T) {
	w := open(t)
	s := w.sandbox(t, nil)
	c := browserless(t, w)
	w.background(t, s, "/home/user", `exec node -e 'let n = 0; require("http").createServer((q, s) => s.end(String(++n))).listen(8000)'`)
	w.listens(t, s, 8000)
	at, n := w.address(s, 8000)+"/", 0
	count := func(what string) {
		t.Helper()
		began := time.Now()
		n++
		if res, body := fetch(t, c, at); res.StatusCode != 200 || body != strconv.Itoa(n) {
			t.Fatalf("%s: %d %q, want %d", what, res.StatusCode, body, n)
		}
		t.Logf("%s: %v", what, time.Since(began).Round(time.Millisecond))
	}
	count("awake")
	count("again")
	if _, err := w.HibernateSandbox(t.Context(), s.ID, false); err != nil {
		t.Fatal(err)
	}
	if res, body := fetch(t, c, at); res.StatusCode != 409 || !strings.Contains(body, `"code":409`) {
		t.Errorf("one that stays asleep: %d %s", res.StatusCode, body)
	}
	yes := true
	if _, err := w.UpdateSandbox(t.Context(), s.ID, v1.SandboxUpdate{AutoResume: &yes}); err != nil {
		t.Fatal(err)
	}
	count("woken from disk")
	if _, err := w.PauseSandbox(t.Context(), s.ID); err != nil {
		t.Fatal(err)
	}
	count("woken from memory")
}
