package guestd_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/sandbox/guest/wire"
)

// outcome is the result of an execution, as clients assemble it.
type outcome struct {
	lines    []map[string]any
	out, err string
	messages int // number of messages of output
	text     string
	results  []map[string]any
	failure  map[string]any
	count    float64
	end      string
}

// kernelFixture is a guest that has the interpreters of this host.
type kernelFixture struct {
	*e2bClient
	path string
}

// newKernelFixture skips the test, or fails it with ENGI_TEST_REQUIRE, if a
// program is missing. It looks in ENGI_TEST_KERNEL_PATH first, and last in the
// directory of ENGI_TEST_DENO.
func newKernelFixture(t *testing.T, programs ...string) *kernelFixture {
	t.Helper()
	path := os.Getenv("PATH")
	if more := os.Getenv("ENGI_TEST_KERNEL_PATH"); more != "" {
		path = more + ":" + path
	}
	if deno := os.Getenv("ENGI_TEST_DENO"); deno != "" {
		path += ":" + filepath.Dir(deno)
	}
	t.Setenv("PATH", path)
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			if os.Getenv("ENGI_TEST_REQUIRE") == "1" {
				t.Fatalf("needs %s", p)
			}
			t.Skipf("this machine has no %s", p)
		}
	}
	l := &kernelFixture{newE2BClient(t), path}
	l.setup(map[string]string{"SANDBOX": "yes"})
	return l
}

func (l *kernelFixture) setup(env map[string]string) {
	l.t.Helper()
	env["PATH"] = l.path
	b, err := json.Marshal(wire.Setup{Env: env})
	if err != nil {
		l.t.Fatal(err)
	}
	if resp := l.raw("POST", wire.Prefix+"setup", "application/json", bytes.NewReader(b), nil); resp.StatusCode != 204 {
		l.t.Fatalf("setup: %d", resp.StatusCode)
	}
}

func (l *kernelFixture) call(method, path, body string) (int, string) {
	l.t.Helper()
	resp := l.raw(method, "/interpreter/"+path, "application/json", strings.NewReader(body), nil)
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		l.t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

type executeRequest struct {
	Code     string            `json:"code"`
	Context  string            `json:"context_id,omitempty"`
	Language string            `json:"language,omitempty"`
	Env      map[string]string `json:"env_vars,omitempty"`
}

// execute runs code and checks the properties of every answer.
func (l *kernelFixture) execute(a executeRequest) outcome {
	l.t.Helper()
	b, err := json.Marshal(a)
	if err != nil {
		l.t.Fatal(err)
	}
	resp := l.raw("POST", "/interpreter/execute", "application/json", bytes.NewReader(b), nil)
	if resp.StatusCode != 200 {
		b, _ := io.ReadAll(resp.Body)
		l.t.Fatalf("execute %q: status %d: %s", a.Code, resp.StatusCode, b)
	}
	return l.collect(resp.Body)
}

func (l *kernelFixture) collect(body io.Reader) (o outcome) {
	l.t.Helper()
	in := bufio.NewScanner(body)
	in.Buffer(nil, 32<<20)
	for in.Scan() {
		line := in.Text()
		if strings.IndexFunc(line, func(r rune) bool { return r > 126 || r < 32 }) >= 0 {
			l.t.Errorf("line %.200q is not ASCII", line)
		}
		m := map[string]any{}
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			l.t.Fatalf("line %.200q: %v", line, err)
		}
		for k, v := range m {
			if v == nil {
				l.t.Errorf("%s is null in %.200q", k, line)
			}
		}
		o.lines = append(o.lines, m)
		switch m["type"] {
		case "stdout":
			o.out += m["text"].(string)
			o.messages++
		case "stderr":
			o.err += m["text"].(string)
		case "result":
			o.results = append(o.results, m)
			if m["is_main_result"] == true {
				o.text, _ = m["text"].(string)
			}
		case "error":
			o.failure = m
		case "number_of_executions":
			o.count, _ = m["execution_count"].(float64)
		case "end_of_execution", "unexpected_end_of_execution":
			o.end = m["type"].(string)
		}
	}
	if err := in.Err(); err != nil {
		l.t.Fatal(err)
	}
	return o
}

