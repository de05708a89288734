package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	programs "github.com/engi-dev/engi/internal/attack"
	"github.com/engi-dev/engi/internal/engi"
)

// An attack is a program that tries to break out of, wear down or confuse its
// sandbox. Each must end only its own sandbox, with the right cause; a witness
// that runs at the same time must notice nothing.
type attack struct {
	name   string // promise that the attack tries to break
	lang   engi.Language
	code   string
	limits engi.Limits
	change func(*engi.ExecutionSpec)
	want   engi.Cause
	allow  []engi.Cause // further causes that are correct
	check  func(t *testing.T, x engi.Execution)
}

// denied is the output of a failed attack, escaped that of a successful one.
const (
	denied  = "DENIED"
	escaped = "ESCAPED"
)

func held(t *testing.T, x engi.Execution) {
	t.Helper()
	out := string(x.Result.Stdout)
	if strings.Contains(out, escaped) || !strings.Contains(out, denied) {
		t.Errorf("the egress gateway did not hold: exit %+v\nstdout:\n%s\nstderr:\n%s", x.Result.Exit, tail(x.Result.Stdout), tail(x.Result.Stderr))
	}
}

const small = 64 << 20

var attacks = []attack{
	{name: "the host's kernel is not shown", lang: engi.Bash, want: engi.CauseExited, check: func(t *testing.T, x engi.Execution) {
		host, err := os.ReadFile("/proc/version")
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(x.Result.Stdout, bytes.TrimSpace(host)) {
			t.Errorf("the host's kernel version shows inside: %s", x.Result.Stdout)
		}
	}, code: `cat /proc/version; uname -a; cat /proc/cmdline`},

	{name: "raw and packet sockets are refused", lang: engi.Bash, want: engi.CauseExited, check: held, code: programs.AsRoot(`
python3 - <<'PY'
import socket
for args in [(socket.AF_INET, socket.SOCK_RAW, 1), (socket.AF_INET, socket.SOCK_RAW, 6), (socket.AF_PACKET, socket.SOCK_RAW, 0x300)]:
    try:
        socket.socket(*args)
        print('ESCAPED', args)
    except OSError as e:
        print('DENIED', e)
PY`)},

	{name: "there is no network", lang: engi.Python, want: engi.CauseExited, check: held, code: programs.Try(`
import socket
reached = []
for addr in [('1.1.1.1', 53), ('169.254.169.254', 80), ('10.0.0.1', 80), ('127.0.0.1', ` + canaryPort + `)]:
    s = socket.socket(); s.settimeout(0.5)
    try:
        s.connect(addr); reached.append(addr)
    except OSError: pass
try:
    reached.append(socket.getaddrinfo('example.com', 80))
except OSError: pass
return reached or None`)},

	{name: "loopback inside works", lang: engi.Python, want: engi.CauseExited, check: func(t *testing.T, x engi.Execution) {
		if got := string(x.Result.Stdout); got != "hello\n" {
			t.Errorf("loopback: %q %s", got, x.Result.Stderr)
		}
	}, code: `
import socket
l = socket.create_server(('127.0.0.1', 0))
c = socket.create_connection(l.getsockname())
s, _ = l.accept()
c.sendall(b'hello'); print(s.recv(5).decode())`},

	{name: "fork bomb", lang: engi.Bash, want: engi.CauseProcesses, allow: []engi.Cause{engi.CauseTimeout},
		limits: engi.Limits{Timeout: 5 * time.Second, Size: engi.Size{Processes: 64}},
		code:   `bomb() { bomb | bomb & }; bomb; sleep 60`},

	{name: "thread bomb", lang: engi.Python, want: engi.CauseProcesses, allow: []engi.Cause{engi.CauseTimeout},
		limits: engi.Limits{Timeout: 10 * time.Second, Size: engi.Size{Processes: 64}},
		code:   "import threading, time\nts = []\nfor i in range(100000):\n    t = threading.Thread(target=time.sleep, args=(60,)); t.start(); ts.append(t)\n"},

	{name: "memory bomb", lang: engi.Python, want: engi.CauseMemory,
		limits: engi.Limits{Timeout: 30 * time.Second, Size: engi.Size{Memory: 128 << 20}},
		code:   "a = []\nwhile True: a.append(bytearray(b'x' * (8 << 20)))\n"},

	{name: "memory bomb in a temporary file system", lang: engi.Bash, want: engi.CauseMemory, allow: []engi.Cause{engi.CauseDisk, engi.CauseExited},
		limits: engi.Limits{Timeout: 30 * time.Second, Size: engi.Size{Memory: 128 << 20, Disk: small}},
		code:   `head -c 2G /dev/zero > /dev/shm/x; ls -l /dev/shm/x; exit 7`},

	{name: "disk filling", lang: engi.Python, want: engi.CauseDisk,
		limits: engi.Limits{Timeout: 60 * time.Second, Size: engi.Size{Disk: small}},
		code:   "f = open('/tmp/big', 'wb')\nwhile True: f.write(b'x' * (1 << 20))\n"},

	{name: "inode filling", lang: engi.Python, want: engi.CauseDisk, allow: []engi.Cause{engi.CauseMemory, engi.CauseTimeout},
		limits: engi.Limits{Timeout: 20 * time.Second, Size: engi.Size{Disk: small, Inodes: 5000, Memory: 256 << 20}},
		code:   "import os\nos.mkdir('/tmp/d')\ni = 0\nwhile True:\n    open('/tmp/d/%d' % i, 'w').close(); i += 1\n"},

	{name: "endless loop", lang: engi.Python, want: engi.CauseTimeout,
		limits: engi.Limits{Timeout: time.Second}, code: "while True: pass\n"},

	{name: "endless loop that ignores signals", lang: engi.Python, want: engi.CauseTimeout,
		limits: engi.Limits{Timeout: time.Second},
		code:   "import signal, os\nfor s in range(1, 65):\n    try: signal.signal(s, signal.SIG_IGN)\n    except (OSError, ValueError): pass\nif os.fork() == 0: os.setsid()\nwhile True: pass\n"},

	{name: "endless output", lang: engi.Bash, want: engi.CauseOutput,
		limits: engi.Limits{Timeout: 20 * time.Second, Output: 1 << 20}, code: `yes 0123456789`,
		check: func(t *testing.T, x engi.Execution) {
			if !x.Result.StdoutTruncated || len(x.Result.Stdout) == 0 || len(x.Result.Stdout) > 1<<20 {
				t.Errorf("kept %d bytes, truncated %t", len(x.Result.Stdout), x.Result.StdoutTruncated)
			}
		}},

	{name: "daemon that outlives its parent", lang: engi.Bash, want: engi.CauseExited,
		limits: engi.Limits{Timeout: 20 * time.Second},
		code:   `setsid nohup sleep 1000 & disown; echo done`,
		check: func(t *testing.T, x engi.Execution) {
			if string(x.Result.Stdout) != "done\n" || x.Result.Duration > 10*time.Second {
				t.Errorf("%q after %s", x.Result.Stdout, x.Result.Duration)
			}
		}},

	{name: "links in artifacts show nothing", lang: engi.Bash, want: engi.CauseExited, code: `
ln -s /etc/passwd link; ln -s / rootdir; ln -s ../../../../etc/shadow up; mkfifo pipe; ln /etc/hostname hard 2>/dev/null
mkdir -p a/b; echo inner > a/b/c; ln -s a/b via; printf x > $'new\nline'; printf x > '..name'; printf x > $'bad\xffutf8'; echo kept > kept`,
		check: func(t *testing.T, x engi.Execution) {
			for _, a := range x.Result.Artifacts {
				if !filepath.IsLocal(a.Path) || !utf8.ValidString(a.Path) || strings.Contains(a.Path, "\x00") || a.Path == "link" || a.Path == "up" || a.Path == "pipe" || strings.HasPrefix(a.Path, "via/") || strings.HasPrefix(a.Path, "rootdir") {
					t.Errorf("artifact %q came back", a.Path)
				}
			}
			wantArtifact(t, x, "kept", "kept\n")
			wantArtifact(t, x, "a/b/c", "inner\n")
		}},

	{name: "a million artifacts are bounded", lang: engi.Python, want: engi.CauseExited,
		limits: engi.Limits{Timeout: 60 * time.Second, ArtifactCount: 10},
		code:   "for i in range(2000): open('f%04d' % i, 'w').write('x')\n",
		check: func(t *testing.T, x engi.Execution) {
			if len(x.Result.Artifacts) != 10 || x.Result.ArtifactsLeft != 1990 {
				t.Errorf("%d artifacts, %d left; want 10 and 1990", len(x.Result.Artifacts), x.Result.ArtifactsLeft)
			}
		}},

	{name: "an artifact over the limit stays", lang: engi.Python, want: engi.CauseExited,
		limits: engi.Limits{Timeout: 60 * time.Second, ArtifactBytes: 1 << 20},
		code:   "open('big', 'wb').truncate(1 << 40) if False else open('big', 'wb').truncate(32 << 20)\nopen('ok', 'w').write('fine')\n",
		check: func(t *testing.T, x engi.Execution) {
			wantArtifact(t, x, "ok", "fine")
			if len(x.Result.Artifacts) != 1 || x.Result.ArtifactsLeft != 1 {
				t.Errorf("%+v, %d left", x.Result.Artifacts, x.Result.ArtifactsLeft)
			}
		}},

	{name: "huge arguments and environment", lang: engi.Python, want: engi.CauseExited,
		change: func(s *engi.ExecutionSpec) {
			s.Program.Args = []string{strings.Repeat("a", 100_000), "", "-c", "--help", "\n'\"$(id)`id`"}
			s.Program.Env = map[string]string{"BIG": strings.Repeat("e", 100_000)}
		},
		code: "import sys, os\nprint([len(a) for a in sys.argv[1:]], sys.argv[5] == '\\n\\'\"$(id)`id`', len(os.environ['BIG']))\n",
		check: func(t *testing.T, x engi.Execution) {
			if got, want := string(x.Result.Stdout), "[100000, 0, 2, 6, 12] True 100000\n"; got != want {
				t.Errorf("got %.200q want %q\n%s", got, want, x.Result.Stderr)
			}
		}},

	{name: "binary output comes back byte for byte", lang: engi.Python, want: engi.CauseExited,
		code: "import sys\nsys.stdout.buffer.write(bytes(range(256)) * 100)\nsys.stderr.buffer.write(b'\\xff\\xfe\\x00\\x80')\n",
		check: func(t *testing.T, x engi.Execution) {
			var all [256]byte
			for i := range all {
				all[i] = byte(i)
			}
			if !bytes.Equal(x.Result.Stdout, bytes.Repeat(all[:], 100)) || !bytes.Equal(x.Result.Stderr, []byte{0xff, 0xfe, 0, 0x80}) {
				t.Errorf("%d bytes of stdout, stderr %q", len(x.Result.Stdout), x.Result.Stderr)
			}
		}},

	{name: "killing the guest program as root", lang: engi.Bash, want: engi.CauseSandboxLost, allow: []engi.Cause{engi.CauseExited, engi.CauseTimeout},
		limits: engi.Limits{Timeout: 5 * time.Second},
		code:   programs.AsRoot(`kill -9 1; kill -SEGV 1; kill -STOP 1; sleep 1; echo still here`)},

	{name: "flooding the guest's channel", lang: engi.Python, want: engi.CauseExited, allow: []engi.Cause{engi.CauseTimeout, engi.CauseSandboxLost},
		limits: engi.Limits{Timeout: 10 * time.Second},
		code: `
import subprocess
subprocess.run(['sudo', '-n', 'python3', '-c', '''
import socket
keep = []
for i in range(5000):
    s = socket.socket(socket.AF_UNIX); s.setblocking(False)
    try:
        s.connect("/.engi/sock"); s.send(b"x" * 65536)
    except OSError: pass
    keep.append(s)
'''])
print('flooded')`},

	{name: "posing as the guest", lang: engi.Bash, want: engi.CauseExited, allow: []engi.Cause{engi.CauseSandboxLost, engi.CauseTimeout},
		limits: engi.Limits{Timeout: 10 * time.Second},
		code: programs.AsRoot(`python3 - <<'PY'
import socket
s = socket.socket(socket.AF_UNIX); s.connect('/.engi/sock')
s.settimeout(2)
try:
    print(len(s.recv(1 << 16)))
except OSError as e:
    print(e)
PY`)},

	{name: "stderr and stdout closed", lang: engi.Python, want: engi.CauseExited, code: "import os\nos.close(1); os.close(2)\n"},

	{name: "a program that stops itself", lang: engi.Bash, want: engi.CauseTimeout, limits: engi.Limits{Timeout: 2 * time.Second}, code: `kill -STOP $$`},

	{name: "open files", lang: engi.Python, want: engi.CauseExited, limits: engi.Limits{Size: engi.Size{OpenFiles: 100}},
		code: programs.Try("fs = []\nfor i in range(100000): fs.append(open('/dev/null'))\nreturn len(fs)"), check: held},
}

