package gvisor_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/guest"
	"github.com/engi-dev/engi/internal/sandbox/provider"
	"github.com/engi-dev/engi/internal/sandbox/provider/gvisor"
	"github.com/engi-dev/engi/test/seed"
)

// daemon runs when a test executes this program again: "start" starts a machine and
// waits; "takeover" adopts or removes every machine of earlier daemons, and fails
// if anything remains.
func daemon(mode string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	p, err := gvisor.New(gvisor.Options{
		Runsc: os.Getenv("ENGI_RUNSC"), Guest: os.Getenv("ENGI_GUEST"), Dir: os.Getenv("ENGI_TEST_DIR"),
		Cgroups: gvisor.Cgroups(os.Getenv("ENGI_TEST_CGROUPS")),
	})
	if err != nil {
		return err
	}
	if mode == "start" {
		return daemonStart(ctx, p)
	}
	return daemonTakeover(ctx, p)
}

const daemonToken = "token of a test"

func daemonStart(ctx context.Context, p *gvisor.Provider) error {
	fmt.Println("starting")
	m, err := p.Start(ctx, provider.Spec{
		ID: engi.NewSandboxID(), Root: os.Getenv("ENGI_TEST_ROOT"), Token: daemonToken,
		Size: engi.Size{VCPUs: 1, Memory: 128 << 20, Disk: 64 << 20, Inodes: 1000, Processes: 50, OpenFiles: 100},
	})
	if err != nil {
		return err
	}
	c, err := guest.Open(ctx, m.Guest, daemonToken)
	if err != nil {
		return err
	}
	if err := c.Write(ctx, "/tmp/state", strings.NewReader("kept"), engi.WriteOptions{User: "root"}); err != nil {
		return err
	}
	fmt.Println("ready")
	select {}
}

func daemonTakeover(ctx context.Context, p *gvisor.Provider) error {
	ids, err := p.Found(ctx)
	if err != nil {
		return err
	}
	for _, id := range ids {
		m, err := p.Adopt(ctx, id)
		if engi.Is(err, engi.NotFound) {
			if err := p.Remove(ctx, id); err != nil {
				return err
			}
			fmt.Println("removed", id)
			continue
		}
		if err != nil {
			return err
		}
		if os.Getenv("ENGI_TEST_EXPECT") != "" {
			if err := daemonCheck(ctx, m); err != nil {
				return errors.Join(err, m.Close())
			}
		}
		if err := m.Close(); err != nil {
			return err
		}
		fmt.Println("adopted", id)
	}
	leaks, err := p.Leaks(ctx, nil)
	if err != nil {
		return err
	}
	if len(leaks) > 0 {
		return fmt.Errorf("leaks: %v", leaks)
	}
	return nil
}

func daemonCheck(ctx context.Context, m provider.Machine) error {
	c, err := guest.Open(ctx, m.Guest, daemonToken)
	if err != nil {
		return err
	}
	defer c.Close()
	r, err := c.Open(ctx, "/tmp/state")
	if err != nil {
		return err
	}
	defer r.Close()
	if raw, err := io.ReadAll(r); err != nil || string(raw) != "kept" {
		return fmt.Errorf("the state is %q, %v", raw, err)
	}
	return nil
}

// crash runs daemons in dir.
type crash struct {
	t       *testing.T
	command func(env ...string) *exec.Cmd
	env     []string
}

func newCrash(t *testing.T, asNobody bool, cgroups gvisor.Cgroups) *crash {
	t.Helper()
	need(t)
	c := &crash{t: t}
	dir := t.TempDir()
	if asNobody {
		dir, c.command = nobody(t)
	} else {
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		c.command = func(env ...string) *exec.Cmd {
			cmd := exec.Command(self)
			cmd.Env = append(append(os.Environ(), "ENGI_RUNSC="+programs.runsc, "ENGI_GUEST="+programs.guest), env...)
			return cmd
		}
	}
	root := filepath.Join(dir, "root")
	for _, sub := range []string{".engi", "dev", "proc", "sys", "tmp/.keep"} {
		if err := os.MkdirAll(filepath.Join(root, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	c.env = []string{"ENGI_TEST_ROOT=" + root, "ENGI_TEST_DIR=" + filepath.Join(dir, "state"), "ENGI_TEST_CGROUPS=" + string(cgroups)}
	return c
}

// start runs a daemon that starts a machine, and returns once it has printed line.
func (c *crash) start(line string) *exec.Cmd {
	c.t.Helper()
	cmd := c.command(append(c.env, "ENGI_TEST_DAEMON=start")...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		c.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if lines.Text() == line {
			return cmd
		}
	}
	cmd.Process.Kill()
	cmd.Wait()
	c.t.Fatalf("the daemon does not say %s", line)
	return nil
}

func (c *crash) takeover(env ...string) string {
	c.t.Helper()
	cmd := c.command(append(append(c.env, "ENGI_TEST_DAEMON=takeover"), env...)...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		c.t.Fatalf("takeover: %v\n%s", err, out)
	}
	return string(out)
}

// survive kills a daemon whose machine has booted. The next one must adopt it.
func (c *crash) survive() {
	c.t.Helper()
	cmd := c.start("ready")
	cmd.Process.Kill()
	cmd.Wait()
	if out := c.takeover("ENGI_TEST_EXPECT=1"); !strings.Contains(out, "adopted") {
		c.t.Errorf("the machine was not adopted: %s", out)
	}
}

// anywhere kills daemons at random moments of a start. The next one must clean up.
func (c *crash) anywhere(rounds int) {
	c.t.Helper()
	rnd := rand.New(rand.NewPCG(seed.Of(c.t, "", 1), 0))
	for range rounds {
		cmd := c.start("starting")
		time.Sleep(time.Duration(rnd.Int64N(int64(120 * time.Millisecond))))
		cmd.Process.Kill()
		cmd.Wait()
		c.t.Log(strings.TrimSpace(c.takeover()))
	}
}

func TestCrash(t *testing.T) {
	c := newCrash(t, false, gvisor.CgroupsAuto)
	c.survive()
	c.anywhere(10)
}

func TestCrashWithoutGroups(t *testing.T) {
	c := newCrash(t, false, gvisor.CgroupsNone)
	c.survive()
	c.anywhere(5)
}

// TestCrashRootless adopts machines from another user namespace.
func TestCrashRootless(t *testing.T) {
	c := newCrash(t, true, gvisor.CgroupsAuto)
	c.survive()
	c.anywhere(5)
}
