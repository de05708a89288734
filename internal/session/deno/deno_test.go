package deno

import (
	"bytes"
	"context"
	"encoding/json"

	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/engi-dev/engi/internal/engi"
)

func TestHosts(t *testing.T) {
	local := []string{"localhost", "127.0.0.1", "[::1]"}
	for name, c := range map[string]struct {
		p    engi.NetworkPolicy
		want []string // in addition to local ones; nil means all
	}{
		"none":     {engi.NetworkPolicy{Mode: engi.NetworkNone, Allow: []string{"a.example"}}, []string{}},
		"isolated": {engi.NetworkPolicy{Mode: engi.NetworkIsolated}, []string{}},
		"group":    {engi.NetworkPolicy{Mode: engi.NetworkIsolated, Group: "g"}, nil},
		"open":     {engi.NetworkPolicy{Mode: engi.NetworkOpen}, nil},
		"node's":   {engi.NetworkPolicy{}, nil},
		"proxy":    {engi.NetworkPolicy{Mode: engi.NetworkRestricted, Proxy: &engi.UpstreamProxy{}}, nil},
		"names": {engi.NetworkPolicy{Mode: engi.NetworkRestricted, Allow: []string{"a.example", "tcp://*.b.example:443", "c.example:80-90", "10.0.0.0/8", "1.2.3.4:5", "2606:2800::1"},
			Grants: []engi.Grant{{Hosts: []string{"d.example", "a.example"}}}, Requests: []engi.RequestRule{{Host: "e.example"}, {Host: "http://a.example"}}},
			[]string{"a.example", "*.b.example:443", "c.example", "10.0.0.0/8", "1.2.3.4:5", "[2606:2800::1]", "d.example", "e.example"}},
		"star":       {engi.NetworkPolicy{Mode: engi.NetworkRestricted, Allow: []string{"a.example", "*"}}, nil},
		"odd":        {engi.NetworkPolicy{Mode: engi.NetworkRestricted, Allow: []string{"a,b.example"}}, nil},
		"IPv6 range": {engi.NetworkPolicy{Mode: engi.NetworkRestricted, Allow: []string{"2606:2800::/32"}}, nil},
	} {
		list, all := allowedHosts(c.p)
		if c.want == nil {
			if !all {
				t.Errorf("%s: %v, want everything left to the egress gateway", name, list)
			}
			continue
		}
		if d := cmp.Diff(append(slices.Clone(local), c.want...), list); d != "" || all {
			t.Errorf("%s: everything %t, %s", name, all, d)
		}
	}
}

