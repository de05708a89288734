package main

import (
	_ "unsafe" // for linkname

	"gvisor.dev/gvisor/pkg/seccomp/precompiledseccomp"
	"gvisor.dev/gvisor/pkg/sync"
	_ "gvisor.dev/gvisor/runsc/boot/filter"
	_ "gvisor.dev/gvisor/runsc/fsgofer/filter"
)

// Upstream registers compiled programs in files that its own build generates
// and the module lacks, so its empty tables are filled from here. A program
// whose key is missing is compiled at start, as in the unchanged module.

//go:linkname sentryPrograms gvisor.dev/gvisor/runsc/boot/filter.precompiledPrograms
var sentryPrograms map[string]precompiledseccomp.Program

//go:linkname sentryOnce gvisor.dev/gvisor/runsc/boot/filter.registerPrecompiledProgramsOnce
var sentryOnce sync.Once

//go:linkname goferPrograms gvisor.dev/gvisor/runsc/fsgofer/filter.precompiledPrograms
var goferPrograms map[string]precompiledseccomp.Program

//go:linkname goferOnce gvisor.dev/gvisor/runsc/fsgofer/filter.registerPrecompiledProgramsOnce
var goferOnce sync.Once

func useCompiledFilters() {
	if len(sentryFilters) > 0 {
		sentryOnce.Do(func() { sentryPrograms = sentryFilters })
		goferOnce.Do(func() { goferPrograms = goferFilters })
	}
}
