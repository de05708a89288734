package gvisor_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/guest"
	"github.com/engi-dev/engi/internal/sandbox/provider"
)

var benchSize = engi.Size{VCPUs: 1, Memory: 256 << 20, Disk: 256 << 20, Inodes: 10000, Processes: 100, OpenFiles: 1024}

// bench returns a provider, and specs with a minimal root.
func bench(b *testing.B) (provider.Provider, func() provider.Spec) {
	b.Helper()
	need(b)
	root, mounts := newRoot(b)
	return newProvider(b, b.TempDir()), func() provider.Spec {
		return provider.Spec{ID: engi.NewSandboxID(), Root: root, Mounts: mounts, Size: benchSize, Hostname: "bench", Token: "bench"}
	}
}

// report prints the median and the 95th percentile.
func report(b *testing.B, what string, all []time.Duration) {
	slices.Sort(all)
	b.ReportMetric(float64(all[len(all)/2].Microseconds())/1000, what+"-p50-ms")
	b.ReportMetric(float64(all[len(all)*95/100].Microseconds())/1000, what+"-p95-ms")
}

func BenchmarkStartClose(b *testing.B) {
	p, spec := bench(b)
	var starts, closes []time.Duration
	for b.Loop() {
		t0 := time.Now()
		m, err := p.Start(b.Context(), spec())
		if err != nil {
			b.Fatal(err)
		}
		t1 := time.Now()
		if err := m.Close(); err != nil {
			b.Fatal(err)
		}
		starts, closes = append(starts, t1.Sub(t0)), append(closes, time.Since(t1))
	}
	report(b, "start", starts)
	report(b, "close", closes)
}

func BenchmarkParallelStart(b *testing.B) {
	p, spec := bench(b)
	const many = 10
	begin := time.Now()
	n := 0
	for b.Loop() {
		var wg sync.WaitGroup
		for range many {
			wg.Go(func() {
				m, err := p.Start(b.Context(), spec())
				if err != nil {
					b.Error(err)
					return
				}
				if err := m.Close(); err != nil {
					b.Error(err)
				}
			})
		}
		wg.Wait()
		n += many
	}
	b.ReportMetric(float64(n)/time.Since(begin).Seconds(), "starts/s")
}

func BenchmarkLive(b *testing.B) {
	p, spec := bench(b)
	s := spec()
	m, err := p.Start(b.Context(), s)
	if err != nil {
		b.Fatal(err)
	}
	defer m.Close()
	b.Run("Resize", func(b *testing.B) {
		size := s.Size
		for b.Loop() {
			size.VCPUs = 3 - size.VCPUs
			if err := provider.Resize(b.Context(), m, size); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("PauseResume", func(b *testing.B) {
		for b.Loop() {
			if err := provider.Pause(b.Context(), m); err != nil {
				b.Fatal(err)
			}
			if err := provider.Resume(b.Context(), m); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("Usage", func(b *testing.B) {
		for b.Loop() {
			if _, err := m.(provider.Meter).Usage(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// benchTemplate returns the root of a template in ENGI_TEST_TEMPLATES, or "".
func benchTemplate(b *testing.B, name string) string {
	templates := os.Getenv("ENGI_TEST_TEMPLATES")
	raw, err := os.ReadFile(filepath.Join(templates, "names", name+".json"))
	if err != nil {
		return ""
	}
	var named struct {
		Digest string `json:"digest"`
	}
	if err := json.Unmarshal(raw, &named); err != nil {
		b.Fatal(err)
	}
	return filepath.Join(templates, "builds", strings.TrimPrefix(named.Digest, "sha256:"), "root")
}

// BenchmarkSave measures saving and restoring a machine with an idle Python, from
// the template "base" if ENGI_TEST_TEMPLATES has it.
func BenchmarkSave(b *testing.B) {
	p, spec := bench(b)
	root := benchTemplate(b, "base")
	newSpec := func() provider.Spec {
		s := spec()
		if root != "" {
			s.Root, s.Mounts = root, nil
		}
		return s
	}
	times := map[string][]time.Duration{}
	var bytes int64
	for b.Loop() {
		step := func(name string, act func() error) {
			b.Helper()
			began := time.Now()
			if err := act(); err != nil {
				b.Fatal(err)
			}
			times[name] = append(times[name], time.Since(began))
		}
		s := newSpec()
		var m provider.Machine
		step("start", func() (err error) {
			m, err = p.Start(b.Context(), s)
			return err
		})
		c, err := guest.Open(b.Context(), m.Guest, s.Token)
		if err != nil {
			b.Fatal(err)
		}
		proc, err := c.Start(b.Context(), engi.Command{
			Args: []string{"python3", "-c", "import json, random, socket, time; print('up', flush=True); time.sleep(1e6)"}, Dir: "/", User: "root"})
		if err != nil {
			b.Fatal(err)
		}
		for _, err := range proc.Output(b.Context(), 0) {
			if err != nil {
				b.Fatal(err)
			}
			break
		}
		step("savedisk", func() error { return provider.SaveDisk(b.Context(), m, b.TempDir()) })
		step("quiesce", func() error { return c.Quiesce(b.Context()) })
		c.Close()
		step("snapshot", func() error { return provider.Snapshot(b.Context(), m, b.TempDir()) })
		if c, err = guest.Open(b.Context(), m.Guest, s.Token); err != nil {
			b.Fatal(err)
		}
		dir := b.TempDir()
		step("hibernate", func() error {
			if err := c.Quiesce(b.Context()); err != nil {
				return err
			}
			c.Close()
			return provider.Checkpoint(b.Context(), m, dir)
		})
		if fi, err := os.Stat(filepath.Join(dir, "pages.img")); err == nil {
			bytes = fi.Size()
		}
		s = newSpec()
		step("restore", func() (err error) {
			m, err = provider.Restore(b.Context(), p, s, dir)
			return err
		})
		step("resume-first-answer", func() error {
			if c, err = guest.Open(b.Context(), m.Guest, s.Token); err != nil {
				return err
			}
			_, err := c.Attach(b.Context(), proc.ID())
			return err
		})
		if err := m.Close(); err != nil {
			b.Fatal(err)
		}
	}
	for name, all := range times {
		report(b, name, all)
	}
	b.ReportMetric(float64(bytes)/(1<<20), "MiB")
}

// BenchmarkDensity measures the memory that an idle machine uses.
func BenchmarkDensity(b *testing.B) {
	p, spec := bench(b)
	const many = 20
	for b.Loop() {
		var all []provider.Machine
		before := available(b)
		for range many {
			m, err := p.Start(b.Context(), spec())
			if err != nil {
				b.Fatal(err)
			}
			all = append(all, m)
		}
		time.Sleep(time.Second)
		b.ReportMetric(float64(before-available(b))/many/(1<<20), "MiB/machine")
		for _, m := range all {
			if err := m.Close(); err != nil {
				b.Fatal(err)
			}
		}
	}
}

func available(b *testing.B) int64 {
	raw, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(string(raw)) {
		if rest, ok := strings.CutPrefix(line, "MemAvailable:"); ok {
			n, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			if err != nil {
				b.Fatal(err)
			}
			return n << 10
		}
	}
	b.Fatal("the host does not say what memory it has")
	return 0
}
