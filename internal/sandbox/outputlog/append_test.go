package outputlog

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/engi-dev/engi/internal/engi"
)

// TestContinue cuts the file at every byte: complete frames are kept, and
// appended output follows them.
func TestContinue(t *testing.T) {
	path := filepath.Join(t.TempDir(), "deep", "log")
	log, err := Continue(path)
	if err != nil {
		t.Fatal(err)
	}
	var want []byte
	ends := map[int64]int{0: 0} // bytes of output by bytes of frames
	for i := range 20 {
		line := fmt.Appendf(nil, "line %d %s\n", i, bytes.Repeat([]byte("x"), i*17))
		if err := log.Append(engi.Stdout, line); err != nil {
			t.Fatal(err)
		}
		want = append(want, line...)
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		ends[info.Size()] = len(want)
	}
	log.Close()
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	kept := 0
	for cut := range len(whole) + 1 {
		if n, ok := ends[int64(cut)]; ok {
			kept = n
		}
		if err := os.WriteFile(path, whole[:cut], 0o600); err != nil {
			t.Fatal(err)
		}
		log, err := Continue(path)
		if err != nil {
			t.Fatal(err)
		}
		if log.Len() != int64(kept) {
			t.Fatalf("cut at %d: %d bytes, want %d", cut, log.Len(), kept)
		}
		if err := log.Append(engi.Stderr, []byte("more")); err != nil {
			t.Fatal(err)
		}
		log.End()
		out, more, err := log.Split()
		if err != nil || !bytes.Equal(out, want[:kept]) || string(more) != "more" {
			t.Fatalf("cut at %d: %q and %q, %v", cut, out, more, err)
		}
		log.Close()
	}
}
