package rest

import (
	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
)

// Pools returns the route that lists warm pools.
func Pools(service engi.Pools) Resource {
	return Resource{tag: "node", routes: []Route{
		list(Route{Pattern: "GET /v1/pools", ID: "list-pools", Summary: "List warm pools", Access: anyKey, Objects: Shared},
			func(c *call, _ *none) ([]engi.PoolStatus, error) { return service.Pools(c), nil }, poolOf),
	}}
}

func poolOf(x engi.PoolStatus) v1.Pool {
	return v1.Pool{
		Template: x.Template, Digest: x.Digest, Language: string(x.Language),
		Target: x.Target, Max: x.Max, Ready: x.Ready, Booting: x.Booting, Used: x.Used, Waiting: x.Waiting,
	}
}
