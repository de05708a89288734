package guest_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/guest/wire"
)

// BenchmarkRunWarm measures a run from the request to its finish, in a waiting
// interpreter inside gVisor. It does not count the start of the interpreter, which
// pools do in advance.
func BenchmarkRunWarm(b *testing.B) {
	for _, l := range []struct {
		language    engi.Language
		interpreter string
		code        string
	}{
		{engi.Python, "/usr/bin/python3", "print(1)\n"},
		{engi.JavaScript, "/usr/bin/node", "console.log(1)\n"},
		{engi.TypeScript, "/opt/deno", "const x: number = 1; console.log(x)\n"},
		{engi.Bash, "/usr/bin/bash", "echo 1\n"},
	} {
		b.Run(string(l.language), func(b *testing.B) {
			sb := boot(b)
			c := sb.open()
			must(b, c.Setup(b.Context(), inside))
			if err := c.Prepare(b.Context(), wire.Prepare{Language: l.language, Interpreter: l.interpreter}); err != nil {
				b.Skip(err)
			}
			var times []time.Duration
			b.ResetTimer()
			for i := range b.N {
				b.StopTimer()
				if i > 0 {
					must(b, c.Prepare(b.Context(), wire.Prepare{Language: l.language, Interpreter: l.interpreter}))
				}
				time.Sleep(20 * time.Millisecond)
				b.StartTimer()
				begin := time.Now()
				r, err := c.Run(b.Context(), wire.Run{ID: fmt.Sprint("r", i), Language: l.language, Interpreter: l.interpreter,
					Files: []wire.File{{Path: wire.Entry(l.language), Data: []byte(l.code)}}, Timeout: 10 * time.Second})
				must(b, err)
				out := ""
				for chunk, err := range r.Output(b.Context(), 0) {
					must(b, err)
					out += string(chunk.Data)
				}
				fin, err := r.Finish(b.Context())
				must(b, err)
				times = append(times, time.Since(begin))
				if out != "1\n" || fin.Exit.Code != 0 || !fin.Warm {
					b.Fatalf("got %q, %+v", out, fin)
				}
			}
			p50(b, times)
		})
	}
}

func p50(b *testing.B, times []time.Duration) {
	slices.Sort(times)
	b.ReportMetric(float64(times[len(times)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(times[len(times)/10].Microseconds())/1000, "p10-ms")
	b.ReportMetric(float64(times[len(times)*99/100].Microseconds())/1000, "p99-ms")
}

// BenchmarkHello measures one round trip to a guest in gVisor.
func BenchmarkHello(b *testing.B) {
	c := boot(b).open()
	var times []time.Duration
	for b.Loop() {
		begin := time.Now()
		_, err := c.Usage(b.Context())
		must(b, err)
		times = append(times, time.Since(begin))
	}
	p50(b, times)
}

// BenchmarkStart measures a process from the request to its exit.
func BenchmarkStart(b *testing.B) {
	c := boot(b).open()
	must(b, c.Setup(b.Context(), inside))
	var times []time.Duration
	for b.Loop() {
		begin := time.Now()
		p, err := c.Start(b.Context(), engi.Command{Args: []string{"/bin/true"}})
		must(b, err)
		_, err = p.Wait(b.Context())
		must(b, err)
		times = append(times, time.Since(begin))
	}
	p50(b, times)
}

// BenchmarkRunFirst measures the first run of a fresh sandbox, which for one from
// a pool is the only one.
func BenchmarkRunFirst(b *testing.B) {
	for l, path := range map[engi.Language]string{engi.Python: "/usr/bin/python3", engi.Bash: "/usr/bin/bash"} {
		code := map[engi.Language]string{engi.Python: "print(1)\n", engi.Bash: "echo 1\n"}[l]
		b.Run(string(l), func(b *testing.B) {
			var times []time.Duration
			for b.Loop() {
				b.StopTimer()
				sb := boot(b)
				c := sb.open()
				must(b, c.Setup(b.Context(), inside))
				must(b, c.Prepare(b.Context(), wire.Prepare{Language: l, Interpreter: path}))
				time.Sleep(2 * time.Second) // sandboxes in a pool have waited for a while
				b.StartTimer()
				begin := time.Now()
				r, err := c.Run(b.Context(), wire.Run{ID: "first", Language: l, Interpreter: path,
					Files: []wire.File{{Path: wire.Entry(l), Data: []byte(code)}}, Timeout: 10 * time.Second})
				must(b, err)
				fin, err := r.Finish(b.Context())
				must(b, err)
				times = append(times, time.Since(begin))
				b.StopTimer()
				if fin.Exit.Code != 0 || !fin.Warm {
					b.Fatalf("got %+v", fin)
				}
				c.Close()
				sb.close()
				b.StartTimer()
			}
			p50(b, times)
		})
	}
}
