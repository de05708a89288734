package fleet_test

import (
	"context"
	"fmt"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/guest"
	"github.com/engi-dev/engi/guest/guestd"
	"github.com/engi-dev/engi/guest/wire"
)

func BenchmarkGuestAlone(b *testing.B) {
	var rests []time.Duration
	tm := base(b, "d")
	for i := 0; b.Loop(); i++ {
		b.StopTimer()
		s := guestd.New(guestd.Options{Root: b.TempDir(), Token: "secret", Twin: true})
		ctx, cancel := context.WithCancel(context.Background())
		c, err := guest.Open(b.Context(), func(context.Context) (net.Conn, error) {
			a, bb := net.Pipe()
			go s.Serve(ctx, bb)
			return a, nil
		}, "secret")
		if err != nil {
			b.Fatal(err)
		}
		if err := c.Setup(b.Context(), wire.Setup{}); err != nil {
			b.Fatal(err)
		}
		if err := c.Prepare(b.Context(), wire.Prepare{Language: engi.Bash, Interpreter: tm.Languages[engi.Bash].Path}); err != nil {
			b.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
		b.StartTimer()
		began := time.Now()
		r, err := c.Run(b.Context(), wire.Run{ID: fmt.Sprint("r", i), Language: engi.Bash, Interpreter: tm.Languages[engi.Bash].Path,
			Files: []wire.File{{Path: "main.sh", Data: []byte(":")}}, Timeout: 10 * time.Second})
		if err != nil {
			b.Fatal(err)
		}
		for _, err := range r.Output(b.Context(), 0) {
			if err != nil {
				b.Fatal(err)
			}
		}
		fin, err := r.Finish(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		rests = append(rests, time.Since(began)-fin.Duration)
		b.StopTimer()
		c.Close()
		cancel()
		s.Close()
		b.StartTimer()
	}
	slices.Sort(rests)
	b.ReportMetric(float64(rests[len(rests)/2].Microseconds()), "rest-p50-µs")
	b.ReportMetric(float64(rests[len(rests)*99/100].Microseconds()), "rest-p99-µs")
}
