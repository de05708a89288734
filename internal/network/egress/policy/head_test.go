package policy

import (
	"bufio"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/engi-dev/engi/internal/clip"
)

func TestHTTPHost(t *testing.T) {
	for in, want := range map[string]Request{
		"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n":                                {"GET", "a.example", 0},
		"GET / HTTP/1.1\r\nX: y\r\nhOsT:\tA.Example.:8080 \r\n\r\nbody":            {"GET", "a.example", 8080},
		"GET / HTTP/1.0\r\n\r\n":                                                   {"GET", "", 0},
		"GET http://a.example/x HTTP/1.0\r\n\r\n":                                  {"GET", "a.example", 0},
		"GET http://a.example/x HTTP/1.1\r\nHost: A.EXAMPLE\r\n\r\n":               {"GET", "a.example", 0},
		"GET HTTP://a.example?x HTTP/1.1\r\nHost: a.example\r\n\r\n":               {"GET", "a.example", 0},
		"CONNECT a.example:443 HTTP/1.1\r\nHost: a.example:443\r\n\r\n":            {"CONNECT", "a.example", 443},
		"OPTIONS * HTTP/1.1\r\nHost: a.example\r\n\r\n":                            {"OPTIONS", "a.example", 0},
		"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n":                                {"GET", "127.0.0.1", 0},
		"GET / HTTP/1.1\r\nHost: [2001:DB8::1]:80\r\n\r\n":                         {"GET", "2001:db8::1", 80},
		"GET / HTTP/1.1\r\nHost: [::ffff:169.254.169.254]\r\n\r\n":                 {"GET", "169.254.169.254", 0},
		"GET / HTTP/1.1\r\nHost: a.example\r\nX-Forwarded-Host: b.example\r\n\r\n": {"GET", "a.example", 0},
		"GET /@b.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n":                     {"GET", "a.example", 0},
	} {
		got, need, err := HTTPHost([]byte(in))
		if err != nil || need != 0 || got != want {
			t.Errorf("%q: %+v, %d, %v; want %+v", in, got, need, err, want)
		}
		for i := range strings.Index(in, "\r\n\r\n") + 4 {
			if _, need, err := HTTPHost([]byte(in[:i])); err != nil || need <= i {
				t.Fatalf("%q: need %d, %v", in[:i], need, err)
			}
		}
	}
	for name, in := range map[string]string{
		"no Host":              "GET / HTTP/1.1\r\n\r\n",
		"two Hosts":            "GET / HTTP/1.1\r\nHost: a.example\r\nHost: b.example\r\n\r\n",
		"the same Host twice":  "GET / HTTP/1.1\r\nHost: a.example\r\nHost: a.example\r\n\r\n",
		"empty Host":           "GET / HTTP/1.1\r\nHost: \r\n\r\n",
		"folded":               "GET / HTTP/1.1\r\nHost: a.example\r\n b.example\r\n\r\n",
		"folded first":         "GET / HTTP/1.1\r\n Host: b.example\r\nHost: a.example\r\n\r\n",
		"space before colon":   "GET / HTTP/1.1\r\nHost : a.example\r\n\r\n",
		"target differs":       "GET http://b.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n",
		"target's port":        "GET http://a.example:81/ HTTP/1.1\r\nHost: a.example\r\n\r\n",
		"target's user":        "GET http://a.example@b.example/ HTTP/1.1\r\nHost: b.example\r\n\r\n",
		"target's backslash":   "GET http://a.example\\@b.example/ HTTP/1.1\r\nHost: b.example\r\n\r\n",
		"another scheme":       "GET ftp://a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n",
		"no slash":             "GET a.example HTTP/1.1\r\nHost: a.example\r\n\r\n",
		"user":                 "GET / HTTP/1.1\r\nHost: a.example@b.example\r\n\r\n",
		"two values":           "GET / HTTP/1.1\r\nHost: a.example, b.example\r\n\r\n",
		"two values, no space": "GET / HTTP/1.1\r\nHost: a.example,b.example\r\n\r\n",
		"path in Host":         "GET / HTTP/1.1\r\nHost: a.example/b.example\r\n\r\n",
		"percent":              "GET / HTTP/1.1\r\nHost: a%2eexample\r\n\r\n",
		"octal":                "GET / HTTP/1.1\r\nHost: 0251.0376.0251.0376\r\n\r\n",
		"decimal":              "GET / HTTP/1.1\r\nHost: 2852039166\r\n\r\n",
		"hex":                  "GET / HTTP/1.1\r\nHost: 0xa9fea9fe\r\n\r\n",
		"zone":                 "GET / HTTP/1.1\r\nHost: [fe80::1%25eth0]\r\n\r\n",
		"bad port":             "GET / HTTP/1.1\r\nHost: a.example:080\r\n\r\n",
		"empty port":           "GET / HTTP/1.1\r\nHost: a.example:\r\n\r\n",
		"NUL":                  "GET / HTTP/1.1\r\nHost: a.example\x00b.example\r\n\r\n",
		"bare CR":              "GET / HTTP/1.1\r\nX: y\rHost: b.example\r\nHost: a.example\r\n\r\n",
		"bare LF":              "GET / HTTP/1.1\nHost: a.example\r\n\r\n",
		"bare LF in fields":    "GET / HTTP/1.1\r\nX: y\nHost: b.example\r\nHost: a.example\r\n\r\n",
		"only LF":              "GET / HTTP/1.1\nHost: a.example\n\n",
		"line before":          "\r\nGET / HTTP/1.1\r\nHost: a.example\r\n\r\n",
		"tab in first line":    "GET\t/ HTTP/1.1\r\nHost: a.example\r\n\r\n",
		"two spaces":           "GET  / HTTP/1.1\r\nHost: a.example\r\n\r\n",
		"version":              "GET / HTTP/1.2\r\nHost: a.example\r\n\r\n",
		"HTTP/2":               "PRI * HTTP/2.0\r\n\r\n",
		"no version":           "GET /\r\nHost: a.example\r\n\r\n",
		"not a field":          "GET / HTTP/1.1\r\nHost: a.example\r\nnonsense\r\n\r\n",
		"empty name":           "GET / HTTP/1.1\r\nHost: a.example\r\n: x\r\n\r\n",
		"long":                 "GET / HTTP/1.1\r\nX: " + strings.Repeat("a", MaxHead),
		"long and whole":       "GET / HTTP/1.1\r\nHost: a.example\r\nX: " + strings.Repeat("a", MaxHead) + "\r\n\r\n",
	} {
		if got, need, err := HTTPHost([]byte(in)); err == nil {
			t.Errorf("%s: %+v, %d and no error", name, got, need)
		}
	}
}

