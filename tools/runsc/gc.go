package main

import (
	"runtime"
	"runtime/debug"
)

const (
	calmGC = 400      // percent; sandboxes are small and mostly short
	fullGC = 100      // Go's own
	calmTo = 16 << 20 // bytes that are in use, from where on memory counts more
)

// A watch is garbage at once; its finalizer runs after each collection.
type watch struct{ _ [16]byte }

// init makes a small heap be collected less often than Go does by itself: a
// collection takes longer than a small program. A large heap is collected as
// ever, so that sandboxes do not reach their limit of memory sooner.
func init() {
	debug.SetGCPercent(calmGC)
	var after func(*watch)
	percent := calmGC
	after = func(*watch) {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		want := calmGC
		if m.HeapAlloc > calmTo {
			want = fullGC
		}
		if want != percent {
			percent = want
			debug.SetGCPercent(percent)
		}
		runtime.SetFinalizer(new(watch), after)
	}
	runtime.SetFinalizer(new(watch), after)
}
