package guest_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/guest"
	"github.com/engi-dev/engi/internal/sandbox/guest/wire"
)

// program returns a run of a single string of code, or skips the test.
func (s suite) program(t *testing.T, l engi.Language, code string) wire.Run {
	t.Helper()
	path := s.o.Interpreters[l]
	if path == "" {
		t.Skipf("this guest has no %s", l)
	}
	return wire.Run{ID: id(), Language: l, Interpreter: path, Timeout: time.Minute,
		Files: []wire.File{{Path: wire.Entry(l), Data: []byte(code)}}}
}

type result struct {
	out, errs string
	wire.Finish
}

func (s suite) do(t *testing.T, r wire.Run) result {
	t.Helper()
	run, err := s.c.Run(t.Context(), r)
	ok(t, err)
	out, errs := text(t, t.Context(), run, 0)
	fin, err := run.Finish(t.Context())
	ok(t, err)
	return result{out, errs, fin}
}

func (s suite) warm(t *testing.T, l engi.Language) {
	t.Helper()
	ok(t, s.c.Prepare(t.Context(), wire.Prepare{Language: l, Interpreter: s.o.Interpreters[l]}))
}

func exited(code int) engi.Exit { return engi.Exit{Code: code, Cause: engi.CauseExited} }

func (s suite) plain(t *testing.T) {
	got := s.do(t, s.program(t, engi.Bash, "echo hello; echo bad >&2"))
	if got.out != "hello\n" || got.errs != "bad\n" || got.Exit != exited(0) || got.Warm || got.Duration <= 0 ||
		got.StdoutBytes != 6 || got.StderrBytes != 4 || len(got.Artifacts) != 0 {
		t.Errorf("got %+v", got)
	}
}

func (s suite) everything(t *testing.T) {
	r := s.program(t, engi.Bash, "")
	r.Files = []wire.File{{Path: "src/go.sh", Data: []byte(`. src/lib.sh; show "$@"; cat; echo $FOO; stat -c %a src/tool`)},
		{Path: "src/lib.sh", Data: []byte(`show() { echo "$# $1 $2"; }`)}, {Path: "src/tool", Mode: 0o755}}
	r.Entry, r.Args, r.Env, r.Stdin = "src/go.sh", []string{"a b", ""}, map[string]string{"FOO": "b'a\"r"}, []byte("from stdin\n")
	got := s.do(t, r)
	if got.out != "2 a b \nfrom stdin\nb'a\"r\n755\n" || got.Exit != exited(0) {
		t.Errorf("got %+v", got)
	}
	if len(got.Artifacts) != 0 {
		t.Errorf("inputs came back: %+v", got.Artifacts)
	}
}

// probes lists programs that print all properties that a program could notice about its start.
var probes = map[engi.Language]string{
	engi.Python: `import sys, os, __main__
print(sys.argv, sys.path, __name__, __file__, sys.flags, sys.orig_argv[1:])
print([m for m in sys.modules if 'site' in m or 'engi' in m.lower()], len(sys.path_hooks), sys.path_hooks[0])
print(sorted((k, v) for k, v in os.environ.items() if k != 'ENGI_RUN'), os.getcwd())
print(sorted(vars(__main__)), sys.stdin.read(), sorted(os.listdir('/proc/self/fd')))
print(os.popen('env | grep -c -i -e preload -e PYTHONPATH').read(), sys.path_importer_cache.keys())
def f(): raise ValueError('boom')
f()`,
	engi.JavaScript: `console.log(process.argv, process.execArgv, __filename, require.main === module, Object.keys(require.cache), module.children)
console.log(Object.entries(process.env).filter(([k]) => k != 'ENGI_RUN').sort(), process.cwd(), Object.keys(globalThis))
console.log(require('fs').readFileSync(0, 'utf8'), require('child_process').execSync('env | grep -c -i -e preload -e NODE_OPTIONS || true').toString())
console.log(process.listeners('exit').length, module.parent, module.paths.length)
setTimeout(() => { throw new Error('boom') }, 1)`,
	engi.TypeScript: `const n: number = 1
console.log(n, Deno.args, import.meta.main, import.meta.url, Deno.mainModule, Deno.cwd())
const env = Object.entries(Deno.env.toObject()).filter(([k]) => k != 'ENGI_RUN').sort()
console.log(env, new TextDecoder().decode(await new Response(Deno.stdin.readable).arrayBuffer()))
function f(): never { throw new Error('boom') }
f()`,
	engi.Bash: `echo "$0 $# $*"; env | grep -v -e ^ENGI_RUN= -e ^_= | sort; set -o; declare -F; declare -p | grep -i -e preload -e BASH_ENV -e ENGI_CODE -e ENGI_GO
cat; ls /proc/self/fd; shopt; trap; echo $LINENO $BASH_SUBSHELL $SHLVL $-
nosuchcommand; exit 7`,
}

