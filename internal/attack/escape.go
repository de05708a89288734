package attack

import (
	"archive/tar"
	"bytes"
	"context"
	"path"
	"strings"
	"time"

	v1 "github.com/engi-dev/engi/api/v1"
)

// A Program tries to escape from its sandbox. It prints ESCAPED and the way if it succeeds,
// and DENIED when it has tried everything.
type Program struct {
	Name     string
	Language string
	Code     string
	Host     bool // the program looks for the canary, and proves nothing without one
}

// AsRoot returns a Bash script that runs script as root; templates allow sudo.
func AsRoot(script string) string {
	return "cat > /tmp/attack.sh <<'ATTACK'\n" + script + "\nATTACK\nsudo -n bash /tmp/attack.sh\n"
}

// Try returns a Python program that prints the verdict of statements that must raise, or return None.
func Try(what string) string {
	var b strings.Builder
	b.WriteString("def attack():\n")
	for line := range strings.SplitSeq(strings.TrimSpace(what), "\n") {
		b.WriteString("    " + line + "\n")
	}
	b.WriteString("try:\n    r = attack()\nexcept BaseException as e:\n    print('DENIED', type(e).__name__, e)\nelse:\n    print('DENIED' if r is None else 'ESCAPED %r' % (r,))\n")
	return b.String()
}

// Escapes returns the programs; canary is a file of the host.
func Escapes(canary string) []Program {
	return []Program{
		{Name: "host files", Language: "python", Host: true, Code: Try(`
import os
found = []
for p in ['` + canary + `', '/root/.ssh/id_rsa', '/var/run/docker.sock', '/run/docker.sock', '/etc/shadow-', '/var/log/dpkg.log.host']:
    if os.path.exists(p) and os.access(p, os.R_OK): found.append(p)
for p in ['/proc/1/root` + canary + `', '/proc/self/root` + canary + `', '/../../../..` + canary + `']:
    if os.path.exists(p): found.append(p)
return found or None`)},

		{Name: "host files, by root", Language: "bash", Host: true, Code: AsRoot(`
for p in ` + canary + ` /proc/1/root` + canary + ` /.engi/../../..` + canary + `; do
  [ -e "$p" ] && echo ESCAPED $p
done
echo DENIED`)},

		{Name: "the host's processes", Language: "python", Code: Try(`
import os
pids = [int(p) for p in os.listdir('/proc') if p.isdigit()]
cmd = [open('/proc/%d/cmdline' % p).read() for p in pids]
return [c for c in cmd if 'runsc' in c or 'engi\0serve' in c] or None`)},

		{Name: "sysfs and sysctl", Language: "bash", Code: AsRoot(`
echo 1 > /proc/sys/kernel/panic 2>/dev/null && [ "$(cat /proc/sys/kernel/panic)" = 1 ] && echo ESCAPED
echo c > /proc/sysrq-trigger 2>/dev/null && echo ESCAPED
echo '|/tmp/x' > /proc/sys/kernel/core_pattern 2>/dev/null && echo ESCAPED
for f in /sys/kernel/uevent_helper /sys/power/state /sys/class/net/eth0/mtu; do
  echo 1 > $f 2>/dev/null && echo ESCAPED $f
done
echo DENIED`)},

		{Name: "ptrace of the guest program", Language: "python", Code: Try(`
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
PTRACE_ATTACH = 16
return 'attached' if libc.ptrace(PTRACE_ATTACH, 1, None, None) == 0 else None`)},

		{Name: "mounting the host", Language: "bash", Code: AsRoot(`
mkdir -p /tmp/m
for dev in /dev/vda /dev/sda /dev/nvme0n1 /dev/mem /dev/kmem /dev/kvm; do
  [ -e $dev ] && head -c1 $dev >/dev/null 2>&1 && echo ESCAPED $dev
done
mount -t ext4 /dev/vda /tmp/m 2>/dev/null && echo ESCAPED mount
mount --bind /.engi /tmp/m 2>/dev/null; touch /tmp/m/x 2>/dev/null && [ -e /.engi/x ] && echo ESCAPED channel
mount -o remount,rw /.engi 2>/dev/null; touch /.engi/x 2>/dev/null && echo ESCAPED remount
echo DENIED`)},

		{Name: "writing the channel directory", Language: "bash", Code: AsRoot(`
for act in "touch /.engi/x" "mkdir /.engi/d" "rm -f /.engi/sock" "mv /.engi/guest.json /.engi/y" "chmod 777 /.engi" "ln -s / /.engi/l" "sh -c 'echo x >> /.engi/engi-guest'" "mknod /.engi/n p"; do
  $act 2>/dev/null && echo ESCAPED $act
done
echo DENIED`)},

		{Name: "reading the guest's token", Language: "python", Code: Try(`
return open('/.engi/guest.json').read()`)},

		{Name: "kernel modules, kexec and bpf", Language: "bash", Code: AsRoot(`
python3 - <<'PY'
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
for name, nr in [('init_module', 175), ('finit_module', 313), ('kexec_load', 246), ('reboot', 169), ('swapon', 167), ('bpf', 321)]:
    if libc.syscall(nr, 0, 0, 0, 0, 0) == 0:
        print('ESCAPED', name)
    else:
        print('DENIED', name, ctypes.get_errno())
PY`)},

		{Name: "killing the guest program", Language: "bash", Code: `kill -9 1 2>/dev/null && echo ESCAPED; kill -9 -1 2>/dev/null; echo DENIED`},

		{Name: "device nodes (CVE-2026-96812)", Language: "bash", Code: AsRoot(Devices("/tmp", "/workspace", "/var/tmp", "/dev/shm"))},
	}
}

