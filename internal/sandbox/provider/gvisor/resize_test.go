package gvisor

import (
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/provider/gvisor/cgroup"
)

// newBusyMachine returns a machine in a fake control group that uses 100 MB.
func newBusyMachine(t *testing.T) *machine {
	t.Helper()
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "parent", "group"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"memory.current": "100000000", "memory.stat": "inactive_file 0", "memory.max": "", "memory.events": "oom_kill 0"} {
		if err := os.WriteFile(filepath.Join(root, "parent", "group", name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	m := &machine{
		id: engi.NewSandboxID(), d: machineDir(t.TempDir()), group: cgroup.Open(root, "parent", cgroup.V2).Group("group"),
		size: engi.Size{VCPUs: 1, Memory: 128 << 20, Disk: 64 << 20, Inodes: 2000, Processes: 64, OpenFiles: 300},
		done: make(chan struct{}), resizes: make(chan struct{}, 1),
	}
	if err := m.d.save("machine.json", record{Size: m.size}); err != nil {
		t.Fatal(err)
	}
	return m
}

// TestResizeWaitsWithoutTheLock lowers a limit below the memory in use, which
// Resize retries for a while. Meanwhile the machine must be able to end, which
// takes the lock, and its end must end the wait.
func TestResizeWaitsWithoutTheLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newBusyMachine(t)
		result := make(chan error, 1)
		go func() { result <- m.Resize(t.Context(), engi.Size{Memory: 64 << 20}) }()
		synctest.Wait()
		if !m.mu.TryLock() {
			t.Fatal("the lock is held while Resize waits")
		}
		m.mu.Unlock()
		if cause := m.cause(); cause != engi.CauseSandboxLost {
			t.Errorf("cause %q, want %q", cause, engi.CauseSandboxLost)
		}
		close(m.done)
		synctest.Wait()
		select {
		case err := <-result:
			if !engi.Is(err, engi.Unavailable) {
				t.Errorf("resize of a machine that ends: %v, want unavailable", err)
			}
		default:
			t.Error("Resize waits although the machine has ended")
		}
	})
}

func TestResizeBelowWhatIsInUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newBusyMachine(t)
		if err := m.Resize(t.Context(), engi.Size{Memory: 64 << 20}); !engi.Is(err, engi.Conflict) {
			t.Errorf("got %v, want conflict", err)
		}
		if m.size.Memory != 128<<20 {
			t.Errorf("the size is %d bytes after a resize that failed", m.size.Memory)
		}
	})
}
