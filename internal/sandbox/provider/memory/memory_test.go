package memory_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/provider"
	"github.com/engi-dev/engi/internal/sandbox/provider/memory"
	"github.com/engi-dev/engi/internal/sandbox/provider/providertest"
)

func TestPromises(t *testing.T) {
	root := t.TempDir()
	for _, dir := range []string{"tmp", "workspace", ".engi"} {
		if err := os.Mkdir(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	host := memory.NewHost(t.TempDir())
	t.Cleanup(func() {
		if err := host.Close(); err != nil {
			t.Error(err)
		}
	})
	providertest.Run(t, memory.New(host), providertest.Env{
		Root:    root,
		Restart: func(t *testing.T) provider.Provider { return memory.New(host) },
		Kill:    func(t *testing.T, id engi.SandboxID) { host.Kill(id) },
	})
}

func TestFillMemory(t *testing.T) {
	host := memory.NewHost(t.TempDir())
	m, err := memory.New(host).Start(t.Context(), provider.Spec{
		ID: engi.NewSandboxID(), Root: t.TempDir(), Token: "x",
		Size: engi.Size{VCPUs: 1, Memory: 1, Disk: 1, Inodes: 1, Processes: 1, OpenFiles: 1},
	})
	if err != nil {
		t.Fatal(err)
	}
	host.FillMemory(m.ID())
	<-m.Done()
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	if got := m.End(); got != engi.CauseMemory {
		t.Errorf("the end is %q, want memory", got)
	}
}
