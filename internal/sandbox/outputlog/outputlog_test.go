package outputlog

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/engi-dev/engi/internal/engi"
	_ "github.com/engi-dev/engi/test/seed" // fixes the seed of rapid
)

// readAll reads from an offset to the end.
func readAll(t interface{ Fatal(...any) }, log *Log, from int64) (all []byte, streams map[engi.Stream][]byte) {
	r := log.Read(from)
	defer r.Close()
	streams = map[engi.Stream][]byte{}
	at := from
	for {
		c, err := r.Next(context.Background())
		if errors.Is(err, io.EOF) {
			return all, streams
		}
		if err != nil {
			t.Fatal(err)
		}
		if c.Offset != at {
			t.Fatal("offset", c.Offset, "want", at)
		}
		at += int64(len(c.Data))
		all = append(all, c.Data...)
		streams[c.Stream] = append(streams[c.Stream], c.Data...)
	}
}

// TestReadersGetWhatWasWritten writes random pieces and reads from random
// offsets, while the log grows, after its end, and after it was stored.
func TestReadersGetWhatWasWritten(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		path := filepath.Join(dir, "output")
		os.Remove(path)
		log := New(path)
		var all, out, errs []byte
		var pieces [][]byte
		var kinds []engi.Stream
		for range rapid.IntRange(0, 40).Draw(t, "pieces") {
			size := rapid.SampledFrom([]int{1, 2, 100, 5000, 70_000}).Draw(t, "size")
			piece := bytes.Repeat([]byte{byte(rapid.IntRange(0, 255).Draw(t, "byte"))}, size)
			kind := engi.Stdout
			if rapid.Bool().Draw(t, "stderr") {
				kind = engi.Stderr
				errs = append(errs, piece...)
			} else {
				out = append(out, piece...)
			}
			all = append(all, piece...)
			pieces, kinds = append(pieces, piece), append(kinds, kind)
		}
		from := int64(rapid.IntRange(0, len(all)).Draw(t, "from"))
		var live []byte
		var wg sync.WaitGroup
		reader := log.Read(from)
		wg.Go(func() {
			defer reader.Close()
			for {
				c, err := reader.Next(context.Background())
				if err != nil {
					return
				}
				live = append(live, c.Data...)
			}
		})
		for i, p := range pieces {
			if err := log.Append(kinds[i], p); err != nil {
				t.Fatal(err)
			}
		}
		if got := log.Len(); got != int64(len(all)) {
			t.Fatalf("Len %d, want %d", got, len(all))
		}
		log.End()
		wg.Wait()
		if !bytes.Equal(live, all[from:]) {
			t.Fatalf("live reader from %d got %d bytes, want %d", from, len(live), len(all)-int(from))
		}
		stored := log
		if frames, short := log.Frames(); short {
			stored = Load(frames)
		} else {
			var err error
			if stored, err = Open(path); err != nil {
				t.Fatal(err)
			}
		}
		defer stored.Close()
		for _, x := range []*Log{log, stored} {
			got, streams := readAll(t, x, from)
			if !bytes.Equal(got, all[from:]) {
				t.Fatalf("from %d: %d bytes, want %d", from, len(got), len(all)-int(from))
			}
			if from == 0 && (!bytes.Equal(streams[engi.Stdout], out) || !bytes.Equal(streams[engi.Stderr], errs)) {
				t.Fatal("streams are mixed up")
			}
		}
		o, e, err := stored.Split()
		if err != nil || !bytes.Equal(o, out) || !bytes.Equal(e, errs) {
			t.Fatalf("Split: %d and %d bytes, %v; want %d and %d", len(o), len(e), err, len(out), len(errs))
		}
		log.Close()
		if r := log.Read(0); r != nil {
			t.Fatal("Read after Close gave a reader")
		}
	})
}

func TestSlowReaderHoldsNobodyUp(t *testing.T) {
	log := New(filepath.Join(t.TempDir(), "output"))
	slow := log.Read(0) // this reader never reads
	defer slow.Close()
	for range 100 {
		if err := log.Append(engi.Stdout, make([]byte, 10_000)); err != nil {
			t.Fatal(err)
		}
	}
	log.End()
	log.Close()
	n := 0
	for {
		c, err := slow.Next(t.Context())
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		n += len(c.Data)
	}
	if n != 1_000_000 {
		t.Errorf("%d bytes", n)
	}
}

