package egress

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/engi-dev/engi/test/env"
)

// TestBrokenKernel sends frames from the sandbox's end of its link, as a
// sandbox with a compromised kernel could: programs inside cannot send
// such frames. The egress gateway must refuse them.
func TestBrokenKernel(t *testing.T) {
	env.Slow(t)
	w := testInternet(t)
	furnish(w)
	b := newSandbox(t, "mallory", policies["restricted"])
	proveAlive(t, b, "restricted")
	ns := netnsOf(t, string(b.id))

	inside, evil, private := netip.MustParseAddr("10.88.0.2"), netip.MustParseAddr("93.184.217.130"), netip.MustParseAddr("10.1.2.3")
	inside6, evil6 := netip.MustParseAddr("fd00:e1::2"), netip.MustParseAddr("2606:2800::77")
	forged, forged6 := netip.MustParseAddr("198.51.100.7"), netip.MustParseAddr("2606:2800::99")
	const token = "tbrokenkernel"
	whole := datagram(inside, evil, 5000, []byte(strings.Repeat(token, 20)))
	syn := []byte{0x9c, 0x40, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 4, 0, 0, 0, 0, 0}
	frames := []struct {
		name  string
		frame []byte
		event string
	}{
		{"a forged source", frame4(packet4(forged, evil, 17, 0, nil, datagram(forged, evil, 5000, []byte(token)))), `limit .*forged source`},
		{"the gateway as source", frame4(packet4(netip.MustParseAddr("10.88.0.1"), evil, 17, 0, nil, whole)), `limit .*forged source`},
		{"a first fragment", frame4(packet4(inside, evil, 17, 0x2000, nil, whole[:104])), `limit .*fragment`},
		{"a last fragment", frame4(packet4(inside, evil, 17, 13, nil, whole[104:])), `limit .*fragment`},
		{"a fragment of a TCP header", frame4(packet4(inside, evil, 6, 0x2000, nil, syn[:8])), `limit .*fragment`},
		{"an overlapping fragment", frame4(packet4(inside, evil, 6, 1, nil, syn)), `limit .*fragment`},
		{"loose source routing", frame4(packet4(inside, evil, 17, 0, []byte{131, 7, 4, 10, 1, 2, 3, 0}, whole)), `limit .*options`},
		{"strict source routing", frame4(packet4(inside, evil, 17, 0, []byte{137, 7, 4, 10, 1, 2, 3, 0}, whole)), `limit .*options`},
		{"record route", frame4(packet4(inside, evil, 17, 0, []byte{7, 7, 4, 0, 0, 0, 0, 0}, whole)), `limit .*options`},
		{"GRE", frame4(packet4(inside, evil, 47, 0, nil, []byte("\x00\x00\x08\x00"+token))), `limit .*a protocol other than`},
		{"IPv4 in IPv4", frame4(packet4(inside, evil, 4, 0, nil, packet4(inside, private, 17, 0, nil, datagram(inside, private, 5000, []byte(token))))), `limit .*a protocol other than`},
		{"IPv6 in IPv4", frame4(packet4(inside, evil, 41, 0, nil, packet6(inside6, evil6, 17, datagram(inside6, evil6, 5000, []byte(token))))), `limit .*a protocol other than`},
		{"SCTP", frame4(packet4(inside, evil, 132, 0, nil, []byte(token))), `limit .*a protocol other than`},
		{"a length that lies", frame4(lying(packet4(inside, evil, 17, 0, nil, whole))), `limit .*malformed`},
		{"a datagram", frame4(packet4(inside, evil, 17, 0, nil, whole)), `connect udp .*93.184.217.130:5000`},
		{"a datagram to a private address", frame4(packet4(inside, private, 17, 0, nil, datagram(inside, private, 5000, []byte(token)))), `connect udp .*10.1.2.3:5000.*private`},
		{"IPv6: a forged source", frame6(packet6(forged6, evil6, 17, datagram(forged6, evil6, 5000, []byte(token)))), `limit .*forged source`},
		{"IPv6: a fragment", frame6(packet6(inside6, evil6, 44, append([]byte{17, 0, 0, 1, 0, 0, 0, 1}, whole...))), `limit .*fragment`},
		{"IPv6: a routing header", frame6(packet6(inside6, evil6, 43, append([]byte{17, 2, 0, 1, 0, 0, 0, 0}, append(evil6.AsSlice(), whole...)...))), `limit .*options`},
		{"IPv6: a destination option", frame6(packet6(inside6, evil6, 60, append([]byte{17, 0, 1, 4, 0, 0, 0, 0}, whole...))), `limit .*a protocol other than`},
		{"IPv6: a mapped destination", frame6(packet6(inside6, netip.MustParseAddr("::ffff:10.1.2.3"), 17, whole)), `limit .*malformed`},
		{"IPv6: a datagram", frame6(packet6(inside6, evil6, 17, datagram(inside6, evil6, 5000, []byte(token)))), `connect udp .*2606:2800::77:5000`},
		{"ARP for the gateway's address", append(ethernet(0x0806), append([]byte{0, 1, 8, 0, 6, 4, 0, 2, 2, 0xe1, 0, 0, 0, 2, 10, 88, 0, 1}, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 10, 88, 0, 1)...), ""},
		{"a VLAN tag", append(ethernet(0x8100), append([]byte{0, 5, 8, 0}, packet4(inside, evil, 17, 0, nil, whole)...)...), ""},
		{"nothing", ethernet(0x0800), ""},
		{"noise", append(ethernet(0x86dd), []byte(strings.Repeat("\x60\xff", 700))...), ""},
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine
		done <- func() error {
			if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
				return fmt.Errorf("enter the sandbox's namespace: %w", err)
			}
			nic, err := net.InterfaceByName("eth0")
			if err != nil {
				return err
			}
			s, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0)
			if err != nil {
				return err
			}
			defer unix.Close(s)
			for range 3 {
				for _, f := range frames {
					if err := unix.Sendto(s, f.frame, 0, &unix.SockaddrLinklayer{Ifindex: nic.Index, Protocol: 0x0300, Halen: 6}); err != nil {
						return fmt.Errorf("%s: %w", f.name, err)
					}
				}
			}
			return nil
		}()
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	refusals := b.refusals(t)
	missing := func() bool {
		for _, f := range frames {
			if f.event != "" && !slices.ContainsFunc(refusals, regexp.MustCompile(f.event).MatchString) {
				return true
			}
		}
		return false
	}
	for end := time.Now().Add(time.Minute); missing() && time.Now().Before(end); {
		refusals = b.refusals(t)
	}
	for _, f := range frames {
		if f.event != "" {
			wantRefusal(t, refusals, f.event)
		}
	}
	if h := w.whoHeard(token); len(h) > 0 {
		t.Errorf("got out: %v", h)
	}
	proveAlive(t, b, "restricted")
}

