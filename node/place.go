package node

import (
	"context"

	"github.com/engi-dev/engi/node/datadir"
)

// An Endpoint is how to reach a running server of this machine.
type Endpoint = datadir.Endpoint

// Discover returns the server that holds dataDir and its admin key. It
// reports NotFound if none runs, and Denied if this user may not use it.
func Discover(dataDir string) (Endpoint, string, error) { return datadir.Discover(dataDir) }

// Stop asks the server that holds dataDir to end and waits until it has let
// go. It reports NotFound if none runs and Expired if it does not end.
func Stop(ctx context.Context, dataDir string) (pid int, err error) {
	return datadir.Stop(ctx, dataDir)
}

// LogFile is where a detached server of this data directory writes.
func LogFile(dataDir string) string { return datadir.LogFile(dataDir) }
