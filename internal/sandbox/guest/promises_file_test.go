package guest_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

func (s suite) read(t *testing.T, path string) string {
	t.Helper()
	r, err := s.c.Open(t.Context(), path)
	ok(t, err)
	defer r.Close()
	b, err := io.ReadAll(r)
	ok(t, err)
	return string(b)
}

func (s suite) write(t *testing.T, path, content string) {
	t.Helper()
	ok(t, s.c.Write(t.Context(), path, strings.NewReader(content), engi.WriteOptions{}))
}

func (s suite) files(t *testing.T) {
	ctx := t.Context()
	s.write(t, "/tmp/f/a/b.txt", "hello")
	if got := s.read(t, "/tmp/f/a/b.txt"); got != "hello" {
		t.Errorf("read %q", got)
	}
	fi, err := s.c.Stat(ctx, "/tmp/f/a/b.txt")
	ok(t, err)
	if fi.Size != 5 || fi.Mode != 0o644 || fi.Path != "/tmp/f/a/b.txt" || time.Since(fi.Modified).Abs() > time.Hour || fi.Owner == "" {
		t.Errorf("stat: %+v", fi)
	}
	ok(t, s.c.Write(ctx, "/tmp/f/script", strings.NewReader("#!/bin/sh\necho ran\n"), engi.WriteOptions{Mode: 0o755}))
	if fi, err := s.c.Stat(ctx, "/tmp/f/script"); err != nil || fi.Mode.Perm() != 0o755 {
		t.Errorf("stat script: %+v, %v", fi, err)
	}
	ok(t, s.c.MakeDir(ctx, "/tmp/f/x/y/z"))
	wantKind(t, s.c.MakeDir(ctx, "/tmp/f/x/y/z"), engi.Conflict)
	ok(t, s.c.Move(ctx, "/tmp/f/a/b.txt", "/tmp/f/new/c.txt"))
	wantKind(t, s.c.Move(ctx, "/tmp/f/a/b.txt", "/tmp/f/d"), engi.NotFound)
	all, err := s.c.List(ctx, "/tmp/f", 3)
	ok(t, err)
	var paths []string
	for _, fi := range all {
		paths = append(paths, strings.TrimPrefix(fi.Path, "/tmp/f/"))
	}
	diff(t, "list", paths, []string{"a", "new", "new/c.txt", "script", "x", "x/y", "x/y/z"})
	if shallow, err := s.c.List(ctx, "/tmp/f", 0); err != nil || len(shallow) != 4 {
		t.Errorf("shallow list: %d entries, %v", len(shallow), err)
	}
	ok(t, s.c.Remove(ctx, "/tmp/f"))
	ok(t, s.c.Remove(ctx, "/tmp/f"))
	_, err = s.c.Stat(ctx, "/tmp/f")
	wantKind(t, err, engi.NotFound)
	_, err = s.c.Open(ctx, "/tmp/f")
	wantKind(t, err, engi.NotFound)
	_, err = s.c.Open(ctx, "/tmp")
	wantKind(t, err, engi.Invalid)
	_, err = s.c.List(ctx, "/nowhere", 1)
	wantKind(t, err, engi.NotFound)
	for _, p := range []string{"", "relative", "/a\x00b", "/" + strings.Repeat("x", 5000)} {
		wantKind(t, s.c.Write(ctx, p, strings.NewReader(""), engi.WriteOptions{}), engi.Invalid)
	}
	wantKind(t, s.c.Write(ctx, "/tmp", strings.NewReader(""), engi.WriteOptions{}), engi.Invalid)
	wantKind(t, s.c.Remove(ctx, "/"), engi.Denied)
}

