package egress

import (
	"cmp"
	"net/netip"
	"strings"
	"sync"

	"github.com/engi-dev/engi/internal/engi"
)

// internal is the domain of groups: a sandbox has the name NAME.GROUP.internal. Within a group it
// also has the name NAME.workspace.internal, whatever the group's name, so that the files
// of a workspace, and copies of them, need not name the workspace.
const (
	internal  = "internal"
	workspace = "workspace"
)

// groups records which sandboxes see each other. The zero value is empty. It is
// safe for concurrent use.
type groups struct {
	mu     sync.Mutex
	all    map[groupKey]*group // guarded by mu
	byAddr map[netip.Addr]bool // addresses in use; guarded by mu
	next   netip.Addr          // last assigned address; guarded by mu
}

type groupKey struct {
	owner engi.Owner
	name  string
}

// A group holds the sandboxes of one owner whose policies name the same group. It is
// guarded by mu of groups.
type group struct {
	key     groupKey
	members map[*sandbox]*member
}

type member struct {
	sandbox *sandbox
	name    string
	addr    netip.Addr
}

// join makes a sandbox a member of the group named in its policy, instead of
// its current group. It reports Conflict if another member has its name.
func (gs *groups) join(s *sandbox, owner engi.Owner, p engi.NetworkPolicy) (*group, error) {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	key := groupKey{owner, p.Group}
	name := cmp.Or(p.Name, s.id.Label())
	g := gs.all[key]
	if g != nil {
		for _, m := range g.members {
			if m.sandbox != s && m.name == name {
				return nil, engi.Errorf(engi.Conflict, "group %s already has a sandbox %s: %s", p.Group, name, m.sandbox.id).
					WithRemedy("choose another name, or end the other sandbox")
			}
		}
	}
	if old := s.group; old != nil && old.key == key {
		old.members[s].name = name
		return old, nil
	}
	gs.leaveLocked(s)
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
		if !gs.byAddr[gs.next] { // there are far more addresses than sandboxes
			break
		}
	}
	gs.byAddr[gs.next] = true
	g.members[s] = &member{sandbox: s, name: name, addr: gs.next}
	s.group = g
	return g, nil
}

// leaveLocked ends a sandbox's membership. The caller holds gs.mu.
func (gs *groups) leaveLocked(s *sandbox) {
	g := s.group
	if g == nil {
		return
	}
	delete(gs.byAddr, g.members[s].addr)
	delete(g.members, s)
	if len(g.members) == 0 {
		delete(gs.all, g.key)
	}
	s.group = nil
}

func (gs *groups) leave(s *sandbox) {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	gs.leaveLocked(s)
}

// memberAddr returns the address of a member of s's group by its name.
func (gs *groups) memberAddr(s *sandbox, name string) (netip.Addr, bool) {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	if s.group == nil {
		return netip.Addr{}, false
	}
	for _, m := range s.group.members {
		if m.name == name {
			return m.addr, true
		}
	}
	return netip.Addr{}, false
}

// peer returns the member of s's group that has an address, its full name, and
// the address of s.
func (gs *groups) peer(s *sandbox, a netip.Addr) (to *sandbox, name string, from netip.Addr) {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	if s.group == nil {
		return nil, "", netip.Addr{}
	}
	for _, m := range s.group.members {
		if m.addr == a {
			return m.sandbox, m.name + "." + s.group.key.name + "." + internal, s.group.members[s].addr
		}
	}
	return nil, "", netip.Addr{}
}

// splitGroupName splits NAME.GROUP.internal; member is empty for GROUP.internal.
func splitGroupName(name string) (member, group string, ok bool) {
	rest, ok := strings.CutSuffix(name, "."+internal)
	if !ok {
		return "", "", false
	}
	if i := strings.LastIndexByte(rest, '.'); i >= 0 {
		return rest[:i], rest[i+1:], true
	}
	return "", rest, true
}