func TestReaderEndsWithItsContext(t *testing.T) {
	log := New(filepath.Join(t.TempDir(), "output"))
	r := log.Read(0)
	defer r.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.Next(ctx); !engi.Is(err, engi.Expired) {
		t.Errorf("%v, want kind expired", err)
	}
}

func TestOffsetBehindTheEnd(t *testing.T) {
	log := New(filepath.Join(t.TempDir(), "output"))
	if err := log.Append(engi.Stdout, []byte("abc")); err != nil {
		t.Fatal(err)
	}
	log.End()
	for from, want := range map[int64]error{3: io.EOF, 4: nil} {
		_, err := log.Read(from).Next(t.Context())
		if want != nil && err != want || want == nil && !engi.Is(err, engi.Invalid) {
			t.Errorf("from %d: %v", from, err)
		}
	}
}

func TestFailReachesReadersAfterTheData(t *testing.T) {
	log := New(filepath.Join(t.TempDir(), "output"))
	if err := log.Append(engi.Stderr, []byte("abc")); err != nil {
		t.Fatal(err)
	}
	sad := engi.Errorf(engi.Unavailable, "sad")
	log.Fail(sad)
	r := log.Read(0)
	defer r.Close()
	if c, err := r.Next(t.Context()); err != nil || string(c.Data) != "abc" || c.Stream != engi.Stderr {
		t.Errorf("%q %v", c.Data, err)
	}
	if _, err := r.Next(t.Context()); err != error(sad) {
		t.Errorf("%v, want %v", err, sad)
	}
}

func TestFullDiskIsAnError(t *testing.T) {
	log := New(filepath.Join("/dev/null", "output"))
	err := log.Append(engi.Stdout, make([]byte, Inline+1))
	if !engi.Is(err, engi.Exhausted) {
		t.Errorf("%v, want kind exhausted", err)
	}
	if err := log.Append(engi.Stdout, []byte("x")); !engi.Is(err, engi.Exhausted) {
		t.Errorf("second: %v, want kind exhausted", err)
	}
}

// FuzzLoad reads damaged logs: any bytes may be in a file after a crash.
func FuzzLoad(f *testing.F) {
	f.Add([]byte{6, 'a', 'b', 'c', 3, 'x'}, int64(0))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1}, int64(0))
	f.Add([]byte{200}, int64(1))
	f.Add([]byte{0, 0, 0}, int64(0))
	f.Fuzz(func(t *testing.T, frames []byte, from int64) {
		if from < 0 {
			return
		}
		path := filepath.Join(t.TempDir(), "output")
		if err := os.WriteFile(path, frames, 0o600); err != nil {
			t.Fatal(err)
		}
		inFile, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, log := range []*Log{Load(frames), inFile} {
			r := log.Read(from)
			read := 0
			for {
				c, err := r.Next(context.Background())
				if err != nil {
					break
				}
				if read += len(c.Data); read > len(frames) || len(c.Data) == 0 {
					t.Fatalf("%d bytes out of %d", read, len(frames))
				}
			}
			r.Close()
			log.Close()
		}
	})
}

// TestFullDiskLeavesCompleteFrames: a write fails after a part of its frame has
// reached the file, as on a full disk.
func TestFullDiskLeavesCompleteFrames(t *testing.T) {
	path := filepath.Join(t.TempDir(), "output")
	log := New(path)
	data := bytes.Repeat([]byte("x"), Inline)
	for range 3 {
		if err := log.Append(engi.Stdout, data); err != nil {
			t.Fatal(err)
		}
	}
	part, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := part.Write([]byte{0x80, 0x80, 1, 'x', 'x'}); err != nil {
		t.Fatal(err)
	}
	part.Close()
	writable := log.file
	if log.file, err = os.Open(path); err != nil {
		t.Fatal(err)
	}
	writable.Close()
	if err := log.Append(engi.Stdout, data); !engi.Is(err, engi.Exhausted) {
		t.Fatalf("a failing write: %v, want exhausted", err)
	}
	log.End()
	log.Close()

	again, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	out, _, err := again.Split()
	if err != nil || !bytes.Equal(out, bytes.Repeat(data, 3)) {
		t.Errorf("%d bytes, %v; want %d", len(out), err, 3*len(data))
	}
}