func (l *kernelFixture) run(language, code string) outcome {
	l.t.Helper()
	return l.execute(executeRequest{Code: code, Language: language})
}

// want checks the text of the main result.
func (l *kernelFixture) want(language, code, text string) {
	l.t.Helper()
	if o := l.run(language, code); o.text != text || o.end != "end_of_execution" {
		l.t.Errorf("%s %q gives %q, want %q (stdout %q, stderr %q, error %v, %s)", language, code, o.text, text, o.out, o.err, o.failure, o.end)
	}
}

func TestInterpreterPython(t *testing.T) {
	l := newKernelFixture(t, "python3")
	if o := l.run("", "print(1); x = 'é😀'; x"); o.text != "é😀" || o.out != "1\n" || o.count != 1 || o.end != "end_of_execution" {
		t.Errorf("got %+v", o)
	}
	l.want("python", "x + x", "é😀é😀")
	l.want("python", "  y = 2\n  y", "2")
	l.want("python", "import asyncio\nawait asyncio.sleep(0.01)\ny + 1", "3")
	l.want("python", "import os; os.environ['SANDBOX'], os.getcwd().endswith('/home/user'), __name__", "('yes', True, '__main__')")
	if o := l.run("python", "1 +\n"); o.failure["name"] != "SyntaxError" {
		t.Errorf("a syntax error is %v", o.failure)
	}
	o := l.run("python", "def f():\n    raise ValueError('bad\\x1b[31m')\nf()")
	trace, _ := o.failure["traceback"].(string)
	if o.failure["name"] != "ValueError" || !strings.Contains(trace, "in f") || strings.Contains(trace, "\x1b") || strings.Contains(trace, "kernel.py") {
		t.Errorf("an error is %v", o.failure)
	}
	if o := l.run("python", "input('name? ')"); o.failure["name"] != "StdinNotImplementedError" {
		t.Errorf("input is %v", o.failure)
	}
	if o := l.run("python", "!echo shell $((1+1)); echo err >&2"); o.out != "shell 2\n" || o.err != "err\n" {
		t.Errorf("a shell line printed %q and %q", o.out, o.err)
	}
	if o := l.run("python", "import sys; print('e', file=sys.stderr, end=''); print('o', end='')"); o.out != "o" || o.err != "e" {
		t.Errorf("printed %q and %q", o.out, o.err)
	}
	o = l.run("python", `class Page:
    def _repr_html_(self): return "<b>é</b>"
    def _repr_png_(self): return bytes([137, 80])
    def __repr__(self): return "page"
display(Page()); Page()`)
	if len(o.results) != 2 || o.results[0]["is_main_result"] != false || o.results[1]["html"] != "<b>é</b>" || o.results[1]["png"] != "iVA=" || o.text != "page" {
		t.Errorf("results are %v", o.results)
	}
	if o := l.run("python", `display({"text/plain": "p", "a/b": {"c": [1, float("nan")]}}, raw=True)`); len(o.results) != 1 || o.results[0]["a/b"] == nil || o.results[0]["extra"] == nil {
		t.Errorf("results are %v", o.results)
	}
	if o := l.run("python", "import time\nfor i in range(40):\n    print(i)\n    time.sleep(0.01)"); o.messages > 10 || o.messages < 1 || !strings.HasSuffix(o.out, "\n39\n") {
		t.Errorf("40 lines came in %d messages: %q", o.messages, o.out)
	}
	if o := l.run("python", "print('é' * 3_000_000)"); len(o.out) != 6_000_001 || strings.Contains(o.out, "\ufffd") {
		t.Errorf("6000001 bytes came as %d", len(o.out))
	}
	if o := l.run("python", "'x' * 13_000_000"); len(o.results) != 0 || !strings.Contains(o.err, "left out") {
		t.Errorf("a result that is too large gives %d results and %q", len(o.results), o.err)
	}
}

