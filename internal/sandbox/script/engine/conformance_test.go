package engine

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/engi-dev/engi/internal/engi"
)

var update = flag.Bool("update", false, "update the results in testdata/language.txt with those of ENGI_TEST_DENO")

// A sample is a program and its result: JSON, undefined, or ! and the name of the
// exception.
type sample struct{ code, want string }

const languageFile = "testdata/language.txt"

func samples(t *testing.T) (all []sample) {
	t.Helper()
	text, err := os.ReadFile(languageFile)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		want, ok := strings.CutPrefix(line, "=> ")
		switch {
		case line == "" || strings.HasPrefix(line, "#"):
		case ok && len(all) > 0:
			all[len(all)-1].want = want
		default:
			all = append(all, sample{code: line})
		}
	}
	return all
}

// knownDifferences holds the differences in docs/scripts.md. The test also fails if one of them
// disappears.
var knownDifferences = map[string]string{
	"function f(a, a2 = () => a) { a = 5; return a2() } return f(1)": "1",          // QuickJS: a closure in a default value sees the old value of the parameter
	"const r = new WeakRef({a: 1}); return r.deref().a":              "!TypeError", // QuickJS collects the target of a WeakRef at once
}

// TestConformance checks the results of several hundred small programs.
func TestConformance(t *testing.T) {
	all := samples(t)
	if len(all) < 300 {
		t.Fatalf("%d programs", len(all))
	}
	for _, s := range all {
		done := run(t, engi.JavaScript, s.code)
		got := string(done.Value)
		if done.Error != nil {
			got = "!" + done.Error.Name
		} else if got == "" {
			got = "undefined"
		}
		if known, ok := knownDifferences[s.code]; ok {
			s.want = known
		}
		if !sameJSON(got, s.want) {
			t.Errorf("%s\n\tgot  %s\n\twant %s", s.code, got, s.want)
			if done.Error != nil {
				t.Log(done.Error.Message)
			}
		}
	}
}

// TestConformanceOfDeno checks that the results are those of another engine, too.
func TestConformanceOfDeno(t *testing.T) {
	deno := os.Getenv("ENGI_TEST_DENO")
	if deno == "" {
		if os.Getenv("ENGI_TEST_REQUIRE") == "1" {
			t.Fatal("needs Deno, named by ENGI_TEST_DENO")
		}
		t.Skip("needs Deno, named by ENGI_TEST_DENO")
	}
	all := samples(t)
	var codes []string
	for _, s := range all {
		codes = append(codes, s.code)
	}
	programs, err := json.Marshal(codes)
	if err != nil {
		t.Fatal(err)
	}
	const judge = `
const AsyncFunction = (async () => {}).constructor, results = [];
for (const code of %s) {
  try {
    const v = await new AsyncFunction(code)();
    results.push(v === undefined ? "undefined" : JSON.stringify(v));
  } catch (e) { results.push("!" + (e?.name ?? "")); }
}
console.log(JSON.stringify(results));
Deno.exit(0);`
	cmd := exec.Command(deno, "run", "--no-lock", "--no-config", "-")
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "DENO_DIR="+cmd.Dir, "NO_COLOR=1")
	cmd.Stdin = strings.NewReader(strings.Replace(judge, "%s", string(programs), 1))
	var errOut bytes.Buffer
	cmd.Stderr = &errOut
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, &errOut)
	}
	var results []string
	if err := json.Unmarshal(out, &results); err != nil || len(results) != len(all) {
		t.Fatalf("%d results, %v:\n%.2000s", len(results), err, out)
	}
	if *update {
		rewrite(t, results)
		return
	}
	for i, s := range all {
		if !sameJSON(results[i], s.want) {
			t.Errorf("%s\n\tDeno %s\n\twant %s", s.code, results[i], s.want)
		}
	}
}

func rewrite(t *testing.T, results []string) {
	text, err := os.ReadFile(languageFile)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	n := 0
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "=> ") {
			continue
		}
		b.WriteString(line)
		if line != "\n" && line[0] != '#' {
			b.WriteString("=> " + results[n] + "\n")
			n++
		}
	}
	if err := os.WriteFile(languageFile, []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}

// sameJSON reports whether two texts, or the JSON values in them, are equal.
func sameJSON(a, b string) bool {
	if a == b {
		return true
	}
	var x, y any
	if json.Unmarshal([]byte(a), &x) != nil || json.Unmarshal([]byte(b), &y) != nil {
		return false
	}
	i, err1 := json.Marshal(x)
	j, err2 := json.Marshal(y)
	return err1 == nil && err2 == nil && bytes.Equal(i, j)
}
