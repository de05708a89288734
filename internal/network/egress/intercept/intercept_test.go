package intercept_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/network/egress/intercept"
)

func TestUses(t *testing.T) {
	basic := "Basic " + base64.StdEncoding.EncodeToString([]byte("bob:"+plain))
	for name, c := range map[string]struct {
		policy engi.NetworkPolicy
		send   func(*http.Request, string) // puts the placeholder into the request
		want   func(*http.Request) string  // returns the error; empty if there was none
	}{
		"header": {grant(engi.GrantHeader, token, func(g *engi.Grant) { g.Name, g.Format = "X-Api-Key", "key={};" }),
			func(r *http.Request, _ string) { r.Header.Set("X-Api-Key", "mine"); r.Header.Add("x-api-key", "more") },
			func(r *http.Request) string {
				return wrong(r.Header.Values("X-Api-Key"), "key="+plain+";")
			}},
		"bearer": {grant(engi.GrantBearer, token),
			func(r *http.Request, _ string) { r.Header.Set("Authorization", "Basic mine") },
			func(r *http.Request) string { return wrong(r.Header.Values("Authorization"), "Bearer "+plain) }},
		"default": {grant("", token), nil,
			func(r *http.Request) string { return wrong(r.Header.Values("Authorization"), "Bearer "+plain) }},
		"basic": {grant(engi.GrantBasic, token, func(g *engi.Grant) { g.Name = "bob" }), nil,
			func(r *http.Request) string { return wrong(r.Header.Values("Authorization"), basic) }},
		"query": {grant(engi.GrantQuery, func(g *engi.Grant) { g.Name = "api key" }),
			func(r *http.Request, _ string) { r.URL.RawQuery = "b=%2F&api+key=mine&a=1;x&api%20key=again" },
			func(r *http.Request) string {
				return wrong([]string{r.URL.RawQuery}, "b=%2F&a=1;x&api+key="+url.QueryEscape(value))
			}},
		"placeholder": {grant(engi.GrantPlaceholder, token),
			func(r *http.Request, p string) {
				r.Header.Set("X-Any", "a"+p+"b"+p)
				r.URL.RawQuery = "q=" + p
				r.SetBasicAuth("me", p)
			},
			func(r *http.Request) string {
				_, pass, _ := r.BasicAuth()
				return wrong([]string{r.Header.Get("X-Any"), r.URL.RawQuery, pass}, "a"+plain+"b"+plain, "q="+plain, plain)
			}},
		"placeholder in the query": {grant(engi.GrantPlaceholder),
			func(r *http.Request, p string) { r.URL.RawQuery = "q=" + p },
			func(r *http.Request) string { return wrong([]string{r.URL.Query().Get("q")}, value) }},
		"header rule": {engi.NetworkPolicy{Headers: []engi.HeaderRule{
			{Host: "*.example.com", Headers: map[string]string{"X-Both": "general", "X-Two": "${secrets.TOKEN}:${e2b.secrets.TOKEN}"}},
			{Host: host, Headers: map[string]string{"X-Both": "exact", "Authorization": "Token ${secrets.TOKEN}"}},
		}}, nil,
			func(r *http.Request) string {
				return wrong([]string{r.Header.Get("X-Both"), r.Header.Get("X-Two"), r.Header.Get("Authorization")}, "exact", plain+":"+plain, "Token "+plain)
			}},
		"a connection header strips nothing": {grant(engi.GrantBearer, token),
			func(r *http.Request, _ string) { r.Header.Set("Connection", "Authorization, close") },
			func(r *http.Request) string { return wrong(r.Header.Values("Authorization"), "Bearer "+plain) }},
	} {
		for _, two := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/http2=%v", name, two), func(t *testing.T) {
				f := newFixture(t, c.policy)
				var got string
				f.upstream(host, two, func(rw http.ResponseWriter, r *http.Request) {
					got = c.want(r)
					if r.ProtoMajor == 2 != two {
						got += fmt.Sprintf(" by %s", r.Proto)
					}
				})
				r, _ := http.NewRequestWithContext(t.Context(), "GET", "https://"+host+"/v1/x", nil)
				if c.send != nil {
					c.send(r, f.w.Env["API_KEY"])
				}
				if two {
					r.Header.Del("Connection")
				}
				if res, body := f.do(f.client(two), r); res.StatusCode != 200 || got != "" {
					t.Errorf("%s %q: %s", res.Status, body, got)
				}
				e := f.seen()
				if len(e) != 1 || !e[0].Allowed || e[0].Kind != engi.NetworkRequest || e[0].Host != host || e[0].Owner != "ann" ||
					!strings.HasPrefix(e[0].Reason, "GET /v1/x: 200, with ") || e[0].Rule == "" {
					t.Errorf("events %+v", e)
				}
				f.clean()
			})
		}
	}
}

