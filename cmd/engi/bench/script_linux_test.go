package bench

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// fake is a program that answers with text.
func fake(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "fake")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestTimedRivals(t *testing.T) {
	count := func(n int) string {
		return "printf '[9000000'; for i in $(seq 2 " + string(rune('0'+n)) + "); do printf ,1000000; done; echo ]"
	}
	// Six runs are asked for: one to warm up, which does not count.
	if r := Goja(t.Context(), "g", fake(t, count(6)), 5); r.Failure != "" || r.N != 5 || r.Ms.Max != 1 || r.PerSecond != 1000 {
		t.Errorf("got %+v", r)
	}
	for name, text := range map[string]string{"too few": count(3), "no list": "echo no", "a failure": "echo why >&2; exit 1"} {
		if r := Goja(t.Context(), "g", fake(t, text), 5); r.Failure == "" || r.N != 0 {
			t.Errorf("%s: %+v", name, r)
		}
	}
	if r := NodeVM(t.Context(), "n", fake(t, `[ "$1$3$4$5" = "-e--1 + 16" ] || exit 1; `+count(6)), 5); r.Failure != "" {
		t.Errorf("got %+v", r)
	}
	if r := DenoProcess(t.Context(), "d", fake(t, `[ "$1 $2 $3" = "eval --no-lock console.log(1 + 1)" ] && echo 2`), t.TempDir(), 2); r.Failure != "" || r.N != 2 {
		t.Errorf("got %+v", r)
	}
	if r := DenoProcess(t.Context(), "d", fake(t, "echo 3"), t.TempDir(), 2); !strings.Contains(r.Failure, "3") {
		t.Errorf("got %+v", r)
	}
	c := Comparison{Rivals: []Rival{FromScripts("engi", ScriptTiming{N: 10, Ms: Millis{P50: 2}, PerSecond: 5}), {Ms: Summarize([]time.Duration{time.Millisecond})}}}
	if c.Compare(); c.Rivals[0].Ratio != 1 || c.Rivals[1].Ratio != 0.5 {
		t.Errorf("got %+v", c.Rivals)
	}
}