func FuzzHTTPHost(f *testing.F) {
	for _, s := range []string{
		"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n",
		"GET http://a.example:80/x?y HTTP/1.1\r\nHost: a.example:80\r\n\r\n",
		"CONNECT [::1]:443 HTTP/1.1\r\nHost: [::1]:443\r\n\r\n",
		"OPTIONS * HTTP/1.0\r\nA: b\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: a\r\n b\r\n\r\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if p := Sniff(b); p == Undecided && len(b) >= MaxHead {
			t.Fatal("undecided for ever")
		}
		r, need, err := HTTPHost(b)
		switch {
		case err != nil:
			return
		case need != 0:
			if need <= len(b) || need > MaxHead {
				t.Fatalf("needs %d of %d bytes", need, len(b))
			}
			return
		}
		if Sniff(b) != HTTP {
			t.Fatalf("%+v is not seen as HTTP", r)
		}
		// Servers may be stricter, but must not see another host.
		q, err := http.ReadRequest(bufio.NewReader(strings.NewReader(string(b))))
		if err != nil {
			return
		}
		host, port, problem := "", uint16(0), ""
		if q.Host != "" {
			host, port, problem = parseAuthority(q.Host)
		}
		if problem != "" || host != r.Host || port != r.Port || q.Method != r.Method {
			t.Fatalf("net/http reads %s %q, we read %+v", q.Method, q.Host, r)
		}
	})
}

func TestCheckName(t *testing.T) {
	for in, want := range map[string]string{
		"Example.COM":                   "example.com",
		"example.com.":                  "example.com",
		"bücher.example":                "xn--bcher-kva.example",
		"BÜCHER。example":                "xn--bcher-kva.example",
		"xn--bcher-kva.example":         "xn--bcher-kva.example",
		"faß.example":                   "xn--fa-hia.example",
		"r3---sn.example":               "r3---sn.example",
		"_dmarc.example":                "_dmarc.example",
		"localhost":                     "localhost",
		"1.2.3.4.example":               "1.2.3.4.example",
		"аpple.com":                     "xn--pple-43d.com",
		strings.Repeat("a.", 126) + "a": strings.Repeat("a.", 126) + "a",
	} {
		if got, err := CheckName(in); err != nil || got != want {
			t.Errorf("%q: %q, %v; want %q", in, got, err, want)
		}
	}
	for _, in := range []string{
		"", ".", "..", ".a", "a..b", "a.b..", "-a.b", "a-.b", "a b", "a\x00b", "a\tb", "a/b", "a:b", "a@b", "a%b", "*", "*.a", "[::1]", "::1",
		"127.0.0.1", "127.1", "1", "0x1", "0x", "a.0x7F", "a.017", "１２７。０。０。１", "a\u202eb.com", "xn--a.com", "xn--.com", "a\xffb.com", "\u00ad", "\u202e.com",
		strings.Repeat("a", 64) + ".com", strings.Repeat("ü", 60) + ".com", strings.Repeat("a.", 127) + "a", strings.Repeat("a", 5000),
	} {
		if got, err := CheckName(in); err == nil {
			t.Errorf("%q: %q and no error", clip.Text(in, maxShown), got)
		}
	}
}

func FuzzCheckName(f *testing.F) {
	for _, s := range []string{"example.com", "Bücher.example.", "xn--bcher-kva.example", "127.1", "a_b.c-d.e", "١٢٧.0.0.1", "a。b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		c, err := CheckName(s)
		if err != nil {
			return
		}
		if again, err := CheckName(c); err != nil || again != c {
			t.Fatalf("%q is %q, and that is %q, %v", s, c, again, err)
		}
		if len(c) == 0 || len(c) > maxName || strings.Trim(c, "abcdefghijklmnopqrstuvwxyz0123456789-_.") != "" {
			t.Fatalf("%q is %q", s, c)
		}
		if _, err := netip.ParseAddr(c); err == nil {
			t.Fatalf("%q is the address %q", s, c)
		}
		if got, problem := canonical(c + "."); problem != "" || got != c {
			t.Fatalf("%q: %q %s", c, got, problem)
		}
	})
}
