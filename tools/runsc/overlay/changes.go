package main

var changes = []change{
	// Until its clocks are calibrated, programs ask the sandbox's kernel for
	// every time: a hundred system calls of a small program. Calibration takes
	// two samples, which upstream takes a second apart, longer than many
	// sandboxes live. The later samples refine it as ever.
	{
		file: "pkg/sentry/kernel/timekeeper.go",
		old: `		res := t.clocks.Update(parked)
`,
		new: `		res := t.clocks.Update(parked)
		if (!res.MonotonicOk || !res.RealtimeOk) && quickSamples < 10 {
			quickSamples++
			t.timer.Reset(10 * time.Millisecond)
		}
`,
	},
	{
		file: "pkg/sentry/kernel/timekeeper.go",
		old:  `// startUpdater starts an update goroutine`,
		new: `// quickSamples counts the samples that were ordered early to have the clocks
// calibrated soon. It is guarded by the updateMu of the only Timekeeper.
var quickSamples int

// startUpdater starts an update goroutine`,
	},
	// The address space of a process that ends is unmapped before its parent
	// hears of the end. Nothing runs in it any more, so nobody sees when.
	{
		file: "pkg/sentry/platform/systrap/subprocess.go",
		old: `	s.unmap()
	s.DecRef(s.release)
}
`,
		new: `	go func() { // S/R-SAFE: nothing of it is saved
		s.unmap()
		s.DecRef(s.release)
	}()
}
`,
	},
	// Memory that a process gave up goes back to the host at once, a piece at a
	// time, which for a sandbox that ends with its program is work for nothing.
	// A little of it may stay for a moment; more, or a checkpoint, is never
	// made to wait.
	{
		file: "pkg/sentry/pgalloc/pgalloc.go",
		old: `	if haveWaste && !f.haveWaste {
		f.haveWaste = true
		f.releaseCond.Signal()
	}
`,
		new: `	if haveWaste {
		f.fresh += fr.Length()
		if !f.haveWaste || f.fresh > lingerBytes() {
			f.haveWaste = true
			f.releaseCond.Signal()
		}
	}
`,
	},
	{
		file: "pkg/sentry/pgalloc/pgalloc.go",
		old: `			if f.haveWaste {
				break
			}
`,
		new: `			if f.haveWaste {
				if !f.lingered {
					f.lingerLocked()
					continue
				}
				break
			}
`,
	},
	{
		file: "pkg/sentry/pgalloc/pgalloc.go",
		old: `		f.haveWaste = false
	}
}
`,
		new: `		f.haveWaste = false
		f.lingered = false
	}
}

const lingerTime = time.Second

// lingerBytes is how much waste may linger: little enough not to bring a
// sandbox to its limit of memory.
func lingerBytes() uint64 {
	const most = 16 << 20
	if total := usage.MaximumTotalMemoryBytes; total > 0 {
		return min(most, total/32)
	}
	return most
}

// lingerLocked waits before the first of the waste is released.
//
// Preconditions: f.mu must be locked; it is unlocked and reacquired.
func (f *MemoryFile) lingerLocked() {
	over := false
	timer := time.AfterFunc(lingerTime, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		over = true
		f.releaseCond.Signal()
	})
	for !over && !f.destroyed && !f.hurry && f.fresh <= lingerBytes() {
		f.releaseCond.Wait()
	}
	timer.Stop()
	f.lingered, f.fresh = true, 0
}
`,
	},
	{
		file: "pkg/sentry/pgalloc/pgalloc.go",
		old: `	// releaseCond is signaled (with mu locked) when haveWaste or destroyed
`,
		new: `	// fresh is how many bytes became waste since it was last released, at most.
	// lingered is true while waste is released, hurry while somebody waits for
	// that. They are protected by mu; releaseCond is signaled for them too.
	fresh    uint64
	lingered bool
	hurry    bool

	// releaseCond is signaled (with mu locked) when haveWaste or destroyed
`,
	},
	{
		file: "pkg/sentry/pgalloc/save_restore.go",
		old: `	for f.haveWaste {
		f.mu.Unlock()
		runtime.Gosched()
		f.mu.Lock()
	}
`,
		new: `	f.hurry = true
	defer func() { f.hurry = false }()
	for f.haveWaste {
		f.releaseCond.Signal()
		f.mu.Unlock()
		runtime.Gosched()
		f.mu.Lock()
	}
`,
	},
}
