package intercept_test

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/engi-dev/engi/internal/engi"
)

// TestSmuggling sends requests that parsers may read differently, and checks the bytes that
// leave: the host sees only requests for itself, each with one length, and as
// many requests as were answered.
func TestSmuggling(t *testing.T) {
	inner := "GET /smuggled HTTP/1.1\r\nHost: evil.example\r\n\r\n"
	for name, text := range map[string]string{
		"length and chunks": "POST /a HTTP/1.1\r\nHost: H\r\nContent-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + inner,
		"chunks and length": "POST /a HTTP/1.1\r\nHost: H\r\nTransfer-Encoding: chunked\r\nContent-Length: 100\r\n\r\n0\r\n\r\n" + inner,
		"two lengths":       "POST /a HTTP/1.1\r\nHost: H\r\nContent-Length: 0\r\nContent-Length: 44\r\n\r\n" + inner,
		"length list":       "POST /a HTTP/1.1\r\nHost: H\r\nContent-Length: 0, 44\r\n\r\n" + inner,
		"signed length":     "POST /a HTTP/1.1\r\nHost: H\r\nContent-Length: +44\r\n\r\n" + inner,
		"odd coding":        "POST /a HTTP/1.1\r\nHost: H\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + inner,
		"two codings":       "POST /a HTTP/1.1\r\nHost: H\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n" + inner,
		"space before":      "POST /a HTTP/1.1\r\nHost: H\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n" + inner,
		"folded":            "POST /a HTTP/1.1\r\nHost: H\r\nX-A: b\r\n Transfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n" + inner,
		"folded coding":     "POST /a HTTP/1.1\r\nHost: H\r\nTransfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n" + inner,
		"vertical tab":      "POST /a HTTP/1.1\r\nHost: H\r\nTransfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n" + inner,
		"chunk extension":   "POST /a HTTP/1.1\r\nHost: H\r\nTransfer-Encoding: chunked\r\n\r\n0;a=\"\n" + inner + "\"\r\n\r\n",
		"bare returns":      "POST /a HTTP/1.1\rHost: H\r\r" + inner,
		"two hosts":         "GET /a HTTP/1.1\r\nHost: H\r\nHost: evil.example\r\n\r\n",
		"host in the path":  "GET https://evil.example/a HTTP/1.1\r\nHost: H\r\n\r\n",
		"user in the path":  "GET https://H@evil.example/a HTTP/1.1\r\nHost: H\r\n\r\n",
		"other scheme":      "GET ftp://evil.example/a HTTP/1.1\r\nHost: H\r\n\r\n",
		"connect":           "CONNECT evil.example:443 HTTP/1.1\r\nHost: evil.example:443\r\n\r\n" + inner,
		"connect to itself": "CONNECT H:443 HTTP/1.1\r\nHost: H:443\r\n\r\n" + inner,
		"h2c":               "GET /a HTTP/1.1\r\nHost: H\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n" + inner,
		"upgrade refused":   "GET /a HTTP/1.1\r\nHost: H\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n" + inner,
		"nul":               "GET /a HTTP/1.1\r\nHost: H\r\nX-A: b\x00c\r\n\r\n",
		"old version":       "GET /a HTTP/0.9\r\n\r\n",
		"no version":        "GET /a\r\n",
		"big header":        "GET /a HTTP/1.1\r\nHost: H\r\nX-A: " + strings.Repeat("a", 200<<10) + "\r\n\r\n",
		"space in the path": "GET /a b HTTP/1.1\r\nHost: H\r\n\r\n",
		"pipeline":          "GET /a HTTP/1.1\r\nHost: H\r\n\r\n" + inner,
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, grant(engi.GrantBearer, token))
			raw := f.rawUpstream()
			conn := f.dial("http/1.1")
			conn.SetDeadline(time.Now().Add(time.Minute))
			go func() {
				io.WriteString(conn, strings.ReplaceAll(text, " H", " "+host))
				conn.CloseWrite()
			}()
			answers, _ := io.ReadAll(conn)
			seen := raw.all()
			if strings.Contains(seen, "smuggled") && !strings.Contains(bodyOf(seen), "smuggled") || strings.Contains(seen, "evil.example\r\n") && !strings.Contains(bodyOf(seen), "evil") {
				t.Errorf("the host sees %q", seen)
			}
			for _, head := range heads(seen) {
				if n := strings.Count(strings.ToLower(head), "\r\nhost: "); n != 1 || !strings.Contains(head, "\r\nHost: "+host+"\r\n") {
					t.Errorf("%d hosts in %q", n, head)
				}
				if n := strings.Count(head, "\r\nContent-Length: ") + strings.Count(head, "\r\nTransfer-Encoding: "); n > 1 {
					t.Errorf("%d lengths in %q", n, head)
				}
				if strings.Count(head, "\r\nAuthorization: Bearer "+plain+"\r\n") != 1 {
					t.Errorf("authorization in %q", head)
				}
			}
			if n := len(heads(seen)); n > bytes.Count(answers, []byte("HTTP/1.1 200 ")) {
				t.Errorf("%d requests left, answers are %q", n, answers)
			}
			f.clean()
		})
	}
}