func TestIsolation(t *testing.T) {
	n := sharedNode(t)
	all := attacks
	for _, p := range programs.Escapes(canaryPath) {
		all = append(all, attack{name: p.Name, lang: engi.Language(p.Language), code: p.Code, want: engi.CauseExited, check: held})
	}
	for _, a := range all {
		t.Run(a.name, func(t *testing.T) {
			spec := program(a.lang, a.code)
			spec.Limits = a.limits
			if a.change != nil {
				a.change(&spec)
			}
			stop := witness(t, n)
			x := n.run(t, spec)
			stop()
			r := x.Result
			if r == nil {
				t.Fatalf("no result: %+v", x)
			}
			right := r.Exit.Cause == a.want
			for _, c := range a.allow {
				right = right || r.Exit.Cause == c
			}
			if !right {
				t.Errorf("cause %s (%s), want %s\nstdout: %s\nstderr: %s", r.Exit.Cause, r.Error, a.want, tail(r.Stdout), tail(r.Stderr))
			}
			if limit := a.limits.Timeout; limit > 0 && r.Duration > limit+30*time.Second {
				t.Errorf("ran %s, limit %s", r.Duration, limit)
			}
			if strings.Contains(string(r.Stdout), escaped) {
				t.Errorf("escaped:\n%s", tail(r.Stdout))
			}
			if a.check != nil {
				a.check(t, x)
			}
		})
	}
	n.leavesNothing(t)
}