func wrong(got []string, want ...string) string {
	if len(got) == len(want) {
		same := true
		for i := range got {
			same = same && got[i] == want[i]
		}
		if same {
			return ""
		}
	}
	return fmt.Sprintf("got %q, want %q", got, want)
}

func TestPlaceholderStaysInBodies(t *testing.T) {
	f := newFixture(t, grant(engi.GrantPlaceholder, token))
	f.upstream(host, true, func(rw http.ResponseWriter, r *http.Request) { io.Copy(rw, r.Body) })
	p := f.w.Env["API_KEY"]
	if len(p) < 32 || strings.ContainsAny(p, "+/=%&?:; ") {
		t.Errorf("placeholder %q", p)
	}
	r, _ := http.NewRequestWithContext(t.Context(), "POST", "https://"+host+"/", strings.NewReader("token="+p))
	if _, body := f.do(f.client(true), r); body != "token="+p {
		t.Errorf("%q", body)
	}
	other := newFixture(t, grant(engi.GrantPlaceholder, token))
	if other.w.Env["API_KEY"] == p {
		t.Error("two sandboxes have the same placeholder")
	}
}

func TestOtherHostsGetNothing(t *testing.T) {
	f := newFixture(t, engi.NetworkPolicy{
		Grants:  []engi.Grant{{Secret: "TOKEN", Hosts: []string{host}, Env: "API_KEY"}, {Secret: secret, Hosts: []string{"*.other.example"}, As: engi.GrantQuery, Name: "k"}, {Secret: "TOKEN", Hosts: []string{"port.example:8443"}}},
		Headers: []engi.HeaderRule{{Host: "third.example", Headers: map[string]string{"X-A": "b"}}},
	})
	for _, name := range []string{host, "a.other.example", "third.example"} {
		f.upstream(name, true, func(rw http.ResponseWriter, r *http.Request) {
			fmt.Fprintf(rw, "%s %v %s", r.URL, r.Header, r.Host)
		})
	}
	c := f.client(false)
	for name, want := range map[string]string{host: plain, "a.other.example": url.QueryEscape(value), "third.example": ""} {
		r, _ := http.NewRequestWithContext(t.Context(), "GET", "https://"+name+"/", nil)
		r.Header.Set("X-Any", f.w.Env["API_KEY"])
		_, body := f.do(c, r)
		for _, v := range []string{plain, url.QueryEscape(value)} {
			if strings.Contains(body, v) != (v == want) {
				t.Errorf("%s gets %s", name, body)
			}
		}
	}
	for _, c := range []struct {
		name string
		port uint16
		tls  bool
		want bool
	}{
		{host, 443, true, true}, {host, 8443, true, true}, {host, 80, false, false}, {host, 443, false, false}, {"x." + host, 443, true, false},
		{"other.example", 443, true, false}, {"a.b.other.example", 443, true, true}, {"evilother.example", 443, true, false}, {".other.example", 443, true, false}, {"", 443, true, false},
		{"port.example", 8443, true, true}, {"port.example", 443, true, false}, {"port.example", 8443, false, false},
	} {
		if got := f.i.Intercepts(f.id, c.name, c.port, c.tls); got != c.want {
			t.Errorf("Intercepts(%q, %d, %v) = %v", c.name, c.port, c.tls, got)
		}
	}
	if f.i.Intercepts(engi.NewSandboxID(), host, 443, true) {
		t.Error("another sandbox is intercepted")
	}
}