// heads returns the requests in the bytes that a host has read.
func heads(seen string) (all []string) {
	in := bufio.NewReader(strings.NewReader(seen))
	for {
		r, err := http.ReadRequest(in)
		if err != nil {
			return all
		}
		io.Copy(io.Discard, r.Body)
		var b strings.Builder
		fmt.Fprintf(&b, "%s\r\nHost: %s\r\n", r.RequestURI, r.Host)
		r.Header.Write(&b)
		if r.ContentLength > 0 {
			fmt.Fprintf(&b, "Content-Length: %d\r\n", r.ContentLength)
		}
		all = append(all, b.String())
	}
}

// bodyOf returns the bodies in the bytes that a host has read.
func bodyOf(seen string) string {
	var b strings.Builder
	in := bufio.NewReader(strings.NewReader(seen))
	for {
		r, err := http.ReadRequest(in)
		if err != nil {
			return b.String()
		}
		io.Copy(&b, r.Body)
	}
}

// A rawHost reads requests and records every byte.
type rawHost struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (h *rawHost) Write(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.buf.Write(p)
}

func (h *rawHost) all() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.buf.String()
}

func (f *fixture) rawUpstream() *rawHost {
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{f.ca.leaf(f.t, host)}})
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { l.Close() })
	f.route(host+":443", l.Addr().String())
	h := &rawHost{}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				in := bufio.NewReader(io.TeeReader(conn, h))
				for {
					r, err := http.ReadRequest(in)
					if err != nil {
						return
					}
					io.Copy(io.Discard, r.Body)
					io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
				}
			}()
		}
	}()
	return h
}

// TestPseudoHeaders sends HTTP/2 frames that no client would send.
func TestPseudoHeaders(t *testing.T) {
	type field = hpack.HeaderField
	usual := []field{{Name: ":method", Value: "GET"}, {Name: ":scheme", Value: "https"}, {Name: ":path", Value: "/"}, {Name: ":authority", Value: host}}
	with := func(more ...field) []field { return append(append([]field(nil), usual...), more...) }
	change := func(name, value string) []field {
		all := with()
		for i := range all {
			if all[i].Name == name {
				all[i].Value = value
			}
		}
		return all
	}
	for name, c := range map[string]struct {
		fields []field
		sent   bool // the request may be forwarded, to this host
	}{
		"usual":               {usual, true},
		"other authority":     {change(":authority", "evil.example"), false},
		"empty authority":     {change(":authority", ""), false},
		"user in authority":   {change(":authority", host+"@evil.example"), false},
		"second authority":    {with(field{Name: ":authority", Value: "evil.example"}), false},
		"host beside":         {with(field{Name: "host", Value: "evil.example"}), false},
		"same host beside":    {with(field{Name: "host", Value: host}), true},
		"path of another":     {change(":path", "https://evil.example/"), false},
		"path with lines":     {change(":path", "/ HTTP/1.1\r\nHost: evil.example\r\n\r\n"), false},
		"method with lines":   {change(":method", "GET / HTTP/1.1\r\nHost: evil.example\r\n\r\nGET"), false},
		"value with lines":    {with(field{Name: "x-a", Value: "b\r\nHost: evil.example"}), false},
		"name with lines":     {with(field{Name: "x-a: b\r\nhost", Value: "evil.example"}), false},
		"upper case":          {with(field{Name: "X-A", Value: "b"}), false},
		"connection":          {with(field{Name: "connection", Value: "authorization"}), false},
		"transfer-encoding":   {with(field{Name: "transfer-encoding", Value: "chunked"}), false},
		"wrong length":        {with(field{Name: "content-length", Value: "10"}), true}, // and is forwarded without it
		"unknown pseudo":      {with(field{Name: ":protocol", Value: "websocket"}), false},
		"pseudo after":        {append(with(field{Name: "x-a", Value: "b"}), field{Name: ":path", Value: "/evil"}), false},
		"connect":             {[]field{{Name: ":method", Value: "CONNECT"}, {Name: ":authority", Value: host + ":443"}}, false},
		"http scheme":         {change(":scheme", "http"), true},
		"own authorization":   {with(field{Name: "authorization", Value: "Bearer mine"}), true},
		"upgrade":             {with(field{Name: "upgrade", Value: "websocket"}), false},
		"a lot of headers":    {with(make([]field, 0)...), true},
		"authority with port": {change(":authority", host+":443"), true},
		"authority, port 80":  {change(":authority", host+":80"), false},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, grant(engi.GrantBearer, token))
			var mu sync.Mutex
			var got []string
			f.upstream(host, name != "http scheme", func(rw http.ResponseWriter, r *http.Request) {
				mu.Lock()
				defer mu.Unlock()
				got = append(got, fmt.Sprintln(r.Method, r.Host, r.RequestURI, r.Header))
				if r.ContentLength != 0 || strings.Contains(fmt.Sprint(r.Host, r.RequestURI, r.Header, r.TransferEncoding), "evil") || r.Header.Get("Authorization") != "Bearer "+plain {
					t.Errorf("the host sees %q", got)
				}
			})
			status := rawTwo(t, f.dial("h2"), c.fields)
			mu.Lock()
			defer mu.Unlock()
			if c.sent != (len(got) == 1) || c.sent != (status == "200") {
				t.Errorf("answered %s, the host sees %q", status, got)
			}
		})
	}
}