// Devices is a Bash script for root that makes device nodes in directories, by
// each way to create or name one, and opens them: no device of the host may answer.
func Devices(dirs ...string) string {
	return `python3 - ` + strings.Join(dirs, " ") + ` <<'PY'
import contextlib, ctypes, os, stat, sys
libc = ctypes.CDLL(None)
devices = [('mem', 'c', 1, 1), ('kmem', 'c', 1, 2), ('port', 'c', 1, 4), ('kmsg', 'c', 1, 11), ('loop0', 'b', 7, 0), ('sda', 'b', 8, 0), ('vda', 'b', 254, 0),
    ('vdb', 'b', 252, 0), ('nvme', 'b', 259, 0), ('dm', 'b', 253, 0), ('kvm', 'c', 10, 232), ('fuse', 'c', 10, 229), ('tun', 'c', 10, 200)]
def read(path, how):
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        if os.read(fd, 1): print('ESCAPED', how, path)
def also(how, path, act):
    with contextlib.suppress(OSError):
        act()
        read(path, how)
tried = 0
for d in sys.argv[1:]:
    with contextlib.suppress(OSError): os.makedirs(d)
    for name, kind, major, minor in devices:
        n, bound = f'{d}/engi-attack-{name}', f'/tmp/bound-{name}'
        tried += 1
        try:
            os.mknod(n, 0o600 | (stat.S_IFCHR if kind == 'c' else stat.S_IFBLK), os.makedev(major, minor))
        except OSError:
            continue
        read(n, 'mknod')
        also('hard link', n + '-hard', lambda: os.link(n, n + '-hard'))
        also('symlink', n + '-soft', lambda: os.symlink(n, n + '-soft'))
        also('rename', n + '-moved', lambda: os.rename(n, n + '-moved'))
        open(bound, 'w').close()
        if libc.mount((n + '-moved').encode(), bound.encode(), None, 4096, None) == 0: read(bound, 'bind mount')
        for left in (n, n + '-hard', n + '-soft', n + '-moved'):
            with contextlib.suppress(OSError): os.remove(left)
if tried: print('DENIED')
PY`
}

// devices unpacks device nodes from an archive into a sandbox and a volume, and creates
// them on the volume, which is a file system of the host.
func (r *run) devices(ctx context.Context) {
	const archived, volume = "device nodes in an archive (CVE-2026-96812)", "device nodes on a volume (CVE-2026-96812)"
	v, err := r.Client.CreateVolume(ctx, v1.VolumeRequest{Name: name(), Capacity: 16 << 20})
	if err != nil {
		r.skip("escape", archived, err)
		r.skip("escape", volume, err)
		return
	}
	defer clean(ctx, func(ctx context.Context) error { return r.Client.RemoveVolume(ctx, v.ID) })
	s, err := r.Client.CreateSandbox(ctx, v1.SandboxRequest{Volumes: []v1.VolumeMount{{Volume: v.ID, Path: "/engi-attack"}}, Lifetime: v1.Lifetime{Timeout: v1.Duration(10 * time.Minute)}})
	if err != nil {
		r.skip("escape", archived, err)
		r.skip("escape", volume, err)
		return
	}
	defer clean(ctx, func(ctx context.Context) error { return r.Client.StopSandbox(ctx, s.ID) })
	in := func(script string) (v1.Execution, error) {
		p, err := r.Client.Exec(ctx, s.ID, v1.ProcessRequest{Args: []string{"bash", "-c", script}, User: "root", Timeout: patience})
		return v1.Execution{Result: &v1.Result{Stdout: p.Stdout, Stderr: p.Stderr, Cause: p.Cause}}, err
	}
	x, err := in(Devices("/engi-attack"))
	r.add(verdict("escape", volume, x, err))

	var found []string
	for dir, unpack := range map[string]func(*bytes.Buffer) error{
		"/tmp/unpacked":         func(b *bytes.Buffer) error { return r.Client.Files(s.ID).Unpack(ctx, "/tmp/unpacked", b) },
		"/engi-attack/unpacked": func(b *bytes.Buffer) error { return r.Client.VolumeFiles(v.ID).Unpack(ctx, "/unpacked", b) },
	} {
		_ = unpack(deviceArchive()) // a refusal is expected; device nodes that arrived anyway are opened
		for _, n := range []string{"mem", "sda", "hard"} {
			found = append(found, path.Join(dir, n))
		}
	}
	x, err = in(`for n in ` + strings.Join(found, " ") + `; do [ -e $n ] && head -c1 $n 2>/dev/null | grep -q . && echo ESCAPED $n; done; echo DENIED`)
	r.add(verdict("escape", archived, x, err))
}

// deviceArchive returns a tar archive with device nodes and a hard link to one.
func deviceArchive() *bytes.Buffer {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range []*tar.Header{
		{Name: "mem", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 1, Mode: 0o666},
		{Name: "sda", Typeflag: tar.TypeBlock, Devmajor: 8, Devminor: 0, Mode: 0o666},
		{Name: "hard", Typeflag: tar.TypeLink, Linkname: "mem"},
	} {
		_ = w.WriteHeader(h) // writing valid headers to memory cannot fail
	}
	_ = w.Close()
	return &b
}