func (s suite) atomic(t *testing.T) {
	s.write(t, "/tmp/at/f", "before")
	broken := io.MultiReader(strings.NewReader("half of"), iotest.ErrReader(errors.New("gone")))
	if err := s.c.Write(t.Context(), "/tmp/at/f", broken, engi.WriteOptions{}); err == nil {
		t.Error("a write whose source broke succeeded")
	}
	if got := s.read(t, "/tmp/at/f"); got != "before" {
		t.Errorf("the file is %q", got)
	}
	deadline := time.Now().Add(time.Minute)
	for {
		all, err := s.c.List(t.Context(), "/tmp/at", 1)
		ok(t, err)
		if len(all) == 1 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("left behind: %+v", all)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (s suite) large(t *testing.T) {
	const size = 16<<20 + 12345
	seed := rand.NewChaCha8([32]byte{1})
	data := make([]byte, size)
	seed.Read(data)
	ok(t, s.c.Write(t.Context(), "/tmp/large", bytes.NewReader(data), engi.WriteOptions{}))
	r, err := s.c.Open(t.Context(), "/tmp/large")
	ok(t, err)
	defer r.Close()
	h := sha256.New()
	n, err := io.Copy(h, r)
	ok(t, err)
	if n != size || [32]byte(h.Sum(nil)) != sha256.Sum256(data) {
		t.Errorf("%d bytes came back, or others", n)
	}
	ok(t, s.c.Remove(t.Context(), "/tmp/large"))
}

func (s suite) watch(t *testing.T) {
	ok(t, s.c.MakeDir(t.Context(), "/workspace/w/sub"))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	seen := make(chan engi.FileChange, 100)
	go func() {
		defer close(seen)
		for ch, err := range s.c.Watch(ctx, "/workspace/w", true) {
			if err != nil {
				return
			}
			seen <- ch
		}
	}()
	// Write files until the watch has begun.
	want := map[engi.FileChange]bool{{Path: "/workspace/w/sub/f", Op: engi.FileCreated}: true, {Path: "/workspace/w/new/g", Op: engi.FileCreated}: true, {Path: "/workspace/w/sub/f", Op: engi.FileRemoved}: true}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for len(want) > 0 {
		select {
		case ch, open := <-seen:
			if !open {
				t.Fatalf("the watch ended; not seen: %v", want)
			}
			delete(want, ch)
		case <-tick.C:
			s.sh(t, "cd $ENGI_OUTPUT_DIR && rm -rf w/sub/f w/new")
			s.sh(t, "cd $ENGI_OUTPUT_DIR && : > w/sub/f; mkdir -p w/new; : > w/new/g")
		}
	}
	for _, err := range s.c.Watch(t.Context(), "/nowhere", false) {
		wantKind(t, err, engi.NotFound)
		break
	}
}

func (s suite) pack(t *testing.T) {
	s.sh(t, "cd $ENGI_OUTPUT_DIR && mkdir -p p/d && echo one > p/d/f && chmod 600 p/d/f && ln -sf d/f p/l")
	r, err := s.c.Pack(t.Context(), "/workspace/p")
	ok(t, err)
	b, err := io.ReadAll(r)
	ok(t, err)
	r.Close()
	ok(t, s.c.Unpack(t.Context(), "/workspace/q", bytes.NewReader(b)))
	out, _ := s.sh(t, "cd $ENGI_OUTPUT_DIR && cat q/p/l; ls -l q/p/d | tail -1 | cut -c1-10; readlink q/p/l; rm -rf p q w")
	if out != "one\n-rw-------\nd/f\n" {
		t.Errorf("unpacked: %q", out)
	}
	_, err = s.c.Pack(t.Context(), "/nowhere")
	wantKind(t, err, engi.NotFound)
}

func (s suite) hostile(t *testing.T) {
	s.write(t, "/tmp/victim", "safe")
	file := func(name string) *tar.Header {
		return &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Uname: "evil"}
	}
	for name, archive := range map[string][]byte{
		"upwards":  tarOf(t, file("../victim")),
		"absolute": tarOf(t, file("/tmp/victim")),
		"deep":     tarOf(t, file("a/../../victim")),
		"through a link": tarOf(t, &tar.Header{Typeflag: tar.TypeSymlink, Name: "l", Linkname: "/tmp"},
			file("l/victim")),
		"hard link upwards": tarOf(t, &tar.Header{Typeflag: tar.TypeLink, Name: "h", Linkname: "../victim"}, file("h")),
		"device":            tarOf(t, &tar.Header{Typeflag: tar.TypeChar, Name: "dev", Devmajor: 1, Devminor: 3}),
		"no archive":        []byte(strings.Repeat("garbage", 1000)),
	} {
		if err := s.c.Unpack(t.Context(), "/tmp/h", bytes.NewReader(archive)); err == nil {
			t.Errorf("%s: no error", name)
		} else if k := engi.KindOf(err); k != engi.Invalid && k != engi.Conflict {
			t.Errorf("%s: %v of kind %v", name, err, k)
		}
		if got := s.read(t, "/tmp/victim"); got != "safe" {
			t.Fatalf("%s: the victim is %q", name, got)
		}
	}
	// A link may replace a file, and a file a link, without writing through it.
	ok(t, s.c.Unpack(t.Context(), "/tmp/h2", bytes.NewReader(tarOf(t,
		&tar.Header{Typeflag: tar.TypeSymlink, Name: "x", Linkname: "/tmp/victim"}, file("x")))))
	if got := s.read(t, "/tmp/victim"); got != "safe" {
		t.Errorf("the victim is %q", got)
	}
	if got := s.read(t, "/tmp/h2/x"); got != "evil" {
		t.Errorf("the file is %q", got)
	}
}
