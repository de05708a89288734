package gvisor_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/guest"
	"github.com/engi-dev/engi/internal/sandbox/guest/wire"
	"github.com/engi-dev/engi/internal/sandbox/provider"
	"github.com/engi-dev/engi/internal/sandbox/provider/gvisor"
)

// wantUnusedIDs checks that all processes of a machine run as users and groups
// that do not exist on the host, and map no others.
func wantUnusedIDs(t *testing.T, id engi.SandboxID) {
	t.Helper()
	for _, name := range []string{"runsc-sandbox", "runsc-gofer"} {
		pids := processes(t, name, id)
		if len(pids) == 0 {
			t.Fatalf("no process %s", name)
		}
		for _, pid := range pids {
			for _, file := range []string{"uid_map", "gid_map"} {
				raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, file))
				if err != nil {
					t.Fatal(err)
				}
				var inside, outside, count int64
				if n, err := fmt.Sscan(string(raw), &inside, &outside, &count); err != nil || n != 3 || strings.Count(string(raw), "\n") != 1 {
					t.Fatalf("%s of %s: %q, %v", file, name, raw, err)
				}
				if inside != 0 || outside != gvisor.FirstID || outside+count != gvisor.FirstID+gvisor.IDCount {
					t.Errorf("%s of %s: %s", file, name, raw)
				}
			}
			tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
			if err != nil || len(tasks) == 0 {
				t.Fatalf("threads of %d: %v, %v", pid, tasks, err)
			}
			for _, task := range tasks {
				raw, err := os.ReadFile(task)
				if err != nil {
					continue // the process has ended
				}
				for line := range strings.Lines(string(raw)) {
					key, ids, _ := strings.Cut(line, ":")
					if key != "Uid" && key != "Gid" && key != "Groups" {
						continue
					}
					for _, id := range strings.Fields(ids) {
						var n int64
						if _, err := fmt.Sscan(id, &n); err != nil || n < gvisor.FirstID || n >= gvisor.FirstID+gvisor.IDCount {
							t.Errorf("%s of %s: %s", name, task, line)
						}
					}
				}
			}
		}
	}
}

// TestMachinesAreNobody checks the users of a machine's processes on the host,
// and that its files keep their owners.
func TestMachinesAreNobody(t *testing.T) {
	if os.Getenv("ENGI_TEST_ROOTLESS") != "" {
		t.Skip("only root can map users")
	}
	volume := t.TempDir()
	for name, owner := range map[string]int{"roots": 0, "users": 1000, "others": 70000} {
		file := filepath.Join(volume, name)
		if err := os.WriteFile(file, []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(file, owner, owner); err != nil {
			t.Fatal(err)
		}
	}
	b := boot(t, func(spec *provider.Spec) {
		spec.Mounts = append(spec.Mounts, provider.Mount{Source: volume, Target: "/volume", Writable: true})
		if err := os.WriteFile(filepath.Join(spec.Root, "root.txt"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(spec.Root, "workspace", "mine"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(filepath.Join(spec.Root, "workspace", "mine"), 1000, 1000); err != nil {
			t.Fatal(err)
		}
	})
	wantUnusedIDs(t, b.m.ID())
	out, exit := b.sh(`set -e
		stat -c '%u %g %n' / /usr/bin/env /root.txt /workspace/mine /volume/roots /volume/users /volume/others
		cat /volume/roots /volume/users /volume/others; echo
		echo x > /volume/new; chown 1000:1000 /volume/users; echo y > /volume/given; chown 1000:1001 /volume/given; chmod 640 /volume/given
		chown 1000 /root.txt; stat -c '%u' /root.txt`)
	const want = "0 0 /\n0 0 /usr/bin/env\n0 0 /root.txt\n1000 1000 /workspace/mine\n0 0 /volume/roots\n1000 1000 /volume/users\n70000 70000 /volume/others\n" +
		"rootsusersothers\n1000"
	if out != want || exit.Code != 0 {
		t.Errorf("it says %q, %+v, want %q", out, exit, want)
	}
	for name, owner := range map[string][2]uint32{"roots": {0, 0}, "users": {1000, 1000}, "others": {70000, 70000}, "new": {0, 0}, "given": {1000, 1001}} {
		var st syscall.Stat_t
		if err := syscall.Stat(filepath.Join(volume, name), &st); err != nil || st.Uid != owner[0] || st.Gid != owner[1] {
			t.Errorf("%s belongs to %d:%d, %v, want %v", name, st.Uid, st.Gid, err, owner)
		}
	}
}

// TestSavedByAnEarlierVersion restores, with mapped users, machines that were saved
// without them, and vice versa.
func TestSavedByAnEarlierVersion(t *testing.T) {
	if os.Getenv("ENGI_TEST_ROOTLESS") != "" {
		t.Skip("only root can map users")
	}
	need(t)
	root, mounts := newRoot(t)
	for _, now := range []bool{true, false} {
		p := [2]*gvisor.Provider{newProvider(t, t.TempDir()), newProvider(t, t.TempDir())}
		if now {
			p[0].NoIDs()
		} else {
			p[1].NoIDs()
		}
		spec := provider.Spec{
			ID: engi.NewSandboxID(), Root: root, Mounts: mounts, Hostname: "box", Token: "t",
			Size: engi.Size{VCPUs: 2, Memory: 96 << 20, Disk: 64 << 20, Inodes: 2000, Processes: 60, OpenFiles: 300},
		}
		dir := t.TempDir()
		open := func(m provider.Machine, err error) *sandbox {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
			c, err := guest.Open(t.Context(), m.Guest, "t")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
			if err := c.Setup(t.Context(), wire.Setup{Processes: 60, OpenFiles: 300}); err != nil {
				t.Fatal(err)
			}
			return &sandbox{t, m, c}
		}
		b := open(p[0].Start(t.Context(), spec))
		b.sh("echo kept > /workspace/file; chown 1000:1000 /workspace/file")
		if err := b.c.Quiesce(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := provider.Checkpoint(t.Context(), b.m, dir); err != nil {
			t.Fatal(err)
		}
		spec.ID = engi.NewSandboxID()
		b = open(p[1].Restore(t.Context(), spec, dir))
		if now {
			wantUnusedIDs(t, spec.ID)
		}
		if out, exit := b.sh("cat /workspace/file; stat -c %u /workspace/file /usr/bin/env; ls /usr/share > /dev/null && echo more >> /workspace/file"); out != "kept\n1000\n0" || exit.Code != 0 {
			t.Errorf("it says %q, %+v", out, exit)
		}
		if err := b.m.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