func (s suite) alike(t *testing.T) {
	for l, code := range probes {
		t.Run(string(l), func(t *testing.T) {
			r := s.program(t, l, code)
			r.Args, r.Env, r.Stdin = []string{"one", "two words"}, map[string]string{"FOO": "bär"}, []byte("input")
			cold := s.do(t, r)
			s.warm(t, l)
			r.ID = id()
			warm := s.do(t, r)
			if cold.Warm || !warm.Warm {
				t.Errorf("warm flags are %v and %v", cold.Warm, warm.Warm)
			}
			diff(t, "stdout, cold and warm", warm.out, cold.out)
			diff(t, "stderr, cold and warm", warm.errs, cold.errs)
			diff(t, "exit, cold and warm", warm.Exit, cold.Exit)
			if cold.Exit.Code == 0 || !strings.Contains(cold.errs, "boom") && l != engi.Bash {
				t.Errorf("the probe ended with %+v: %s", cold.Exit, cold.errs)
			}

			// A run that a waiting interpreter cannot serve exactly starts cold.
			s.warm(t, l)
			other := s.program(t, l, code)
			other.Files[0].Path = "other-" + other.Files[0].Path
			if got := s.do(t, other); got.Warm {
				t.Error("another file name ran warm")
			}
			// Run twice in a row: the second run finds no waiting interpreter.
			s.warm(t, l)
			r.ID = id()
			first := s.do(t, r)
			r.ID = id()
			second := s.do(t, r)
			if !first.Warm || second.Warm {
				t.Errorf("warm flags of two runs: %v, %v", first.Warm, second.Warm)
			}
		})
	}
}

// nodeEnds are ways a JavaScript program can end and start others.
var nodeEnds = []string{
	`process.on('exit', c => console.log('exit', c)); process.on('beforeExit', () => console.log('before'))`,
	`process.on('exit', c => { process.exitCode = 5 })`,
	`process.exitCode = 4; setTimeout(() => console.log('later'), 1)`,
	`process.on('exit', () => { throw new Error('in exit') })`,
	`process.once('beforeExit', () => setTimeout(() => { throw new Error('late') }, 1))`,
	`Promise.reject(new Error('nobody'))`,
	`process.on('uncaughtException', e => console.log('caught', e.message)); setTimeout(() => { throw new Error('x') }, 1); process.on('exit', c => console.log(c))`,
	`process.exit(9)`,
	`process.kill(process.pid, 'SIGTERM'); setTimeout(() => {}, 10000)`,
	`require('fs').writeFileSync('m.mjs', 'console.log("esm"); await new Promise(() => {})'); import('./m.mjs').then(() => {})`,
	`const { Worker, isMainThread } = require('worker_threads'); if (isMainThread) new Worker(__filename).on('exit', c => console.log('worker', c)); else { console.log('in worker', process.argv.length); process.exitCode = 3 }`,
	`const cp = require('child_process'); if (process.argv[2]) { console.log('child', process.execArgv, process.env.NODE_OPTIONS) } else { console.log(cp.execFileSync(process.execPath, [__filename, 'x'], {encoding: 'utf8'})); cp.fork(__filename, ['y']).on('exit', c => console.log('forked', c)) }`,
	`process.stdout.write('x'.repeat(300000), () => console.log('written'))`,
}

