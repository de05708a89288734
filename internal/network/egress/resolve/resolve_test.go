package resolve_test

import (
	"context"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/network/egress/resolve"
)

func name(s string) dnsmessage.Name { return dnsmessage.MustNewName(s + ".") }

func head(s string, kind dnsmessage.Type, ttl uint32) dnsmessage.ResourceHeader {
	return dnsmessage.ResourceHeader{Name: name(s), Type: kind, Class: dnsmessage.ClassINET, TTL: ttl}
}

func message(id uint16, answers ...dnsmessage.Resource) dnsmessage.Message {
	return dnsmessage.Message{Header: dnsmessage.Header{ID: id, Response: true},
		Questions: []dnsmessage.Question{{Name: name("www.example.com"), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}}, Answers: answers}
}

func a(s string, ttl uint32, ip string) dnsmessage.Resource {
	return dnsmessage.Resource{Header: head(s, dnsmessage.TypeA, ttl), Body: &dnsmessage.AResource{A: netip.MustParseAddr(ip).As4()}}
}

func alias(s, to string) dnsmessage.Resource {
	return dnsmessage.Resource{Header: head(s, dnsmessage.TypeCNAME, 60), Body: &dnsmessage.CNAMEResource{CNAME: name(to)}}
}

func packQuery(t testing.TB, m dnsmessage.Message) []byte {
	t.Helper()
	b, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestParse(t *testing.T) {
	good := packQuery(t, message(7, alias("www.example.com", "cdn.example.net"), a("cdn.example.net", 30, "192.0.2.1"), a("other.example.org", 30, "192.0.2.66")))
	got, cut, err := resolve.Parse(good, 7, "www.example.com", dnsmessage.TypeA)
	if err != nil || cut || len(got.Addrs) != 1 || got.Addrs[0].String() != "192.0.2.1" || got.Alias != "cdn.example.net" || got.TTL.Seconds() != 30 {
		t.Errorf("%+v, %v, %v", got, cut, err)
	}
	loop := packQuery(t, message(7, alias("www.example.com", "a.example.com"), alias("a.example.com", "www.example.com")))
	if got, _, err := resolve.Parse(loop, 7, "www.example.com", dnsmessage.TypeA); err != nil || len(got.Addrs) != 0 {
		t.Errorf("names in a circle: %+v, %v", got, err)
	}
	for what, c := range map[string]struct {
		id   uint16
		name string
		kind engi.Kind
	}{"another ID": {8, "www.example.com", engi.Invalid}, "another name": {7, "example.com", engi.Invalid}} {
		if _, _, err := resolve.Parse(good, c.id, c.name, dnsmessage.TypeA); !engi.Is(err, c.kind) {
			t.Errorf("%s: %v", what, err)
		}
	}
	missing := message(7)
	missing.RCode = dnsmessage.RCodeNameError
	if got, _, err := resolve.Parse(packQuery(t, missing), 7, "www.example.com", dnsmessage.TypeA); err != nil || !got.Missing {
		t.Errorf("a missing name: %+v, %v", got, err)
	}
}

// bothWays listens for UDP and TCP on one port.
func bothWays(t *testing.T) (net.PacketConn, net.Listener) {
	t.Helper()
	for range 20 {
		c, err := net.ListenPacket("udp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		l, err := net.Listen("tcp", c.LocalAddr().String())
		if err == nil {
			return c, l
		}
		c.Close() // the port is taken for TCP
	}
	t.Fatal("no port is free both ways")
	return nil, nil
}

func TestLookup(t *testing.T) {
	c, l := bothWays(t)
	defer c.Close()
	defer l.Close()
	var asked atomic.Int32
	go func() {
		buf := make([]byte, 1500)
		for {
			n, from, err := c.ReadFrom(buf)
			if err != nil {
				return
			}
			asked.Add(1)
			id := uint16(buf[0])<<8 | uint16(buf[1])
			_ = n
			// First a forged response, then the truncated one.
			forged, _ := ptr(message(id+1, a("www.example.com", 60, "192.0.2.66"))).Pack()
			c.WriteTo(forged, from)
			short := message(id)
			short.Truncated = true
			b, _ := short.Pack()
			c.WriteTo(b, from)
		}
	}()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			buf := make([]byte, 1500)
			conn.Read(buf)
			b, _ := ptr(message(uint16(buf[2])<<8|uint16(buf[3]), a("www.example.com", 60, "192.0.2.5"))).Pack()
			conn.Write(append([]byte{byte(len(b) >> 8), byte(len(b))}, b...))
			conn.Close()
		}
	}()
	r := resolve.New([]netip.AddrPort{netip.MustParseAddrPort(c.LocalAddr().String())})
	for range 3 {
		got, err := r.Lookup(t.Context(), "www.example.com", dnsmessage.TypeA)
		if err != nil || len(got.Addrs) != 1 || got.Addrs[0].String() != "192.0.2.5" {
			t.Fatalf("%+v, %v", got, err)
		}
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("the server was asked %d times for what is kept", n)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.Lookup(ctx, "other.example.com", dnsmessage.TypeA); err == nil {
		t.Error("a lookup that nobody waits for succeeded")
	}
}

func ptr(m dnsmessage.Message) *dnsmessage.Message { return &m }

func TestHost(t *testing.T) {
	path := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(path, []byte("# x\nnameserver 192.0.2.1\nsearch a b\nnameserver fe80::1%eth0\nnameserver nonsense\nnameserver\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := resolve.HostServers(path); len(got) != 2 || got[0].String() != "192.0.2.1:53" {
		t.Errorf("%v", got)
	}
	if got := resolve.HostServers(path + ".none"); got != nil {
		t.Errorf("%v", got)
	}
}

func FuzzAnswer(f *testing.F) {
	f.Add(packQuery(f, message(7, alias("www.example.com", "cdn.example.net"), a("cdn.example.net", 30, "192.0.2.1"))))
	f.Add(packQuery(f, message(7, alias("www.example.com", "www.example.com"))))
	f.Add([]byte{0, 7, 0x80, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0xc0, 12})
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, kind := range []dnsmessage.Type{dnsmessage.TypeA, dnsmessage.TypeAAAA, dnsmessage.TypeTXT, dnsmessage.TypeSRV} {
			got, _, err := resolve.Parse(b, 7, "www.example.com", kind)
			if err == nil && (len(got.Addrs) > resolve.MaxAddrs || len(got.Records) > resolve.MaxRecords || got.TTL < 0) {
				t.Errorf("%+v", got)
			}
		}
	})
}
