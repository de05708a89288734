package policy

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"
)

// helloOf returns the first bytes of a real client.
func helloOf(t testing.TB, c *tls.Config) []byte {
	t.Helper()
	c.InsecureSkipVerify = true
	client, server := net.Pipe()
	defer server.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		tls.Client(client, c).HandshakeContext(ctx)
		client.Close()
	}()
	head := make([]byte, 5)
	if _, err := io.ReadFull(server, head); err != nil {
		t.Fatal(err)
	}
	body := make([]byte, int(head[3])<<8|int(head[4]))
	if _, err := io.ReadFull(server, body); err != nil {
		t.Fatal(err)
	}
	server.Close()
	<-done
	return append(head, body...)
}

// inPieces puts the handshake message of one record into records of n bytes.
func inPieces(record []byte, n int) []byte {
	var out []byte
	for body := record[5:]; len(body) > 0; {
		k := min(n, len(body))
		out = append(out, record[0], record[1], record[2], byte(k>>8), byte(k))
		out = append(out, body[:k]...)
		body = body[k:]
	}
	return out
}

// withExtension returns a ClientHello in one record with one more extension.
func withExtension(record []byte, kind uint16, data []byte) []byte {
	b := slices.Clone(record[5:])
	at := 4 + 2 + 32
	at += 1 + int(b[at])
	at += 2 + int(b[at])<<8 + int(b[at+1])
	at += 1 + int(b[at])
	b = append(b, byte(kind>>8), byte(kind), byte(len(data)>>8), byte(len(data)))
	b = append(b, data...)
	n := len(b) - at - 2
	b[at], b[at+1] = byte(n>>8), byte(n)
	m := len(b) - 4
	b[1], b[2], b[3] = byte(m>>16), byte(m>>8), byte(m)
	return append([]byte{22, 3, 1, byte(len(b) >> 8), byte(len(b))}, b...)
}

func serverName(name string) []byte {
	n := len(name)
	return append([]byte{byte((n + 3) >> 8), byte(n + 3), 0, byte(n >> 8), byte(n)}, name...)
}

func TestClientHello(t *testing.T) {
	full := helloOf(t, &tls.Config{ServerName: "API.Example.com", NextProtos: []string{"h2", "http/1.1"}})
	bare := helloOf(t, &tls.Config{})
	want := Hello{ServerName: "api.example.com", ALPN: []string{"h2", "http/1.1"}}
	check := func(name string, b []byte, want Hello) {
		t.Helper()
		h, need, err := ClientHello(b)
		if err != nil || need != 0 || h.ServerName != want.ServerName || !slices.Equal(h.ALPN, want.ALPN) || h.ECH != want.ECH {
			t.Errorf("%s: %+v, %d, %v; want %+v", name, h, need, err, want)
		}
		if Sniff(b) != TLS {
			t.Errorf("%s: not seen as TLS", name)
		}
	}
	check("whole", full, want)
	check("early data behind", append(slices.Clone(full), 23, 3, 3, 0, 1, 0), want)
	check("pieces", inPieces(full, 50), want)
	check("nobody named", bare, Hello{})
	check("encrypted", withExtension(full, 0xfe0d, []byte{0, 1, 2}), Hello{want.ServerName, want.ALPN, true})
	check("encrypted name", withExtension(bare, 0xffce, nil), Hello{ECH: true})
	check("set by hand", withExtension(bare, 0, serverName("a_b.example")), Hello{ServerName: "a_b.example"})

	for i := range full {
		if h, need, err := ClientHello(full[:i]); err != nil || need <= i || need > len(full) {
			t.Fatalf("first %d bytes: %+v, %d, %v", i, h, need, err)
		}
	}
	long := slices.Clone(full)
	long[6] = 0xff // of the message's length
	for name, b := range map[string][]byte{
		"pieces of one byte":    inPieces(full, 1),
		"two names":             withExtension(full, 0, serverName("other.example")),
		"name with dot":         withExtension(bare, 0, serverName("a.example.")),
		"name with NUL":         withExtension(bare, 0, serverName("a.example\x00.evil.example")),
		"address":               withExtension(bare, 0, serverName("127.0.0.1")),
		"IPv6 address":          withExtension(bare, 0, serverName("::1")),
		"empty name":            withExtension(bare, 0, serverName("")),
		"list of two":           withExtension(bare, 0, append([]byte{0, 12, 0, 0, 3, 'a', '.', 'b', 0, 0, 3}, "c.d"...)),
		"no list":               withExtension(bare, 0, nil),
		"not a host":            withExtension(bare, 0, append([]byte{0, 6, 1, 0, 3}, "a.b"...)),
		"bad ALPN":              withExtension(bare, 16, []byte{0, 2, 5, 'h'}),
		"too long":              long,
		"another message":       append([]byte{22, 3, 1, 0, 4}, 2, 0, 0, 0),
		"a request":             []byte("GET / HTTP/1.1\r\n"),
		"old version":           {22, 2, 0, 0, 5},
		"empty record":          {22, 3, 1, 0, 0},
		"endless record":        {22, 3, 1, 0xff, 0xff},
		"alert after a piece":   append(inPieces(full, 100)[:105], 21, 3, 1, 0, 2, 1, 0),
		"something behind":      append([]byte{22, 3, 1, full[3] + byte((int(full[4])+1)>>8), full[4] + 1}, append(slices.Clone(full[5:]), 0)...),
		"nothing but a message": append([]byte{22, 3, 1, 0, 4}, 1, 0, 0, 0),
	} {
		if h, need, err := ClientHello(b); err == nil {
			t.Errorf("%s: %+v, %d and no error", name, h, need)
		}
	}
}

