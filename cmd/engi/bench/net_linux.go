package bench

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/engi-dev/engi/internal/engi"
)

// A Net is the result of the benchmark of the network: the same program with the
// same server, in a sandbox through engi's gateway, and in a namespace whose
// packets the kernel forwards.
type Net struct {
	Bench    string `json:"bench"`
	Template string `json:"template"`
	Paths    []Path `json:"paths"`
	// ratio of the first path to the second, which differs only in the gateway
	RatioUp   float64 `json:"ratio_up,omitempty"`
	RatioDown float64 `json:"ratio_down,omitempty"`
	AddedMs   float64 `json:"added_ms,omitempty"` // added to the median round trip
	Host      Host    `json:"host"`
}

// A Path is one way to the server.
type Path struct {
	Name      string  `json:"name"`
	UpMbps    float64 `json:"up_mbps"` // megabits per second out of the sandbox
	DownMbps  float64 `json:"down_mbps"`
	RoundTrip Millis  `json:"round_trip_ms"` // one byte on an open connection
	Connect   Millis  `json:"connect_ms"`    // a new connection and one byte
	Skipped   string  `json:"skipped,omitempty"`
	Failure   string  `json:"failure,omitempty"`
}

// Compare sets the ratios of the first two paths.
func (n *Net) Compare() {
	if len(n.Paths) < 2 || n.Paths[0].UpMbps == 0 || n.Paths[1].UpMbps == 0 {
		return
	}
	a, b := n.Paths[0], n.Paths[1]
	n.RatioUp, n.RatioDown = math.Round(a.UpMbps/b.UpMbps*1000)/1000, math.Round(a.DownMbps/b.DownMbps*1000)/1000
	n.AddedMs = math.Round((a.RoundTrip.P50-b.RoundTrip.P50)*1000) / 1000
}

// NetProgram is the Python program that measures a path. Its arguments are the server's address
// and port, the number of samples and the seconds per direction.
const NetProgram = `
import json, socket, struct, sys, time
host, port, n, seconds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
def dial(kind):
    s = socket.create_connection((host, port), 20)
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    s.sendall(kind)
    return s
def ping(s):
    s.sendall(b"x")
    if s.recv(1) != b"x":
        raise SystemExit("the server answers something else")
s, trips, fresh = dial(b"e"), [], []
for i in range(n + 20):
    began = time.perf_counter_ns()
    ping(s)
    if i >= 20:
        trips.append(time.perf_counter_ns() - began)
s.close()
for i in range(n // 4 + 1):
    began = time.perf_counter_ns()
    s = dial(b"e")
    ping(s)
    fresh.append(time.perf_counter_ns() - began)
    s.close()
buf = bytearray(1 << 20)
s, total, began = dial(b"d"), 0, time.perf_counter()
while time.perf_counter() - began < seconds:
    k = s.recv_into(buf)
    if k == 0:
        raise SystemExit("the server ended")
    total += k
down = total / (time.perf_counter() - began)
s.close()
s, began = dial(b"u"), time.perf_counter()
while time.perf_counter() - began < seconds:
    s.sendall(buf)
s.shutdown(socket.SHUT_WR)
got = b""
while len(got) < 8:
    more = s.recv(8)
    if not more:
        raise SystemExit("the server ended")
    got += more
up = struct.unpack(">Q", got)[0] / (time.perf_counter() - began)
print(json.dumps({"up": up, "down": down, "trips": trips, "fresh": fresh}))
`

// ParsePath parses the output of NetProgram.
func ParsePath(name, out string) Path {
	var r struct {
		Up, Down     float64
		Trips, Fresh []time.Duration
	}
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		return Path{Name: name, Failure: fmt.Sprintf("the program printed %.200q", out)}
	}
	mbps := func(perSecond float64) float64 { return math.Round(perSecond * 8 / 1e6) }
	return Path{Name: name, UpMbps: mbps(r.Up), DownMbps: mbps(r.Down), RoundTrip: Summarize(r.Trips), Connect: Summarize(r.Fresh)}
}

// Addresses of the benchmark, from the network reserved for benchmarks.
var (
	NetServer   = netip.MustParseAddr("198.18.77.2")
	netToServer = netip.MustParsePrefix("198.18.77.1/30")
	netClient   = netip.MustParseAddr("198.18.77.6")
	netToClient = netip.MustParsePrefix("198.18.77.5/30")
)

// A NetRig is a server in a namespace, and another namespace from which the
// kernel forwards to it.
type NetRig struct {
	Port   uint16
	names  []string // names of the namespaces
	listen net.Listener
	work   sync.WaitGroup
}