func (s suite) nodeEnds(t *testing.T) {
	for _, code := range nodeEnds {
		r := s.program(t, engi.JavaScript, code)
		cold := s.do(t, r)
		s.warm(t, engi.JavaScript)
		r.ID = id()
		warm := s.do(t, r)
		if !warm.Warm {
			t.Error("it ran cold")
		}
		diff(t, code+": stdout, cold and warm", warm.out, cold.out)
		// Which line of node's own an exit listener is called from may differ.
		own := regexp.MustCompile(`node:events:[0-9:]+`)
		diff(t, code+": stderr, cold and warm", own.ReplaceAllString(warm.errs, ""), own.ReplaceAllString(cold.errs, ""))
		diff(t, code+": exit, cold and warm", warm.Exit, cold.Exit)
	}
	s.sh(t, "rm -f $ENGI_OUTPUT_DIR/m.mjs")
}

// pythonEnds are ways a Python program can end and start others.
var pythonEnds = []string{
	`import atexit
atexit.register(print, 'at exit')
class A:
    def __del__(self): print('gone')
a = A()`,
	`import sys
sys.exit('text')`,
	`import sys
sys.exit(4)`,
	`import os
print('lost?', flush=True)
os._exit(5)`,
	`import threading, time
threading.Thread(target=lambda: (time.sleep(0.1), print('thread'))).start()
print('main')`,
	`import multiprocessing as m
def f(x): return x * x
if __name__ == '__main__':
    for how in ('fork', 'spawn'):
        with m.get_context(how).Pool(2) as p: print(p.map(f, [1, 2, 3]))`,
	`import subprocess, sys
print(subprocess.run([sys.executable, '-c', 'import sys, os; print(sys.path, sorted(os.environ))'], capture_output=True, text=True).stdout.replace(", 'ENGI_RUN'", ''))`,
	`import os
if os.fork() == 0:
    print('child')
else:
    os.wait()
    print('parent')`,
	`import os
os.kill(os.getpid(), 15)`,
	`def f(: pass`,
	`raise KeyboardInterrupt`,
	`import sys
print(sys.stdin.isatty(), sys.stdout.isatty(), sys.stdout.encoding)
sys.stdout.flush()
sys.stdout.buffer.write(b'\xff\n')`,
	`import site, sys
print('sitecustomize' in sys.modules, site.ENABLE_USER_SITE)`,
}

func (s suite) pythonEnds(t *testing.T) {
	for _, code := range pythonEnds {
		r := s.program(t, engi.Python, code)
		cold := s.do(t, r)
		s.warm(t, engi.Python)
		r.ID = id()
		warm := s.do(t, r)
		if !warm.Warm {
			t.Error("it ran cold")
		}
		diff(t, code+": stdout, cold and warm", warm.out, cold.out)
		diff(t, code+": stderr, cold and warm", warm.errs, cold.errs)
		diff(t, code+": exit, cold and warm", warm.Exit, cold.Exit)
	}
}

func (s suite) died(t *testing.T) {
	if !s.o.Limited {
		t.Skip("this guest shares its processes with others")
	}
	r := s.program(t, engi.Bash, "echo ran")
	s.warm(t, engi.Bash)
	s.sh(t, "for p in /proc/[0-9]*; do if tr '\\0' ' ' < $p/cmdline | grep -q 'bash main.sh'; then kill -9 ${p#/proc/}; fi; done")
	if got := s.do(t, r); got.out != "ran\n" || got.Warm {
		t.Errorf("got %+v", got)
	}
}

func (s suite) runExit(t *testing.T) {
	for _, warm := range []bool{false, true} {
		r := s.program(t, engi.Bash, "exit 3")
		if warm {
			s.warm(t, engi.Bash)
		}
		if got := s.do(t, r); got.Exit != exited(3) || got.Warm != warm {
			t.Errorf("got %+v", got)
		}
	}
	if got := s.do(t, s.program(t, engi.Bash, "kill -KILL $$")); got.Exit != (engi.Exit{Code: -1, Signal: "KILL", Cause: engi.CauseExited}) {
		t.Errorf("got %+v", got)
	}
}

