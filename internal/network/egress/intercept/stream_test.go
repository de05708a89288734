package intercept_test

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

func TestStreams(t *testing.T) {
	for _, two := range []bool{false, true} {
		for _, p := range []engi.NetworkPolicy{grant(engi.GrantBearer, token), grant(engi.GrantBearer, token, strip)} {
			f := newFixture(t, p)
			next := make(chan string)
			f.upstream(host, two, func(rw http.ResponseWriter, r *http.Request) {
				rw.Header().Set("Content-Type", "text/event-stream")
				rw.WriteHeader(103)
				http.NewResponseController(rw).Flush()
				for text := range next {
					fmt.Fprintf(rw, "data: %s\n\n", text)
					http.NewResponseController(rw).Flush()
				}
			})
			r, _ := http.NewRequestWithContext(t.Context(), "GET", "https://"+host+"/", nil)
			res, err := f.client(two).Do(r)
			if err != nil {
				t.Fatal(err)
			}
			in := bufio.NewReader(res.Body)
			for _, text := range []string{"one", "two that ends like " + plain[:1], "three " + plain[:2], "four"} {
				next <- text // the host sends the next text only after this one was read
				line, err := in.ReadString('\n')
				if err != nil || line != "data: "+text+"\n" {
					t.Fatalf("%q, %v", line, err)
				}
				in.ReadString('\n')
			}
			close(next)
			if rest, err := io.ReadAll(in); len(rest) > 0 || err != nil {
				t.Errorf("%q, %v", rest, err)
			}
			res.Body.Close()
		}
	}
}

// zeros is a body of n zero bytes.
type zeros struct{ n int64 }

func (z *zeros) Read(p []byte) (int, error) {
	if z.n == 0 {
		return 0, io.EOF
	}
	n := min(int64(len(p)), z.n)
	z.n -= n
	clear(p[:n])
	return int(n), nil
}

func TestLargeBodiesNeedNoMemory(t *testing.T) {
	size := int64(64 << 20)
	if os.Getenv("ENGI_TEST_REQUIRE") != "" {
		size = 1 << 30 // unless tests should be short
	}
	for _, two := range []bool{false, true} {
		f := newFixture(t, grant(engi.GrantBearer, token, strip))
		f.upstream(host, two, func(rw http.ResponseWriter, r *http.Request) {
			if r.Method == "POST" {
				n, err := io.Copy(io.Discard, r.Body)
				fmt.Fprint(rw, n, err)
				return
			}
			rw.Header().Set("Content-Length", fmt.Sprint(size))
			io.Copy(rw, &zeros{size})
		})
		var peak atomic.Uint64
		stop := make(chan struct{})
		go func() {
			for {
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				peak.Store(max(peak.Load(), m.HeapInuse))
				select {
				case <-stop:
					return
				case <-time.After(50 * time.Millisecond):
				}
			}
		}()
		c := f.client(two)
		started := time.Now()
		r, _ := http.NewRequestWithContext(t.Context(), "POST", "https://"+host+"/", &zeros{size})
		r.ContentLength = size
		if _, body := f.do(c, r); body != fmt.Sprint(size, nil) {
			t.Errorf("up: %q", body)
		}
		up := time.Since(started)
		started = time.Now()
		res, err := c.Get("https://" + host + "/")
		if err != nil {
			t.Fatal(err)
		}
		n, err := io.Copy(io.Discard, res.Body)
		res.Body.Close()
		if n != size || err != nil {
			t.Errorf("down: %d, %v", n, err)
		}
		close(stop)
		t.Logf("http2=%v: %d MiB up in %v, down in %v, heap at most %d MiB", two, size>>20, up, time.Since(started), peak.Load()>>20)
		if peak.Load() > 128<<20 {
			t.Errorf("the heap grew to %d MiB", peak.Load()>>20)
		}
	}
}

func TestBothWaysAtOnce(t *testing.T) {
	for _, two := range []bool{false, true} {
		f := newFixture(t, grant(engi.GrantBearer, token))
		f.upstream(host, two, func(rw http.ResponseWriter, r *http.Request) {
			rc := http.NewResponseController(rw)
			if !two {
				rc.EnableFullDuplex()
			}
			rw.WriteHeader(200)
			rc.Flush()
			in := bufio.NewReader(r.Body)
			for {
				line, err := in.ReadString('\n')
				if err != nil {
					return
				}
				io.WriteString(rw, "echo "+line)
				rc.Flush()
			}
		})
		pr, pw := io.Pipe()
		r, _ := http.NewRequestWithContext(t.Context(), "POST", "https://"+host+"/", pr)
		res, err := f.client(two).Do(r)
		if err != nil {
			t.Fatal(err)
		}
		in := bufio.NewReader(res.Body)
		for n := range 10 {
			fmt.Fprintf(pw, "%d\n", n)
			if line, err := in.ReadString('\n'); err != nil || line != fmt.Sprintf("echo %d\n", n) {
				t.Fatalf("http2=%v: %q, %v", two, line, err)
			}
		}
		pw.Close()
		if rest, err := io.ReadAll(in); len(rest) > 0 || err != nil {
			t.Errorf("%q, %v", rest, err)
		}
		res.Body.Close()
	}
}

