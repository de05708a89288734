package bench

import (
	"context"
	"crypto/rand"
	"io"
	"runtime"
	"strconv"
	"strings"
	"time"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/client"
)

// A Live is the result of the benchmark of sandboxes. Times are those of whole requests
// over HTTP, by operation.
type Live struct {
	Bench    string             `json:"bench"`
	Template string             `json:"template"`
	Times    map[string]Sampled `json:"times"`
	Rates    map[string]Moved   `json:"rates"`
	Host     Host               `json:"host"`
}

// Sampled holds the times of one operation.
type Sampled struct {
	N        int    `json:"n"`
	Ms       Millis `json:"ms"`
	Failures int    `json:"failures"`
	Failure  string `json:"failure,omitempty"`
}

// Moved is the throughput of transfers.
type Moved struct {
	MiB          float64 `json:"mib"`            // size of each file
	MiBPerSecond float64 `json:"mib_per_second"` // throughput at the median time
	N            int     `json:"n"`
	Failures     int     `json:"failures"`
	Failure      string  `json:"failure,omitempty"`
}

// Operations in the order in which they are measured.
var (
	Acts  = []string{"create", "start /bin/true", startInside, "list files", "pause", "unpause", "hibernate", "resume", "snapshot", "create from snapshot", "fork", "stop"}
	Moves = []string{"upload", "download"}
)

// Sandboxes measures sandboxes of a template: n samples of each operation, and files
// of size bytes.
func Sandboxes(ctx context.Context, c *client.Client, template string, n int, size int64) Live {
	l := Live{Bench: "sandbox", Template: template, Times: map[string]Sampled{}, Rates: map[string]Moved{}}
	samples := map[string][]time.Duration{}
	timed := func(act string, f func() error) bool {
		began := time.Now()
		err := f()
		took := time.Since(began)
		s := l.Times[act]
		if s.N++; err != nil {
			if s.Failures++; s.Failure == "" {
				s.Failure = err.Error()
			}
		} else {
			samples[act] = append(samples[act], took)
		}
		l.Times[act] = s
		return err == nil
	}
	create := func(act string, q v1.SandboxRequest) (id string) {
		timed(act, func() error {
			b, err := c.CreateSandbox(ctx, q)
			id = b.ID
			return err
		})
		return id
	}
	stop := func(id string) {
		if id != "" {
			timed("stop", func() error { return c.StopSandbox(ctx, id) })
		}
	}
	plain := v1.SandboxRequest{Template: template, Disk: v1.Bytes(max(1<<30, 3*size)), Lifetime: v1.Lifetime{Timeout: v1.Duration(time.Hour)}}
	warm := v1.SandboxRequest{Template: template, Lifetime: plain.Lifetime}
	for range n {
		if ctx.Err() != nil {
			break
		}
		stop(create("create", warm))
		time.Sleep(300 * time.Millisecond) // wait until the pool is full again
	}

	sandbox := create("create, other size", plain)
	if sandbox == "" {
		return l
	}
	defer stop(sandbox)
	for i := range 4 * n {
		q := v1.ProcessRequest{Args: []string{"/bin/true"}}
		if i < n/4+1 { // the first ones load the program's pages
			_, _ = c.Exec(ctx, sandbox, q)
			continue
		}
		timed("start /bin/true", func() error { _, err := c.Exec(ctx, sandbox, q); return err })
	}
	if took := startInSandbox(ctx, c, sandbox, 4*n); len(took) > 0 {
		l.Times[startInside], samples[startInside] = Sampled{N: len(took)}, took
	}
	for range n {
		timed("list files", func() error { _, err := c.Files(sandbox).List(ctx, "/etc", 1); return err })
	}
	// An idle Python, so that the sandbox has something to freeze.
	idle := create("create", warm)
	if _, err := c.StartProcess(ctx, idle, v1.ProcessRequest{Args: []string{"python3", "-c", "import time; print(1, flush=True); time.sleep(1e6)"}, Detach: true}); err != nil {
		_, _ = c.StartProcess(ctx, idle, v1.ProcessRequest{Args: []string{"sleep", "1000000"}, Detach: true})
	}
	time.Sleep(500 * time.Millisecond)
	for range n {
		timed("pause", func() error { _, err := c.PauseSandbox(ctx, idle); return err })
		timed("unpause", func() error { _, err := c.ResumeSandbox(ctx, idle, v1.ResumeRequest{}); return err })
		if !timed("hibernate", func() error { _, err := c.HibernateSandbox(ctx, idle, false); return err }) {
			break
		}
		timed("resume", func() error { _, err := c.ResumeSandbox(ctx, idle, v1.ResumeRequest{}); return err })
	}
	for range max(1, n/2) {
		var snap v1.Snapshot
		if timed("snapshot", func() (err error) { snap, err = c.SnapshotSandbox(ctx, idle, v1.SnapshotRequest{}); return err }) {
			stop(create("create from snapshot", v1.SandboxRequest{Snapshot: snap.ID, Lifetime: plain.Lifetime}))
			_ = c.RemoveSnapshot(ctx, snap.ID)
		}
		timed("fork", func() error {
			forks, err := c.ForkSandbox(ctx, idle, v1.ForkRequest{})
			for _, f := range forks {
				if f.Error != nil {
					return &client.Error{Problem: *f.Error}
				}
				_ = c.StopSandbox(ctx, f.Sandbox.ID)
			}
			return err
		})
	}
	stop(idle)

	l.move(ctx, c.Files(sandbox), max(3, n/4), size)
	for act, s := range l.Times {
		s.Ms = Summarize(samples[act])
		l.Times[act] = s
	}
	return l
}