func TestInterpreterEnvironment(t *testing.T) {
	for language, code := range map[string]string{
		"python": "import os; '|'.join(os.environ.get(k, '-') for k in ('SANDBOX', 'OWN', 'NEW'))",
		"js":     "[process.env.SANDBOX ?? '-', process.env.OWN ?? '-', process.env.NEW ?? '-'].join('|')",
		"bash":   "echo -n \"${SANDBOX--}|${OWN--}|${NEW--}\"",
	} {
		t.Run(language, func(t *testing.T) {
			program := map[string]string{"python": "python3", "js": "node", "bash": "bash"}[language]
			l := newKernelFixture(t, program)
			want := func(a executeRequest, text string) {
				t.Helper()
				a.Code, a.Language = code, language
				if o := l.execute(a); o.text+o.out != text {
					t.Errorf("got %q, want %q (%v)", o.text+o.out, text, o.failure)
				}
			}
			want(executeRequest{}, "yes|-|-")
			want(executeRequest{Env: map[string]string{"OWN": "a 'b'", "SANDBOX": "over"}}, "over|a 'b'|-")
			want(executeRequest{}, "yes|-|-")
			l.setup(map[string]string{"NEW": "1"})
			want(executeRequest{}, "-|-|1")
		})
	}
}

func TestInterpreterJavaScript(t *testing.T) {
	l := newKernelFixture(t, "node")
	l.want("js", "const x = {a: [1, 'é']}; x", "{ a: [ 1, 'é' ] }")
	l.want("js", "const x = 2; let y = x; class C {}; x + y", "4")
	l.want("javascript", "let y = 5; class C { v = 1 }; await Promise.resolve(y + new C().v)", "6")
	l.want("js", "'text'", "text")
	l.want("js", "{ [Symbol.for('Jupyter.display')]() { return { 'text/plain': 'shown' } } }", "shown")
	l.want("js", "{ let inside = 3; inside + 1 }", "4")
	l.want("js", " { a: 1, b: 2 }\n", "{ a: 1, b: 2 }")
	l.want("js", "import path, { join as j } from 'node:path'; import * as os from 'os'; [j('a', 'b'), path.sep, typeof os.cpus]", "[ 'a/b', '/', 'function' ]")
	l.want("js", "const s = `import z from 'no'; ${'}' + `${1}`} export`; `${/import z/.test(s)}` + s.length", "true29")
	l.want("js", "(await import('node:url')).URL.name + typeof require('fs').readFileSync", "URLfunction")
	if o := l.run("js", "console.log('o'); console.error('e'); undefined"); o.out != "o\n" || o.err != "e\n" || len(o.results) != 0 {
		t.Errorf("got %+v", o)
	}
	o := l.run("js", "function f() {\n  throw new TypeError('bad') }\nf()")
	trace, _ := o.failure["traceback"].(string)
	if o.failure["name"] != "TypeError" || o.failure["value"] != "bad" || !strings.Contains(trace, "at f ") || strings.Contains(trace, "kernel.mjs") {
		t.Errorf("an error is %v", o.failure)
	}
	if o := l.run("js", "let a = ;"); o.failure["name"] != "SyntaxError" {
		t.Errorf("a syntax error is %v", o.failure)
	}
	if o := l.run("js", "process.exit(3); console.log('on')"); o.failure["value"] != "exit status 3" || o.out+o.err != "" || o.end != "end_of_execution" {
		t.Errorf("an exit: %+v", o)
	}
	if o := l.run("js", "await new Promise(() => setTimeout(() => process.exit(0), 10))"); o.failure != nil || o.err != "" || o.end != "end_of_execution" || o.count != 1 {
		t.Errorf("a later exit: %+v", o)
	}
	if o := l.run("js", "throw 'text'"); o.failure["value"] != "text" {
		t.Errorf("a thrown text is %v", o.failure)
	}
	if o := l.run("js", "Promise.reject(new Error('later')); 1"); o.text != "1" {
		t.Errorf("got %+v", o)
	}
	o = l.run("js", "display({[Symbol.for('Jupyter.display')]: () => ({'text/html': '<i>'})}); $$.markdown('# x'); new Uint8Array([0x89, 0x50, 0x4e, 0x47])")
	if len(o.results) != 3 || o.results[0]["html"] != "<i>" || o.results[1]["markdown"] != "# x" || o.results[2]["png"] != "iVBORw==" {
		t.Errorf("results are %v", o.results)
	}
}

