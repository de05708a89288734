package blob_test

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/disk/blob"
	"github.com/engi-dev/engi/test/env"
)

// TestDir checks the contract of engi.Blobs for a directory.
func TestDir(t *testing.T) { promises(t, filepath.Join(t.TempDir(), "blobs")) }

func TestBucket(t *testing.T) {
	env.Slow(t)
	at, objects := env.S3(t)
	promises(t, at)
	if found, err := filepath.Glob(filepath.Join(objects, "some/prefix/*")); err != nil || len(found) == 0 {
		t.Errorf("the objects are not in the bucket below the prefix: %q, %v", found, err)
	}
	t.Setenv("AWS_SECRET_ACCESS_KEY", "wrong")
	b, err := blob.Open(at)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Put(t.Context(), "a", nil); !engi.Is(err, engi.Unavailable) || !strings.Contains(engi.RemedyOf(err), "AWS_SECRET_ACCESS_KEY") {
		t.Errorf("wrong credentials: %v, remedy %q", err, engi.RemedyOf(err))
	}
}

func promises(t *testing.T, at string) {
	t.Helper()
	if err := blob.Check(at); err != nil {
		t.Fatal(err)
	}
	b, err := blob.Open(at)
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	list := func(prefix string) map[string]int64 {
		t.Helper()
		all := map[string]int64{}
		for x, err := range b.List(ctx, prefix) {
			if err != nil {
				t.Fatal(err)
			}
			all[x.Name] = x.Size
		}
		return all
	}
	if got := list("w/"); len(got) != 0 {
		t.Errorf("nothing was stored, and there is %v", got)
	}
	if _, err := b.Get(ctx, "w/a/1", 10); !engi.Is(err, engi.NotFound) {
		t.Errorf("what is not there: %v", err)
	}
	if err := b.Remove(ctx, "w/a/1"); err != nil {
		t.Errorf("removing what is not there: %v", err)
	}
	large := bytes.Repeat([]byte("0123456789abcdef"), 9<<16) // 9 MiB
	content := map[string][]byte{"w/a/1": []byte("one"), "w/a/2": {}, "w/a/packs/3": large, "w/ab": []byte("x"), "v/1": []byte("y")}
	for name, data := range content {
		if err := b.Put(ctx, name, data); err != nil {
			t.Fatal(err)
		}
	}
	for name, data := range content {
		if got, err := b.Get(ctx, name, int64(len(data))); err != nil || !bytes.Equal(got, data) {
			t.Errorf("%s: %d bytes, want %d, %v", name, len(got), len(data), err)
		}
	}
	if _, err := b.Get(ctx, "w/a/1", 2); !engi.Is(err, engi.Conflict) {
		t.Errorf("more than the limit: %v", err)
	}
	if got, want := list("w/a/"), (map[string]int64{"w/a/1": 3, "w/a/2": 0, "w/a/packs/3": int64(len(large))}); !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if err := b.Put(ctx, "w/a/1", []byte("another")); err != nil {
		t.Fatal(err)
	}
	if got, err := b.Get(ctx, "w/a/1", 100); err != nil || string(got) != "another" {
		t.Errorf("%q, %v", got, err)
	}
	for range 2 {
		if err := b.Remove(ctx, "w/a/1"); err != nil {
			t.Error(err)
		}
	}
	if got := list("w/a/"); len(got) != 2 {
		t.Errorf("after removing one: %v", got)
	}
	for i := range 1100 { // more than a page of S3
		if err := b.Put(ctx, fmt.Sprintf("many/%d", i), []byte{1}); err != nil {
			t.Fatal(err)
		}
	}
	if got := list("many/"); len(got) != 1100 {
		t.Errorf("%d of 1100", len(got))
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	for _, err := range b.List(ended, "many/") {
		if !engi.Is(err, engi.Expired) {
			t.Errorf("after the end: %v", err)
		}
	}
}

// TestIncompleteFiles checks that files left by a kill are not listed, and are removed.
func TestIncompleteFiles(t *testing.T) {
	dir := t.TempDir()
	b, err := blob.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	left := filepath.Join(dir, "w", ".new-123")
	if err := b.Put(t.Context(), "w/a", []byte("a")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(left, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	count := func() (n int) {
		for _, err := range b.List(t.Context(), "w/") {
			if err != nil {
				t.Fatal(err)
			}
			n++
		}
		return n
	}
	if n := count(); n != 1 {
		t.Errorf("%d are listed, want 1", n)
	}
	if _, err := os.Stat(left); err != nil {
		t.Errorf("somebody may be writing it: %v", err)
	}
	old := time.Now().Add(-2 * time.Hour)
	if err := os.Chtimes(left, old, old); err != nil {
		t.Fatal(err)
	}
	count()
	if _, err := os.Stat(left); err == nil {
		t.Error("it is still there")
	}
	for _, name := range []string{"../x", "/x", "a/../../x", "", ".new-x"} {
		if err := b.Put(t.Context(), name, nil); !engi.Is(err, engi.Invalid) {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestPlaces(t *testing.T) {
	for _, at := range []string{"", "/var/lib/x", "s3://s3.example.com/bucket", "s3+http://127.0.0.1:9000/bucket/some/prefix?region=eu-1"} {
		if err := blob.Check(at); err != nil {
			t.Errorf("%s: %v", at, err)
		}
	}
	for _, at := range []string{"relative", "s3://host", "s3:///bucket", "s3://u:p@host/bucket", "https://host/bucket", "s3://host/B", "s3://%zz/b"} {
		if err := blob.Check(at); !engi.Is(err, engi.Invalid) || engi.RemedyOf(err) == "" || strings.Contains(err.Error(), "u:p") {
			t.Errorf("%s: %v", at, err)
		}
	}
	t.Setenv("AWS_ACCESS_KEY_ID", "")
	if _, err := blob.Open("s3://s3.example.com/bucket"); !engi.Is(err, engi.Invalid) || !strings.Contains(engi.RemedyOf(err), "AWS_ACCESS_KEY_ID") {
		t.Errorf("without credentials: %v", err)
	}
}