// witness runs small programs during an attack until stop is called, and fails
// the test if one of them gives a wrong answer.
func witness(t *testing.T, n *testNode) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		for i := 0; ctx.Err() == nil; i++ {
			x, err := n.try(context.WithoutCancel(ctx), program(engi.Python, fmt.Sprintf("print(%d * 7)", i)))
			if err != nil {
				if !engi.Is(err, engi.Exhausted) {
					t.Errorf("witness: %v", err)
				}
			} else if got, want := string(x.Result.Stdout), fmt.Sprintf("%d\n", i*7); got != want {
				t.Errorf("witness: got %q, want %q: %+v %s", got, want, x.Result.Exit, x.Result.Stderr)
			}
			select {
			case <-ctx.Done():
			case <-time.After(200 * time.Millisecond):
			}
		}
	}()
	return func() { cancel(); <-gone }
}

// TestRunsShareNothing has one run that leaves traces wherever it can, and
// later runs that look for them.
func TestRunsShareNothing(t *testing.T) {
	n := sharedNode(t)
	const mark = "secret-of-run-a"
	leave := `
import os
for d in ['/tmp', '/workspace', '/var/tmp', '/dev/shm', os.path.expanduser('~'), '/run', '/home/user']:
    try: open(os.path.join(d, 'trace'), 'w').write('` + mark + `')
    except OSError: pass
os.environ['TRACE'] = '` + mark + `'
print('left')`
	look := `
import os, glob
hits = []
for d in ['/tmp', '/workspace', '/var/tmp', '/dev/shm', os.path.expanduser('~'), '/run', '/home/user']:
    p = os.path.join(d, 'trace')
    if os.path.exists(p): hits.append(p)
if 'TRACE' in os.environ: hits.append('env')
print(hits)`
	if x := n.run(t, program(engi.Python, leave)); string(x.Result.Stdout) != "left\n" {
		t.Fatalf("%s%s", x.Result.Stdout, x.Result.Stderr)
	}
	seen := map[engi.SandboxID]bool{}
	for range 5 {
		x := n.run(t, program(engi.Python, look))
		if got := string(x.Result.Stdout); got != "[]\n" {
			t.Errorf("traces of another run: %s%s", got, x.Result.Stderr)
		}
		if seen[x.Sandbox] {
			t.Errorf("sandbox %s was used twice", x.Sandbox)
		}
		seen[x.Sandbox] = true
	}
}