// OpenNet creates a rig. It needs root and the program ip. The caller must close
// it.
func OpenNet(ctx context.Context) (_ *NetRig, err error) {
	if os.Geteuid() != 0 {
		return nil, engi.Errorf(engi.Unsupported, "network namespaces that the kernel forwards between need root").WithRemedy("run the benchmark as root")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		return nil, engi.Errorf(engi.Unsupported, "the program ip is missing").WithRemedy("install iproute2")
	}
	r := &NetRig{}
	defer func() {
		if err != nil {
			r.Close()
		}
	}()
	for i, side := range []struct {
		host netip.Prefix
		addr netip.Addr
	}{{netToServer, NetServer}, {netToClient, netClient}} {
		name := fmt.Sprintf("engi-bench-%d-%d", os.Getpid(), i)
		near := fmt.Sprintf("eb%d-%d", os.Getpid()%100000, i)
		if err := ip(ctx, "netns", "add", name); err != nil {
			return nil, err
		}
		r.names = append(r.names, name)
		for _, args := range [][]string{
			{"link", "add", near, "type", "veth", "peer", "name", "eth0", "netns", name},
			{"addr", "add", side.host.String(), "dev", near},
			{"link", "set", near, "up"},
			{"-n", name, "link", "set", "lo", "up"},
			{"-n", name, "addr", "add", netip.PrefixFrom(side.addr, side.host.Bits()).String(), "dev", "eth0"},
			{"-n", name, "link", "set", "eth0", "up"},
			{"-n", name, "route", "add", "default", "via", side.host.Addr().String()},
		} {
			if err := ip(ctx, args...); err != nil {
				return nil, err
			}
		}
		// Forward only between these two namespaces, which are deleted afterwards.
		if err := os.WriteFile("/proc/sys/net/ipv4/conf/"+near+"/forwarding", []byte("1"), 0); err != nil {
			return nil, engi.Errorf(engi.Unsupported, "forward packets: %v", err)
		}
	}
	if err := inNamespace(r.names[0], func() (err error) {
		r.listen, err = net.Listen("tcp", netip.AddrPortFrom(NetServer, 0).String())
		return err
	}); err != nil {
		return nil, engi.Errorf(engi.Unavailable, "listen in a namespace: %v", err)
	}
	r.Port = uint16(r.listen.Addr().(*net.TCPAddr).Port)
	r.work.Go(r.serve)
	return r, nil
}

func ip(ctx context.Context, args ...string) error {
	out, err := exec.CommandContext(ctx, "ip", args...).CombinedOutput()
	if err != nil {
		return engi.Errorf(engi.Unsupported, "ip %s: %v: %.200s", strings.Join(args, " "), err, out)
	}
	return nil
}

// inNamespace runs f on a separate thread, which ends with f.
func inNamespace(name string, f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked
		done <- func() error {
			ns, err := os.Open(filepath.Join("/run/netns", name))
			if err != nil {
				return err
			}
			defer ns.Close()
			if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
				return err
			}
			return f()
		}()
	}()
	return <-done
}

func (r *NetRig) serve() {
	for {
		c, err := r.listen.Accept()
		if err != nil {
			return
		}
		r.work.Go(func() {
			defer c.Close()
			c.SetDeadline(time.Now().Add(5 * time.Minute))
			var kind [1]byte
			if _, err := io.ReadFull(c, kind[:]); err != nil {
				return
			}
			switch buf := make([]byte, 256<<10); kind[0] {
			case 'e':
				io.Copy(c, c)
			case 'd':
				for err == nil {
					_, err = c.Write(buf)
				}
			case 'u':
				var n uint64
				for err == nil {
					var k int
					k, err = c.Read(buf)
					n += uint64(k)
				}
				c.Write(binary.BigEndian.AppendUint64(nil, n))
			}
		})
	}
}

// unmountNull unmounts the empty network namespace that runsc keeps in its state.
func unmountNull(state string) {
	if points, err := filepath.Glob(filepath.Join(state, "null-netns*")); err == nil {
		for _, point := range points {
			syscall.Unmount(point, syscall.MNT_DETACH)
		}
	}
}

// ForwardedSandbox runs a command in a bare sandbox of runsc's, in the namespace
// from which the kernel forwards, and returns its output. The sandbox takes
// the namespace's addresses permanently.
func (r *NetRig) ForwardedSandbox(ctx context.Context, runsc, root string, args []string) (out string, err error) {
	dir, err := os.MkdirTemp("", "engi-bench-")
	if err != nil {
		return "", engi.Errorf(engi.Unavailable, "%v", err)
	}
	defer os.RemoveAll(dir)
	defer unmountNull(filepath.Join(dir, "state"))
	if err := Bundle(dir, root, args); err != nil {
		return "", err
	}
	spec := filepath.Join(dir, "config.json")
	text, err := os.ReadFile(spec)
	if err != nil {
		return "", engi.Errorf(engi.Unavailable, "%v", err)
	}
	joined := strings.Replace(string(text), `{"type":"network"}`, fmt.Sprintf(`{"type":"network","path":"/run/netns/%s"}`, r.names[1]), 1)
	if err := os.WriteFile(spec, []byte(joined), 0o600); err != nil {
		return "", engi.Errorf(engi.Unavailable, "%v", err)
	}
	var errs strings.Builder
	cmd := exec.CommandContext(ctx, runsc, "--root", filepath.Join(dir, "state"), "--platform", "systrap", "--network", "sandbox", "run", "--bundle", dir, "net")
	cmd.Stderr = &errs
	b, err := cmd.Output()
	if err != nil {
		return "", engi.Errorf(engi.Unavailable, "%v: %.300s", err, errs.String())
	}
	return string(b), nil
}

// Forwarded runs a command, with root as its root directory, in the namespace
// from which the kernel forwards, and returns its output.
func (r *NetRig) Forwarded(ctx context.Context, root string, args []string) (out string, err error) {
	err = inNamespace(r.names[1], func() error {
		cmd := exec.CommandContext(ctx, args[0], args[1:]...)
		cmd.Dir, cmd.Env = "/", []string{"PATH=/usr/local/bin:/usr/bin:/bin"}
		cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Pdeathsig: syscall.SIGKILL}
		var errs strings.Builder
		cmd.Stderr = &errs
		b, err := cmd.Output()
		if err != nil {
			return engi.Errorf(engi.Unavailable, "%v: %.300s", err, errs.String())
		}
		out = string(b)
		return nil
	})
	return out, err
}

// Close deletes the namespaces and waits for the server.
func (r *NetRig) Close() error {
	if r.listen != nil {
		r.listen.Close()
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var first error
	for _, name := range r.names {
		if err := ip(ctx, "netns", "del", name); err != nil && first == nil {
			first = err
		}
	}
	r.work.Wait()
	return first
}
