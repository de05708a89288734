package guestd

import (
	"bytes"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/guest/guestd/child"
)

// TestWhatWasWrittenIsRead makes a pump hold the last output, which is neither in
// the pipe any more nor in the log yet, while a background process keeps the pipe
// open and the limit of the wait passes: a slow reader delays the pump
// here, and the scheduler of a busy host in practice.
func TestWhatWasWrittenIsRead(t *testing.T) {
	const keep = 64 << 10
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p := &proc{log: child.NewLog(keep, 1<<20), stop: make(chan struct{}), drained: make(chan struct{})}
	p.output = []stream{{engi.Stdout, r}}
	slow, err := p.log.Read(0)
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()
	var pumping sync.WaitGroup
	pumping.Go(func() { pump(p, p.output[0]) })
	if _, err := w.Write(append(bytes.Repeat([]byte("x"), keep), "last"...)); err != nil {
		t.Fatal(err)
	}
	for p.unread() > 0 {
		time.Sleep(time.Millisecond)
	}
	pumping.Go(func() {
		time.Sleep(20 * time.Millisecond)
		for {
			if _, data, err := slow.Next(t.Context()); data == nil || err != nil {
				return
			}
		}
	})
	if p.waitDrained(5 * time.Millisecond) {
		t.Error("the pipe is open, but said to be drained")
	}
	p.log.Close()
	if n, _ := p.log.Accepted(engi.Stdout); n != keep+4 {
		t.Errorf("%d of %d bytes were read", n, keep+4)
	}
	w.Close()
	close(p.stop)
	pumping.Wait()
}
