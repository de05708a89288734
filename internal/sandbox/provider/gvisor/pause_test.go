package gvisor_test

import (
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/provider"
)

// TestPauseOften pauses a machine repeatedly while its programs map memory and
// fork, when the kernel is most sensitive to interrupted system calls.
func TestPauseOften(t *testing.T) {
	b := boot(t, nil)
	if _, err := b.c.Start(t.Context(), engi.Command{Args: []string{"python3", "-c", `
import mmap, time
while True:
    m = mmap.mmap(-1, 1 << 20)
    m[0] = 1
    m.close()
    time.sleep(0.002)
`}, Dir: "/", User: "root"}); err != nil {
		t.Fatal(err)
	}
	for i := range 60 {
		if err := provider.Pause(t.Context(), b.m); err != nil {
			t.Fatalf("round %d: %v", i, err)
		}
		time.Sleep(5 * time.Millisecond)
		if err := provider.Resume(t.Context(), b.m); err != nil {
			t.Fatalf("round %d: %v", i, err)
		}
		if out, exit := b.sh("/bin/true & /bin/true & wait; exit 7"); exit.Code != 7 {
			t.Fatalf("round %d: %+v: %s", i, exit, out)
		}
	}
}
