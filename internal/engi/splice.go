package engi

import (
	"context"
	"io"
	"net"
	"sync"
	"time"
)

// lastWords is the time that one direction of a splice may continue after the other has ended. Not
// every connection can signal the end of one direction only.
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