// netnsOf returns the network namespace of a sandbox's machine.
func netnsOf(t *testing.T, id string) *os.File {
	t.Helper()
	own, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	entries, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		cmd, err := os.ReadFile(e)
		if err != nil || !strings.Contains(string(cmd), id) || !strings.Contains(string(cmd), "boot") && !strings.Contains(string(cmd), "runsc-sandbox") {
			continue
		}
		path := filepath.Join(filepath.Dir(e), "ns/net")
		if ns, err := os.Readlink(path); err != nil || ns == own {
			continue
		}
		if f, err := os.Open(path); err == nil {
			t.Cleanup(func() { f.Close() })
			return f
		}
	}
	t.Fatalf("no process of %s has a network namespace of its own", id)
	return nil
}

func ethernet(kind uint16) []byte {
	return append([]byte{2, 0xe1, 0, 0, 0, 1, 2, 0xe1, 0, 0, 0, 2}, byte(kind>>8), byte(kind))
}

func frame4(p []byte) []byte { return append(ethernet(0x0800), p...) }
func frame6(p []byte) []byte { return append(ethernet(0x86dd), p...) }

func packet4(from, to netip.Addr, protocol byte, fragment uint16, options, payload []byte) []byte {
	head := 20 + len(options)
	p := make([]byte, head, head+len(payload))
	p[0], p[8], p[9] = byte(0x40|head/4), 64, protocol
	binary.BigEndian.PutUint16(p[2:], uint16(head+len(payload)))
	binary.BigEndian.PutUint16(p[6:], fragment)
	copy(p[12:], from.AsSlice())
	copy(p[16:], to.AsSlice())
	copy(p[20:], options)
	binary.BigEndian.PutUint16(p[10:], sum(p))
	return append(p, payload...)
}

// lying sets the length of a packet to more than its size.
func lying(p []byte) []byte {
	binary.BigEndian.PutUint16(p[2:], 60000)
	binary.BigEndian.PutUint16(p[10:], 0)
	binary.BigEndian.PutUint16(p[10:], sum(p[:20]))
	return p
}

func packet6(from, to netip.Addr, next byte, payload []byte) []byte {
	p := make([]byte, 8, 40+len(payload))
	p[0], p[6], p[7] = 0x60, next, 64
	binary.BigEndian.PutUint16(p[4:], uint16(len(payload)))
	p = append(append(p, from.AsSlice()...), to.AsSlice()...)
	return append(p, payload...)
}

func datagram(from, to netip.Addr, port uint16, data []byte) []byte {
	d := make([]byte, 8, 8+len(data))
	binary.BigEndian.PutUint16(d, port)
	binary.BigEndian.PutUint16(d[2:], port)
	binary.BigEndian.PutUint16(d[4:], uint16(8+len(data)))
	d = append(d, data...)
	pseudo := append(append(from.AsSlice(), to.AsSlice()...), 0, 0, 0, 17, 0, 0)
	binary.BigEndian.PutUint16(pseudo[len(pseudo)-2:], uint16(len(d)))
	binary.BigEndian.PutUint16(d[6:], sum(append(pseudo, d...)))
	return d
}

// sum returns the Internet checksum of b.
func sum(b []byte) uint16 {
	var n uint32
	for i := 0; i+1 < len(b); i += 2 {
		n += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	if len(b)%2 == 1 {
		n += uint32(b[len(b)-1]) << 8
	}
	for n > 0xffff {
		n = n>>16 + n&0xffff
	}
	return ^uint16(n)
}
