package fetch_test

import (
	"compress/gzip"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/net/dns/dnsmessage"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/network/fetch"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A site is a server on a loopback address that counts its connections.
// Tests use 127.0.0.2 as an allowed address, by listing it as private.
type site struct {
	*httptest.Server
	conns atomic.Int32
	port  string
}

func serve(t *testing.T, address string, h http.Handler) *site {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Skip("this host has no address ", address)
	}
	s := &site{Server: httptest.NewUnstartedServer(h)}
	s.Listener.Close()
	s.Listener = l
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			s.conns.Add(1)
		}
	}
	s.Start()
	t.Cleanup(s.Close)
	_, s.port, _ = net.SplitHostPort(l.Addr().String())
	return s
}

var second = []netip.Prefix{netip.MustParsePrefix("127.0.0.2/32")}

func open(t *testing.T, o fetch.Options) *http.Client {
	c := fetch.New(o)
	t.Cleanup(c.CloseIdleConnections)
	return c
}

func get(c *http.Client, u string) (string, error) {
	resp, err := c.Get(u)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return string(b), err
}

func isDenied(err error) bool { return engi.Is(err, engi.Denied) }

var hello = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hello") })

func TestAddressesThatAreNotPublicAreDenied(t *testing.T) {
	s := serve(t, "127.0.0.1:0", hello)
	c := open(t, fetch.Options{Remedy: "send the text"})
	for _, host := range []string{
		"127.0.0.1", "localhost", "127.255.255.254", "0.0.0.0", "[::1]", "[::]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[64:ff9b::7f00:1]", "[::127.0.0.1]",
		"169.254.169.254", "[fe80::1%25lo]", "[fe80::1]", "[fd00:ec2::254]", "10.0.0.1", "192.168.1.1", "172.16.0.1", "100.64.0.1", "100.100.100.200", "168.63.129.16",
		"224.0.0.1", "255.255.255.255", "198.18.0.1", "[fc00::1]", "[ff02::1]", "[2002:7f00:1::]",
	} {
		_, err := get(c, "http://"+host+":"+s.port+"/")
		if !isDenied(err) || engi.RemedyOf(err) != "send the text" {
			t.Errorf("%s: %v, want denied with the remedy", host, err)
		}
	}
	// Whether the system takes these for addresses or for names, they lead nowhere.
	for _, host := range []string{"2130706433", "017700000001", "0177.0.0.1", "0x7f.0.0.1", "0x7f000001", "127.1", "127.0.0.1.", "①②⑦.⓪.⓪.①"} {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, (&url.URL{Scheme: "http", Host: host + ":" + s.port, Path: "/"}).String(), nil)
		if err == nil {
			var resp *http.Response
			if resp, err = c.Do(r); err == nil {
				resp.Body.Close()
			}
		}
		if cancel(); err == nil {
			t.Errorf("%s was fetched", host)
		}
	}
	if n := s.conns.Load(); n != 0 {
		t.Errorf("the server got %d connections", n)
	}
}

func TestPrivateNetworksMayBeOpened(t *testing.T) {
	s := serve(t, "127.0.0.2:0", hello)
	c := open(t, fetch.Options{Private: second})
	if text, err := get(c, s.URL); err != nil || text != "hello" {
		t.Errorf("%q, %v", text, err)
	}
	if _, err := get(c, "http://127.0.0.3:"+s.port); !isDenied(err) {
		t.Errorf("another address: %v", err)
	}
	if _, err := get(c, "http://[::ffff:127.0.0.2]:"+s.port); err != nil {
		t.Errorf("the same address, mapped: %v", err)
	}
}

// rebinding returns a resolver whose answers for a name change with each query.
func rebinding(t *testing.T, answers ...string) *net.Resolver {
	t.Helper()
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var asked atomic.Int32
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 1500)
		for {
			n, from, err := c.ReadFrom(buf)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(buf[:n]) != nil || len(m.Questions) != 1 {
				continue
			}
			m.Response, m.Additionals = true, nil
			if q := m.Questions[0]; q.Type == dnsmessage.TypeA {
				i := min(int(asked.Add(1)), len(answers)) - 1
				for ip := range strings.FieldsSeq(answers[i]) {
					m.Answers = append(m.Answers, dnsmessage.Resource{
						Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class},
						Body:   &dnsmessage.AResource{A: netip.MustParseAddr(ip).As4()},
					})
				}
			}
			if b, err := m.Pack(); err == nil {
				c.WriteTo(b, from)
			}
		}
	}()
	t.Cleanup(func() { c.Close(); <-done })
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "udp", c.LocalAddr().String())
	}}
}

