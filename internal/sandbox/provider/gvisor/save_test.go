package gvisor_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/guest"
	"github.com/engi-dev/engi/internal/sandbox/provider"
)

// on starts a machine with the root of another one.
func on(t *testing.T, p provider.Provider, spec provider.Spec) *sandbox {
	t.Helper()
	m, err := p.Start(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	return enter(t, m, spec.Token)
}

func enter(t *testing.T, m provider.Machine, token string) *sandbox {
	t.Helper()
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	c, err := guest.Open(t.Context(), m.Guest, token)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return &sandbox{t: t, m: m, c: c}
}

func newSpec(t *testing.T) provider.Spec {
	root, mounts := newRoot(t)
	return provider.Spec{
		ID: engi.NewSandboxID(), Root: root, Mounts: mounts, Hostname: "box", Token: "t",
		Size: engi.Size{VCPUs: 2, Memory: 160 << 20, Disk: 256 << 20, Inodes: 20000, Processes: 60, OpenFiles: 300},
	}
}

// TestSaveDiskHostile saves disks that programs have made hard to save.
func TestSaveDiskHostile(t *testing.T) {
	need(t)
	p := newProvider(t, t.TempDir())
	spec := newSpec(t)
	b := on(t, p, spec)
	const script = `
import os
os.chdir("/workspace")
deep = "."
for i in range(60):
    deep += "/" + "d" * 60
    os.mkdir(deep)
open(deep + "/end", "w").write("deep")
for name in (b"new\nline", b"\xff\xfe", b" ", b"-rf", b"a=b", b"x" * 255, "\u202e\u0430".encode(), b"tab\t", b"..."):
    open(name, "w").write("odd")
    os.setxattr(name, "user.text", b"value")
    os.setxattr(name, "user.bytes", bytes(range(1, 256)))
    os.setxattr(name, "user.zero", b"a\0b")
with open("huge", "w") as f:
    f.truncate(1 << 50)
    f.seek(1 << 45)
    f.write("far")
os.symlink("/" + "y" * 4000, "long")
os.symlink("../../../../etc/passwd", "outside")
for i in range(3000):
    open("many-%d" % i, "w").write(str(i))
for i in range(200):
    os.link("many-0", "link-%d" % i)
`
	const check = `
import os
os.chdir("/workspace")
assert open("./" + "/".join(["d" * 60] * 60) + "/end").read() == "deep"
for name in (b"new\nline", b"\xff\xfe", b" ", b"-rf", b"a=b", b"x" * 255, "\u202e\u0430".encode(), b"tab\t", b"..."):
    assert open(name).read() == "odd", name
    assert os.getxattr(name, "user.text") == b"value", name
    assert os.getxattr(name, "user.bytes") == bytes(range(1, 256)), name
    assert os.getxattr(name, "user.zero") == b"a\0b", name
assert os.stat("huge").st_size == 1 << 50
with open("huge") as f:
    f.seek(1 << 45)
    assert f.read(3) == "far"
assert os.readlink("long") == "/" + "y" * 4000
assert os.readlink("outside") == "../../../../etc/passwd"
for i in range(3000):
    assert open("many-%d" % i).read() == str(i)
assert os.stat("many-0").st_nlink == 201
print("all there")
`
	python := func(b *sandbox, script, want string) {
		t.Helper()
		if err := b.c.Write(t.Context(), "/tmp/script.py", strings.NewReader(script), engi.WriteOptions{User: "root"}); err != nil {
			t.Fatal(err)
		}
		b.want("python3 /tmp/script.py 2>&1", want)
	}
	python(b, script, "")
	python(b, check, "all there")
	dir := t.TempDir()
	if err := provider.SaveDisk(t.Context(), b.m, dir); err != nil {
		t.Fatal(err)
	}
	if used := allocated(t, dir); used > 64<<20 {
		t.Errorf("the image takes %d bytes", used)
	}
	spec.ID, spec.Disk = engi.NewSandboxID(), dir
	python(on(t, p, spec), check, "all there")

	// A file that cannot be saved is an error, and the machine continues.
	python(b, `
import os
for i in range(40):
    os.setxattr("/workspace/many-1", "user.%d" % i, b"z" * 60000)
`, "")
	if err := provider.SaveDisk(t.Context(), b.m, t.TempDir()); err == nil {
		t.Error("more attributes than an archive takes were kept")
	}
	b.want("echo alive", "alive")

	// A disk limit below the size of the saved disk is an error.
	small := spec
	small.ID, small.Size.Inodes = engi.NewSandboxID(), 100
	if m, err := p.Start(t.Context(), small); err == nil {
		m.Close()
	} else if ids, err := p.Found(t.Context()); err != nil || len(ids) != 2 {
		t.Errorf("found %v, %v", ids, err)
	}
}

// allocated returns the disk space of the files in dir.
func allocated(t *testing.T, dir string) int64 {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var sum int64
	for _, e := range entries {
		var st syscall.Stat_t
		if err := syscall.Stat(filepath.Join(dir, e.Name()), &st); err != nil {
			t.Fatal(err)
		}
		sum += st.Blocks * 512
	}
	return sum
}

// TestOwnerDiesWhileItSaves crashes a provider at every step of a save. The next
// one must find the machine running, with everything that was acknowledged.
func TestOwnerDiesWhileItSaves(t *testing.T) {
	need(t)
	dir := t.TempDir()
	p := newProvider(t, dir)
	spec := newSpec(t)
	spec.Mounts = append(spec.Mounts, provider.Mount{Source: t.TempDir(), Target: "/data", Writable: true})
	m, err := p.Start(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	c, err := guest.Open(t.Context(), m.Guest, spec.Token)
	if err != nil {
		t.Fatal(err)
	}
	for step, die := range map[string]func(){
		"quiesced": func() {},
		"marked":   func() { p.MarkStopped(t, spec.ID) },
		"stopped":  func() { p.StopForSave(t, m) },
		"saved": func() {
			p.StopForSave(t, m)
			if err := p.WriteMemory(m, t.TempDir()); err != nil {
				t.Fatal(err)
			}
		},
	} {
		if err := c.Write(t.Context(), "/data/state", strings.NewReader(step), engi.WriteOptions{User: "root"}); err != nil {
			t.Fatal(err)
		}
		if err := c.Quiesce(t.Context()); err != nil {
			t.Fatal(err)
		}
		c.Close()
		die()
		p.Crash()
		p = newProvider(t, dir)
		began := time.Now()
		if m, err = p.Adopt(t.Context(), spec.ID); err != nil {
			t.Fatalf("%s: %v", step, err)
		}
		b := enter(t, m, spec.Token)
		b.want("cat /data/state", step)
		t.Logf("%s: answers after %s", step, time.Since(began))
		c = b.c
	}
}

// TestSaveWhileLoading saves a machine while its memory is still being loaded from
// the image that it was restored from.
func TestSaveWhileLoading(t *testing.T) {
	need(t)
	p := newProvider(t, t.TempDir())
	spec := newSpec(t)
	spec.Size.Memory = 512 << 20
	b := on(t, p, spec)
	proc, err := b.c.Start(t.Context(), engi.Command{Args: []string{"python3", "-c", `
import hashlib, os, time
x = os.urandom(150 << 20)
print(hashlib.sha256(x).hexdigest(), flush=True)
while not os.path.exists("/workspace/go"):
    time.sleep(0.01)
open("/workspace/sum.new", "w").write(hashlib.sha256(x).hexdigest())
os.rename("/workspace/sum.new", "/workspace/sum")
`}, Dir: "/", User: "root"})
	if err != nil {
		t.Fatal(err)
	}
	sum := ""
	for chunk, err := range proc.Output(t.Context(), 0) {
		if err != nil {
			t.Fatal(err)
		}
		sum = strings.TrimSpace(string(chunk.Data))
		break
	}
	for range 3 {
		if err := b.c.Quiesce(t.Context()); err != nil {
			t.Fatal(err)
		}
		b.c.Close()
		dir := t.TempDir()
		if err := provider.Checkpoint(t.Context(), b.m, dir); err != nil {
			t.Fatal(err)
		}
		m, err := provider.Restore(t.Context(), p, spec, dir)
		if err != nil {
			t.Fatal(err)
		}
		b = enter(t, m, spec.Token)
	}
	b.want("touch /workspace/go; until test -e /workspace/sum; do sleep 0.05; done; cat /workspace/sum", sum)
}
