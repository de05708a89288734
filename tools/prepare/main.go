// Command prepare builds what "make up" needs, side by side: the programs, with
// the Makefile, and the first part of the template base, which waits for
// packages while the compiler works. It says how far it is and about how long
// it still takes.
//
// It knows no more than that: what a program or a template is made of is in the
// Makefile and in package disk, and whatever is up to date is left alone.
package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/disk"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	if len(os.Args) == 2 && os.Args[1] == "base" {
		err = base(ctx)
	} else {
		err = all(ctx)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "prepare:", err)
		os.Exit(1)
	}
}

// firstPart is the template that can be built without sandboxes.
const firstPart = "base-python"

// base builds the first part of base where engi will look for it, unless a
// configuration may say otherwise: then engi does it later.
func base(ctx context.Context) error {
	dataDir, cacheDir := or(os.Getenv("ENGI_DATA_DIR"), "/var/lib/engi"), or(os.Getenv("ENGI_CACHE_DIR"), "/var/cache/engi")
	for _, file := range []string{filepath.Join(dataDir, "config.toml"), "/etc/engi/config.toml"} {
		if _, err := os.Stat(file); err == nil {
			return nil
		}
	}
	configured := slices.ContainsFunc(os.Environ(), func(kv string) bool {
		return strings.HasPrefix(kv, "ENGI_CONFIG=") || strings.HasPrefix(kv, "ENGI_MIRRORS") || strings.HasPrefix(kv, "ENGI_TEMPLATES")
	})
	if os.Geteuid() != 0 || configured {
		return nil
	}
	if err := os.MkdirAll(cacheDir, 0o700); err != nil {
		return err
	}
	ts, err := disk.Open(ctx, disk.Options{Dir: filepath.Join(cacheDir, "templates")})
	if err != nil {
		return err
	}
	_, err = ts.Build(ctx, firstPart, nil, func(e engi.Progress) {
		if e.Step == 1 && e.Total > 0 && e.Log == "" {
			fmt.Printf("share %.3f\n", float64(e.Done)/float64(e.Total))
		}
	})
	return err
}

func or(s, otherwise string) string {
	if s != "" {
		return s
	}
	return otherwise
}

// A task is one of the things that are built at the same time.
type task struct {
	name string
	mu   sync.Mutex
	cost float64 // seconds of processor time, about; guarded by mu
	done float64 // of cost; guarded by mu
	over bool    // guarded by mu
}

func (t *task) set(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f()
}

// look returns the seconds there are and those done.
func (t *task) look() (cost, done float64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over {
		return t.cost, t.cost
	}
	return t.cost, min(t.done, 0.99*t.cost)
}

func all(ctx context.Context) error {
	programs, runsc, base := &task{name: "engi", cost: 170}, &task{name: "sandbox kernel", cost: 80}, &task{name: "template base, first part", cost: 30}
	tasks := []*task{programs, runsc, base}
	os.Setenv("GOFLAGS", strings.TrimSpace(os.Getenv("GOFLAGS")+" -v")) // name packages that are compiled
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	run := func(t *task, f func() error) {
		wg.Go(func() {
			defer t.set(func() { t.over = true })
			if err := f(); err != nil {
				cancel(err)
			}
		})
	}
	listed := make(chan map[string]float64, 1)
	half := make(chan struct{})
	run(programs, func() error {
		costs, err := costs(ctx, ".", "./cmd/engi", "./cmd/engi-guest", "./cmd/engi-js")
		listed <- costs
		if err != nil {
			return err
		}
		tell := sync.OnceFunc(func() { close(half) })
		defer tell()
		programs.set(func() { programs.cost = sum(costs) })
		return compile(ctx, programs, costs, "programs", func(share float64) {
			if share > 0.5 {
				tell()
			}
		})
	})
	run(runsc, func() error {
		costs, err := costs(ctx, "tools/runsc", ".")
		if err != nil {
			return err
		}
		// What both need is compiled once: the programs go ahead.
		for p := range <-listed {
			delete(costs, p)
		}
		runsc.set(func() { runsc.cost = sum(costs) })
		select {
		case <-half:
		case <-ctx.Done():
			return nil
		}
		return compile(ctx, runsc, costs, "runsc", func(float64) {})
	})
	run(base, func() error {
		self, err := os.Executable()
		if err != nil {
			return err
		}
		err = command(ctx, func(line string) {
			if share, ok := strings.CutPrefix(line, "share "); ok {
				f, _ := strconv.ParseFloat(share, 64)
				base.set(func() { base.done = base.cost * f })
			}
		}, ".ci/as-root", self, "base")
		if err != nil && ctx.Err() == nil {
			// Not the last word: engi tries again, and says what to do.
			fmt.Fprintf(os.Stderr, "prepare: the template base has to wait: %v\n", err)
		}
		return nil
	})
	finished := make(chan struct{})
	go func() {
		wg.Wait()
		close(finished)
	}()
	show(tasks, finished)
	return context.Cause(ctx)
}