func TestNamesThatChangeTheirAddressAreJudgedAtEachConnection(t *testing.T) {
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Connection", "close") // so that the next request resolves anew
		io.WriteString(w, "hello")
	})
	good := serve(t, "127.0.0.2:0", h)
	inner := serve(t, "127.0.0.1:"+good.port, h)
	c := open(t, fetch.Options{Private: second, Resolver: rebinding(t, "127.0.0.2", "127.0.0.1")})
	if text, err := get(c, "http://rebind.example.com:"+good.port); err != nil || text != "hello" {
		t.Fatalf("%q, %v", text, err)
	}
	for range 3 {
		if _, err := get(c, "http://rebind.example.com:"+good.port); !isDenied(err) {
			t.Errorf("%v, want denied", err)
		}
	}
	if n := inner.conns.Load(); n != 0 {
		t.Errorf("the inner server got %d connections", n)
	}

	// A name with both kinds of addresses leads to the good one only.
	c = open(t, fetch.Options{Private: second, Resolver: rebinding(t, "127.0.0.1 127.0.0.2")})
	for range 3 {
		if _, err := get(c, "http://both.example.com:"+good.port); err != nil {
			t.Errorf("%v", err)
		}
	}
	if n := inner.conns.Load(); n != 0 {
		t.Errorf("the inner server got %d connections", n)
	}
}

func TestRedirectsAreJudged(t *testing.T) {
	inner := serve(t, "127.0.0.1:0", hello)
	var to atomic.Value
	s := serve(t, "127.0.0.2:0", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/loop":
			http.Redirect(w, r, "/loop", http.StatusFound)
		case "/end":
			io.WriteString(w, "end")
		default:
			http.Redirect(w, r, to.Load().(string), http.StatusTemporaryRedirect)
		}
	}))
	c := open(t, fetch.Options{Private: second, Hosts: []string{"127.0.0.1:" + inner.port, "127.0.0.2:" + s.port}})
	to.Store("/end")
	if text, err := get(c, s.URL); err != nil || text != "end" {
		t.Errorf("%q, %v", text, err)
	}
	for _, u := range []string{
		inner.URL, "http://[::ffff:127.0.0.1]:" + inner.port, "http://127.0.0.3:" + s.port, "file:///etc/passwd", "gopher://127.0.0.2:" + s.port,
		strings.Replace(s.URL, "//", "//user:pass@", 1),
	} {
		to.Store(u)
		if text, err := get(c, s.URL); err == nil || text != "" {
			t.Errorf("to %s: %q", u, text)
		}
	}
	if _, err := get(c, s.URL+"/loop"); !isDenied(err) {
		t.Errorf("redirects in a circle: %v", err)
	}
	if n := inner.conns.Load(); n != 0 {
		t.Errorf("the inner server got %d connections", n)
	}
}

func TestRedirectsKeepEncryption(t *testing.T) {
	w := &fakeEgress{send: func(r *http.Request) (*http.Response, error) {
		resp := &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: http.NoBody, Request: r}
		if to := r.URL.Query().Get("to"); to != "" {
			resp.StatusCode = http.StatusFound
			resp.Header.Set("Location", to)
		}
		return resp, nil
	}}
	c, err := fetch.Through(w, "ann", engi.NetworkPolicy{}, fetch.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := get(c, "https://a.example.com/?to=http://b.example.com/"); !isDenied(err) {
		t.Errorf("from https to http: %v", err)
	}
	if _, err := get(c, "http://a.example.com/?to=https://b.example.com/"); err != nil {
		t.Errorf("from http to https: %v", err)
	}
}

func TestHosts(t *testing.T) {
	c := open(t, fetch.Options{
		Hosts:    []string{"api.example.com", "*.cdn.example.com", "local.example.com:8080", "[2001:db8::1]:1"},
		Resolver: &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) { return nil, errNoNetwork }},
	})
	for address, want := range map[string]bool{
		"https://api.example.com/x": true, "http://API.example.com.:80/": true, "https://api.example.com:8443/": false,
		"https://a.cdn.example.com/": true, "https://cdn.example.com/": false, "https://evilcdn.example.com/": false,
		"https://example.com/": false, "ftp://api.example.com/": false, "https://u:p@api.example.com/": false,
		"http://local.example.com:8080/": true, "http://local.example.com/": false, "https://api.example.com.evil.com/": false,
		"https://api.example.com@evil.com/": false, "http://[2001:db8::1]/": false,
	} {
		_, err := get(c, address)
		if strings.Contains(err.Error(), errNoNetwork.Error()) != want || isDenied(err) == want {
			t.Errorf("%s: %v", address, err)
		}
	}
}

var errNoNetwork = errors.New("the test has no network")

func TestTrustedHosts(t *testing.T) {
	inner := serve(t, "127.0.0.1:0", hello)
	s := serve(t, "127.0.0.1:0", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/away" {
			http.Redirect(w, r, inner.URL, http.StatusFound)
			return
		}
		io.WriteString(w, "trusted")
	}))
	c := open(t, fetch.Options{Trusted: []string{"127.0.0.1:" + s.port}})
	if text, err := get(c, s.URL); err != nil || text != "trusted" {
		t.Errorf("%q, %v", text, err)
	}
	for _, u := range []string{s.URL + "/away", inner.URL, "http://localhost:" + s.port} {
		if _, err := get(c, u); !isDenied(err) {
			t.Errorf("%s: %v", u, err)
		}
	}
}