func TestHostMismatchIsRefused(t *testing.T) {
	f := newFixture(t, grant(engi.GrantBearer, token))
	var asked atomic.Int64
	f.upstream(host, true, func(http.ResponseWriter, *http.Request) { asked.Add(1) })
	for _, two := range []bool{false, true} {
		for _, name := range []string{"evil.example", "", "api.example.com.evil.example", host + ":444", "api.example.com@evil.example", "evil.example, " + host, "192.0.2.1"} {
			if name == "" && two {
				continue
			}
			r, _ := http.NewRequestWithContext(t.Context(), "GET", "https://"+host+"/", nil)
			r.Host = name
			if name == "" {
				conn := f.dial("http/1.1")
				fmt.Fprintf(conn, "GET / HTTP/1.0\r\n\r\n")
				if line, _ := bufio.NewReader(conn).ReadString('\n'); !strings.Contains(line, " 421 ") && !strings.Contains(line, " 400 ") {
					t.Errorf("no host: %q", line)
				}
				continue
			}
			res, err := f.client(two).Do(r)
			if err != nil {
				if !strings.Contains(err.Error(), "invalid Host header") { // the client's own error text
					t.Errorf("%q: %v", name, err)
				}
				continue
			}
			res.Body.Close()
			if res.StatusCode != 421 && res.StatusCode != 400 || res.StatusCode == 421 && res.Header.Get("X-Engi-Error") == "" {
				t.Errorf("%q by http2=%v: %s %v", name, two, res.Status, res.Header)
			}
		}
	}
	if asked.Load() != 0 {
		t.Error("the host was asked")
	}
	events := f.seen()
	if len(events) < 6 {
		t.Errorf("%d events", len(events))
	}
	for _, e := range events {
		if e.Allowed || e.Host != host || e.Reason == "" {
			t.Errorf("%+v", e)
		}
	}
	for _, name := range []string{strings.ToUpper(host), host + ".", host + ":443"} {
		r, _ := http.NewRequestWithContext(t.Context(), "GET", "https://"+host+"/", nil)
		r.Host = name
		if res, _ := f.do(f.client(true), r); res.StatusCode != 200 {
			t.Errorf("%q: %s", name, res.Status)
		}
	}
}

func TestWrongServerName(t *testing.T) {
	f := newFixture(t, grant(engi.GrantBearer, token))
	for _, name := range []string{"evil.example", ""} {
		conn := tls.Client(f.connect(f.target()), &tls.Config{ServerName: name, InsecureSkipVerify: true})
		if err := conn.HandshakeContext(t.Context()); err == nil {
			t.Errorf("a client that asks for %q gets a certificate", name)
		}
	}
	// A client that does not trust the authority causes an event about this.
	conn := tls.Client(f.connect(f.target()), &tls.Config{ServerName: host, RootCAs: f.ca.pool})
	if err := conn.HandshakeContext(t.Context()); err == nil {
		t.Error("no error")
	}
	conn.Close()
	for deadline := time.Now().Add(time.Minute); len(f.seen()) < 3 && time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
	}
	events := f.seen()
	said := 0
	for _, e := range events { // events of connections are in no order
		if e.Kind != engi.NetworkClaim || e.Allowed {
			t.Errorf("%+v", e)
		}
		if strings.Contains(e.Reason, "client aborted the TLS handshake: tls: bad certificate") {
			said++
		}
	}
	if len(events) != 3 || said != 1 {
		t.Errorf("%+v", events)
	}
}

func TestRedirectsStayAsTheyAre(t *testing.T) {
	f := newFixture(t, grant(engi.GrantQuery, func(g *engi.Grant) { g.Name = "key" }))
	f.upstream(host, false, func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Location", "https://evil.example/next?"+r.URL.RawQuery)
		rw.WriteHeader(302)
	})
	res, _ := f.get(f.client(false), "https://"+host+"/x?a=b")
	where := res.Header.Get("Location")
	if res.StatusCode != 302 || !strings.HasPrefix(where, "https://evil.example/next?a=b&key=") || strings.Contains(where, "Zq") {
		t.Errorf("%s %q", res.Status, where)
	}
	if len(f.dials) != 1 {
		t.Errorf("dialled %q", f.dials)
	}
	f = newFixture(t, grant(engi.GrantPlaceholder))
	f.upstream(host, false, func(rw http.ResponseWriter, r *http.Request) {
		http.Redirect(rw, r, "/next?"+r.URL.RawQuery, http.StatusTemporaryRedirect)
	})
	p := f.w.Env["API_KEY"]
	if res, _ := f.get(f.client(false), "https://"+host+"/x?k="+p); res.Header.Get("Location") != "/next?k="+p {
		t.Errorf("%q", res.Header.Get("Location"))
	}
}