func (s suite) live(t *testing.T) {
	for l, code := range map[engi.Language]string{
		engi.Python:     "import time\nprint('first')\ntime.sleep(60)",
		engi.JavaScript: "console.log('first'); setTimeout(() => {}, 60000)",
		engi.Bash:       "echo first; sleep 60",
	} {
		for _, warm := range []bool{false, true} {
			if s.o.Interpreters[l] == "" {
				continue
			}
			r := s.program(t, l, code)
			if warm {
				s.warm(t, l)
			}
			run, err := s.c.Run(t.Context(), r)
			ok(t, err)
			for c, err := range run.Output(t.Context(), 0) {
				ok(t, err)
				if string(c.Data) != "first\n" {
					t.Errorf("%s: got %q", l, c.Data)
				}
				break
			}
			ok(t, run.Signal(t.Context(), "KILL"))
			fin, err := run.Finish(t.Context())
			ok(t, err)
			if fin.Exit.Signal != "KILL" || fin.Duration > 30*time.Second {
				t.Errorf("%s: got %+v", l, fin)
			}
		}
	}
}

func (s suite) runTimeout(t *testing.T) {
	r := s.program(t, engi.Bash, `echo $$; (setsid sh -c 'sleep 1000.5 & sleep 1000.5' >/dev/null 2>&1 &) ; while :; do :; done`)
	r.Timeout = 700 * time.Millisecond
	got := s.do(t, r)
	if want := (engi.Exit{Code: -1, Signal: "KILL", Cause: engi.CauseTimeout}); got.Exit != want || got.Error == "" {
		t.Errorf("got %+v", got)
	}
	if out, _ := s.sh(t, "for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline; echo; done 2>/dev/null | grep '^sleep 1000.5'"); out != "" {
		t.Errorf("still there: %s", out)
	}
}

func (s suite) runOutput(t *testing.T) {
	r := s.program(t, engi.Bash, "echo err >&2; while :; do echo xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; done")
	r.Output = 100_000
	got := s.do(t, r)
	if got.Exit.Cause != engi.CauseOutput || len(got.out)+len(got.errs) != 100_000 || !got.StdoutTruncated || got.StderrTruncated {
		t.Errorf("got %d bytes, %+v", len(got.out), got.Finish)
	}
}

func (s suite) together(t *testing.T) {
	long := s.program(t, engi.Bash, "echo long; sleep 0.6; (sleep 0.1; echo child); echo end")
	// Both runs share the working directory, so this one's file needs a name of
	// its own.
	long.Files[0].Path = "long.sh"
	run, err := s.c.Run(t.Context(), long)
	ok(t, err)
	p, err := s.c.Start(t.Context(), engi.Command{Args: []string{"sh", "-c", "sleep 1; echo process"}})
	ok(t, err)
	for range 3 {
		if got := s.do(t, s.program(t, engi.Bash, "(setsid sleep 100 &); echo short")); got.out != "short\n" || got.Exit != exited(0) {
			t.Errorf("got %+v", got)
		}
	}
	if out, _ := text(t, t.Context(), run, 0); out != "long\nchild\nend\n" {
		t.Errorf("the long run printed %q", out)
	}
	if out, _ := text(t, t.Context(), p, 0); out != "process\n" {
		t.Errorf("the process printed %q", out)
	}
}

func (s suite) runBackground(t *testing.T) {
	r := s.program(t, engi.Bash, "sleep 600 & (setsid sleep 600 &) ; echo done")
	begin := time.Now()
	if got := s.do(t, r); got.out != "done\n" || got.Exit != exited(0) || time.Since(begin) > 30*time.Second {
		t.Errorf("got %+v after %v", got, time.Since(begin))
	}
}

