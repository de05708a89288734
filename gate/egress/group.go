package egress

import (
	"cmp"
	"net/netip"
	"strings"
	"sync"

	"github.com/engi-dev/engi"
)

// Internal is the domain of groups: sandboxes are NAME.GROUP.internal.
const internal = "internal"

// groups know which sandboxes see each other. It is safe for concurrent use;
// the zero value knows none.
type groups struct {
	mu     sync.Mutex
	all    map[groupKey]*group // guarded by mu
	byAddr map[netip.Addr]bool // guarded by mu; in use
	next   netip.Addr          // guarded by mu
}

type groupKey struct {
	owner engi.Owner
	name  string
}

// A group is the sandboxes of one owner that name the same group. It is
// guarded by its groups' mu.
type group struct {
	key     groupKey
	members map[*sandbox]*member
}

type member struct {
	room *sandbox
	name string
	addr netip.Addr
}

// join makes a sandbox a member of the group its policy names, in the place of
// the one before. It reports Conflict if another has the name.
func (gs *groups) join(r *sandbox, owner engi.Owner, p engi.NetworkPolicy) (*group, error) {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	key := groupKey{owner, p.Group}
	name := cmp.Or(p.Name, r.id.Label())
	g := gs.all[key]
	if g != nil {
		for _, m := range g.members {
			if m.room != r && m.name == name {
				return nil, engi.Errorf(engi.Conflict, "group %s has a sandbox %s already: %s", p.Group, name, m.room.id).
					WithRemedy("choose another name, or end the other sandbox")
			}
		}
	}
	if old := r.group; old != nil && old.key == key {
		old.members[r].name = name
		return old, nil
	}
	gs.leave(r)
	if p.Group == "" {
		return nil, nil
	}
	if gs.all == nil {
		gs.all, gs.byAddr, gs.next = make(map[groupKey]*group), make(map[netip.Addr]bool), Peers.Addr()
	}
	if g == nil {
		g = &group{key: key, members: make(map[*sandbox]*member)}
		gs.all[key] = g
	}
	for {
		if gs.next = gs.next.Next(); !Peers.Contains(gs.next) {
			gs.next = Peers.Addr().Next()
		}
		if !gs.byAddr[gs.next] { // far more addresses than sandboxes
			break
		}
	}
	gs.byAddr[gs.next] = true
	g.members[r] = &member{room: r, name: name, addr: gs.next}
	r.group = g
	return g, nil
}

// leave ends a sandbox's membership. The caller holds gs.mu.
func (gs *groups) leave(r *sandbox) {
	g := r.group
	if g == nil {
		return
	}
	delete(gs.byAddr, g.members[r].addr)
	delete(g.members, r)
	if len(g.members) == 0 {
		delete(gs.all, g.key)
	}
	r.group = nil
}

func (gs *groups) part(r *sandbox) {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	gs.leave(r)
}

// named returns the address of a member of r's group, by its name.
func (gs *groups) named(r *sandbox, name string) (netip.Addr, bool) {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	if r.group == nil {
		return netip.Addr{}, false
	}
	for _, m := range r.group.members {
		if m.name == name {
			return m.addr, true
		}
	}
	return netip.Addr{}, false
}

// peer returns the member of r's group that has an address, and r's own.
func (gs *groups) peer(r *sandbox, a netip.Addr) (to *sandbox, name string, from netip.Addr) {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	if r.group == nil {
		return nil, "", netip.Addr{}
	}
	for _, m := range r.group.members {
		if m.addr == a {
			return m.room, m.name + "." + r.group.key.name + "." + internal, r.group.members[r].addr
		}
	}
	return nil, "", netip.Addr{}
}

// inGroup splits a name in the domain of a group into that of a member, which
// may be empty, and of the group.
func inGroup(name string) (member, group string, ok bool) {
	rest, ok := strings.CutSuffix(name, "."+internal)
	if !ok {
		return "", "", false
	}
	if i := strings.LastIndexByte(rest, '.'); i >= 0 {
		return rest[:i], rest[i+1:], true
	}
	return "", rest, true
}
