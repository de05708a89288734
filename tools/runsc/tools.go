//go:build never

// Package runsc pins the version of gVisor that engi ships.
package runsc

import _ "gvisor.dev/gvisor/runsc"