func (s suite) reattach(t *testing.T) {
	r := s.program(t, engi.Bash, "for i in 1 2 3 4 5; do echo line $i; sleep 0.1; done; echo result > file")
	ctx, cancel := context.WithCancel(t.Context())
	run, err := s.c.Run(ctx, r)
	ok(t, err)
	for _, err := range run.Output(ctx, 0) {
		ok(t, err)
		break
	}
	cancel()
	for _, from := range []int64{0, 3, 7} {
		again, err := s.c.Reattach(t.Context(), r.ID)
		ok(t, err)
		out, _ := text(t, t.Context(), again, from)
		if want := "line 1\nline 2\nline 3\nline 4\nline 5\n"[from:]; out != want {
			t.Errorf("from %d: %q", from, out)
		}
		fin, err := again.Finish(t.Context())
		ok(t, err)
		if fin.Exit != exited(0) || len(fin.Artifacts) != 1 {
			t.Errorf("got %+v", fin)
		}
	}
	_, err = s.c.Run(t.Context(), r)
	wantKind(t, err, engi.Conflict)
	_, err = s.c.Reattach(t.Context(), "nobody")
	wantKind(t, err, engi.NotFound)
}

func (s suite) badRuns(t *testing.T) {
	for name, change := range map[string]func(*wire.Run){
		"upwards":    func(r *wire.Run) { r.Files[0].Path = "../x" },
		"absolute":   func(r *wire.Run) { r.Files[0].Path = "/x" },
		"NUL":        func(r *wire.Run) { r.Files[0].Path = "a\x00b" },
		"not clean":  func(r *wire.Run) { r.Files[0].Path = "a//b" },
		"no UTF-8":   func(r *wire.Run) { r.Files[0].Path = "a\xff" },
		"empty path": func(r *wire.Run) { r.Files[0].Path = "" },
		"twice":      func(r *wire.Run) { r.Files = append(r.Files, r.Files[0]); r.Entry = r.Files[0].Path },
		"file and dir": func(r *wire.Run) {
			r.Files = append(r.Files, wire.File{Path: r.Files[0].Path + "/x"})
			r.Entry = r.Files[0].Path
		},
		"no entry":        func(r *wire.Run) { r.Files = append(r.Files, wire.File{Path: "b"}) },
		"ID":              func(r *wire.Run) { r.ID = "a/b" },
		"negative":        func(r *wire.Run) { r.Timeout = -1 },
		"too much output": func(r *wire.Run) { r.Output = wire.MaxOutput + 1 },
		"environment":     func(r *wire.Run) { r.Env = map[string]string{"": "x"} },
		"argument":        func(r *wire.Run) { r.Args = []string{"a\x00"} },
		"interpreter":     func(r *wire.Run) { r.Interpreter = "bash" },
	} {
		r := s.program(t, engi.Bash, "echo no")
		change(&r)
		_, err := s.c.Run(t.Context(), r)
		if !engi.Is(err, engi.Invalid, engi.Conflict) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	r := s.program(t, engi.Bash, "")
	r.Interpreter = "/no/such/interpreter"
	_, err := s.c.Run(t.Context(), r)
	wantKind(t, err, engi.NotFound)
	if _, exit := s.sh(t, "ln -sfn /tmp $ENGI_OUTPUT_DIR/out"); exit.Code != 0 {
		t.Fatal("could not make a link")
	}
	r = s.program(t, engi.Bash, "")
	r.Files, r.Entry = append(r.Files, wire.File{Path: "out/evil", Data: []byte("x")}), r.Files[0].Path
	_, err = s.c.Run(t.Context(), r)
	if !engi.Is(err, engi.Invalid, engi.Conflict) {
		t.Errorf("a link in the way: got %v", err)
	}
	if _, err := s.c.Stat(t.Context(), "/tmp/evil"); err == nil {
		t.Error("an input was written through a link")
	}
	s.sh(t, "rm $ENGI_OUTPUT_DIR/out")
}

func (s suite) untar(t *testing.T, run *guest.Run) map[string]string {
	t.Helper()
	r, err := run.Artifacts(t.Context())
	ok(t, err)
	defer r.Close()
	files := map[string]string{}
	tr := tar.NewReader(r)
	for {
		h, err := tr.Next()
		if err == io.EOF {
			return files
		}
		ok(t, err)
		b, err := io.ReadAll(tr)
		ok(t, err)
		files[h.Name] = string(b)
	}
}

func (s suite) artifacts(t *testing.T) {
	r := s.program(t, engi.Bash, `mkdir -p sub/deep __pycache__; printf new > sub/deep/new; chmod 750 sub/deep/new; printf '\0\377' > bin
echo changed >> input; : > empty; : > __pycache__/x.pyc; ln -s /etc/passwd link; mkfifo pipe`)
	r.Files = append(r.Files, wire.File{Path: "input", Data: []byte("was\n")}, wire.File{Path: "same", Data: []byte("same")})
	r.Entry = r.Files[0].Path
	run, err := s.c.Run(t.Context(), r)
	ok(t, err)
	fin, err := run.Finish(t.Context())
	ok(t, err)
	sum := func(s string) string { h := sha256.Sum256([]byte(s)); return hex.EncodeToString(h[:]) }
	diff(t, "manifest", fin.Artifacts, []wire.Artifact{
		{Path: "bin", Size: 2, Mode: 0o644, SHA256: sum("\x00\xff")},
		{Path: "empty", Size: 0, Mode: 0o644, SHA256: sum("")},
		{Path: "input", Size: 12, Mode: 0o644, SHA256: sum("was\nchanged\n")},
		{Path: "sub/deep/new", Size: 3, Mode: 0o750, SHA256: sum("new")},
	})
	diff(t, "contents", s.untar(t, run), map[string]string{"bin": "\x00\xff", "empty": "", "input": "was\nchanged\n", "sub/deep/new": "new"})

	// Another output directory, and one that does not exist yet.
	r = s.program(t, engi.Bash, `echo $ENGI_OUTPUT_DIR; echo x > "$ENGI_OUTPUT_DIR/f"; echo y > not-there`)
	r.OutputDir = "/tmp/own/out"
	got := s.do(t, r)
	if len(got.Artifacts) != 1 || got.Artifacts[0].Path != "f" || !strings.HasSuffix(got.out, "/tmp/own/out\n") {
		t.Errorf("got %+v", got)
	}
	s.sh(t, "cd $ENGI_OUTPUT_DIR && rm -rf bin empty input sub link pipe not-there __pycache__")
}

func (s suite) artifactLimits(t *testing.T) {
	r := s.program(t, engi.Bash, "for i in 1 2 3 4 5; do echo $i > f$i; done; head -c 2000 /dev/zero > big")
	r.ArtifactCount, r.ArtifactBytes = 3, 1000
	got := s.do(t, r)
	if len(got.Artifacts) != 3 || got.ArtifactsLeft != 3 {
		t.Errorf("got %+v", got.Finish)
	}
	s.sh(t, "cd $ENGI_OUTPUT_DIR && rm -f f? big")
}

func (s suite) hostileArtifacts(t *testing.T) {
	r := s.program(t, engi.Bash, `printf x > $'bad\xff'; printf x > $'new\nline'; ln -s . loop; ln -s /proc proc; mkdir a; cd a; for i in $(seq 100); do mkdir d; cd d; done; printf deep > f`)
	run, err := s.c.Run(t.Context(), r)
	ok(t, err)
	fin, err := run.Finish(t.Context())
	ok(t, err)
	if len(fin.Artifacts) != 1 || fin.Artifacts[0].Path != "new\nline" || fin.ArtifactsLeft < 2 {
		t.Errorf("got %+v", fin)
	}
	// The archive fails if a file has changed after the run.
	s.sh(t, `cd $ENGI_OUTPUT_DIR && printf y > 'new
line'`)
	tarball, err := run.Artifacts(t.Context())
	ok(t, err)
	_, err = io.Copy(io.Discard, tarball)
	tarball.Close()
	wantKind(t, err, engi.Conflict)
	var e *engi.Error
	if !errors.As(err, &e) {
		t.Errorf("got %T", err)
	}
	s.sh(t, "cd $ENGI_OUTPUT_DIR && rm -rf ./*")
}

func (s suite) processes(t *testing.T) {
	if !s.o.Limited {
		t.Skip("this guest does not limit processes")
	}
	r := s.program(t, engi.Python, `import os, time
kids = 0
while True:
    if os.fork() == 0:
        time.sleep(60)
        os._exit(0)`)
	got := s.do(t, r)
	if got.Exit.Cause != engi.CauseProcesses || got.Exit.Code != 1 {
		t.Errorf("a program that forks for ever: %+v\n%s", got.Finish, got.errs)
	}
	r = s.program(t, engi.Bash, "bomb() { bomb | bomb & }; bomb; while :; do sleep 1; done")
	r.Timeout = 3 * time.Second
	got = s.do(t, r)
	if got.Exit.Cause != engi.CauseProcesses && got.Exit.Cause != engi.CauseTimeout && got.Exit.Cause != engi.CauseOutput {
		t.Errorf("a fork bomb: %+v", got.Finish)
	}
	if got := s.do(t, s.program(t, engi.Bash, "echo alive")); got.out != "alive\n" {
		t.Errorf("after the bomb: %+v", got)
	}
}

func (s suite) disk(t *testing.T) {
	if !s.o.Limited {
		t.Skip("this guest does not limit the disk")
	}
	r := s.program(t, engi.Python, "f = open('big', 'wb')\nwhile True: f.write(bytes(1 << 20))")
	got := s.do(t, r)
	if got.Exit.Cause != engi.CauseDisk || got.Exit.Code == 0 {
		t.Errorf("got %+v\n%s", got.Finish, got.errs)
	}
	s.sh(t, "rm -f $ENGI_OUTPUT_DIR/big")
}

func (s suite) golang(t *testing.T) {
	r := s.program(t, engi.Go, `package main

import (
	"fmt"
	"os"

	"example.com/thing/util"
)

func main() {
	fmt.Println(util.Word(), os.Args[1:])
	os.Exit(3)
}
`)
	r.Files = append(r.Files, wire.File{Path: "util/util.go", Data: []byte("package util\n\nfunc Word() string { return \"built\" }\n")})
	r.Entry, r.Args = "main.go", []string{"x"}
	got := s.do(t, r)
	if got.out != "built [x]\n" || got.Exit != exited(3) || len(got.Artifacts) != 0 {
		t.Errorf("got %+v", got)
	}
	r = s.program(t, engi.Go, "package main\nfunc main() { nope }\n")
	if got := s.do(t, r); got.Exit.Code != 1 || !strings.Contains(got.errs, "nope") {
		t.Errorf("a program that does not compile: %+v", got)
	}
}

func (s suite) port(t *testing.T) {
	python := s.o.Interpreters[engi.Python]
	if python == "" {
		t.Skip("this guest has no python")
	}
	p, err := s.c.Start(t.Context(), engi.Command{Args: []string{python, "-c", `
import socket
s = socket.create_server(("127.0.0.1", 0))
print(s.getsockname()[1], flush=True)
while True:
    c, _ = s.accept()
    n = 0
    while b := c.recv(65536):
        n += len(b)
        c.sendall(b)
    c.sendall(b"end %d" % n)
    c.close()
`}})
	ok(t, err)
	port := 0
	for c, err := range p.Output(t.Context(), 0) {
		ok(t, err)
		for _, d := range c.Data {
			if d >= '0' && d <= '9' {
				port = port*10 + int(d-'0')
			}
		}
		break
	}
	conn, err := s.c.Dial(t.Context(), port)
	ok(t, err)
	data := bytes.Repeat([]byte("x"), 1<<20)
	go func() {
		conn.Write(data)
		conn.(interface{ CloseWrite() error }).CloseWrite()
	}()
	back, err := io.ReadAll(conn)
	ok(t, err)
	if want := string(data) + "end 1048576"; string(back) != want {
		t.Errorf("%d bytes came back, want %d", len(back), len(want))
	}
	ok(t, conn.Close())

	conn, err = s.c.Dial(t.Context(), port)
	ok(t, err)
	ok(t, conn.SetReadDeadline(time.Now().Add(20*time.Millisecond)))
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		t.Error("a read past its deadline succeeded")
	}
	ok(t, conn.Close())
	ok(t, p.Signal(t.Context(), "KILL"))
	if _, err := p.Wait(t.Context()); err != nil {
		t.Error(err)
	}
	_, err = s.c.Dial(t.Context(), port)
	wantKind(t, err, engi.Unavailable)
}
