package gvisor_test

import (
	"slices"
	"testing"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/provider"
)

func TestBuilds(t *testing.T) {
	need(t)
	p := newProvider(t, t.TempDir())
	var builds []engi.SandboxID
	for _, writable := range []bool{false, true} {
		root, mounts := newRoot(t)
		m, err := p.Start(t.Context(), provider.Spec{
			ID: engi.NewSandboxID(), Root: root, Mounts: mounts, Hostname: "box", Token: "t", Writable: writable,
			Size: engi.Size{VCPUs: 2, Memory: 96 << 20, Disk: 64 << 20, Inodes: 2000, Processes: 60, OpenFiles: 300},
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := m.Close(); err != nil {
				t.Error(err)
			}
		})
		if writable {
			builds = append(builds, m.ID())
		}
	}
	got, err := p.Builds()
	if err != nil || !slices.Equal(got, builds) {
		t.Errorf("builds: %v, %v, want %v", got, err, builds)
	}
}
