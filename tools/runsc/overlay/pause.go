package main

// pausing is about stopping all programs of a sandbox.
var pausing = []change{
	{
		file: "runsc/boot/controller.go",
		old: `	"sync"
	gtime`,
		new: `	"sync"
	"sync/atomic"
	gtime`,
	},
	// Whoever takes a sandbox over cannot know whether the last order reached
	// it, and a kernel that is told to go on without having been stopped
	// panics. Told twice, it does it once.
	{
		file: "runsc/boot/controller.go",
		old: `	cm.l.k.Pause()
	return nil
}
`,
		new: `	if pausedByHost.CompareAndSwap(false, true) {
		cm.l.k.Pause()
	}
	return nil
}

var pausedByHost atomic.Bool
`,
	},
	{
		file: "runsc/boot/controller.go",
		old: `	cm.l.k.Unpause()
	return control.PostResume(cm.l.k, nil)
`,
		new: `	if !pausedByHost.CompareAndSwap(true, false) {
		return nil
	}
	cm.l.k.Unpause()
	return control.PostResume(cm.l.k, nil)
`,
	},
}