func TestStrip(t *testing.T) {
	basic := base64.StdEncoding.EncodeToString([]byte("bob:" + value))
	echoes := map[string]string{
		"plain": value, "query": url.QueryEscape(value), "lower": strings.ToLower(url.QueryEscape("%/+")), "hex": hex.EncodeToString([]byte(value)),
		"HEX": strings.ToUpper(hex.EncodeToString([]byte(value))), "base64": base64.StdEncoding.EncodeToString([]byte(value)), "basic": basic,
		"inside 1": base64.StdEncoding.EncodeToString([]byte("x" + value + "yz")), "inside 2": base64.URLEncoding.EncodeToString([]byte("xy" + value + "z")),
		"json": quoted(value), "twice": value + value,
	}
	echoes["lower"] = "ok"
	for name, text := range echoes {
		for cut := range []int{0, 1, 2} {
			t.Run(fmt.Sprintf("%s/%d", name, cut), func(t *testing.T) {
				f := newFixture(t, grant(engi.GrantQuery, strip, func(g *engi.Grant) { g.Name = "k" }))
				f.upstream(host, cut == 1, func(rw http.ResponseWriter, r *http.Request) {
					if r.Header.Get("Accept-Encoding") != "identity" || r.Header.Get("Range") != "" {
						t.Errorf("asked for %v", r.Header)
					}
					rw.Header().Set("X-Echo", "a "+text+" b")
					rw.Header().Set("Trailer", "X-End")
					if cut == 0 {
						rw.Header().Del("Trailer")
						rw.Header().Set("Content-Length", fmt.Sprint(len(text)+10))
						io.WriteString(rw, "begin"+text+"ennnd")
						return
					}
					for n := range len(text) {
						io.WriteString(rw, text[n:n+1])
						if n%5 == cut {
							http.NewResponseController(rw).Flush()
						}
					}
					rw.Header().Set("X-End", text)
				})
				r, _ := http.NewRequestWithContext(t.Context(), "GET", "https://"+host+"/", nil)
				r.Header.Set("Accept-Encoding", "gzip, br")
				r.Header.Set("Range", "bytes=0-3")
				res, body := f.do(f.client(cut == 2), r)
				all := body + res.Header.Get("X-Echo") + res.Trailer.Get("X-End")
				for form, bad := range echoes {
					if form != "lower" && strings.Contains(all, bad) {
						t.Errorf("%s is there: %q", form, all)
					}
				}
				if name == "lower" && !strings.Contains(body, "ok") {
					t.Errorf("too much is gone: %q", body)
				}
				if want := len(text); cut == 0 && len(body) != want+10 || cut > 0 && len(body) != want {
					t.Errorf("%d bytes of %d: %q", len(body), want, body)
				}
				if cut == 0 && (!strings.HasPrefix(body, "begin") || !strings.HasSuffix(body, "ennnd")) {
					t.Errorf("%q", body)
				}
			})
		}
	}
}

func quoted(s string) string {
	b, _ := json.Marshal(s)
	return strings.Trim(string(b), `"`)
}

func TestStripOfEncodedAnswers(t *testing.T) {
	f := newFixture(t, grant(engi.GrantBearer, strip, token))
	f.upstream(host, true, func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Content-Encoding", r.URL.Query().Get("e"))
		z := gzip.NewWriter(rw)
		io.WriteString(z, "you sent "+r.Header.Get("Authorization"))
		z.Close()
	})
	res, body := f.get(f.client(true), "https://"+host+"/?e=gzip")
	if body != "you sent Bearer "+strings.Repeat("*", len(plain)) || res.Header.Get("Content-Encoding") != "" {
		t.Errorf("%v %q", res.Header, body)
	}
	res, body = f.get(f.client(true), "https://"+host+"/?e=br")
	if res.StatusCode != 502 || !strings.Contains(res.Header.Get("X-Engi-Error"), "encoded as br") || strings.Contains(body, plain) {
		t.Errorf("%s %v %q", res.Status, res.Header, body)
	}
}

