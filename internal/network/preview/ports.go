package preview

import (
	"bufio"
	"context"
	"encoding/hex"
	"io"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/engi-dev/engi/internal/engi"
)

// A Port is a port on which a program in a sandbox listens.
type Port struct {
	Port    int
	Process string // name of the program; empty if the guest may not see its files
	URL     string // URL of the preview
}

const (
	maxTable     = 4 << 20 // maximum bytes of the guest's socket table
	maxProcesses = 512     // maximum number of processes that are inspected
)

// Listening returns the ports of a sandbox that [Proxy.ServeHTTP] could reach, in
// order. It does not resume the sandbox, but returns Conflict if the sandbox is not running.
func (p *Proxy) Listening(ctx context.Context, viewer engi.Viewer, id engi.SandboxID) (_ []Port, err error) {
	defer engi.Annotate(&err, "list ports of %s", id)
	s, err := p.o.Sandboxes.Get(ctx, viewer, id)
	if err != nil {
		return nil, err
	}
	if s.State != engi.Running {
		return nil, engi.Errorf(engi.Conflict, "the sandbox is %s", s.State).WithRemedy("resume it first")
	}
	g, release, err := p.o.Sandboxes.Enter(ctx, viewer, id)
	if err != nil {
		return nil, err
	}
	defer release()

	inodes := map[int]string{} // inodes of sockets, by port
	for _, name := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		f, err := g.Open(ctx, name)
		if engi.Is(err, engi.NotFound) {
			continue // a kernel without IPv6
		}
		if err != nil {
			return nil, err
		}
		err = parseSockets(io.LimitReader(f, maxTable), inodes)
		f.Close()
		if err != nil {
			return nil, engi.Errorf(engi.Unavailable, "read %s: %v", name, err)
		}
	}
	names := p.programNames(ctx, g, inodes)
	var ports []Port
	for port, inode := range inodes {
		if port == guestPort {
			continue
		}
		ports = append(ports, Port{Port: port, Process: names[inode], URL: p.URL(id, port)})
	}
	slices.SortFunc(ports, func(a, b Port) int { return a.Port - b.Port })
	return ports, nil
}

// guestPort is not a service of the owner: E2B's clients reach the guest program
// through it.
const guestPort = 49983

// parseSockets collects listening sockets from a table in the format of
// /proc/net/tcp.
func parseSockets(r io.Reader, inodes map[int]string) error {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if len(f) < 10 || f[3] != "0A" {
			continue
		}
		address, number, _ := strings.Cut(f[1], ":")
		port, err := strconv.ParseUint(number, 16, 16)
		if err != nil || port == 0 || !reachableByLoopback(address) {
			continue
		}
		if known := inodes[int(port)]; known == "" {
			inodes[int(port)] = f[9]
		}
	}
	return lines.Err()
}

// reachableByLoopback reports whether a socket on an address, as in the table,
// accepts connections on loopback. Each word is in the machine's byte order, which
// is little endian on all supported machines.
func reachableByLoopback(address string) bool {
	b, err := hex.DecodeString(address)
	if err != nil || len(b)%4 != 0 {
		return false
	}
	for i := 0; i < len(b); i += 4 {
		slices.Reverse(b[i : i+4])
	}
	switch len(b) {
	case 4:
		return b[0] == 127 && b[1] == 0 && b[2] == 0 && b[3] == 1 || allZero(b)
	case 16:
		v4 := allZero(b[:10]) && b[10] == 0xff && b[11] == 0xff
		return allZero(b[:15]) && b[15] <= 1 || v4 && (b[12] == 127 || allZero(b[12:]))
	}
	return false
}

func allZero(b []byte) bool { return !slices.ContainsFunc(b, func(c byte) bool { return c != 0 }) }

// programNames finds the names of programs by the inodes of their sockets. Names that
// cannot be found are left out.
func (p *Proxy) programNames(ctx context.Context, g engi.Guest, wanted map[int]string) map[string]string {
	missing := map[string]bool{}
	for _, inode := range wanted {
		if inode != "" && inode != "0" {
			missing[inode] = true
		}
	}
	names := map[string]string{}
	if len(missing) == 0 {
		return names
	}
	processes, err := g.List(ctx, "/proc", 1)
	if err != nil {
		return names
	}
	asked := 0
	for _, proc := range processes {
		if strings.Trim(path.Base(proc.Path), "0123456789") != "" {
			continue
		}
		if asked++; asked > maxProcesses || len(missing) == 0 {
			break
		}
		files, err := g.List(ctx, proc.Path+"/fd", 1)
		if err != nil {
			continue
		}
		for _, f := range files {
			// Targets are made absolute, although these are not paths.
			inode, ok := strings.CutPrefix(path.Base(f.Target), "socket:[")
			inode = strings.TrimSuffix(inode, "]")
			if !ok || !missing[inode] {
				continue
			}
			if name := programName(ctx, g, proc.Path); name != "" {
				names[inode] = name
				delete(missing, inode)
			}
		}
	}
	return names
}

func programName(ctx context.Context, g engi.Guest, proc string) string {
	f, err := g.Open(ctx, proc+"/comm")
	if err != nil {
		return ""
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, 64))
	if err != nil {
		return ""
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == 0xfffd {
			return -1
		}
		return r
	}, strings.ToValidUTF8(string(b), ""))
}
