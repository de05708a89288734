package egress

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/node"
	"github.com/engi-dev/engi/internal/node/config"
	"github.com/engi-dev/engi/test/env"
)

// inside is the variable that is set in the process with a separate network namespace.
const inside = "ENGI_TEST_EGRESS_INSIDE"

// The canary listens on the test's host, which no sandbox may reach.
const canaryPort = 47113

var (
	internetOfTests *internet
	shared          = env.Shared{Configure: func(c *config.Config) {
		c.Network.Resolver = []string{resolver.String()}
		c.Network.Private = opened
		c.Network.Hosts = []string{"registry.internal=192.168.0.77"}
		c.Network.Limits = config.NetworkLimits{Connections: 2000, NewConnections: 2000, Lookups: 2000}
		c.Network.Max = string(engi.NetworkOpen)
		c.Network.Events = 20_000
		c.Builds.Allow = []string{"packages.test"}
		c.Quota.Owner = map[string]config.Quota{"small": {Disk: 200 << 20}}
	}}
)

// The first thread stays with TestMain: it determines the process's
// namespace, and a child would mistake its end for the end of the parent.
func init() { runtime.LockOSThread() }

func TestMain(m *testing.M) {
	if env.Missing("ENGI_RUNSC", "ENGI_GUEST") == "" && os.Getenv(inside) == "" {
		os.Exit(enter())
	}
	os.Exit(run(m))
}

// enter runs the tests again in a network namespace, where they may use all
// addresses, and which has no connection to other networks.
func enter() int {
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGTERM}
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return max(1, exit.ExitCode())
	default:
		fmt.Fprintln(os.Stderr, "run the tests in a network namespace:", err)
		return 1
	}
}

func run(m *testing.M) int {
	if os.Getenv(inside) != "" {
		if err := prepare(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return shared.Main(m)
}

func prepare() (err error) {
	if shared.Dir, err = os.MkdirTemp("", "engi-egress-"); err != nil {
		return err
	}
	if internetOfTests, err = newInternet(); err != nil {
		return err
	}
	// Connections of this process trust the internet's authority.
	roots := filepath.Join(shared.Dir, "roots.pem")
	if err := internetOfTests.root.bundle(roots); err != nil {
		return err
	}
	os.Setenv("SSL_CERT_FILE", roots)
	os.Setenv("SSL_CERT_DIR", shared.Dir)
	os.Setenv("PIP_EXTRA_INDEX_URL", "https://ann:password@pypi.example.com/simple") // only the node's own builds may see the variable
	l, err := net.Listen("tcp", fmt.Sprintf(":%d", canaryPort))
	if err != nil {
		return err
	}
	go internetOfTests.serveEach(l, func(c net.Conn) {
		internetOfTests.hear("canary", c.LocalAddr(), "canary")
		fmt.Fprintf(c, "%s canary\r\n", reached)
	})
	return nil
}

// testInternet returns the internet, or skips.
func testInternet(t *testing.T) *internet {
	t.Helper()
	env.Machine(t, "ENGI_RUNSC", "ENGI_GUEST")
	return internetOfTests
}

// opened lists closed networks that this node's operator opened: policies may
// name them, and do so only for controls.
var opened = []string{
	"10.1.0.0/16", "169.254.169.254", "100.100.100.200", "fd00:ec2::254", "fd12::/16", "198.18.0.1", "192.168.0.0/16",
}

// sharedNode returns the node of all tests.
func sharedNode(t *testing.T) *node.Private { return shared.Node(t) }

// A sandbox is a sandbox with a network.
type sandbox struct {
	t      *testing.T
	node   *node.Private
	id     engi.SandboxID
	viewer engi.Viewer
	guest  engi.Guest
}

// newSandbox starts a sandbox that ends with t.
func newSandbox(t *testing.T, owner engi.Owner, p engi.NetworkPolicy) *sandbox {
	t.Helper()
	n := sharedNode(t)
	s, err := n.Sandboxes().Create(t.Context(), engi.SandboxSpec{Owner: owner, Template: "base", Network: p,
		Lifetime: engi.Lifetime{Timeout: 10 * time.Minute}})
	if err != nil {
		t.Fatal(err)
	}
	g, release, err := n.Sandboxes().Enter(t.Context(), owner.Viewer(), s.ID)
	if err != nil {
		t.Fatal(err)
	}
	b := &sandbox{t, n, s.ID, owner.Viewer(), g}
	t.Cleanup(func() {
		release()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := n.Sandboxes().Stop(ctx, owner.Viewer(), s.ID); err != nil {
			t.Errorf("stop %s: %v", s.ID, err)
		}
	})
	return b
}

// run runs a program as root inside and returns its output.
func (b *sandbox) run(t *testing.T, timeout time.Duration, args ...string) (out string, exit engi.Exit) {
	t.Helper()
	p := b.start(t, timeout, args...)
	ctx, cancel := context.WithTimeout(t.Context(), timeout+time.Minute)
	defer cancel()
	var all strings.Builder
	for c, err := range p.Output(ctx, 0) {
		if err != nil {
			t.Fatalf("%q: %v\n%s", args, err, all.String())
		}
		all.Write(c.Data)
	}
	exit, err := p.Wait(ctx)
	if err != nil {
		t.Fatalf("%q: %v\n%s", args, err, all.String())
	}
	return all.String(), exit
}

func (b *sandbox) start(t *testing.T, timeout time.Duration, args ...string) engi.Process {
	t.Helper()
	p, err := b.guest.Start(t.Context(), engi.Command{Args: args, User: "root", Dir: "/tmp", Timeout: timeout, Output: 4 << 20})
	if err != nil {
		t.Fatalf("start %q: %v", args, err)
	}
	return p
}

func (b *sandbox) write(t *testing.T, path, content string) {
	t.Helper()
	if err := b.guest.Write(t.Context(), path, strings.NewReader(content), engi.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// events returns all network records of the sandbox.
func (b *sandbox) events(t *testing.T) []engi.NetworkRecord {
	t.Helper()
	var all []engi.NetworkRecord
	for seq := int64(0); ; {
		page, err := b.node.NetworkLog().Events(t.Context(), b.viewer, b.id, seq, 1000, false)
		if err != nil {
			t.Fatal(err)
		}
		if len(page) == 0 {
			return all
		}
		all = append(all, page...)
		seq = page[len(page)-1].Seq
	}
}

// settledEvents returns the events once no event has come for a second: they are written
// in batches, every 20 ms.
func (b *sandbox) settledEvents(t *testing.T) []engi.NetworkRecord {
	t.Helper()
	all := b.events(t)
	quiet := 0
	for end := time.Now().Add(time.Minute); quiet < 5 && time.Now().Before(end); quiet++ {
		time.Sleep(200 * time.Millisecond)
		before := len(all)
		if all = b.events(t); len(all) != before {
			quiet = 0
		}
	}
	return all
}

// open puts another policy in force.
func (b *sandbox) open(t *testing.T, p engi.NetworkPolicy) {
	t.Helper()
	if _, err := b.node.Sandboxes().Update(t.Context(), b.viewer, b.id, engi.SandboxUpdate{Network: &p}); err != nil {
		t.Fatal(err)
	}
}