func TestInterpreterTypeScript(t *testing.T) {
	l := newKernelFixture(t, "deno")
	l.want("ts", "enum A { B = 4 }; interface I { v: number }; const z: I = { v: A.B }; z.v", "4")
	l.want("ts", "const z: string = 'again'; z as unknown", "again")
	l.want("ts", "import type { X } from './none.ts'; import { type Y, basename } from 'node:path'; basename('/a/b')", "b")
	l.want("js", "const q: number = 3; q", "3")
	l.want("js", "Deno.jupyter.display(Deno.jupyter.md`x`); typeof Deno", "object")
	if o := l.run("ts", "let x: = 3"); o.failure["name"] != "SyntaxError" {
		t.Errorf("a syntax error is %v", o.failure)
	}
}

func TestInterpreterBash(t *testing.T) {
	l := newKernelFixture(t, "bash")
	if o := l.run("bash", "cd /tmp; x=5; f() { echo f$x; }; declare -i n=2"); o.failure != nil || o.out+o.err != "" {
		t.Errorf("got %+v", o)
	}
	if o := l.run("bash", "pwd; f; echo $((n + 1)) 'it'\"'\"'s'\necho $0; read y; echo \"[$y]\""); o.out != "/tmp\nf5\n3 it's\nbash\n[]\n" {
		t.Errorf("got %+v", o)
	}
	if o := l.run("bash", "no-such-program"); o.failure["value"] != "exit status 127" || !strings.Contains(o.err, "not found") || o.end != "end_of_execution" {
		t.Errorf("got %+v", o)
	}
	if o := l.run("bash", "if true; then"); o.failure["name"] != "ExitError" || !strings.Contains(o.err, "syntax error") {
		t.Errorf("got %+v", o)
	}
	if o := l.run("bash", "break; continue; echo on"); o.out != "on\n" {
		t.Errorf("got %+v", o)
	}
	if o := l.run("bash", "echo a; exit 4; echo b"); o.out != "a\n" || o.failure["value"] != "exit status 4" || o.end != "end_of_execution" {
		t.Errorf("got %+v", o)
	}
	if o := l.run("bash", "echo [$x]"); o.out != "[]\n" || o.count != 1 {
		t.Errorf("after exit: %+v", o)
	}
}

