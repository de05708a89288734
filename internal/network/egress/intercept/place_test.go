package intercept_test

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/network/mask"
)

// raw starts a server for host that answers each connection's first request with
// the result of answer.
func (f *fixture) raw(answer func() string) {
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{f.ca.leaf(f.t, host)}, NextProtos: []string{"http/1.1"}})
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				if _, err := c.Read(make([]byte, 64<<10)); err == nil {
					io.WriteString(c, answer())
				}
			}()
		}
	}()
	f.route(host+":443", l.Addr().String())
}

// exchange sends a request from the sandbox and returns every byte of the response.
func (f *fixture) exchange(method string) string {
	f.t.Helper()
	c := f.dial("http/1.1")
	defer c.Close()
	fmt.Fprintf(c, "%s / HTTP/1.1\r\nHost: %s\r\nTE: trailers\r\nConnection: close, TE\r\n\r\n", method, host)
	all, err := io.ReadAll(c)
	if err != nil && !strings.Contains(err.Error(), "EOF") {
		if _, reset := err.(*net.OpError); !reset {
			f.t.Fatal(err)
		}
	}
	return string(all)
}

// TestEveryPlaceOfAResponse makes a host echo each form of a value in each place that
// can hold text.
func TestEveryPlaceOfAResponse(t *testing.T) {
	whole := func(header, body string) string {
		return fmt.Sprintf("HTTP/1.1 200 OK\r\n%sContent-Length: %d\r\n\r\n%s", header, len(body), body)
	}
	chunked := func(header, body, trailer string) string {
		return fmt.Sprintf("HTTP/1.1 200 OK\r\n%sTransfer-Encoding: chunked\r\n\r\n%s0\r\n%s\r\n", header, body, trailer)
	}
	places := map[string]func(string) string{
		"reason":              func(v string) string { return "HTTP/1.1 200 " + v + "\r\nContent-Length: 2\r\n\r\nok" },
		"unknown status":      func(v string) string { return "HTTP/1.1 299 " + v + "\r\nContent-Length: 2\r\n\r\nok" },
		"header name":         func(v string) string { return whole(v+": x\r\n", "ok") },
		"part of a name":      func(v string) string { return whole("X-"+v+"-Y: x\r\n", "ok") },
		"name of hints":       func(v string) string { return "HTTP/1.1 103 Early Hints\r\n" + v + ": x\r\n\r\n" + whole("", "ok") },
		"value of hints":      func(v string) string { return "HTTP/1.1 103 Early Hints\r\nLink: " + v + "\r\n\r\n" + whole("", "ok") },
		"reason of hints":     func(v string) string { return "HTTP/1.1 103 " + v + "\r\n\r\n" + whole("", "ok") },
		"announced trailer":   func(v string) string { return chunked("Trailer: "+v+"\r\n", "2\r\nok\r\n", v+": x\r\n") },
		"trailer that is not": func(v string) string { return chunked("Trailer: "+v+"\r\n", "2\r\nok\r\n", "") },
		"trailer name":        func(v string) string { return chunked("", "2\r\nok\r\n", v+": x\r\n") },
		"another trailer":     func(v string) string { return chunked("Trailer: X-End\r\n", "2\r\nok\r\n", v+": x\r\n") },
		"trailer value":       func(v string) string { return chunked("Trailer: X-End\r\n", "2\r\nok\r\n", "X-End: "+v+"\r\n") },
		"late trailer value":  func(v string) string { return chunked("", "2\r\nok\r\n", "X-End: "+v+"\r\n") },
		"chunk extension":     func(v string) string { return chunked("", "2;x="+v+"\r\nok\r\n", "") },
		"body":                func(v string) string { return whole("", v) },
		"chunked body":        func(v string) string { return chunked("", fmt.Sprintf("%x\r\n%s\r\n", len(v), v), "") },
		"body until the end":  func(v string) string { return "HTTP/1.1 200 OK\r\n\r\n" + v },
		"encoding":            func(v string) string { return whole("Content-Encoding: "+v+"\r\n", "ok") },
	}
	for _, names := range []string{
		"X-Echo Date Server Via Age Expires Last-Modified ETag Location Content-Location Content-Type Content-Disposition Content-Language Content-Range Set-Cookie " +
			"WWW-Authenticate Proxy-Authenticate Authentication-Info Alt-Svc Link Refresh Retry-After Vary Warning Allow Accept-Ranges Access-Control-Allow-Origin " +
			"Cache-Control Grpc-Message Sec-Websocket-Protocol X-Engi-Error",
		"Connection", "Keep-Alive", "Upgrade", "Trailer",
	} {
		places["values of "+names] = func(v string) string {
			return whole(strings.ReplaceAll(names, " ", ": a "+v+" b\r\n")+": a "+v+" b\r\n", "ok")
		}
	}
	compressors := map[string]func(io.Writer) io.WriteCloser{
		"gzip":    func(w io.Writer) io.WriteCloser { return gzip.NewWriter(w) },
		"deflate": func(w io.Writer) io.WriteCloser { return zlib.NewWriter(w) },
		"deflate, fast": func(w io.Writer) io.WriteCloser {
			z, _ := zlib.NewWriterLevel(w, 4)
			return z
		},
		"deflate, none": func(w io.Writer) io.WriteCloser {
			z, _ := zlib.NewWriterLevel(w, flate.NoCompression)
			return z
		},
		"zstd": func(w io.Writer) io.WriteCloser {
			z, _ := zstd.NewWriter(w)
			return z
		},
	}
	packed := func(how, v string) string {
		var b bytes.Buffer
		z := compressors[how](&b)
		io.WriteString(z, v)
		z.Close()
		return b.String()
	}
	for how := range compressors {
		places["body in "+how] = func(v string) string { return whole("", packed(how, v)) }
		places["body in "+how+", as a download"] = func(v string) string { return whole("Content-Type: application/octet-stream\r\n", packed(how, v)) }
		places["body in "+how+", says so"] = func(v string) string {
			name, _, _ := strings.Cut(how, ",")
			return whole("Content-Encoding: "+name+"\r\n", packed(how, v))
		}
		places["body in "+how+" in gzip"] = func(v string) string { return whole("Content-Encoding: gzip\r\n", packed("gzip", packed(how, v))) }
	}
	const digits = "483920157664"
	for _, v := range []string{plain, digits} {
		f := newFixture(t, grant(engi.GrantQuery, strip, func(g *engi.Grant) { g.Name = "k" }))
		f.secrets[secret] = v
		var forms []string
		for _, form := range mask.Forms(v) {
			forms = append(forms, string(form))
		}
		if len(forms) < 5 {
			t.Fatalf("%q", forms)
		}
		answer := make(chan string, 1)
		f.raw(func() string { return <-answer })
		for place, put := range places {
			for _, form := range forms {
				answer <- put(form)
				got := f.exchange("GET")
				if !strings.HasPrefix(got, "HTTP/1.1 ") && !(got == "" && strings.Contains(place, " in ")) { // refused
					t.Errorf("%s: %q is no response", place, got)
				}
				shown := []string{got}
				for how := range compressors {
					shown = append(shown, packed(how, form)[10:]) // must not appear
				}
				for i, text := range shown {
					if i > 0 && len(text) > 16 && strings.Contains(got, text[:len(text)-8]) {
						t.Errorf("%s: %q is there, compressed: %q", place, form, got)
					}
				}
				for _, bad := range forms {
					if strings.Contains(strings.ToLower(got), strings.ToLower(bad)) {
						t.Errorf("%s: %q is there: %q", place, bad, got)
					}
				}
			}
		}
		if v == digits { // the length of a body that is not sent
			answer <- "HTTP/1.1 200 OK\r\nContent-Length: " + v + "\r\n\r\n"
			if got := f.exchange("HEAD"); strings.Contains(got, v) || !strings.HasPrefix(got, "HTTP/1.1 200") {
				t.Errorf("length: %q", got)
			}
		}
	}
}