// TestHostileInputs gives paths that try to leave the working directory.
func TestHostileInputs(t *testing.T) {
	n := sharedNode(t)
	for _, path := range []string{"../x", "/etc/passwd", "a/../../x", "", ".", "a//b", "a\x00b", "./a", "a/./b", "..", "a/..", strings.Repeat("x", 5000), "bad\xff"} {
		spec := program(engi.Python, "print(1)")
		spec.Program.Files = append(spec.Program.Files, engi.SourceFile{Path: path, Data: []byte("x")})
		spec.Program.Entry = "main.py"
		if _, err := n.try(t.Context(), spec); !engi.Is(err, engi.Invalid) {
			t.Errorf("path %.40q: %v, want invalid", path, err)
		}
	}
}

func wantArtifact(t *testing.T, x engi.Execution, path, content string) {
	t.Helper()
	for _, a := range x.Result.Artifacts {
		if a.Path == path {
			sum := sha256.Sum256([]byte(content))
			if a.Size != int64(len(content)) || a.SHA256 != hex.EncodeToString(sum[:]) {
				t.Errorf("artifact %s: %+v, want %d bytes of %q", path, a, len(content), content)
			}
			return
		}
	}
	t.Errorf("artifact %s is missing: %+v", path, x.Result.Artifacts)
}

func tail(b []byte) string {
	if len(b) > 2000 {
		return "…" + string(b[len(b)-2000:])
	}
	return string(b)
}
