package e2e

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

// A sample is a program whose behaviour shows whether it was run exactly as
// its interpreter would run the file.
type sample struct {
	name   string
	lang   engi.Language
	code   string
	files  []engi.SourceFile // source files, instead of code
	entry  string
	args   []string
	env    map[string]string
	stdin  string
	exit   int    // expected exit code
	signal string // expected signal
	stdout string
	stderr string // text that standard error must contain
	never  string // text that standard error must not contain
}

func file(path, data string) engi.SourceFile {
	return engi.SourceFile{Path: path, Data: []byte(data)}
}

var samples = []sample{
	{name: "print", lang: engi.Python, code: "print(6*7)", stdout: "42\n"},
	{name: "exit code", lang: engi.Python, code: "import sys; sys.exit(3)", exit: 3},
	{name: "exit text", lang: engi.Python, code: "import sys; sys.exit('sorry')", exit: 1, stderr: "sorry\n"},
	{name: "main module", lang: engi.Python, stdout: "__main__ True None main.py True\n",
		code: "import sys, os\nprint(__name__, sys.modules['__main__'].__dict__ is globals(), __spec__, os.path.basename(__file__), 'sitecustomize' not in sys.modules or 'engi' not in str(sys.modules['sitecustomize']))"},
	{name: "argv", lang: engi.Python, args: []string{"a b", "-x", ""}, code: "import sys; print(sys.argv[1:])", stdout: "['a b', '-x', '']\n"},
	{name: "script directory is on the path", lang: engi.Python, code: "import sys, os; print(sys.path[0] == os.getcwd(), [p for p in sys.path if 'engi' in p])", stdout: "True []\n"},
	{name: "environment is clean", lang: engi.Python, env: map[string]string{"A": "ä b"}, code: "import os; print(os.environ['A'], [k for k in os.environ if k.startswith(('PYTHON', 'ENGI_W', 'ENGI_G', 'BASH_ENV', 'NODE_OPT'))])", stdout: "ä b []\n"},
	{name: "traceback shows the source only", lang: engi.Python, code: "def f():\n    return 1/0\n\nf()\n", exit: 1, stderr: "    return 1/0\n", never: "engi"},
	{name: "syntax error", lang: engi.Python, code: "print('a'\n", exit: 1, stderr: "SyntaxError", never: "engi"},
	{name: "stdin", lang: engi.Python, stdin: "line 1\nline 2\n", code: "import sys\nprint(input(), sys.stdin.read().strip())", stdout: "line 1 line 2\n"},
	{name: "no stdin", lang: engi.Python, code: "import sys\nprint(repr(sys.stdin.read()))", stdout: "''\n"},
	{name: "signal", lang: engi.Python, code: "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", exit: -1, signal: "SEGV"},
	{name: "default signal handlers", lang: engi.Python, code: "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler, signal.getsignal(signal.SIGPIPE) == signal.SIG_IGN, signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)", stdout: "True True True\n"},
	{name: "no stray descriptors", lang: engi.Python, code: "import os; print(sorted(int(f) for f in os.listdir('/proc/self/fd'))[:-1])", stdout: "[0, 1, 2]\n"},
	{name: "modules beside the entry", lang: engi.Python, entry: "app/main.py", stdout: "5\n", files: []engi.SourceFile{
		file("app/main.py", "from lib import add\nfrom pkg.deep import n\nprint(add(2, n))"), file("app/lib.py", "def add(a, b): return a + b"), file("app/pkg/__init__.py", ""), file("app/pkg/deep.py", "n = 3")}},
	{name: "python variables start it cold", lang: engi.Python, env: map[string]string{"PYTHONPATH": "/workspace/lib"}, entry: "main.py", stdout: "ok\n",
		files: []engi.SourceFile{file("main.py", "import m"), file("lib/m.py", "print('ok')")}},
	{name: "multiprocessing", lang: engi.Python, stdout: "[0, 1, 4]\n", code: "from multiprocessing import Pool\ndef sq(x): return x*x\nif __name__ == '__main__':\n    with Pool(2) as p: print(p.map(sq, range(3)))"},
	{name: "random is not shared", lang: engi.Python, code: "import random; print(random.random() != 0)", stdout: "True\n"},
	{name: "source can read itself", lang: engi.Python, code: "print(open(__file__).read()[:5])", stdout: "print\n"},
	{name: "unbuffered order is the program's", lang: engi.Python, code: "import sys\nfor i in range(3): print(i, flush=True); print(i, file=sys.stderr)", stdout: "0\n1\n2\n", stderr: "0\n1\n2\n"},

	{name: "print", lang: engi.JavaScript, code: "console.log(6*7)", stdout: "42\n"},
	{name: "exit code", lang: engi.JavaScript, code: "process.exit(3)", exit: 3},
	{name: "main module", lang: engi.JavaScript, stdout: "true main.js true\n", code: "console.log(require.main === module, require('path').basename(__filename), process.execArgv.length === 0)"},
	{name: "argv", lang: engi.JavaScript, args: []string{"a b", "--x"}, code: "console.log(JSON.stringify(process.argv.slice(2)))", stdout: "[\"a b\",\"--x\"]\n"},
	{name: "environment", lang: engi.JavaScript, env: map[string]string{"A": "1"}, code: "console.log(process.env.A, process.env.NODE_OPTIONS)", stdout: "1 undefined\n"},
	{name: "uncaught error", lang: engi.JavaScript, code: "\nthrow new Error('boom')", exit: 1, stderr: "main.js:2", never: "engi"},
	{name: "stdin", lang: engi.JavaScript, stdin: "hi", code: "process.stdin.on('data', d => console.log(String(d)))", stdout: "hi\n"},
	{name: "module syntax", lang: engi.JavaScript, entry: "main.mjs", stdout: "3 true\n", files: []engi.SourceFile{file("main.mjs", "import { add } from './lib.mjs'; console.log(await Promise.resolve(add(1, 2)), import.meta.url.endsWith('main.mjs'))"), file("lib.mjs", "export const add = (a, b) => a + b")}},
	{name: "required files", lang: engi.JavaScript, entry: "src/index.js", stdout: "7\n", files: []engi.SourceFile{file("src/index.js", "console.log(require('./n') + 1)"), file("src/n.js", "module.exports = 6")}},

	{name: "types and top-level await", lang: engi.TypeScript, stdout: "42 true\n", code: "enum E { A = 6 }\ninterface P { n: number }\nconst p: P = { n: 7 }\nconst v = await Promise.resolve(E.A * p.n satisfies number)\nconsole.log(v, import.meta.main)"},
	{name: "argv", lang: engi.TypeScript, args: []string{"x", "y z"}, code: "console.log(JSON.stringify(Deno.args))", stdout: "[\"x\",\"y z\"]\n"},
	{name: "exit code", lang: engi.TypeScript, code: "Deno.exit(3)", exit: 3},
	{name: "environment", lang: engi.TypeScript, env: map[string]string{"A": "1"}, code: "console.log(Deno.env.get('A'))", stdout: "1\n"},
	{name: "uncaught error", lang: engi.TypeScript, env: map[string]string{"NO_COLOR": "1"}, code: "const x: number = 1\nthrow new Error('boom')", exit: 1, stderr: "main.ts:2", never: "engi"},
	{name: "imports", lang: engi.TypeScript, entry: "main.ts", stdout: "3\n", files: []engi.SourceFile{file("main.ts", "import { add } from './lib.ts'\nconsole.log(add(1, 2))"), file("lib.ts", "export const add = (a: number, b: number): number => a + b")}},
	{name: "stdin", lang: engi.TypeScript, stdin: "hi", code: "console.log(await new Response(Deno.stdin.readable).text())", stdout: "hi\n"},

	{name: "two packages", lang: engi.Go, entry: "main.go", stdout: "42 [a b]\n", files: []engi.SourceFile{
		file("go.mod", "module example.com/answer\n\ngo 1.21\n"),
		file("main.go", "package main\n\nimport (\n\t\"fmt\"\n\t\"os\"\n\n\t\"example.com/answer/calc\"\n)\n\nfunc main() { fmt.Println(calc.Mul(6, 7), os.Args[1:]) }\n"),
		file("calc/calc.go", "package calc\n\nfunc Mul(a, b int) int { return a * b }\n")}, args: []string{"a", "b"}},
	{name: "one file", lang: engi.Go, code: "package main\nimport \"os\"\nfunc main() { println(\"to stderr\"); os.Exit(3) }", exit: 3, stderr: "to stderr\n"},
	{name: "compile error", lang: engi.Go, code: "package main\nfunc main() { undefined() }", exit: 1, stderr: "undefined"},

	{name: "echo", lang: engi.Bash, code: "echo $((6*7))", stdout: "42\n"},
	{name: "exit code", lang: engi.Bash, code: "exit 3", exit: 3},
	{name: "argv", lang: engi.Bash, args: []string{"a b", "-c"}, code: `echo "$#" "$1" "$2" "$(basename "$0")"`, stdout: "2 a b -c main.sh\n"},
	{name: "environment", lang: engi.Bash, env: map[string]string{"A": "x y"}, code: `echo "$A" "${BASH_ENV-unset}" "$SHLVL"`, stdout: "x y unset 1\n"},
	{name: "line numbers", lang: engi.Bash, code: "\n\nnosuchcommand\n", exit: 127, stderr: "line 3: nosuchcommand"},
	{name: "stdin", lang: engi.Bash, stdin: "a\nb\n", code: "read x; echo got $x; cat", stdout: "got a\nb\n"},
	{name: "no leftover functions or variables", lang: engi.Bash, code: "declare -F | grep -i engi; set | grep -i '^_*engi_w'; compgen -v | grep -i warm; echo end", stdout: "end\n"},
	{name: "pipefail and traps", lang: engi.Bash, code: "set -euo pipefail\ntrap 'echo bye' EXIT\nfalse | true\necho not reached", exit: 1, stdout: "bye\n"},
}

