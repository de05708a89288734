package main

// memory is about how much of it a sandbox has. Upstream leaves the end of it to
// the host, which then kills the whole sandbox, and sets what programs see at
// the start.
var memory = []change{
	{file: "runsc/boot/memory.go", new: `package boot

import (
	"fmt"
	"strconv"
	"sync/atomic"

	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/usage"
)

// SetTotalMemory changes how much memory the sandbox has, in bytes.
func (cm *containerManager) SetTotalMemory(n *uint64, _ *struct{}) error {
	atomic.StoreUint64(&usage.MinimumTotalMemoryBytes, *n)
	atomic.StoreUint64(&usage.MaximumTotalMemoryBytes, *n)
	ctx := cm.l.k.SupervisorContext()
	for _, path := range []string{"/", "/" + cm.l.sandboxID} {
		group, err := cm.l.k.CgroupRegistry().FindCgroup(ctx, kernel.CgroupControllerMemory, path)
		if err == nil {
			err = group.WriteControl(ctx, "memory.limit_in_bytes", strconv.FormatUint(*n, 10))
		}
		if err != nil {
			return fmt.Errorf("limit of memory in the group %s: %v", path, err)
		}
	}
	return nil
}
`},
	// Called again with the kernel of a machine that was saved.
	{
		file: "runsc/boot/controller.go",
		old: `	c.srv.Register(c.manager)
`,
		new: `	l.k.WatchMemory()
	c.srv.Register(c.manager)
`,
	},
	{file: "pkg/sentry/pgalloc/limit.go", new: `package pgalloc

import (
	"math"
	"runtime/metrics"
	"sync"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/sentry/usage"
)

const (
	largeAllocation = 2 * hostarch.HugePageSize // page faults allocate less
	minStep         = 1 << 20                   // bytes between looks at what is left
	maxStep         = 64 << 20
	patience        = 100 * time.Millisecond
)

// Shortage gets a token when memory may be short.
var Shortage = make(chan struct{}, 1)

// demand is what allocations wait for.
var demand struct {
	mu       sync.Mutex
	bytes    int64
	relieved chan struct{} // nil if none waits
}

// Wanted returns how many bytes must be left for every allocation that waits.
func Wanted() int64 {
	demand.mu.Lock()
	defer demand.mu.Unlock()
	return demand.bytes
}

// Relieved lets allocations go on that wait.
func Relieved() {
	demand.mu.Lock()
	defer demand.mu.Unlock()
	if demand.relieved != nil {
		close(demand.relieved)
	}
	demand.relieved, demand.bytes = nil, 0
}

func awaitRelief(bytes int64) {
	demand.mu.Lock()
	demand.bytes = max(demand.bytes, bytes)
	if demand.relieved == nil {
		demand.relieved = make(chan struct{})
	}
	relieved := demand.relieved
	demand.mu.Unlock()
	callShortage()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-relieved:
	case <-timer.C:
	}
}

func callShortage() {
	select {
	case Shortage <- struct{}{}:
	default:
	}
}

// awaitMemory waits while memory is short. It refuses an allocation that does not
// fit even after that. What a page fault allocates may never be used, so that
// only what is in use counts, and large allocations.
func (f *MemoryFile) awaitMemory(length uint64) error {
	limited := atomic.LoadUint64(&usage.MaximumTotalMemoryBytes) > 0
	if !limited || f.opts.DiskBackedFile || f.unchecked.Add(length) <= f.step.Load() {
		return nil
	}
	left := f.Left()
	f.unchecked.Store(0)
	f.step.Store(uint64(min(max(left/8, minStep), maxStep)))
	want := int64(0)
	if length > largeAllocation {
		want = int64(min(length, math.MaxInt64))
	}
	if left >= want {
		if left < Plenty() {
			callShortage()
		}
		return nil
	}
	awaitRelief(want)
	if want > 0 && f.Left() < want {
		return linuxerr.ENOMEM
	}
	return nil
}

// Plenty is so much memory left that it cannot be short soon.
func Plenty() int64 { return int64(atomic.LoadUint64(&usage.MaximumTotalMemoryBytes) / 2) }

// Left returns how many bytes programs may use until the host would kill the
// sandbox, less some for what the host counts in addition.
func (f *MemoryFile) Left() int64 {
	limit := int64(atomic.LoadUint64(&usage.MaximumTotalMemoryBytes))
	used, err := f.TotalUsage()
	if limit == 0 || err != nil {
		return math.MaxInt64
	}
	reserve := min(8<<20+limit/64, limit/16)
	return limit - reserve - int64(used) - ownMemory()
}

// ownMemory returns how many bytes this program uses itself.
func ownMemory() int64 {
	samples := [...]metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(samples[:])
	return int64(samples[0].Value.Uint64() - samples[1].Value.Uint64())
}

// Hurry says whether somebody waits for memory that is not in use any more.
func (f *MemoryFile) Hurry(on bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hurry = on
	f.releaseCond.Signal()
}

// Releasing reports whether some of it is not released yet.
func (f *MemoryFile) Releasing() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.haveWaste
}
`},
	{
		file: "pkg/sentry/pgalloc/pgalloc.go",
		old: `	alloc := allocState{
`,
		new: `	if err := f.awaitMemory(length); err != nil {
		return memmap.FileRange{}, err
	}
	alloc := allocState{
`,
	},
	{
		file: "pkg/sentry/pgalloc/pgalloc.go",
		old: `	mu memoryFileMutex

`,
		new: `	mu memoryFileMutex

	// unchecked is how many bytes were allocated since it was looked how much
	// memory is left, which is done after step bytes.
	unchecked, step atomic.Uint64

`,
	},
	{file: "pkg/sentry/mm/use.go", new: `package mm

import "sync/atomic"

// RacyUse returns mm's resident set size, with what it is about to get. It does
// not wait for whoever changes that, who may wait for memory.
func (mm *MemoryManager) RacyUse() uint64 {
	return atomic.LoadUint64(&mm.curRSS) + mm.coming.Load()
}
`},
	{
		file: "pkg/sentry/mm/mm.go",
		old: `	maxRSS uint64
`,
		new: `	maxRSS uint64

	// coming is the length of the allocation in progress.
	coming atomic.Uint64
`,
	},
	{
		file: "pkg/sentry/mm/pma.go",
		old: `					fr, err := mm.mf.Allocate(uint64(allocAR.Length()), allocOpts)
`,
		new: `					mm.coming.Store(uint64(allocAR.Length()))
					fr, err := mm.mf.Allocate(uint64(allocAR.Length()), allocOpts)
					mm.coming.Store(0)
`,
	},
	{file: "pkg/sentry/kernel/shortage.go", new: `package kernel

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/sentry/pgalloc"
)

const (
	minVictim    = 8 << 20 // bytes; ending less helps nobody
	maxVictims   = 64      // that are remembered
	maxGrowth    = 2 << 30 // bytes that programs touch in a second
	minLook      = 5 * time.Millisecond
	maxLook      = 100 * time.Millisecond
	maxQuiet     = 4 // doublings of that while nothing changes
	releaseTime  = 50 * time.Millisecond
	maxDeathTime = 2 * time.Second
)

var shortage struct {
	once    sync.Once
	kernel  atomic.Pointer[Kernel]
	mu      sync.Mutex
	victims []ThreadID
}

// KilledForMemory returns the IDs of the processes that were killed last because
// memory was short.
func KilledForMemory() []ThreadID {
	shortage.mu.Lock()
	defer shortage.mu.Unlock()
	return slices.Clone(shortage.victims)
}

// WatchMemory kills the process that has the most memory when the sandbox is
// about to have none left. The host would kill the whole sandbox.
func (k *Kernel) WatchMemory() {
	shortage.kernel.Store(k)
	shortage.once.Do(func() {
		go func() { // S/R-SAFE: it has no state
			var last time.Duration
			for quiet := 0; ; {
				// Programs that have allocated memory may not have touched it yet, which
				// nobody is told of. Those that do nothing cost little.
				var soon <-chan time.Time
				wait := shortage.kernel.Load().relieveMemory().Truncate(time.Millisecond)
				if wait > 0 {
					soon = time.After(wait << quiet)
				}
				if quiet = min(quiet+1, maxQuiet); wait != last {
					quiet = 0
				}
				last = wait
				select {
				case <-pgalloc.Shortage:
					quiet = 0
				case <-soon:
				}
			}
		}()
	})
}

// relieveMemory sees to it that some memory is left. It returns when to look
// again; 0 means not until somebody says so.
func (k *Kernel) relieveMemory() time.Duration {
	defer pgalloc.Relieved()
	f := k.MemoryFile()
	if f == nil {
		return 0
	}
	var victim *ThreadGroup
	begin := time.Now()
	for first := true; ; first = false {
		left := f.Left()
		switch {
		case left >= pgalloc.Wanted() && left >= pgalloc.Plenty():
			return 0
		case left >= pgalloc.Wanted():
			return min(max(time.Duration(float64(left)/maxGrowth*float64(time.Second)), minLook), maxLook)
		}
		if first { // what nobody uses any more goes before what somebody does
			f.Hurry(true)
			defer f.Hurry(false)
			f.StartEvictions()
		}
		since := time.Since(begin)
		if victim == nil && f.Releasing() && since < releaseTime || victim != nil && victim.memoryUse() > 0 && since < maxDeathTime {
			time.Sleep(time.Millisecond)
			continue
		}
		if victim = k.largestProcess(); victim == nil {
			return maxLook
		}
		shortage.mu.Lock()
		shortage.victims = append(shortage.victims, victim.PIDNamespace().IDOfThreadGroup(victim))
		if n := len(shortage.victims); n > maxVictims {
			shortage.victims = slices.Delete(shortage.victims, 0, n-maxVictims)
		}
		shortage.mu.Unlock()
		victim.SendSignal(SignalInfoPriv(linux.SIGKILL))
		pgalloc.Relieved() // it may be one that waits, and then ends only after that
		begin = time.Now()
	}
}

// largestProcess returns the process that has the most memory; nil if that is
// little, or the init process, without which there is no sandbox.
func (k *Kernel) largestProcess() (largest *ThreadGroup) {
	var all []*ThreadGroup
	k.TaskSet().ForEachThreadGroup(func(tg *ThreadGroup, _ *Task) { all = append(all, tg) })
	most := uint64(minVictim)
	for _, tg := range all {
		if use := tg.memoryUse(); use > most && tg != k.GlobalInit() {
			largest, most = tg, use
		}
	}
	return largest
}

// memoryUse returns how much memory a process has, in bytes.
func (tg *ThreadGroup) memoryUse() (bytes uint64) {
	leader := tg.Leader()
	if leader == nil {
		return 0
	}
	leader.WithMuLocked(func(t *Task) {
		if m := t.MemoryManager(); m != nil {
			bytes = m.RacyUse()
		}
	})
	return bytes
}
`},
	{
		file: "pkg/sentry/fsimpl/proc/tasks_files.go",
		old: `	fmt.Fprintf(buf, "HeapObjects:    %8d\n", sentryMeminfo.HeapObjects)
`,
		new: `	fmt.Fprintf(buf, "HeapObjects:    %8d\n", sentryMeminfo.HeapObjects)
	fmt.Fprintf(buf, "Killed: %d\n", kernel.KilledForMemory())
`,
	},
}
