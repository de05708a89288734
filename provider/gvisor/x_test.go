package gvisor_test

import (
	"context"
	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/guest"
	"github.com/engi-dev/engi/provider"
	"testing"
	"time"
)

func TestX(t *testing.T) {
	root, mounts := newRoot(t)
	p := newProvider(t, t.TempDir())
	spec := provider.Spec{ID: engi.NewSandboxID(), Root: root, Mounts: mounts, Hostname: "x", Token: "x", Size: engi.Size{VCPUs: 2, Memory: 1024 << 20, Disk: 64 << 20, Inodes: 5000, Processes: 100, OpenFiles: 1000}}
	m, err := p.Start(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	c, err := guest.Open(t.Context(), m.Guest, "x")
	if err != nil {
		t.Fatal(err)
	}
	u := func(s string) {
		us, _ := m.(provider.Meter).Usage(context.Background())
		t.Log(s, us.Memory>>20, us.CPU)
	}
	u("start")
	sh := func(s string) {
		proc, err := c.Start(t.Context(), engi.Command{Args: []string{"/bin/sh", "-c", s}, Dir: "/", User: "root"})
		if err != nil {
			t.Fatal(err)
		}
		o := ""
		for ch, err := range proc.Output(t.Context(), 0) {
			if err != nil {
				t.Fatal(err)
			}
			o += string(ch.Data)
		}
		t.Log(o)
	}
	sh("cat /proc/meminfo | head -3; nproc; df -i / /tmp /dev/shm; df -h / /tmp /dev/shm; mount; id; ulimit -a; ls -la /sys/fs/cgroup /sys/fs/cgroup/pids; hostname; cat /sys/fs/cgroup/pids/pids.max; ls -la /.engi")
	sh("i=0; while [ $i -lt 6000 ]; do : > /tmp/f$i || break; i=$((i+1)); done; echo made $i; head -c 100m /dev/zero > /workspace/x; ls -la /workspace")
	sh("head -c 256m /dev/zero | tail -n 1 | wc -c")
	for range 10 {
		u("after")
		time.Sleep(200 * time.Millisecond)
	}
	t.Log(m.(provider.Diagnoser).Diagnose(t.Context()))
	b := time.Now()
	t.Log(provider.Resize(t.Context(), m, engi.Size{Memory: 256 << 20}), time.Since(b))
}