func TestUpstreamFaults(t *testing.T) {
	f := newFixture(t, engi.NetworkPolicy{Grants: []engi.Grant{{Secret: "TOKEN", Hosts: []string{"*.example.com"}}, {Secret: "NONE", Hosts: []string{"none.example.com"}}, {Secret: "LINES", Hosts: []string{"lines.example.com"}}}},
		func(o *intercept.Options) { o.ResponseTimeout = 200 * time.Millisecond })
	f.secrets["LINES"] = "a\r\nX-Injected: yes"
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f.route("refused.example.com:443", free.Addr().String())
	free.Close()
	f.upstream("other.example", true, nil)
	f.route("name.example.com:443", f.routes["other.example:443"])
	selfsigned := httptest.NewTLSServer(nil)
	defer selfsigned.Close()
	f.route("self.example.com:443", selfsigned.Listener.Addr().String())
	f.upstream("slow.example.com", true, func(rw http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	f.upstream("gone.example.com", false, func(rw http.ResponseWriter, r *http.Request) { panic(http.ErrAbortHandler) })
	f.upstream("bad.example.com", false, func(rw http.ResponseWriter, r *http.Request) {
		conn, _, _ := http.NewResponseController(rw).Hijack()
		io.WriteString(conn, "you sent "+r.Header.Get("Authorization")+"\r\n\r\n")
		conn.Close()
	})
	f.upstream("lines.example.com", false, func(http.ResponseWriter, *http.Request) { t.Error("the request was sent") })
	for name, c := range map[string]struct {
		status int
		text   string
	}{
		"refused": {502, "refuses connections"}, "name": {502, "another name"}, "self": {502, "not signed by an authority"}, "slow": {504, "in time"},
		"gone": {502, "without an answer"}, "bad": {502, "cannot be reached, or"}, "denied": {403, "policy does not allow"},
		"none": {502, "secret NONE cannot be read: not_found"}, "lines": {502, "line break"},
	} {
		res, body := f.get(f.client(true), "https://"+name+".example.com/")
		if res.StatusCode != c.status || !strings.Contains(res.Header.Get("X-Engi-Error"), c.text) || !strings.HasPrefix(body, "engi: ") || strings.Contains(fmt.Sprint(res.Header, body), plain) {
			t.Errorf("%s: %s %v %q", name, res.Status, res.Header, body)
		}
	}
	if n := len(f.seen()); n != 9 {
		t.Errorf("%d events", n)
	}
	f.clean()
}

func TestPlainHTTP(t *testing.T) {
	f := newFixture(t, engi.NetworkPolicy{
		Grants: []engi.Grant{
			{Secret: "TOKEN", Hosts: []string{"safe.example", "http://open.example", "http://*.deep.example:8080"}, Env: "API_KEY"},
		},
	})
	s := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { fmt.Fprint(rw, r.Host, r.Header) }))
	defer s.Close()
	for _, to := range []string{"safe.example:80", "open.example:80", "free.example:80", "a.deep.example:8080"} {
		f.route(to, s.Listener.Addr().String())
	}
	ask := func(name string, port uint16, as string) string {
		conn := f.connect(intercept.Target{Sandbox: f.id, Host: name, Port: port})
		fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: %s\r\nX-Key: %s\r\n\r\n", as, f.w.Env["API_KEY"])
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(res.Body)
		return fmt.Sprint(res.StatusCode, " ", string(body))
	}
	for _, c := range []struct {
		name string
		port uint16
		as   string
		want bool
	}{{"safe.example", 80, "safe.example", false}, {"free.example", 80, "free.example", false}, {"open.example", 80, "open.example", true}, {"a.deep.example", 8080, "a.deep.example:8080", true}} {
		if got := ask(c.name, c.port, c.as); !strings.HasPrefix(got, "200 "+c.as) || strings.Contains(got, plain) != c.want {
			t.Errorf("%s: %s", c.name, got)
		}
	}
	if got := ask("free.example", 80, "open.example"); !strings.HasPrefix(got, "421 ") {
		t.Errorf("mismatch: %s", got)
	}
	f.i.Shut(f.id)
	conn := f.connect(intercept.Target{Sandbox: f.id, Host: "free.example", Port: 80})
	if n, err := conn.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Error("it is served after it was shut")
	}
}