func TestLanguages(t *testing.T) {
	n := sharedNode(t)
	for _, s := range samples {
		t.Run(string(s.lang)+"/"+s.name, func(t *testing.T) {
			spec := program(s.lang, s.code)
			if s.files != nil {
				spec.Program.Files, spec.Program.Entry = s.files, s.entry
			}
			spec.Program.Args, spec.Program.Env, spec.Program.Stdin = s.args, s.env, []byte(s.stdin)
			x := n.run(t, spec)
			r := x.Result
			if r.Exit != (engi.Exit{Code: s.exit, Signal: s.signal, Cause: engi.CauseExited}) {
				t.Errorf("exit %+v, want code %d %s", r.Exit, s.exit, s.signal)
			}
			if got := string(r.Stdout); got != s.stdout {
				t.Errorf("stdout %q, want %q", got, s.stdout)
			}
			if !strings.Contains(string(r.Stderr), s.stderr) || s.never != "" && strings.Contains(string(r.Stderr), s.never) {
				t.Errorf("stderr %q, want %q in it and not %q", r.Stderr, s.stderr, s.never)
			}
			if t.Failed() {
				t.Logf("warm %t, stderr: %s", r.Warm, tail(r.Stderr))
			}
		})
	}
}

// TestPictureComesBack draws a chart as a model would: a PNG in the working
// directory.
func TestPictureComesBack(t *testing.T) {
	n := sharedNode(t)
	x := n.run(t, program(engi.Python, `
import struct, zlib
def chunk(k, d): return struct.pack('>I', len(d)) + k + d + struct.pack('>I', zlib.crc32(k + d))
raw = b''.join(b'\0' + bytes([i * 8 % 256, 0, 0] * 32) for i in range(32))
open('plot.png', 'wb').write(b'\x89PNG\r\n\x1a\n' + chunk(b'IHDR', struct.pack('>IIBBBBB', 32, 32, 8, 2, 0, 0, 0)) + chunk(b'IDAT', zlib.compress(raw)) + chunk(b'IEND', b''))
`))
	if len(x.Result.Artifacts) != 1 || x.Result.Artifacts[0].Path != "plot.png" {
		t.Fatalf("artifacts %+v, stderr %s", x.Result.Artifacts, x.Result.Stderr)
	}
	data := n.artifact(t, x, "plot.png")
	if !bytes.HasPrefix(data, []byte("\x89PNG\r\n")) || int64(len(data)) != x.Result.Artifacts[0].Size {
		t.Errorf("%d bytes beginning %q", len(data), data[:min(8, len(data))])
	}
}

