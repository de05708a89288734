package edit_test

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/app/edit"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/google/go-cmp/cmp"
)

const app = `import { useState } from 'react'

export default function App() {
  const [count, setCount] = useState(0)

  return (
    <div className="app">
      <h1>Counter</h1>
      <button onClick={() => setCount(count + 1)}>
        count is {count}
      </button>
      <button onClick={() => setCount(0)}>
        reset
      </button>
    </div>
  )
}
`

func TestApply(t *testing.T) {
	replace := strings.NewReplacer
	tests := map[string]struct {
		content string
		blocks  []edit.Block
		want    string // empty means a Conflict
		err     string // part of the error's text
	}{
		"exact": {
			app, []edit.Block{{Search: "      <h1>Counter</h1>\n", Replace: "      <h1>Clicks</h1>\n"}},
			replace("Counter", "Clicks").Replace(app), "",
		},
		"part of a line": {
			app, []edit.Block{{Search: "useState(0)", Replace: "useState(10)"}},
			replace("useState(0)", "useState(10)").Replace(app), "",
		},
		"parts of two lines": {
			app, []edit.Block{{Search: "setCount(0)}>\n        reset", Replace: "setCount(1)}>\n        again"}},
			replace("setCount(0)}", "setCount(1)}", "reset", "again").Replace(app), "",
		},
		"several, each seeing the one before": {
			app, []edit.Block{{Search: "Counter", Replace: "Clicks"}, {Search: "<h1>Clicks</h1>", Replace: "<h2>Clicks</h2>"}},
			replace("<h1>Counter</h1>", "<h2>Clicks</h2>").Replace(app), "",
		},
		"white space at the ends of lines": {
			app, []edit.Block{{Search: "  return (  \n    <div className=\"app\">\t\n", Replace: "  return (\n    <main className=\"app\">\n"}},
			replace("<div", "<main").Replace(app), "",
		},
		"indentation": {
			app, []edit.Block{{Search: "<button onClick={() => setCount(0)}>\n  reset\n</button>\n", Replace: "<button onClick={() => setCount(0)}>\n  <b>\n    reset\n  </b>\n</button>\n"}},
			replace("        reset\n", "        <b>\n          reset\n        </b>\n").Replace(app), "",
		},
		"tabs in the file, spaces in the block": {
			"func f() {\n\tif a {\n\t\tb()\n\t}\n}\n", []edit.Block{{Search: "    if a {\n        b()\n    }\n", Replace: "    if a {\n        b()\n        c()\n    }\n"}},
			"func f() {\n\tif a {\n\t\tb()\n\t\tc()\n\t}\n}\n", "",
		},
		"white space within lines": {
			app, []edit.Block{{Search: "import {useState} from 'react'\n", Replace: "import {useState, useEffect} from 'react'\n"}},
			replace("{ useState }", "{useState, useEffect}").Replace(app), "",
		},
		"other quotes and a semicolon": {
			app, []edit.Block{{Search: "import { useState } from \"react\";\n\nexport default function App() {\n", Replace: "import { useState } from \"react\";\nimport './App.css';\n\nexport default function App() {\n"}},
			replace("'react'\n", "'react'\nimport './App.css';\n").Replace(app), "",
		},
		"a line that was never there": {
			app, []edit.Block{{
				Search:  "  return (\n    <div className=\"app\">\n      {/* header */}\n      <h1>Counter</h1>\n      <button onClick={() => setCount(count + 1)}>\n",
				Replace: "  return (\n    <div className=\"app\">\n      {/* header */}\n      <h1>Counting</h1>\n      <button onClick={() => setCount(count + 1)}>\n",
			}},
			replace("Counter", "Counting").Replace(app), "",
		},
		"a line of the file left out of the quote stays": {
			app, []edit.Block{{
				Search:  "export default function App() {\n  const [count, setCount] = useState(0)\n  return (\n    <div className=\"app\">\n      <button onClick={() => setCount(count + 1)}>\n",
				Replace: "export default function App() {\n  const [count, setCount] = useState(0)\n  return (\n    <div className=\"page\">\n      <button onClick={() => setCount(count + 1)}>\n",
			}},
			replace("\"app\"", "\"page\"").Replace(app), "",
		},
		"blank lines around": {
			app, []edit.Block{{Search: "\n      <h1>Counter</h1>\n\n", Replace: "\n      <h1>Clicks</h1>\n\n"}},
			replace("Counter", "Clicks").Replace(app), "",
		},
		"removal": {
			app, []edit.Block{{Search: "      <h1>Counter</h1>\n", Replace: ""}},
			replace("      <h1>Counter</h1>\n", "").Replace(app), "",
		},
		"two places": {
			"a\nx\nb\nx\nc\n", []edit.Block{{Search: "x\n", Replace: "y\n"}}, "", "at line 2 and at line 4",
		},
		"two places, one by the hint": {
			"a\nx\nb\nx\nc\n", []edit.Block{{Search: "x\n", Replace: "y\n", Line: 4}}, "a\nx\nb\ny\nc\n", "",
		},
		"two places as far from the hint": {
			"a\nx\nb\nx\nc\n", []edit.Block{{Search: "x\n", Replace: "y\n", Line: 3}}, "", "at line 2 and at line 4",
		},
		"two places that are alike": {
			"function a() {\n  return one + 1\n}\nfunction b() {\n  return one + 2\n}\n", []edit.Block{{Search: "  return one + 3\n", Replace: "  return one\n"}}, "", "at line 2 and at line 5",
		},
		"two places in a line": {
			"a = b + b\n", []edit.Block{{Search: "b", Replace: "c"}}, "", "line 1 has it more than once",
		},
		"hints are of the text before": {
			"1\nx\n2\nx\n3\n", []edit.Block{{Search: "1\n", Replace: "1\nn\nn\nn\n", Line: 1}, {Search: "x\n", Replace: "y\n", Line: 2}},
			"1\nn\nn\nn\ny\n2\nx\n3\n", "",
		},
		"nothing like it": {
			app, []edit.Block{{Search: "const router = createBrowserRouter()\n", Replace: "x\n"}}, "", "nothing in the file is like it",
		},
		"the closest is named": {
			app, []edit.Block{{Search: "      <button onClick={() => setCount(step, 1)}>\n", Replace: "x\n"}}, "", "closest is line 9",
		},
		"done before": {
			replace("Counter", "Clicks").Replace(app), []edit.Block{{Search: "      <h1>A title of the page</h1>\n", Replace: "      <h1>Clicks</h1>\n"}}, "", "what it puts there is, at line 8",
		},
		"the second is named": {
			app, []edit.Block{{Search: "Counter", Replace: "Clicks"}, {Search: "nowhere to be found", Replace: "x"}}, "", "change 2, with the search text \"nowhere to be found\"",
		},
		"blank only": {
			app, []edit.Block{{Search: "\n", Replace: "x\n"}}, "", "blank lines only",
		},
		"\\r\\n": {
			"a\r\nb\r\nc\r\n", []edit.Block{{Search: "b\n", Replace: "x\ny\n"}}, "a\r\nx\r\ny\r\nc\r\n", "",
		},
		"\\r\\n in the block only": {
			"a\nb\nc\n", []edit.Block{{Search: "b\r\n", Replace: "x\r\ny\r\n"}}, "a\nx\ny\nc\n", "",
		},
		"no newline at the end": {
			"a\nb", []edit.Block{{Search: "b", Replace: "c"}}, "a\nc", "",
		},
		"more lines after one without newline": {
			"a\r\nb", []edit.Block{{Search: "b\n", Replace: "b\nc\n"}}, "a\r\nb\r\nc", "",
		},
		"byte order mark": {
			"\uFEFFa\nb\n", []edit.Block{{Search: "a\n", Replace: "x\n"}}, "\uFEFFx\nb\n", "",
		},
		"an empty file": {
			"", []edit.Block{{Replace: "a\nb\n"}}, "a\nb\n", "",
		},
		"everything goes": {
			"a\nb\n", []edit.Block{{Search: "a\nb\n"}}, "", "",
		},
		"insertion by line": {
			"a\nb\n", []edit.Block{{Replace: "x\n", Line: 2}}, "a\nx\nb\n", "",
		},
		"insertion at the end": {
			"a\nb\n", []edit.Block{{Replace: "x\n", Line: 3}}, "a\nb\nx\n", "",
		},
		"insertion nowhere": {
			"a\nb\n", []edit.Block{{Replace: "x\n"}}, "", "looks for nothing",
		},
		"insertion beyond the end": {
			"a\nb\n", []edit.Block{{Replace: "x\n", Line: 9}}, "", "the file has 2 lines",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := edit.Apply(tt.content, tt.blocks)
			if tt.err != "" {
				if !engi.Is(err, engi.Conflict) || !strings.Contains(err.Error(), tt.err) {
					t.Fatalf("got %q, %v, want a conflict with %q", got, err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestLike(t *testing.T) {
	for _, tt := range [][3]string{
		{"a\r\nb\r\n", "x\ny\n", "x\r\ny\r\n"},
		{"a\r\nb\r\n", "x\r\ny\n", "x\r\ny\r\n"},
		{"a\nb\n", "x\r\ny\r\n", "x\ny\n"},
		{"", "x\r\ny", "x\ny"},
	} {
		if got := edit.Like(tt[0], tt[1]); got != tt[2] {
			t.Errorf("%q like %q is %q, want %q", tt[1], tt[0], got, tt[2])
		}
	}
}

// TestCost applies texts and blocks that would take very long if each line were compared
// with each other line.
func TestCost(t *testing.T) {
	skipCosts(t)
	same := strings.Repeat("a = 1\n", 300_000)
	var differs strings.Builder
	for i := range 60_000 {
		fmt.Fprintf(&differs, "const value%d = compute(%d)\n", i, i)
	}
	var many []edit.Block
	for i := range 300 {
		many = append(many, edit.Block{Search: fmt.Sprintf("const value%d = compute(%d);\n", 100*i, 100*i), Replace: "x"})
	}
	for name, tt := range map[string]struct {
		content string
		blocks  []edit.Block
	}{
		"one line again and again": {same, []edit.Block{{Search: strings.Repeat("a = 1\n", 100_000) + "b = 2\n", Replace: "x"}}},
		"blank lines":              {strings.Repeat("\n", 1<<20), []edit.Block{{Search: strings.Repeat("\n", 1<<19) + "b", Replace: "x"}}},
		"part of a line":           {same, []edit.Block{{Search: "= 1\n" + strings.Repeat("a = 1\n", 100_000) + "a = 2", Replace: "x"}}},
		"lines that are alike":     {differs.String(), []edit.Block{{Search: strings.Repeat("const value0 = compute(1)\n", 900), Replace: "x"}}},
		"indentation":              {strings.Repeat(" a = 1\n", 300_000), []edit.Block{{Search: strings.Repeat("a = 1\n", 100_000), Replace: "x"}}},
		"one long line":            {strings.Repeat("a", 2<<20), []edit.Block{{Search: strings.Repeat("a", 1<<20) + "b", Replace: "x"}}},
		"many blocks":              {differs.String()[:1<<20], many},
		"a long block":             {"a\nb\n", []edit.Block{{Search: "a\nb\n", Replace: differs.String()}}},
		"all lines change":         {differs.String(), []edit.Block{{Search: differs.String(), Replace: strings.ReplaceAll(differs.String(), "const", "let")}}},
	} {
		t.Run(name, func(t *testing.T) {
			start := cpu()
			_, err := edit.Apply(tt.content, tt.blocks)
			if d := cpu() - start; d > patience {
				t.Errorf("%v: %v", d, err)
			}
			if err != nil && !engi.Is(err, engi.Conflict) {
				t.Error(err)
			}
		})
	}
}

func FuzzApply(f *testing.F) {
	f.Add(app, "  const [count, setCount] = useState(0)\n", "  const n = 1\n", 4)
	f.Add(app, "<h1>Count</h1>\n<button onClick={() => setCount(count + 1)}>\n", "<h2>\n", 0)
	f.Add("a\r\nb\r\n\r\n", "b\n", "", 1)
	f.Add("\uFEFF\tx\r", "x", "\n\n", -1)
	f.Fuzz(func(t *testing.T, content, search, replace string, line int) {
		got, err := edit.Apply(content, []edit.Block{{Search: search, Replace: replace, Line: line}})
		if err != nil {
			if !engi.Is(err, engi.Conflict, engi.Invalid) || got != "" {
				t.Fatal(got, err)
			}
			return
		}
		if search == replace && search != "" && !strings.Contains(content, "\r") && got != content {
			t.Fatalf("%q for itself makes of %q %q", search, content, got)
		}
		if len(got) > 2*(len(content)+len(replace))+4*(strings.Count(replace, "\n")+1)*(len(content)+1) {
			t.Fatalf("%d bytes and %d make %d", len(content), len(replace), len(got))
		}
	})
}

func BenchmarkApply(b *testing.B) {
	var content strings.Builder
	for i := range 2000 {
		fmt.Fprintf(&content, "  const value%d = compute(%d)\n", i, i)
	}
	for name, search := range map[string]string{"exact": "  const value900 = compute(900)\n", "fuzzy": "const value900 = compute(\"900\");\nconst value901 = compute(901)\n"} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(content.Len()))
			for b.Loop() {
				if _, err := edit.Apply(content.String(), []edit.Block{{Search: search, Replace: "x\n"}}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// patience is more CPU time than any test here takes, even with the
// instrumentation of fuzzing. The defects that it detects take minutes.
const patience = 5 * time.Second

// raceDetector reports whether this build has the race detector.
var raceDetector bool

// skipCosts skips tests that only measure.
func skipCosts(t *testing.T) {
	t.Helper()
	if raceDetector {
		t.Skip("the race detector takes time, too")
	}
}

// cpu returns the CPU time of the process, which is more reliable than elapsed time
// on a busy machine.
func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