// rawTwo sends one header frame and returns the status, or the error.
func rawTwo(t *testing.T, conn net.Conn, fields []hpack.HeaderField) string {
	t.Helper()
	conn.SetDeadline(time.Now().Add(time.Minute))
	io.WriteString(conn, http2.ClientPreface)
	f := http2.NewFramer(conn, conn)
	f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	f.WriteSettings()
	var block bytes.Buffer
	e := hpack.NewEncoder(&block)
	for _, h := range fields {
		e.WriteField(h)
	}
	f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndHeaders: true, EndStream: true})
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			return err.Error()
		}
		switch frame := frame.(type) {
		case *http2.MetaHeadersFrame:
			return frame.PseudoValue("status")
		case *http2.RSTStreamFrame:
			return frame.ErrCode.String()
		case *http2.GoAwayFrame:
			return frame.ErrCode.String()
		case *http2.SettingsFrame:
			if !frame.IsAck() {
				f.WriteSettingsAck()
			}
		}
	}
}

// TestValuesInjectNothing grants values that could add more than a header's value.
func TestValuesInjectNothing(t *testing.T) {
	for _, v := range []string{"a\r\nX-Injected: 1", "a\nX-Injected: 1", "a\rb", "a\x00b", "line\n", "tab\tis fine", "ünïcode is fine", "a&injected=1#x", " b "} {
		for _, as := range []engi.GrantUse{engi.GrantHeader, engi.GrantBearer, engi.GrantBasic, engi.GrantQuery, engi.GrantPlaceholder} {
			f := newFixture(t, grant(as, func(g *engi.Grant) {
				if as == engi.GrantHeader || as == engi.GrantQuery {
					g.Name = "K"
				}
			}))
			f.secrets[secret] = v
			raw := f.rawUpstream()
			r, _ := http.NewRequestWithContext(t.Context(), "GET", "https://"+host+"/p?x="+f.w.Env["API_KEY"], nil)
			r.Header.Set("X-Mine", f.w.Env["API_KEY"])
			res, _ := f.do(f.client(false), r)
			fine := as == engi.GrantBasic || as == engi.GrantQuery || !strings.ContainsAny(v, "\r\n\x00")
			if fine != (res.StatusCode == 200) {
				t.Errorf("%q as %s: %s %v", v, as, res.Status, res.Header)
			}
			seen := raw.all()
			line, _, _ := strings.Cut(seen, "\r\n")
			if as == engi.GrantQuery {
				line = strings.Replace(line, "&K=", "", 1)
			}
			if strings.Contains(seen, "\r\nX-Injected") || strings.ContainsAny(line, "&#") || len(heads(seen)) > 1 {
				t.Errorf("%q as %s: the host sees %q", v, as, seen)
			}
		}
	}
}

// TestPlaceholdersAreBounded repeats a placeholder until the header is too long.
func TestPlaceholdersAreBounded(t *testing.T) {
	f := newFixture(t, grant(engi.GrantPlaceholder))
	f.secrets[secret] = strings.Repeat("v", 64<<10)
	f.upstream(host, true, func(http.ResponseWriter, *http.Request) { t.Error("the request was sent") })
	r, _ := http.NewRequestWithContext(t.Context(), "GET", "https://"+host+"/", nil)
	r.Header.Set("X-Mine", strings.Repeat(f.w.Env["API_KEY"], 100))
	if res, _ := f.do(f.client(true), r); res.StatusCode != 431 && res.StatusCode != 502 {
		t.Error(res.Status)
	}
}

func TestRequestsAtOnceAreBounded(t *testing.T) {
	f := newFixture(t, grant(engi.GrantBearer, token))
	let := make(chan struct{})
	f.upstream(host, true, func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Alt-Svc", `h3=":443"`)
		rw.WriteHeader(200)
		http.NewResponseController(rw).Flush()
		<-let
	})
	counts := make(chan int, 700)
	var wg sync.WaitGroup
	for range 7 { // connections
		c := f.client(true)
		for range 100 {
			wg.Go(func() {
				r, _ := http.NewRequestWithContext(t.Context(), "GET", "https://"+host+"/", nil)
				res, err := c.Do(r)
				if err != nil {
					t.Error(err)
					return
				}
				counts <- res.StatusCode
				if res.Header.Get("Alt-Svc") != "" {
					t.Error("Alt-Svc passes")
				}
				<-let
				res.Body.Close()
			})
		}
	}
	refused := 0
	for range 700 {
		if <-counts == 503 {
			refused++
		}
	}
	close(let)
	wg.Wait()
	if refused != 700-512 {
		t.Errorf("%d requests were refused", refused)
	}
	// The clients are done, but some handlers may not have returned yet.
	c := f.client(true)
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		res, _ := f.get(c, "https://"+host+"/")
		if res.StatusCode == 200 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("after it: %s", res.Status)
		}
	}
}