func TestInterpreterContexts(t *testing.T) {
	l := newKernelFixture(t, "python3")
	list := func() (all []map[string]string) {
		t.Helper()
		if status, body := l.call("GET", "contexts", ""); status != 200 || json.Unmarshal([]byte(body), &all) != nil {
			t.Fatalf("list: %d %s", status, body)
		}
		return all
	}
	if all := list(); len(all) != 2 || all[0]["language"] != "python" || all[1]["language"] != "javascript" || all[0]["cwd"] != "/home/user" {
		t.Errorf("at first there are %v", all)
	}
	dir := filepath.Join(l.root, "sub")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	status, body := l.call("POST", "contexts", `{"language": "python", "cwd": "/sub"}`)
	var c map[string]string
	if err := json.Unmarshal([]byte(body), &c); err != nil || status != 200 || c["cwd"] != "/sub" || c["language"] != "python" {
		t.Fatalf("create: %d %s", status, body)
	}
	in := func(code string) outcome { return l.execute(executeRequest{Code: code, Context: c["id"]}) }
	if o := in("a = 1; import os; os.getcwd()"); o.text != dir {
		t.Errorf("it is in %q, not %q", o.text, dir)
	}
	if o := l.run("python", "a"); o.failure["name"] != "NameError" {
		t.Errorf("contexts share variables: %+v", o)
	}
	if o := in("a"); o.text != "1" || o.count != 2 {
		t.Errorf("got %+v", o)
	}
	if status, body := l.call("POST", "contexts/"+c["id"]+"/restart", ""); status != 204 || body != "" {
		t.Errorf("restart: %d %s", status, body)
	}
	if o := in("a"); o.failure["name"] != "NameError" || o.count != 1 {
		t.Errorf("after restart: %+v", o)
	}
	if status, body := l.call("DELETE", "contexts/"+c["id"], ""); status != 204 {
		t.Errorf("remove: %d %s", status, body)
	}
	if len(list()) != 2 {
		t.Errorf("after remove there are %v", list())
	}
	for _, x := range []struct {
		method, path, body string
		status             int
		text               string
	}{
		{"DELETE", "contexts/" + c["id"], "", 404, "not found"},
		{"POST", "contexts/" + c["id"] + "/restart", "", 404, "not found"},
		{"POST", "execute", `{"code": "1", "context_id": "` + c["id"] + `"}`, 404, "not found"},
		{"POST", "execute", `{"code": "1", "context_id": "x", "language": "python"}`, 400, "Only one of"},
		{"POST", "execute", `{"code": "1", "language": "cobol"}`, 400, "no kernel"},
		{"POST", "execute", `{"code": "1", "env_vars": {"A=B": "x"}}`, 400, "cannot be set"},
		{"POST", "execute", `{"code": 1}`, 400, "not valid"},
		{"POST", "execute", strings.Repeat(" ", 17<<20), 400, "larger than"},
		{"POST", "contexts", `{"cwd": "/no/such"}`, 400, "does not exist"},
		{"POST", "contexts", `{"language": "cobol"}`, 400, "no kernel"},
		{"GET", "health", "", 200, "OK"},
		{"GET", "execute", "", 405, ""},
	} {
		if status, body := l.call(x.method, x.path, x.body); status != x.status || !strings.Contains(body, x.text) {
			t.Errorf("%s %s %.60s: %d %q, want %d %q", x.method, x.path, x.body, status, body, x.status, x.text)
		}
	}
}

// TestInterpreterContextsAreInOrder checks that a new context is the last of a listing, whether there was a
// listing before or not.
func TestInterpreterContextsAreInOrder(t *testing.T) {
	l := newKernelFixture(t, "bash")
	var made struct{ ID string }
	if status, body := l.call("POST", "contexts", `{"language": "bash"}`); status != 200 || json.Unmarshal([]byte(body), &made) != nil {
		t.Fatalf("create: %d %s", status, body)
	}
	for range 2 {
		var all []struct{ ID, Language string }
		if status, body := l.call("GET", "contexts", ""); status != 200 || json.Unmarshal([]byte(body), &all) != nil || len(all) != 3 || all[0].Language != "python" || all[1].Language != "javascript" || all[2].ID != made.ID {
			t.Errorf("after the creation of %s: %d %s", made.ID, status, body)
		}
	}
}

