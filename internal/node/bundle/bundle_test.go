package bundle

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/engi-dev/engi/internal/engi"
)

func packed(t *testing.T, name string, content []byte) (fstest.MapFS, Packed) {
	t.Helper()
	var z bytes.Buffer
	w, err := zstd.NewWriter(&z)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(content); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(content)
	p := Packed{Name: name, File: name + ".zst", SHA256: hex.EncodeToString(sum[:]), Size: int64(len(content))}
	m, err := json.Marshal(Manifest{Programs: []Packed{p}})
	if err != nil {
		t.Fatal(err)
	}
	return fstest.MapFS{ManifestName: {Data: m}, p.File: {Data: z.Bytes()}}, p
}

func TestUnpackIsIdempotentAndRepairs(t *testing.T) {
	content := bytes.Repeat([]byte("#!/bin/true\n"), 50_000)
	set, p := packed(t, Runsc, content)
	dir := filepath.Join(t.TempDir(), "programs")
	damage := map[string]func(path string) error{
		"nothing":   func(string) error { return nil },
		"removed":   os.Remove,
		"truncated": func(path string) error { return os.Truncate(path, 100) },
		"changed": func(path string) error {
			f, err := os.OpenFile(path, os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			defer f.Close()
			_, err = f.WriteAt([]byte("evil"), 1000)
			return err
		},
		"mode lost": func(path string) error { return os.Chmod(path, 0o600) },
		"a link": func(path string) error {
			if err := os.Remove(path); err != nil {
				return err
			}
			return os.Symlink("/bin/true", path)
		},
	}
	for name, harm := range damage {
		t.Run(name, func(t *testing.T) {
			first, err := Unpack(t.Context(), set, p, dir)
			if err != nil {
				t.Fatal(err)
			}
			if err := harm(first.Path); err != nil {
				t.Fatal(err)
			}
			again, err := Unpack(t.Context(), set, p, dir)
			if err != nil {
				t.Fatal(err)
			}
			if again != first {
				t.Errorf("second Unpack returned %+v, the first %+v", again, first)
			}
			info, err := os.Lstat(again.Path)
			if err != nil || info.Mode() != 0o755 {
				t.Errorf("mode %v, %v; want a regular file with 0755", info.Mode(), err)
			}
			if got, _ := os.ReadFile(again.Path); !bytes.Equal(got, content) {
				t.Errorf("content differs after harm %q", name)
			}
		})
	}
	if info, err := os.Stat(filepath.Join(dir, p.SHA256[:16])); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("directory: %v, %v; want 0700", info.Mode(), err)
	}
}

func TestUnpackRace(t *testing.T) {
	content := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	set, p := packed(t, Guest, content)
	dir := t.TempDir()
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			got, err := Unpack(t.Context(), set, p, dir)
			if err != nil {
				t.Error(err)
				return
			}
			if data, err := os.ReadFile(got.Path); err != nil || !bytes.Equal(data, content) {
				t.Errorf("saw an incomplete program: %d bytes, %v", len(data), err)
			}
		})
	}
	wg.Wait()
	left, err := filepath.Glob(filepath.Join(dir, p.SHA256[:16], ".new-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestUnpackRefusesDamage(t *testing.T) {
	content := bytes.Repeat([]byte("x"), 10_000)
	good, p := packed(t, Runsc, content)
	other, _ := packed(t, Runsc, bytes.Repeat([]byte("y"), 10_000))
	long, _ := packed(t, Runsc, bytes.Repeat([]byte("x"), 10_001))
	cases := map[string]fs.FS{
		"missing file":     fstest.MapFS{},
		"not compressed":   fstest.MapFS{p.File: {Data: content}},
		"cut short":        fstest.MapFS{p.File: {Data: good[p.File].Data[:len(good[p.File].Data)/2]}},
		"other content":    other,
		"longer than said": long,
	}
	for name, set := range cases {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			_, err := Unpack(t.Context(), set, p, dir)
			if !engi.Is(err, engi.Internal) {
				t.Fatalf("error %v, want kind internal", err)
			}
			if _, err := os.Stat(filepath.Join(dir, p.SHA256[:16], p.Name)); err == nil {
				t.Error("a damaged program was put in place")
			}
		})
	}
}

func TestUnpackGivesUpWithItsContext(t *testing.T) {
	set, p := packed(t, Runsc, []byte("x"))
	dir := t.TempDir()
	home := filepath.Join(dir, p.SHA256[:16])
	if err := os.MkdirAll(home, 0o700); err != nil {
		t.Fatal(err)
	}
	unlock, err := lock(t.Context(), filepath.Join(home, ".lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := Unpack(ctx, set, p, dir); !engi.Is(err, engi.Expired) {
		t.Errorf("error %v, want kind expired", err)
	}
}

func TestReadManifest(t *testing.T) {
	if _, err := ReadManifest(fstest.MapFS{}); !engi.Is(err, engi.NotFound) {
		t.Errorf("no manifest: %v, want kind not_found", err)
	}
	for _, bad := range []string{"", "{", `{"programs":[{"name":"../runsc","sha256":"` + strings.Repeat("0", 64) + `","size":1}]}`,
		`{"programs":[{"name":"runsc","sha256":"00","size":1}]}`} {
		if _, err := ReadManifest(fstest.MapFS{ManifestName: {Data: []byte(bad)}}); !engi.Is(err, engi.Internal) {
			t.Errorf("manifest %q: %v, want kind internal", bad, err)
		}
	}
}

func TestFindConfigured(t *testing.T) {
	dir := t.TempDir()
	plain := filepath.Join(dir, "plain")
	if err := os.WriteFile(plain, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Find(t.Context(), dir, Runsc, plain); !engi.Is(err, engi.Invalid) {
		t.Errorf("a file that cannot be run: %v, want kind invalid", err)
	}
	_, err := Find(t.Context(), dir, Runsc, filepath.Join(dir, "none"))
	if !engi.Is(err, engi.NotFound) || !strings.Contains(engi.RemedyOf(err), "make build") {
		t.Errorf("a missing file: %v (%s), want kind not_found and a remedy", err, engi.RemedyOf(err))
	}
	if err := os.Chmod(plain, 0o755); err != nil {
		t.Fatal(err)
	}
	got, err := Find(t.Context(), dir, Guest, plain)
	if err != nil || got.Path != plain || got.From != "configured" || len(got.Digest) != 64 {
		t.Errorf("got %+v, %v", got, err)
	}
}