func TestTheEnvironmentsProxyIsNotUsed(t *testing.T) {
	// The default transport reads the environment once per process, so this
	// checks only that the client under test uses no proxy.
	proxy := serve(t, "127.0.0.1:0", hello)
	t.Setenv("HTTP_PROXY", proxy.URL)
	t.Setenv("http_proxy", proxy.URL)
	c := open(t, fetch.Options{Resolver: &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) { return nil, errNoNetwork }}})
	if _, err := get(c, "http://www.example.com"); err == nil || proxy.conns.Load() != 0 {
		t.Errorf("%v, the proxy got %d connections", err, proxy.conns.Load())
	}
}

func TestBodiesAreBounded(t *testing.T) {
	s := serve(t, "127.0.0.2:0", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/fits":
			io.WriteString(w, strings.Repeat("x", 1000))
		case "/bomb":
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			io.WriteString(z, strings.Repeat("x", 1<<20))
			z.Close()
		default:
			io.WriteString(w, strings.Repeat("x", 1001))
		}
	}))
	c := open(t, fetch.Options{Private: second, MaxBody: 1000})
	if text, err := get(c, s.URL+"/fits"); err != nil || len(text) != 1000 {
		t.Errorf("%d bytes, %v", len(text), err)
	}
	for _, path := range []string{"/more", "/bomb"} {
		if text, err := get(c, s.URL+path); !engi.Is(err, engi.Exhausted) || len(text) != 1000 {
			t.Errorf("%s: %d bytes, %v", path, len(text), err)
		}
	}
}

func TestSlowServersAreLeft(t *testing.T) {
	s := serve(t, "127.0.0.2:0", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/body" {
			w.WriteHeader(http.StatusOK)
			w.(http.Flusher).Flush()
		}
		<-r.Context().Done()
	}))
	c := open(t, fetch.Options{Private: second, Timeout: 50 * time.Millisecond})
	for _, path := range []string{"/head", "/body"} {
		if _, err := get(c, s.URL+path); !engi.Is(err, engi.Expired) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// An egress is a fetch.Egress that records its calls.
type fakeEgress struct {
	refuse error
	send   func(*http.Request) (*http.Response, error)
	owner  engi.Owner
}

func (w *fakeEgress) Check(engi.NetworkPolicy) error { return w.refuse }

func (w *fakeEgress) Transport(owner engi.Owner, _ engi.NetworkPolicy) (http.RoundTripper, error) {
	w.owner = owner
	return w, w.refuse
}

func (w *fakeEgress) RoundTrip(r *http.Request) (*http.Response, error) { return w.send(r) }

func TestThroughEgress(t *testing.T) {
	var sent []string
	w := &fakeEgress{send: func(r *http.Request) (*http.Response, error) {
		sent = append(sent, r.URL.String())
		switch r.URL.Path {
		case "/away":
			return &http.Response{StatusCode: http.StatusFound, Header: http.Header{"Location": {"ftp://a.example.com/"}}, Body: http.NoBody, Request: r}, nil
		case "/denied":
			return nil, engi.Errorf(engi.Denied, "not by this policy")
		}
		return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader("hello")), Request: r}, nil
	}}
	client, err := fetch.ForOwners(w, engi.NetworkPolicy{}, fetch.Options{Hosts: []string{"other.example.com"}, MaxBody: 5, Remedy: "ask the operator"})
	if err != nil {
		t.Fatal(err)
	}
	c := client("ann")
	if text, err := get(c, "http://a.example.com/"); err != nil || text != "hello" || w.owner != "ann" {
		t.Errorf("%q for %s, %v", text, w.owner, err)
	}
	if _, err := get(c, "http://a.example.com/denied"); !isDenied(err) || engi.RemedyOf(err) != "ask the operator" {
		t.Errorf("%v", err)
	}
	if _, err := get(c, "http://a.example.com/away"); !isDenied(err) || len(sent) != 3 {
		t.Errorf("%v, sent %v", err, sent)
	}
	w.refuse = engi.Errorf(engi.Invalid, "bad rule")
	if _, err := get(client("bob"), "http://a.example.com/"); err == nil || len(sent) != 3 {
		t.Errorf("a transport that is refused: %v, sent %v", err, sent)
	}
	if _, err := fetch.ForOwners(w, engi.NetworkPolicy{}, fetch.Options{}); !engi.Is(err, engi.Invalid) {
		t.Errorf("a policy that is refused: %v", err)
	}
}

func TestParseNetworks(t *testing.T) {
	all, err := fetch.ParseNetworks([]string{"10.1.0.0/16", "127.0.0.1", "fd00::/8"})
	if err != nil || len(all) != 3 || all[1].String() != "127.0.0.1/32" {
		t.Errorf("%v, %v", all, err)
	}
	for _, bad := range []string{"", "x", "10.0.0.0/33", "10.0.0"} {
		if _, err := fetch.ParseNetworks([]string{bad}); !engi.Is(err, engi.Invalid) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