// interrupt begins an execution and closes the request once it has printed.
func (l *kernelFixture) interrupt(language, code string) {
	l.t.Helper()
	ctx, cancel := context.WithCancel(l.t.Context())
	defer cancel()
	b, err := json.Marshal(executeRequest{Code: code, Language: language})
	if err != nil {
		l.t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(ctx, "POST", "http://guest/interpreter/execute", bytes.NewReader(b))
	if err != nil {
		l.t.Fatal(err)
	}
	req.Header.Set(wire.TokenHeader, "secret")
	resp, err := l.http.Do(req)
	if err != nil {
		l.t.Fatal(err)
	}
	defer resp.Body.Close()
	for in := bufio.NewScanner(resp.Body); in.Scan(); {
		if strings.Contains(in.Text(), `"stdout"`) {
			return
		}
	}
	l.t.Fatalf("%q printed nothing", code)
}

func TestInterpreterInterrupt(t *testing.T) {
	for _, x := range []struct {
		name, program, language, before, code, after, want string
	}{
		{"python loop", "python3", "python", "v = 1", "print(1)\nwhile True: pass", "v", "1"},
		{"python sleep", "python3", "python", "v = 1", "import time; print(1); time.sleep(1000)", "v", "1"},
		{"python await", "python3", "python", "v = 1", "import asyncio; print(1); await asyncio.sleep(1000)", "v", "1"},
		{"python command", "python3", "python", "v = 1", "!echo 1; sleep 1000", "v", "1"},
		{"python that does not yield", "python3", "python", "v = 1", "print(1)\nwhile True:\n  try:\n    while True: pass\n  except BaseException: pass", "2", "2"},
		{"javascript await", "node", "js", "let v = 1", "console.log(1); await new Promise(() => setTimeout(() => {}, 1e6))", "v", "1"},
		{"javascript loop", "node", "js", "let v = 1", "console.log(1); for (;;) {}", "2", "2"},
		{"bash command", "bash", "bash", "v=1", "echo 1; sleep 1000; echo 2", "echo -n $v", "1"},
		{"bash loop", "bash", "bash", "v=1", "echo 1; while :; do :; done", "echo -n $v", "1"},
	} {
		t.Run(x.name, func(t *testing.T) {
			l := newKernelFixture(t, x.program)
			l.run(x.language, x.before)
			l.interrupt(x.language, x.code)
			if o := l.run(x.language, x.after); o.text+o.out != x.want || o.end != "end_of_execution" {
				t.Errorf("after the interrupt: %+v", o)
			}
		})
	}
}

func TestInterpreterCrash(t *testing.T) {
	l := newKernelFixture(t, "python3")
	l.run("python", "a = 1")
	o := l.run("python", "import os; print('last words', flush=True); os._exit(3)")
	if o.out != "last words\n" || o.failure["name"] != "KernelDied" || o.end != "unexpected_end_of_execution" {
		t.Errorf("got %+v", o)
	}
	if o := l.run("python", "import os; os.kill(os.getpid(), 9)"); o.end != "unexpected_end_of_execution" {
		t.Errorf("got %+v", o)
	}
	if o := l.run("python", "a"); o.failure["name"] != "NameError" || o.count != 1 {
		t.Errorf("the fresh kernel: %+v", o)
	}
	// A fork of the kernel must not receive its commands.
	if o := l.run("python", "import os\npid = os.fork()\nif pid: os.waitpid(pid, 0)\n'mine'"); o.text != "mine" {
		t.Errorf("fork: %+v", o)
	}
	l.want("python", "'still ' + 'here'", "still here")
}

// TestInterpreterLeavesOrphans ends although a program that a kernel has started, and
// that outlives it, has its standard output: the server is closed at the end.
func TestInterpreterLeavesOrphans(t *testing.T) {
	pid := 0
	t.Cleanup(func() { // when the server is closed
		if line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); len(line) == 0 { // empty for a zombie
			t.Errorf("the program has ended before: %v", err)
			return
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Error(err)
		}
	})
	l := newKernelFixture(t, "python3")
	o := l.run("python", "import os, subprocess\np = subprocess.Popen(['sleep', '60'], start_new_session=True)\nprint(p.pid, flush=True)\nos._exit(3)")
	if _, err := fmt.Sscan(o.out, &pid); err != nil {
		t.Fatalf("%+v", o)
	}
	l.want("python", "1 + 1", "2")
}