func TestTrailers(t *testing.T) {
	for _, two := range []bool{false, true} {
		f := newFixture(t, grant(engi.GrantBearer, token))
		f.upstream(host, two, func(rw http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			rw.Header().Set("Trailer", "Grpc-Status")
			io.WriteString(rw, "te="+r.Header.Get("Te")+" sum="+r.Trailer.Get("X-Sum"))
			rw.Header().Set("Grpc-Status", "0")
			rw.Header().Set(http.TrailerPrefix+"X-Late", "late "+plain)
		})
		r, _ := http.NewRequestWithContext(t.Context(), "POST", "https://"+host+"/", io.MultiReader(strings.NewReader("body")))
		r.Header.Set("Te", "trailers")
		r.Trailer = http.Header{"X-Sum": {"42"}}
		res, body := f.do(f.client(two), r)
		if body != "te=trailers sum=42" || res.Trailer.Get("Grpc-Status") != "0" || res.Trailer.Get("X-Late") != "late "+strings.Repeat("*", len(plain)) {
			t.Errorf("http2=%v: %q %v", two, body, res.Trailer)
		}
	}
}

func TestContinue(t *testing.T) {
	f := newFixture(t, grant(engi.GrantBearer, token))
	f.upstream(host, false, func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/no" {
			http.Error(rw, "too big", http.StatusRequestEntityTooLarge)
			return
		}
		io.Copy(rw, r.Body)
	})
	conn := f.dial("http/1.1")
	fmt.Fprintf(conn, "POST /yes HTTP/1.1\r\nHost: %s\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n", host)
	in := bufio.NewReader(conn)
	if line, err := in.ReadString('\n'); err != nil || !strings.Contains(line, "100 Continue") {
		t.Fatalf("%q, %v", line, err)
	}
	in.ReadString('\n')
	io.WriteString(conn, "body")
	res, err := http.ReadResponse(in, nil)
	if err != nil {
		t.Fatal(err)
	}
	if body, _ := io.ReadAll(res.Body); string(body) != "body" {
		t.Errorf("%q", body)
	}
	fmt.Fprintf(conn, "POST /no HTTP/1.1\r\nHost: %s\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n", host)
	if res, err = http.ReadResponse(in, nil); err != nil || res.StatusCode != 413 {
		t.Errorf("%v, %v", res, err)
	}
}

func TestUpgrade(t *testing.T) {
	for _, p := range []engi.NetworkPolicy{grant(engi.GrantBearer, token), grant(engi.GrantBearer, token, strip)} {
		f := newFixture(t, p)
		f.upstream(host, true, func(rw http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") != "Bearer "+plain || r.Header.Get("Upgrade") != "websocket" || r.ProtoMajor != 1 {
				http.Error(rw, fmt.Sprint(r.Proto, r.Header), 400)
				return
			}
			if got := r.Header.Get("Sec-WebSocket-Extensions"); p.Grants[0].Strip == (got != "") {
				t.Errorf("extensions %q", got)
			}
			conn, buf, err := http.NewResponseController(rw).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nX-Echo: %s\r\n\r\nhello %s\n", plain, plain)
			for {
				line, err := buf.ReadString('\n')
				if err != nil {
					return
				}
				io.WriteString(conn, "echo "+line)
			}
		})
		conn := f.dial("http/1.1")
		fmt.Fprintf(conn, "GET /ws HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Extensions: permessage-deflate\r\n\r\n", host)
		in := bufio.NewReader(conn)
		res, err := http.ReadResponse(in, nil)
		if err != nil || res.StatusCode != 101 || strings.Contains(res.Header.Get("X-Echo"), plain) {
			t.Fatalf("%v, %v", res, err)
		}
		want := "hello " + plain + "\n"
		if p.Grants[0].Strip {
			want = "hello " + strings.Repeat("*", len(plain)) + "\n"
		}
		if line, err := in.ReadString('\n'); err != nil || line != want {
			t.Errorf("%q, %v", line, err)
		}
		for range 3 {
			io.WriteString(conn, "ping\n")
			if line, err := in.ReadString('\n'); err != nil || line != "echo ping\n" {
				t.Errorf("%q, %v", line, err)
			}
		}
		conn.Close()
	}
}
