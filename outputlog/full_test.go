package outputlog

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/engi-dev/engi"
)

// TestFullDiskLeavesWholeFrames has a write fail after a part of its frame has
// reached the file, as on a full disk.
func TestFullDiskLeavesCompleteFrames(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tape")
	tp := New(path)
	data := bytes.Repeat([]byte("x"), Inline)
	for range 3 {
		if err := tp.Append(engi.Stdout, data); err != nil {
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
	writable := tp.file
	if tp.file, err = os.Open(path); err != nil {
		t.Fatal(err)
	}
	writable.Close()
	if err := tp.Append(engi.Stdout, data); engi.KindOf(err) != engi.Exhausted {
		t.Fatalf("a failing write: %v, want exhausted", err)
	}
	tp.End()
	tp.Close()

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