func TestPoliciesChange(t *testing.T) {
	f := newFixture(t, grant(engi.GrantBearer, token))
	f.upstream(host, true, func(rw http.ResponseWriter, r *http.Request) { io.WriteString(rw, r.Header.Get("Authorization")) })
	c := f.client(true)
	before := f.w.Authority
	if _, body := f.get(c, "https://"+host+"/"); body != "Bearer "+plain {
		t.Error(body)
	}
	f.mu.Lock()
	f.secrets["TOKEN"] = "rotated"
	f.mu.Unlock()
	if _, body := f.get(c, "https://"+host+"/"); body != "Bearer rotated" {
		t.Error(body)
	}
	f.open(engi.NetworkPolicy{Headers: []engi.HeaderRule{{Host: host, Headers: map[string]string{"X-A": "b"}}}})
	if !bytes.Equal(before, f.w.Authority) {
		t.Error("there is another authority")
	}
	if _, body := f.get(c, "https://"+host+"/"); body != "" {
		t.Errorf("the grant is gone, and %q is sent", body)
	}
	f.open(engi.NetworkPolicy{})
	if f.w.Authority != nil || len(f.w.Env) != 0 {
		t.Errorf("%+v", f.w)
	}
	if res, _ := f.get(c, "https://"+host+"/"); res.StatusCode != 403 {
		t.Error(res.Status)
	}
}

func TestAuthorityOutlivesTheProcess(t *testing.T) {
	key := bytes.Repeat([]byte{7}, 32)
	same := func(o *intercept.Options) { o.Key = key }
	a := newFixture(t, grant(engi.GrantPlaceholder), same)
	b := newFixture(t, grant(engi.GrantPlaceholder), same)
	if bytes.Equal(a.w.Authority, b.w.Authority) {
		t.Error("two sandboxes have one authority")
	}
	b.id = a.id
	b.open(grant(engi.GrantPlaceholder))
	if !bytes.Equal(a.w.Authority, b.w.Authority) || a.w.Env["API_KEY"] != b.w.Env["API_KEY"] {
		t.Error("another process has another authority or placeholder for the same sandbox")
	}
	b.upstream(host, true, func(http.ResponseWriter, *http.Request) {})
	b.w.Authority = a.w.Authority
	if res, _ := b.get(b.client(true), "https://"+host+"/"); res.StatusCode != 200 {
		t.Error(res.Status)
	}
	other := newFixture(t, grant(engi.GrantPlaceholder), func(o *intercept.Options) { sum := sha256.Sum256(key); o.Key = sum[:] })
	other.id = a.id
	other.open(grant(engi.GrantPlaceholder))
	if bytes.Equal(a.w.Authority, other.w.Authority) {
		t.Error("the key does not matter")
	}
}

func TestConnectionsEnd(t *testing.T) {
	f := newFixture(t, grant(engi.GrantBearer, token), func(o *intercept.Options) {
		o.HandshakeTimeout, o.HeaderTimeout, o.IdleTimeout = time.Second, time.Second, 2*time.Second
	})
	f.upstream(host, false, func(rw http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body) })
	for name, send := range map[string]string{"nothing": "", "half a header": "GET / HTTP/1.1\r\nHost: x", "half a body": "POST / HTTP/1.1\r\nHost: " + host + "\r\nContent-Length: 10\r\n\r\nhalf"} {
		conn := f.dial("http/1.1")
		io.WriteString(conn, send)
		conn.SetReadDeadline(time.Now().Add(time.Minute))
		if _, err := io.Copy(io.Discard, conn); err != nil {
			if e, ok := err.(net.Error); ok && e.Timeout() {
				t.Errorf("%s: it stays open", name)
			}
		}
	}
	raw := f.connect(f.target())
	raw.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := io.Copy(io.Discard, raw); err != nil {
		if e, ok := err.(net.Error); ok && e.Timeout() {
			t.Error("a handshake that never begins: it stays open")
		}
	}
}

func TestServeEndsWithItsContext(t *testing.T) {
	f := newFixture(t, grant(engi.GrantBearer, token))
	in, out := make(chan struct{}), make(chan struct{})
	f.upstream(host, true, func(rw http.ResponseWriter, r *http.Request) {
		close(in)
		<-r.Context().Done()
		close(out)
	})
	ctx, cancel := context.WithCancel(t.Context())
	a, b := net.Pipe()
	done := make(chan error)
	go func() { done <- f.i.Serve(ctx, b, f.target()) }()
	conn := tls.Client(a, &tls.Config{ServerName: host, RootCAs: f.roots()})
	go fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: %s\r\n\r\n", host)
	go io.Copy(io.Discard, conn)
	<-in
	cancel()
	<-done
	<-out
	conn.Close()
}