// startInside is the name of the time that the sandbox's kernel needs to start a program, which
// is a lower bound for a start from the host.
const startInside = "start /bin/true from within"

// startInSandbox starts /bin/true from a program in the sandbox and returns the time of
// each start; nothing if there is no Python.
func startInSandbox(ctx context.Context, c *client.Client, sandbox string, n int) (all []time.Duration) {
	r, err := c.Exec(ctx, sandbox, v1.ProcessRequest{Args: []string{"python3", "-c", `
import os, sys, time
for i in range(int(sys.argv[1]) + 5):
    began = time.perf_counter_ns()
    os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)
    if i >= 5:
        print(time.perf_counter_ns() - began)
`, strconv.Itoa(n)}})
	if err != nil || r.Exit.ExitCode != 0 {
		return nil
	}
	for line := range strings.Lines(r.Stdout) {
		ns, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64)
		if err != nil {
			return nil
		}
		all = append(all, time.Duration(ns))
	}
	return all
}

// move uploads and downloads a file of random bytes.
func (l *Live) move(ctx context.Context, files *client.Files, n int, size int64) {
	block := make([]byte, 1<<20)
	_, _ = rand.Read(block) // never fails
	samples := map[string][]time.Duration{}
	timed := func(act string, f func() error) {
		m := l.Rates[act]
		m.MiB = float64(size) / (1 << 20)
		began := time.Now()
		err := f()
		took := time.Since(began)
		if m.N++; err != nil {
			if m.Failures++; m.Failure == "" {
				m.Failure = err.Error()
			}
		} else {
			samples[act] = append(samples[act], took)
		}
		l.Rates[act] = m
	}
	for range n {
		runtime.GC()
		timed("upload", func() error {
			_, err := files.Write(ctx, "/workspace/moved", io.LimitReader(&again{block: block}, size), client.WithSize(size))
			return err
		})
		timed("download", func() error {
			f, err := files.Open(ctx, "/workspace/moved")
			if err != nil {
				return err
			}
			defer f.Close()
			_, err = io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{f}, make([]byte, 256<<10))
			return err
		})
	}
	for act, s := range samples {
		m := l.Rates[act]
		if ms := Summarize(s).P50; ms > 0 {
			m.MiBPerSecond = m.MiB / ms * 1000
		}
		l.Rates[act] = m
	}
}

// An again repeats a block of bytes without end.
type again struct {
	block []byte
	at    int
}

func (a *again) Read(p []byte) (int, error) {
	n := copy(p, a.block[a.at:])
	a.at = (a.at + n) % len(a.block)
	return n, nil
}
