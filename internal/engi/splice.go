package engi

import (
	"context"
	"io"
	"net"
	"sync"
	"time"
)

// lastWords is how long one direction of a splice may go on when the other has ended. Not
// every connection can tell its peer that only one has.
const lastWords = 2 * time.Second

// Splice copies between two connections until both directions have ended, or ctx has, and
// closes both. Once one direction has ended, the other has two seconds.
func Splice(ctx context.Context, a, b net.Conn) {
	closeBoth := func() {
		a.Close() // nobody waits any more for what fails now
		b.Close()
	}
	defer closeBoth()
	defer context.AfterFunc(ctx, closeBoth)()
	var both sync.WaitGroup
	ended := make(chan struct{}, 2)
	for _, way := range [][2]net.Conn{{a, b}, {b, a}} {
		both.Go(func() {
			_, _ = io.Copy(way[0], way[1]) // the other side sees the end, whatever its cause
			ended <- struct{}{}
		})
	}
	<-ended
	late := time.AfterFunc(lastWords, closeBoth)
	defer late.Stop()
	both.Wait()
}
