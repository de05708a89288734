package rest

import (
	"context"
	"iter"
	"maps"
	"slices"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/network/mirror"
	"github.com/engi-dev/engi/internal/server/httpio"
)

const mirrorPath = "/v1/mirror"

type mirrorResource struct{ *mirror.Server }

// Mirror returns the routes of the mirror of package registries; server may be nil.
func Mirror(server *mirror.Server) Resource {
	m := mirrorResource{server}
	absent := absentUnless(server != nil, "this node serves no packages", "its sandboxes have no network: 'engi doctor' says why")
	return Resource{tag: "mirror", about: "a cache of public package registries for sandboxes", missing: absent, routes: []Route{
		fetch(Route{Pattern: "GET " + mirrorPath, ID: "get-mirror", Summary: "Get the state of the package mirror", Text: "Returns the size of the cache and the number of requests. Needs an admin key.", Access: Access{Admin: true}, Objects: Shared}, m.get),
		act(Route{Pattern: "DELETE " + mirrorPath, ID: "clear-mirror", Summary: "Delete all packages from the mirror", Text: "Packages are fetched again when they are requested. Needs an admin key.", Access: adminOnly, Objects: Shared},
			func(*call, *none, none) error { return m.Clear() }),
		raw(Route{
			Pattern: "POST " + mirrorPath + "/warm", ID: "warm-mirror", Summary: "Fill the mirror from lock files", Access: adminOnly, Objects: Shared,
			Text: "The packages can then be installed without a network. Streams one event for each package, and a result at the end. A package that cannot be fetched does not end the stream. " +
				"Needs an admin key.",
			Answers: streamOf[v1.MirrorUpdate](nil, httpio.NDJSON, httpio.SSE),
		}, m.warm),
	}}
}

func (m mirrorResource) get(*call, *none) (v1.Mirror, error) {
	s, hosts := m.Status(), m.Hosts()
	x := v1.Mirror{Offline: s.Offline, Files: s.Files, Bytes: v1.Bytes(s.Bytes), Size: v1.Bytes(s.Size), Ecosystems: []v1.MirrorEcosystem{}}
	for _, name := range slices.Sorted(maps.Keys(s.Ecosystems)) {
		c := s.Ecosystems[name]
		x.Ecosystems = append(x.Ecosystems, v1.MirrorEcosystem{Name: name, Upstream: s.Upstreams[name], Hosts: orEmpty(hosts[name]),
			Requests: c.Requests, Hits: c.Hits, Fetched: c.Fetched, Refused: c.Refused, Bytes: v1.Bytes(c.Bytes)})
	}
	return x, nil
}

func (m mirrorResource) warm(c *call, _ *none, q v1.MirrorWarmRequest) error {
	var all []mirror.Wanted
	for _, f := range q.Files {
		wanted, err := m.Read(f.Name, []byte(f.Content))
		if err != nil {
			return err
		}
		all = append(all, wanted...)
	}
	at := v1.MirrorUpdate{Total: len(all)}
	return stream(c, func(ctx context.Context) iter.Seq2[mirror.Warmed, error] {
		return func(yield func(mirror.Warmed, error) bool) {
			for x := range m.Warm(ctx, all) {
				if !yield(x, nil) {
					return
				}
			}
			yield(mirror.Warmed{}, context.Cause(ctx))
		}
	}, func(out *httpio.EventWriter, x mirror.Warmed) (bool, error) {
		if at.Done == at.Total {
			at.Type, at.Package, at.Problem = v1.EventResult, "", nil
			return true, out.Send(at.Type, "", at)
		}
		at.Type, at.Package, at.Problem = "progress", x.Wanted.String(), nil
		at.Done++
		at.Bytes += v1.Bytes(x.Bytes)
		if x.Err != nil {
			at.Failed++
			at.Problem = new(c.describe(x.Err))
		}
		return false, out.Send(at.Type, "", at)
	}, func(kind string, p *v1.Problem) any {
		return v1.MirrorUpdate{Type: kind, Done: at.Done, Total: at.Total, Failed: at.Failed, Bytes: at.Bytes, Error: p}
	})
}