// costs returns the packages that programs are made of, with about how many
// seconds of a processor each takes. Modules that are missing are fetched.
func costs(ctx context.Context, dir string, programs ...string) (map[string]float64, error) {
	cmd := exec.CommandContext(ctx, "go", append([]string{"list", "-deps", "-f", `{{.ImportPath}}|{{.Dir}}|{{range .GoFiles}}{{.}} {{end}}`}, programs...)...)
	cmd.Dir = dir
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list in %s: %v\n%s", dir, err, tail(errs.String()))
	}
	all := map[string]float64{}
	for line := range strings.Lines(string(out)) {
		f := strings.SplitN(strings.TrimSpace(line), "|", 3)
		if len(f) < 3 {
			continue
		}
		var size int64
		for name := range strings.FieldsSeq(f[2]) {
			if st, err := os.Stat(filepath.Join(f[1], name)); err == nil {
				size += st.Size()
			}
		}
		all[f[0]] = 0.04 + 3.3e-6*float64(size)
	}
	return all, nil
}

func sum(costs map[string]float64) (total float64) {
	for _, c := range costs {
		total += c
	}
	return total
}

// compile makes a target and counts the packages that the go command names.
func compile(ctx context.Context, t *task, costs map[string]float64, target string, share func(float64)) error {
	// The template mostly waits for others: what it needs of the processors, it
	// gets at once.
	return command(ctx, func(line string) {
		t.set(func() { t.done += costs[line] })
		delete(costs, line)
		cost, done := t.look()
		share(done / cost)
	}, "nice", "-n", "5", "make", "--no-print-directory", target)
}

// command runs a program to its end, or to that of ctx, and hands over its
// lines. If it fails, the error has the last of them.
func command(ctx context.Context, line func(string), name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 20 * time.Second
	r, w := io.Pipe()
	cmd.Stdout, cmd.Stderr = w, w
	read := make(chan string)
	go func() {
		var text strings.Builder
		for s := bufio.NewScanner(r); s.Scan(); {
			line(s.Text())
			fmt.Fprintln(&text, s.Text())
		}
		io.Copy(io.Discard, r)
		read <- text.String()
	}()
	err := cmd.Run()
	w.Close()
	text := <-read
	if err != nil {
		return fmt.Errorf("%s: %v\n%s", strings.Join(append([]string{filepath.Base(name)}, args...), " "), err, tail(text))
	}
	return nil
}

// tail returns the last lines of a text.
func tail(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-20):], "\n")
}

// left says how long all tasks take together, by their pace so far.
func left(tasks []*task, elapsed time.Duration) string {
	var cost, done float64
	for _, t := range tasks {
		c, d := t.look()
		cost, done = cost+c, done+d
	}
	pace := 1.7 // seconds of processors per second, before anything is known
	if elapsed > 10*time.Second && done > 0 {
		pace = done / elapsed.Seconds()
	}
	return fmt.Sprintf("about %v left", time.Duration((cost-done)/pace*float64(time.Second)).Round(time.Second))
}

// patience is how long nothing is shown: nobody wants bars that are full at
// once.
const patience = 2 * time.Second

// show tells how far the tasks are until finished is closed: with bars on a
// terminal, else in a line now and then.
func show(tasks []*task, finished <-chan struct{}) {
	began := time.Now()
	select {
	case <-finished:
		return
	case <-time.After(patience):
	}
	var bars []*mpb.Bar
	every := 15 * time.Second
	var p *mpb.Progress
	terminal := isTerminal(os.Stderr)
	if terminal {
		every = 200 * time.Millisecond
		p = mpb.New(mpb.WithOutput(os.Stderr), mpb.WithWidth(40))
		for _, t := range tasks {
			bars = append(bars, p.New(1000, mpb.BarStyle().Rbound("]"), mpb.PrependDecorators(decor.Name(fmt.Sprintf("%-26s", t.name))), mpb.AppendDecorators(decor.Percentage())))
		}
		bars = append(bars, p.New(1, mpb.NopStyle(), mpb.PrependDecorators(decor.Any(func(decor.Statistics) string {
			return left(tasks, time.Since(began))
		}))))
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		var parts []string
		for i, t := range tasks {
			cost, done := t.look()
			if terminal {
				bars[i].SetCurrent(int64(1000 * done / cost))
			}
			parts = append(parts, fmt.Sprintf("%s %d %%", t.name, int(100*done/cost)))
		}
		if !terminal {
			fmt.Fprintf(os.Stderr, "[%v] %s: %s\n", time.Since(began).Round(time.Second), strings.Join(parts, ", "), left(tasks, time.Since(began)))
		}
		select {
		case <-finished:
			if terminal {
				for i, b := range bars {
					if i < len(tasks) {
						b.SetTotal(-1, true)
					} else {
						b.Abort(true)
					}
				}
				p.Wait()
			}
			fmt.Fprintf(os.Stderr, "built in %v\n", time.Since(began).Round(time.Second))
			return
		case <-tick.C:
		}
	}
}

func isTerminal(f *os.File) bool {
	st, err := f.Stat()
	return err == nil && st.Mode()&os.ModeCharDevice != 0 && !errors.Is(err, os.ErrClosed) && os.Getenv("TERM") != "dumb"
}