// TestTextThatLooksCompressed checks that data which only begins like compressed data is passed on, also in parts.
func TestTextThatLooksCompressed(t *testing.T) {
	f := newFixture(t, grant(engi.GrantBearer, strip, token))
	bodies := []string{"x", "x^", "x^2 + y^2", "x^2 + y^2 = " + strings.Repeat("z^2 ", 20), "x y", "xyz", "\x1f", "\x1f\x8a", "\x28\xb5\x2f", "(\xb5", "", "x^\r\n\t" + strings.Repeat("b", 40) + "\x80", "PK\x03\x04"}
	part := 0
	f.upstream(host, true, func(rw http.ResponseWriter, r *http.Request) {
		var n int
		fmt.Sscan(r.URL.Query().Get("n"), &n)
		body := bodies[n]
		for len(body) > 0 {
			k := min(part, len(body))
			if part == 0 {
				k = len(body)
			}
			io.WriteString(rw, body[:k])
			http.NewResponseController(rw).Flush()
			body = body[k:]
		}
	})
	for part = range 3 {
		for n, want := range bodies {
			if res, got := f.get(f.client(true), fmt.Sprintf("https://%s/?n=%d", host, n)); got != want || res.StatusCode != 200 {
				t.Errorf("%q became %q", want, got)
			}
		}
	}
}

// TestCompressedBodiesAreRefused checks that a refusal is logged, since it may follow the header of the response.
func TestCompressedBodiesAreRefused(t *testing.T) {
	f := newFixture(t, grant(engi.GrantBearer, strip, token))
	f.upstream(host, false, func(rw http.ResponseWriter, r *http.Request) {
		z := gzip.NewWriter(rw)
		io.WriteString(z, "you sent "+r.Header.Get("Authorization"))
		z.Close()
	})
	r, err := http.NewRequestWithContext(t.Context(), "GET", "https://"+host+"/", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := f.client(false).Do(r)
	if err == nil {
		defer res.Body.Close()
		var body []byte
		if body, err = io.ReadAll(res.Body); len(body) > 0 {
			t.Errorf("%q", body)
		}
	}
	if err == nil {
		t.Error("the response looks complete")
	}
	events := f.seen()
	if last := events[len(events)-1]; last.Allowed || !strings.Contains(last.Reason, "compressed as gzip") {
		t.Errorf("%+v", last)
	}
	f.clean()
}
