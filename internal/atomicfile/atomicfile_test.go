package atomicfile

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

func TestWrite(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	check := func(want string, mode fs.FileMode) {
		t.Helper()
		data, err := os.ReadFile(path)
		if err != nil || string(data) != want {
			t.Errorf("%q, %v; want %q", data, err, want)
		}
		if info, err := os.Stat(path); err != nil || info.Mode() != mode {
			t.Errorf("%v, %v; want %v", info.Mode(), err, mode)
		}
		if all, err := os.ReadDir(dir); err != nil || len(all) != 1 {
			t.Errorf("%v, %v", all, err)
		}
	}
	if err := Create(path, []byte("a"), 0o600); err != nil {
		t.Fatal(err)
	}
	check("a", 0o600)
	if err := Create(path, []byte("b"), 0o644); err != nil {
		t.Fatal(err)
	}
	check("a", 0o600)
	if err := Write(path, []byte("c"), 0o644); err != nil {
		t.Fatal(err)
	}
	check("c", 0o644)
	if err := Write(filepath.Join(dir, "no", "file"), nil, 0o600); err == nil {
		t.Error("no error without a directory")
	}
}