func TestSniff(t *testing.T) {
	for in, want := range map[string]Protocol{
		"":                                 Undecided,
		"\x16":                             Undecided,
		"\x16\x03":                         TLS,
		"\x16\x02":                         Other,
		"G":                                Undecided,
		"GET / HTTP/1.1":                   Undecided,
		"GET / HTTP/1.1\r\n":               HTTP,
		"get / http/1.0\n":                 HTTP,
		"\r\nGET / HTTP/1.1\r\n":           HTTP,
		"\n\n\n\n\n\n":                     Undecided,
		"\n\n\n\n\n\nGET / HTTP/1.1\n":     HTTP,
		" GET / HTTP/1.1\r\n":              HTTP,
		"GET\t/\tHTTP/1.1\r\n":             HTTP,
		"GET / HTTP/0.9\r\n":               HTTP,
		"GET /\r\n":                        HTTP,
		"GET http://evil.example/\r\n":     HTTP,
		"PRI * HTTP/2.0\r\n":               HTTP,
		"GET key\r\n":                      Other,
		"get /key\r\n":                     Other,
		"EHLO example.com\r\n":             Other,
		"QUIT\r\n":                         Other,
		"SSH-2.0-OpenSSH_9.2p1 Debian\r\n": Other,
		"\x00\x00\x00\x08":                 Other,
		"A\x00":                            Other,
		"0033git-upload-pack /x.git\x00h=": Other,
		strings.Repeat("A", MaxHead):       HTTP,
		strings.Repeat("\n", MaxHead):      HTTP,
	} {
		if got := Sniff([]byte(in)); got != want {
			t.Errorf("%.40q: %d, want %d", in, got, want)
		}
	}
}

// theirs returns the values that crypto/tls reads; ok is false if it refuses the bytes.
func theirs(b []byte) (name string, alpn []string, ok bool) {
	enough := errors.New("enough")
	c := &tls.Config{GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
		name, alpn, ok = h.ServerName, h.SupportedProtos, true
		return nil, enough
	}}
	tls.Server(input{bytes.NewReader(b)}, c).Handshake()
	return name, alpn, ok
}

// input is a connection that can only be read.
type input struct{ io.Reader }

func (input) Write(b []byte) (int, error)      { return len(b), nil }
func (input) Close() error                     { return nil }
func (input) LocalAddr() net.Addr              { return nil }
func (input) RemoteAddr() net.Addr             { return nil }
func (input) SetDeadline(time.Time) error      { return nil }
func (input) SetReadDeadline(time.Time) error  { return nil }
func (input) SetWriteDeadline(time.Time) error { return nil }

func FuzzClientHello(f *testing.F) {
	full := helloOf(f, &tls.Config{ServerName: "api.example.com", NextProtos: []string{"h2", "http/1.1"}})
	f.Add(full)
	f.Add(helloOf(f, &tls.Config{MaxVersion: tls.VersionTLS12}))
	f.Add(inPieces(full, 64))
	f.Add(withExtension(full, 0xfe0d, []byte{0}))
	f.Add(withExtension(full, 0, serverName("b.example")))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, need, err := ClientHello(b)
		switch {
		case err != nil:
			return
		case need != 0:
			if need <= len(b) || need > MaxHello+5 {
				t.Fatalf("needs %d of %d bytes", need, len(b))
			}
			return
		}
		if Sniff(b) != TLS {
			t.Fatal("it is a ClientHello and not seen as TLS")
		}
		if h.ServerName != "" {
			if c, err := CheckName(h.ServerName); err != nil && !strings.Contains(h.ServerName, "xn--") || err == nil && c != h.ServerName {
				t.Fatalf("name %q: %q, %v", h.ServerName, c, err)
			}
		}
		// Servers may be stricter, but must not see another host.
		if name, alpn, ok := theirs(b); ok && (strings.ToLower(name) != h.ServerName || !slices.Equal(alpn, h.ALPN)) {
			t.Fatalf("crypto/tls reads %q %q, we read %+v", name, alpn, h)
		}
	})
}
