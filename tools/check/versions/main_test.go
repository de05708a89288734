package main

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestCheck(t *testing.T) {
	const pin = "v0.0.0-20260905035102-160fafc42237"
	day := func(n int) time.Time { return time.Date(2026, 9, 5+n, 12, 0, 0, 0, time.UTC) }
	is := func(v string) func(string) (string, error) { return func(string) (string, error) { return v, nil } }
	for name, c := range map[string]struct {
		require string
		now     time.Time
		newest  func(string) (string, error)
		want    string
	}{
		"young":              {"", day(59), is("v0.0.0-20270101000000-aaaaaaaaaaaa"), ""},
		"old":                {"", day(61), is("v0.0.0-20270101000000-aaaaaaaaaaaa"), "61 days ago"},
		"old and newest":     {"", day(61), is(pin), ""},
		"old, nobody knows":  {"", day(61), func(string) (string, error) { return "", errors.New("no network") }, "no network"},
		"old, not asked":     {"", day(61), nil, ""},
		"a defect":           {"golang.org/x/net v0.35.0", day(1), is(pin), "CVE-2025-22870"},
		"no defect any more": {"golang.org/x/net v0.38.0", day(1), is(pin), ""},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			write := func(name, text string) {
				t.Helper()
				at := filepath.Join(root, name)
				if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(at, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			write("go.mod", "module m\n\nrequire (\n"+c.require+"\n)\n")
			write("tools/runsc/go.mod", "module m/runsc\n\nrequire gvisor.dev/gvisor "+pin+"\n")
			found, err := check(root, c.now, c.newest, io.Discard)
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(found, "\n"); (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
				t.Errorf("found %q, want %q", got, c.want)
			}
		})
	}
}

// TestThisRepository holds for every commit: nothing pinned has a defect that
// is listed. The age of gVisor's pin is not looked at.
func TestThisRepository(t *testing.T) {
	found, err := check("../../..", time.Now(), nil, io.Discard)
	if err != nil || len(found) > 0 {
		t.Error(found, err)
	}
}
