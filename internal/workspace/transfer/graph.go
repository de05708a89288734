package transfer

import (
	"context"
	"maps"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/workspace/repo"
)

// A graph reads the commits of a history, each only once.
type graph struct {
	source  repo.Source
	commits map[string]*repo.CommitInfo
}

// commit returns the commit with a hash; it reports Invalid if the object is not a commit.
func (g *graph) commit(ctx context.Context, hash string) (*repo.CommitInfo, error) {
	if c := g.commits[hash]; c != nil {
		return c, nil
	}
	content, err := g.content(ctx, hash, repo.Commit)
	if err != nil {
		return nil, err
	}
	c, err := repo.ParseCommit(content)
	if err != nil {
		return nil, engi.Errorf(engi.Internal, "the commit %s is damaged: %v", hash, err)
	}
	g.commits[hash] = &c
	return &c, nil
}

// content returns the content of an object, which must be of a kind.
func (g *graph) content(ctx context.Context, hash string, kind repo.Kind) ([]byte, error) {
	o, err := g.source(ctx, hash)
	if err != nil {
		return nil, err
	}
	if o.Kind != kind {
		return nil, engi.Errorf(engi.Invalid, "%s is a %s and no %s", hash, o.Kind, kind)
	}
	return o.Content()
}

// A missing is the set of commits that a client does not have.
type missing struct {
	commits   []string
	held      []string // commits of the client next to the missing ones
	shallow   []string // commits whose parents are not sent
	unshallow []string // formerly shallow commits whose parents are sent
}

// missing walks back from the wanted commits to those of the client, or to the depth that it wants.
func (g *graph) missing(ctx context.Context, q *Fetch, known map[string]bool) (m missing, err error) {
	held := maps.Clone(known)
	seen := map[string]bool{}
	for level, depth := q.wants, 1; len(level) > 0; depth++ {
		var next []string
		for _, h := range level {
			if seen[h] {
				continue
			}
			seen[h] = true
			c, err := g.commit(ctx, h)
			if err != nil {
				return m, err
			}
			if held[h] {
				if m.held = append(m.held, h); q.depth == 0 {
					continue
				}
				for _, p := range c.Parents {
					held[p] = held[p] || !q.shallow[h]
				}
			} else {
				m.commits = append(m.commits, h)
			}
			switch {
			case len(c.Parents) == 0:
			case depth == q.depth && q.shallow[h]:
			case depth == q.depth:
				m.shallow = append(m.shallow, h)
			default:
				if next = append(next, c.Parents...); q.shallow[h] {
					m.unshallow = append(m.unshallow, h)
				}
			}
		}
		level = next
	}
	return m, nil
}

// An entry is an object of a pack.
type entry struct {
	hash string
	kind repo.Kind
}

// objects returns the missing objects, commits first.
func (g *graph) objects(ctx context.Context, m missing) (list []entry, err error) {
	seen := map[string]bool{}
	var walk func(hash string, want bool) error
	walk = func(hash string, want bool) error {
		if seen[hash] {
			return nil
		}
		seen[hash] = true
		if want {
			list = append(list, entry{hash, repo.Tree})
		}
		if len(seen) > maxObjects {
			return engi.Errorf(engi.Exhausted, "the history has more than %d objects", maxObjects).WithRemedy("use --depth")
		}
		content, err := g.content(ctx, hash, repo.Tree)
		if err != nil {
			return err
		}
		entries, err := repo.Entries(content)
		if err != nil {
			return engi.Errorf(engi.Internal, "the tree %s is damaged: %v", hash, err)
		}
		for _, e := range entries {
			if e.Kind() == repo.Tree {
				if err := walk(e.Hash, want); err != nil {
					return err
				}
			} else if !seen[e.Hash] {
				if seen[e.Hash] = true; want {
					list = append(list, entry{e.Hash, repo.Blob})
				}
			}
		}
		return nil
	}
	for _, h := range m.held {
		if err := walk(g.commits[h].Tree, false); err != nil {
			return nil, err
		}
	}
	for _, h := range m.commits {
		list = append(list, entry{h, repo.Commit})
	}
	for _, h := range m.commits {
		if err := walk(g.commits[h].Tree, true); err != nil {
			return nil, err
		}
	}
	return list, nil
}
