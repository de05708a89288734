package fleet

import (
	"context"
	"sync"
	"time"

	"github.com/engi-dev/engi/internal/clock"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/provider"
)

const (
	sampleEvery = 5 * time.Second
	sampleTime  = 3 * time.Second // maximum time of one sample
	sampleMany  = 8               // maximum number of concurrent samples
	fineSamples = 60              // number of the newest samples, all of which are kept: the last 5 minutes
	coarseEvery = 6               // one of this many samples is kept longer
	longSamples = 120             // number of older samples, one of coarseEvery: the last hour

	// A sandbox that used at most idleTime of processor time since its last sample is not asked
	// for its disk usage, for idleMany samples in a row.
	idleTime = 25 * time.Millisecond
	idleMany = 5
)

// samples holds the recent resource usage of a sandbox. It is safe for concurrent use.
type samples struct {
	mu    sync.Mutex
	fine  []engi.Sample // oldest first
	long  []engi.Sample // older than all of fine, oldest first
	count int
	cpu   time.Duration // processor time used until at; lower than before after a change of the machine
	at    time.Time
	idle  int // number of consecutive samples that did not ask the guest
}

// still returns the last sample if the guest need not be asked: its
// machine has used cpu, at most idleTime more than at that sample.
func (s *samples) still(cpu time.Duration) (last engi.Sample, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.fine) == 0 || s.idle >= idleMany || cpu < s.cpu || cpu-s.cpu > idleTime {
		s.idle = 0
		return last, false
	}
	s.idle++
	return s.fine[len(s.fine)-1], true
}

// add adds a sample whose processor time since the start of the machine is
// cpu.
func (s *samples) add(one engi.Sample, cpu time.Duration) engi.Sample {
	s.mu.Lock()
	defer s.mu.Unlock()
	if gap := one.Time.Sub(s.at); !s.at.IsZero() && gap > 0 && cpu >= s.cpu {
		one.CPUPercent = 100 * float64(cpu-s.cpu) / float64(gap)
	}
	s.cpu, s.at = cpu, one.Time
	s.fine = append(s.fine, one)
	if len(s.fine) > fineSamples {
		if s.count%coarseEvery == 0 {
			s.long = append(s.long, s.fine[0])
		}
		s.count++
		s.fine = append(s.fine[:0], s.fine[1:]...)
	}
	if len(s.long) > longSamples {
		s.long = append(s.long[:0], s.long[1:]...)
	}
	return one
}

// between returns the samples of a period; a zero time means no bound.
func (s *samples) between(from, to time.Time) []engi.Sample {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := []engi.Sample{}
	for _, list := range [][]engi.Sample{s.long, s.fine} {
		for _, one := range list {
			if !one.Time.Before(from) && (to.IsZero() || !one.Time.After(to)) {
				all = append(all, one)
			}
		}
	}
	return all
}

// Samples implements engi.Sandboxes.
func (s *sandboxes) Samples(ctx context.Context, viewer engi.Viewer, id engi.SandboxID, from, to time.Time) ([]engi.Sample, error) {
	sb, err := s.find(ctx, viewer, id)
	if err != nil {
		return nil, err
	}
	list := sb.samples.between(from, to)
	if len(list) == 0 && (to.IsZero() || !to.Before(time.Now().Add(-sampleEvery))) {
		if one, ok := s.sample(ctx, sb); ok {
			list = append(list, one)
		}
	}
	return list, nil
}

// sampleLoop measures running sandboxes periodically until ctx ends.
func (s *sandboxes) sampleLoop(ctx context.Context) {
	for range clock.Every(ctx, sampleEvery) {
		var workers sync.WaitGroup
		limit := make(chan struct{}, sampleMany)
		for _, sb := range s.all() {
			if ctx.Err() != nil {
				break
			}
			limit <- struct{}{}
			workers.Go(func() {
				defer func() { <-limit }()
				s.sample(ctx, sb)
			})
		}
		workers.Wait()
	}
}

// sample measures a sandbox now. It returns false if the sandbox is not running.
func (s *sandboxes) sample(ctx context.Context, sb *sandbox) (engi.Sample, bool) {
	rec, inst := sb.record(), sb.instance()
	if rec.State != engi.Running || inst == nil {
		return engi.Sample{}, false
	}
	ctx, cancel := context.WithTimeout(ctx, sampleTime)
	defer cancel()
	one := engi.Sample{
		Time:         time.Now().UTC(),
		VCPUs:        rec.Size.VCPUs, // temporary maximum, with a CPUQuota
		MemoryLimit:  rec.Size.Memory,
		DiskCapacity: rec.Size.Disk,
	}
	var cpu time.Duration
	known := false
	if meter, ok := inst.machine.(provider.Meter); ok {
		if u, err := meter.Usage(ctx); err == nil {
			cpu, one.Memory, known = u.CPU, u.Memory, true
		}
	}
	if known {
		s.throttle(ctx, sb, inst, cpu)
	}
	if last, ok := sb.samples.still(cpu); known && ok {
		one.Processes, one.DiskUsed, one.MemoryCache = last.Processes, last.DiskUsed, min(last.MemoryCache, one.Memory)
		return sb.samples.add(one, cpu), true
	}
	g := inst.client()
	if g == nil {
		return one, false
	}
	if u, err := g.Usage(ctx); err == nil {
		if !known {
			cpu, one.Memory, known = u.CPU, u.Memory, true
		}
		one.Processes = u.Processes
		one.DiskUsed = min(u.DiskUsed, max(one.DiskCapacity, u.DiskTotal))
		one.MemoryCache = min(u.MemoryCache, one.Memory)
	}
	if !known {
		return one, false // the sandbox ended or hibernated meanwhile
	}
	return sb.samples.add(one, cpu), true
}