// TestOutputIsLive checks that output arrives while the program runs, and
// that a reader who comes back with an offset loses nothing.
func TestOutputIsLive(t *testing.T) {
	n := sharedNode(t)
	spec := program(engi.Python, "import time\nfor i in range(5): print('tick', i); time.sleep(0.3)\n")
	x, err := n.executions.Start(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	var first time.Time
	var offset int64
	var got bytes.Buffer
	for e, err := range n.executions.Watch(t.Context(), spec.Owner.Viewer(), x.ID, 0) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Type == engi.EventStdout {
			first = time.Now()
			got.Write(e.Data)
			offset = e.Offset + int64(len(e.Data))
			break
		}
	}
	done := false
	for e, err := range n.executions.Watch(t.Context(), spec.Owner.Viewer(), x.ID, offset) {
		if err != nil {
			t.Fatal(err)
		}
		switch e.Type {
		case engi.EventStdout:
			if e.Offset != int64(got.Len()) {
				t.Errorf("event at offset %d, have %d bytes", e.Offset, got.Len())
			}
			got.Write(e.Data)
		case engi.EventResult:
			done = true
			if e.Execution.Ended.Sub(first) < 500*time.Millisecond {
				t.Errorf("the first line came %s before the end: not live", e.Execution.Ended.Sub(first))
			}
		}
	}
	var want strings.Builder
	for i := range 5 {
		fmt.Fprintln(&want, "tick", i)
	}
	if !done || got.String() != want.String() {
		t.Errorf("done %t, got %q", done, got.String())
	}
}
