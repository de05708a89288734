//go:build !amd64

package main

import "gvisor.dev/gvisor/pkg/seccomp/precompiledseccomp"

// Filters of other machines can only be generated on them.
var sentryFilters, goferFilters map[string]precompiledseccomp.Program