func TestArguments(t *testing.T) {
	a := args(Options{
		Dir: "/workspace", Config: "/opt/deps/deno.json", Network: engi.NetworkPolicy{Mode: engi.NetworkNone}, Memory: 1 << 30,
		Env: map[string]string{"MORE": "x", "BAD,NAME": "y"}, Names: []string{"KEY", "--allow-run", "MORE"},
	})
	text := strings.Join(a, "\n")
	for _, want := range []string{
		"--allow-read=/workspace,/opt/deps", "--allow-write=/workspace", "--config=/opt/deps/deno.json", "--cached-only", "--no-prompt", "--ignore-env",
		"--allow-net=localhost,127.0.0.1,[::1]", "--v8-flags=--max-old-space-size=716",
		"--allow-env=ENGI_SANDBOX_ID,HOME,KEY,LANG,MORE,NODE_ENV,NO_COLOR,PATH,TZ,USER",
	} {
		if !slices.Contains(a, want) {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
	for _, never := range []string{"--allow-run", "--allow-ffi", "--allow-all", "-A"} {
		if slices.ContainsFunc(a, func(s string) bool { return strings.HasPrefix(s, never) && s != "--allow-all" }) {
			t.Errorf("%s is in\n%s", never, text)
		}
	}
	if a := args(Options{Dir: "/workspace"}); !slices.Contains(a, "--no-config") || !slices.Contains(a, "--no-remote") {
		t.Errorf("without packages: %v", a)
	}
}

// TestAnswersInPieces checks that answers are found however the output is split, and
// that no part of them is shown as output.
func TestAnswersInPieces(t *testing.T) {
	const mark = "MARKMARK"
	whole := "a\x1eb\x1eMARKMAR" + "\x1e" + mark + `{"ok":true,"value":{"n":1},"warnings":["w"]}` + "\nafter"
	for n := 1; n <= len(whole); n++ {
		var seen bytes.Buffer
		c := newCollector(mark, func(x engi.Chunk) {
			if x.Offset != int64(seen.Len()) {
				t.Errorf("offset %d after %d bytes", x.Offset, seen.Len())
			}
			seen.Write(x.Data)
		})
		for piece := range slices.Chunk([]byte(whole), n) {
			c.add(engi.Chunk{Stream: engi.Stdout, Data: piece})
		}
		c.flush()
		res := c.result()
		c.decode(&res)
		if !c.complete() || !res.OK || string(res.Value) != `{"n":1}` || res.Stdout != "a\x1eb\x1eMARKMAR" || seen.String() != res.Stdout {
			t.Fatalf("in pieces of %d: %+v, seen %q", n, res, seen.String())
		}
	}
}

func TestOutputIsBounded(t *testing.T) {
	c := newCollector("M", nil)
	line := bytes.Repeat([]byte("x"), 1<<16)
	for range 40 {
		c.add(engi.Chunk{Stream: engi.Stdout, Data: line})
		c.add(engi.Chunk{Stream: engi.Stderr, Data: []byte("\xff")})
	}
	res := c.result()
	if len(res.Stdout) != MaxOutput || !res.Truncated || strings.Contains(res.Stderr, "\xff") {
		t.Errorf("%d bytes, cut %t", len(res.Stdout), res.Truncated)
	}
	c.add(engi.Chunk{Stream: engi.Stdout, Data: []byte("\x1eM")})
	for range 40 {
		c.add(engi.Chunk{Stream: engi.Stdout, Data: line})
	}
	if len(c.answer) > maxAnswer {
		t.Errorf("%d bytes of an answer are held", len(c.answer))
	}
}

func FuzzCollector(f *testing.F) {
	f.Add([]byte("\x1eM{\"ok\":true,\"value\":1}\n"), 3)
	f.Add([]byte("\x1eM{\"ok\":false,\"error\":{\"line\":-1}}\n"), 1)
	f.Add([]byte("x\x1e\x1eM{]\n"), 2)
	f.Fuzz(func(t *testing.T, data []byte, n int) {
		var seen []byte
		c := newCollector("M", func(x engi.Chunk) { seen = append(seen, x.Data...) })
		for piece := range slices.Chunk(data, max(1, n)) {
			c.add(engi.Chunk{Stream: engi.Stdout, Data: piece})
		}
		c.flush()
		res := c.result()
		if c.complete() {
			c.decode(&res)
		}
		if bytes.Contains(seen, []byte("\x1eM")) || res.OK && res.Error != nil || res.Value != nil && !json.Valid(res.Value) {
			t.Errorf("%q: seen %q, %+v", data, seen, res)
		}
		if e := res.Error; e != nil && (e.Line < 0 || e.Column < 0) {
			t.Errorf("%+v", e)
		}
	})
}

func TestExplain(t *testing.T) {
	for name, c := range map[string]struct {
		stderr string
		exit   engi.Exit
		want   string
		cause  engi.Cause
	}{
		"exit":    {"", engi.Exit{Code: 7, Cause: engi.CauseExited}, "the code ended the program with exit status 7", engi.CauseExited},
		"signal":  {"", engi.Exit{Code: -1, Signal: "SEGV", Cause: engi.CauseExited}, "the program was ended by signal SEGV", engi.CauseExited},
		"heap":    {"#\n# Fatal JavaScript out of memory: Reached heap limit\n#", engi.Exit{Code: 133, Cause: engi.CauseExited}, "memory", engi.CauseMemory},
		"killed":  {"", engi.Exit{Code: -1, Signal: "KILL", Cause: engi.CauseMemory}, "memory", engi.CauseMemory},
		"awaits":  {"mine\nerror: Top-level await promise never resolved\nexport default (await new Promise(() => {})\n                ^\n    at <anonymous> (blob:null/d2035273-0f4b-4b96-a2a0-eac21d09ff79:1:17)\n", engi.Exit{Code: 1, Cause: engi.CauseExited}, "nothing will settle (line 1, column 1)", engi.CauseExited},
		"awaits2": {"error: Top-level await promise never resolved\nawait new Promise(() => {})\n", engi.Exit{Code: 1, Cause: engi.CauseExited}, "nothing will settle", engi.CauseExited},
	} {
		res := engi.CodeResult{Stderr: c.stderr}
		explain(&res, c.exit)
		if res.OK || res.Error == nil || !strings.Contains(res.Error.Error(), c.want) || res.Error.Cause != c.cause {
			t.Errorf("%s: %+v %v, want %q", name, res, res.Error, c.want)
		}
		if strings.Contains(res.Stderr, "Top-level") {
			t.Errorf("%s: stderr %q", name, res.Stderr)
		}
	}
	res := engi.CodeResult{}
	if explain(&res, engi.Exit{Cause: engi.CauseExited}); !res.OK {
		t.Errorf("exit status 0: %+v", res)
	}
}

// TestValues runs the program with a real Deno on this machine, to check its
// results.
func TestValues(t *testing.T) {
	deno := os.Getenv("ENGI_TEST_DENO")
	if deno == "" {
		if os.Getenv("ENGI_TEST_REQUIRE") == "1" {
			t.Fatal("needs ENGI_TEST_DENO, the path of deno")
		}
		t.Skip("needs ENGI_TEST_DENO, the path of deno")
	}
	dir := t.TempDir()
	for name, text := range map[string]string{
		"work/lib/a.ts": "export const one: number = 1; export default 'dflt'; export enum E { X = 5 }",
		"run.mjs":       string(program),
	} {
		if err := os.MkdirAll(dir+"/work/lib", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(dir+"/"+name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for code, want := range map[string]string{
		"const n: number = 6; n * 7":                              "42",
		"import { one, E } from './lib/a.ts'; one + E.X;\n// end": "6",
		"import x, * as all from \"./lib/a.ts\"\n[x, all.one]":    `["dflt",1]`,
		"const m = await import('./lib/' + 'a.ts'); m.one":        "1",
		"return 5": "5",
		"import { one } from './lib/a.ts'\nif (one) { return { one } }":                 `{"one":1}`,
		"export default { a: 1n }":                                                      `{"a":"1"}`,
		"{\"a\": [1, undefined, NaN]}":                                                  `{"a":[1,null,"NaN"]}`,
		"enum C { A = 3 }\nclass P { constructor(public q: number) {} }\nnew P(C.A).q":  "3",
		"const q = [1, 2]\n  .map((n) => n * 2)\nq\n  .map((n) => n + 1)\n  .join(',')": `"3,5"`,
		"for (const x of [1]) { x }\n[1, 2]":                                            "[1,2]",
		"if (1)\n  6":                                                                   "",
		"function f() {}":                                                               "",
		"const x = 1":                                                                   "",
		"`${`a${1}`}` + /[\"`/]/.source":                                                "\"a1[\\\"`/]\"",
		"type T = { a: number };\nconst t: T = { a: 1 };\nt satisfies T":                `{"a":1}`,
		"await Promise.resolve(new Map([[1, new Set([2])]]))":                           "[[1,[2]]]",
		"const a: any = {}; a.a = a; a":                                                 `{"a":"[Circular]"}`,
		"[import.meta.main, import.meta.url.endsWith('/work/main.ts')]":                 "[true,true]",
		"import fs from 'fs'; typeof fs.readFileSync":                                   `"function"`,
		"new Date(0)":       `"1970-01-01T00:00:00.000Z"`,
		"a = 1":             "!ReferenceError: a is not defined (line 1, column 1)",
		"let x = 1;\nx.y.z": "!(line 2, column 5)",
		"const f = 1\n(2)":  "!(line 1, column 11)",
		"throw 'text'":      "!uncaught text",
		"const x: = 3":      "!(line 1, column 10)",
		"Promise.reject(new Error('late')); await new Promise((r) => setTimeout(r, 500))": "!Error: late",
		"throw new Error('out', { cause: new Error('in') })":                              "!out: in",
		"JSON.stringify = () => 'x'; Array.prototype.map = null; 7":                       "7",
	} {
		request, err := json.Marshal(map[string]any{"code": code, "language": "typescript", "mark": "MARK", "most": MaxValue})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		cmd := exec.CommandContext(ctx, deno, "run", "-q", "--no-prompt", "--no-config", "--no-lock", "--cached-only", "--ignore-env", "--allow-sys",
			"--allow-read="+dir+"/work", dir+"/run.mjs", "file://"+dir+"/work/")
		cmd.Env = []string{"HOME=" + dir, "NO_COLOR=1", "DENO_DIR=" + dir + "/deno", "DENO_NO_UPDATE_CHECK=1"}
		cmd.Stdin = bytes.NewReader(append(request, '\n'))
		out, err := cmd.Output()
		cancel()
		c := newCollector("MARK", nil)
		c.add(engi.Chunk{Stream: engi.Stdout, Data: out})
		res := c.result()
		if !c.complete() {
			t.Errorf("%q: no answer: %v, %s", code, err, out)
			continue
		}
		c.decode(&res)
		got := string(res.Value)
		if res.Error != nil {
			got = "!" + res.Error.Error()
		}
		if failure, ok := strings.CutPrefix(want, "!"); ok && (res.OK || !strings.Contains(got, failure)) || !ok && got != want {
			t.Errorf("%q: %s, want %s", code, got, want)
		}
	}
}