func TestInterpreterQueue(t *testing.T) {
	l := newKernelFixture(t, "python3")
	l.run("python", "order = []")
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() { l.run("python", "import time\norder.append(1); time.sleep(0.05); order.append(-1)") })
	}
	wg.Wait()
	l.want("python", "order == [1, -1] * 4", "True")
}

func TestInterpreterRestartWhileItRuns(t *testing.T) {
	l := newKernelFixture(t, "python3")
	for _, x := range []struct {
		method, path string
		status       int // status of a later execution
	}{{"POST", "/restart", 200}, {"DELETE", "", 404}} {
		status, body := l.call("POST", "contexts", "{}")
		var c map[string]string
		if err := json.Unmarshal([]byte(body), &c); err != nil || status != 200 {
			t.Fatalf("create: %d %s", status, body)
		}
		var wg sync.WaitGroup
		for _, code := range []string{"import time; print(1, flush=True); time.sleep(1000)", "2"} {
			b, err := json.Marshal(executeRequest{Code: code, Context: c["id"]})
			if err != nil {
				t.Fatal(err)
			}
			// The header of the response arrives while the execution waits for its turn.
			in := bufio.NewReader(l.raw("POST", "/interpreter/execute", "application/json", bytes.NewReader(b), nil).Body)
			for line := ""; code != "2" && !strings.Contains(line, `"stdout"`); {
				if line, err = in.ReadString('\n'); err != nil {
					t.Fatal(err)
				}
			}
			wg.Go(func() {
				o := l.collect(in)
				if code == "2" && x.path != "" {
					if o.text != "2" {
						t.Errorf("the execution that waited: %+v", o)
					}
				} else if o.end != "unexpected_end_of_execution" {
					t.Errorf("%s: %+v", x.method, o)
				}
			})
		}
		if status, body := l.call(x.method, "contexts/"+c["id"]+x.path, ""); status != 204 {
			t.Errorf("%s: %d %s", x.method, status, body)
		}
		wg.Wait()
		b := `{"code": "1", "context_id": "` + c["id"] + `"}`
		if status, body := l.call("POST", "execute", b); status != x.status {
			t.Errorf("after %s: %d %s", x.method, status, body)
		}
	}
}

func TestInterpreterChildLivesOn(t *testing.T) {
	l := newKernelFixture(t, "python3")
	l.want("python", "import subprocess; p = subprocess.Popen(['sh', '-c', 'while :; do echo noise; sleep 0.02; done']); p.poll() is None", "True")
	time.Sleep(100 * time.Millisecond)
	l.want("python", "p.poll() is None", "True")
	l.interrupt("python", "print(1)\nimport time; time.sleep(1000)")
	l.want("python", "p.poll() is None", "True")
	l.want("python", "p.kill(); p.wait()", "-9")
}

func TestPrepareKernels(t *testing.T) {
	l := newKernelFixture(t, "python3", "bash")
	resp := l.raw("POST", wire.Prefix+"kernels", "application/json", strings.NewReader(`{"languages": ["python", "bash"]}`), nil)
	if resp.StatusCode != 204 {
		t.Fatalf("status %d", resp.StatusCode)
	}
	l.setup(map[string]string{"OWNER": "me"})
	l.want("python", "import os; os.environ['OWNER']", "me")
	if resp := l.raw("POST", wire.Prefix+"kernels", "application/json", strings.NewReader(`{"languages": ["cobol"]}`), nil); resp.StatusCode != 400 {
		t.Errorf("an unknown language: status %d", resp.StatusCode)
	}
	// Kernels are not among the processes of the E2B API.
	status, out := l.unary("process.Process/List", "{}")
	if processes, _ := out["processes"].([]any); status != 200 || len(processes) != 0 {
		t.Errorf("processes: %d %v", status, out)
	}
}
