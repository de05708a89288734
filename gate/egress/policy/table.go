package policy

import (
	"cmp"
	"container/heap"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"sort"
)

// A table finds the rules of one list that match. Names are looked up by the
// whole name and by each of its endings, addresses by each length of network
// that occurs, ports by binary search: some dozen steps whatever the number of
// rules.
type table struct {
	rules []rule
	all   *ports
	hosts map[string]*ports
	under map[string]*ports // by SUFFIX of *.SUFFIX
	nets  map[netip.Prefix]*ports
	bits4 []int // lengths that occur, the longest first
	bits6 []int
}

// ports are the rules for one target, by protocol and port.
type ports struct {
	rules []int32 // indexes, as written
	spans [protocols][]span
	whole int32 // rule that means all of tcp and udp; -1 if none does
}

// A span is a range of ports and the rule that decides there. Spans of one
// list are sorted and do not overlap.
type span struct {
	lo, hi uint16
	rule   int32
}

// Ports with a meaning of their own.
const (
	portDNS   = 53
	portHTTP  = 80
	portHTTPS = 443
	portDoT   = 853 // DNS over TLS, and over QUIC
)

func newTable(rules []rule, allow bool) *table {
	t := &table{
		rules: rules,
		hosts: map[string]*ports{},
		under: map[string]*ports{},
		nets:  map[netip.Prefix]*ports{},
	}
	for i := range rules {
		r := &rules[i]
		var p *ports
		switch {
		case r.all:
			if t.all == nil {
				t.all = &ports{}
			}
			p = t.all
		case r.host != "":
			p = entry(t.hosts, r.host)
		case r.suffix != "":
			p = entry(t.under, r.suffix)
		default:
			p = entry(t.nets, r.net)
		}
		p.rules = append(p.rules, int32(i))
	}
	var b4, b6 = map[int]bool{}, map[int]bool{}
	for n, p := range t.nets {
		if n.Addr().Is4() {
			b4[n.Bits()] = true
		} else {
			b6[n.Bits()] = true
		}
		p.paint(rules, allow)
	}
	t.bits4, t.bits6 = longestFirst(b4), longestFirst(b6)
	for _, p := range t.hosts {
		p.paint(rules, allow)
	}
	for _, p := range t.under {
		p.paint(rules, allow)
	}
	if t.all != nil {
		t.all.paint(rules, allow)
	}
	return t
}

func entry[K comparable](m map[K]*ports, key K) *ports {
	p := m[key]
	if p == nil {
		p = &ports{}
		m[key] = p
	}
	return p
}

func longestFirst(set map[int]bool) []int {
	all := slices.Collect(maps.Keys(set))
	slices.SortFunc(all, func(a, b int) int { return cmp.Compare(b, a) })
	return all
}

// opens returns the ports of one protocol that an allow rule opens; the others
// of its range need a rule that says more. Up to four ranges.
//
// Resolvers are opened only by a rule with ports, so that nobody gets around
// our own by accident. By name, UDP shows no host that could be checked: it
// needs a rule with ports or with udp://, and on the ports of QUIC udp://.
func (r *rule) opens(p proto) [][2]uint16 {
	if r.proto&p == 0 {
		return nil
	}
	lo, hi := r.lo, r.hi
	var shut []uint16
	switch {
	case p == icmp:
		return [][2]uint16{{0, 65535}}
	case p == udp && r.isName() && !r.said && !r.ported:
		return nil
	case p == udp && r.isName() && !r.said:
		shut = []uint16{portHTTP, portHTTPS}
	case !r.ported:
		shut = []uint16{portDNS, portDoT}
	}
	var open [][2]uint16
	for _, s := range shut {
		if s < lo || s > hi {
			continue
		}
		if s > lo {
			open = append(open, [2]uint16{lo, s - 1})
		}
		if s == hi {
			return open
		}
		lo = s + 1
	}
	return append(open, [2]uint16{lo, hi})
}

// paint fills the spans. Where rules overlap, one that names ports goes before
// one that does not, then the narrower, then the earlier.
func (p *ports) paint(rules []rule, allow bool) {
	order := slices.Clone(p.rules)
	slices.SortStableFunc(order, func(a, b int32) int {
		x, y := &rules[a], &rules[b]
		if x.ported != y.ported {
			if x.ported {
				return -1
			}
			return 1
		}
		return cmp.Compare(x.hi-x.lo, y.hi-y.lo)
	})
	p.whole = -1
	for _, i := range p.rules {
		if r := &rules[i]; !r.ported && r.proto == tcp|udp {
			p.whole = i
			break
		}
	}
	for k := range p.spans {
		var all []claimed
		for rank, i := range order {
			switch {
			case allow:
				for _, g := range rules[i].opens(1 << k) {
					all = append(all, claimed{span{g[0], g[1], i}, rank})
				}
			case rules[i].proto&(1<<k) != 0:
				all = append(all, claimed{span{rules[i].lo, rules[i].hi, i}, rank})
			}
		}
		p.spans[k] = settle(all)
	}
}

// A claimed span is one among others that may overlap; the lowest rank wins.
type claimed struct {
	span
	rank int
}

// settle turns claims into spans, in n log n steps.
func settle(all []claimed) []span {
	slices.SortFunc(all, func(a, b claimed) int { return cmp.Compare(a.lo, b.lo) })
	edges := make([]int, 0, 2*len(all))
	for _, c := range all {
		edges = append(edges, int(c.lo), int(c.hi)+1)
	}
	slices.Sort(edges)
	edges = slices.Compact(edges)
	var spans []span
	var active claims
	for i, lo := range edges {
		for len(all) > 0 && int(all[0].lo) <= lo {
			heap.Push(&active, all[0])
			all = all[1:]
		}
		for len(active) > 0 && int(active[0].hi) < lo {
			heap.Pop(&active)
		}
		if len(active) == 0 {
			continue
		}
		next := span{uint16(lo), uint16(edges[i+1] - 1), active[0].rule}
		if n := len(spans); n > 0 && spans[n-1].rule == next.rule && int(spans[n-1].hi)+1 == lo {
			spans[n-1].hi = next.hi
		} else {
			spans = append(spans, next)
		}
	}
	return spans
}

// claims is a heap of claimed spans, the lowest rank first.
type claims []claimed

func (c claims) Len() int           { return len(c) }
func (c claims) Less(i, j int) bool { return c[i].rank < c[j].rank }
func (c claims) Swap(i, j int)      { c[i], c[j] = c[j], c[i] }
func (c *claims) Push(x any)        { *c = append(*c, x.(claimed)) }
func (c *claims) Pop() any {
	last := (*c)[len(*c)-1]
	*c = (*c)[:len(*c)-1]
	return last
}

// find returns the rule for a port, or -1.
func (p *ports) find(pr proto, port uint16) int32 {
	if p == nil {
		return -1
	}
	spans := p.spans[pr.index()]
	i := sort.Search(len(spans), func(i int) bool { return spans[i].hi >= port })
	if i == len(spans) || spans[i].lo > port {
		return -1
	}
	return spans[i].rule
}

// byName returns the rule for a canonical name, the most specific target
// first, or nil.
func (t *table) byName(name string, pr proto, port uint16) *rule {
	if i := t.hosts[name].find(pr, port); i >= 0 {
		return &t.rules[i]
	}
	if len(t.under) == 0 {
		return nil
	}
	for i := range len(name) {
		if name[i] == '.' {
			if i := t.under[name[i+1:]].find(pr, port); i >= 0 {
				return &t.rules[i]
			}
		}
	}
	return nil
}

// names returns a rule that names name, whatever the port; with whole, one
// that means all of tcp and udp.
func (t *table) names(name string, whole bool) *rule {
	if r := t.of(t.hosts[name], whole); r != nil {
		return r
	}
	if len(t.under) == 0 {
		return nil
	}
	for i := range len(name) {
		if name[i] == '.' {
			if r := t.of(t.under[name[i+1:]], whole); r != nil {
				return r
			}
		}
	}
	return nil
}

// of returns the first rule of p, or the first that is whole.
func (t *table) of(p *ports, whole bool) *rule {
	switch {
	case p == nil || whole && p.whole < 0:
		return nil
	case whole:
		return &t.rules[p.whole]
	default:
		return &t.rules[p.rules[0]]
	}
}

// byAddr returns the rule that names a plain address by itself or by a
// network, the longest first, or nil. A rule for everything is not asked.
func (t *table) byAddr(a netip.Addr, pr proto, port uint16) *rule {
	for _, bits := range t.lengths(a) {
		n, err := a.Prefix(bits)
		if err != nil {
			continue // lengths fit the family
		}
		if i := t.nets[n].find(pr, port); i >= 0 {
			return &t.rules[i]
		}
	}
	return nil
}

// holds returns a rule that names a plain address, whatever the port, or nil.
func (t *table) holds(a netip.Addr) *rule {
	for _, bits := range t.lengths(a) {
		n, err := a.Prefix(bits)
		if err != nil {
			continue
		}
		if r := t.of(t.nets[n], false); r != nil {
			return r
		}
	}
	return nil
}

func (t *table) lengths(a netip.Addr) []int {
	if a.Is4() {
		return t.bits4
	}
	return t.bits6
}

// any returns the rule for everything on a port, or nil.
func (t *table) any(pr proto, port uint16) *rule {
	if i := t.all.find(pr, port); i >= 0 {
		return &t.rules[i]
	}
	return nil
}

// coverers yields the rules whose targets hold all of the target of r.
func (t *table) coverers(r *rule) iter.Seq[*rule] {
	return func(yield func(*rule) bool) {
		var targets []*ports
		targets = append(targets, t.all, t.hosts[r.host])
		name := r.host
		if r.suffix != "" {
			name = r.suffix
			targets = append(targets, t.under[name])
		}
		for i := range len(name) {
			if name[i] == '.' {
				targets = append(targets, t.under[name[i+1:]])
			}
		}
		if r.net.IsValid() {
			for _, bits := range t.lengths(r.net.Addr()) {
				if n, err := r.net.Addr().Prefix(bits); err == nil && bits <= r.net.Bits() {
					targets = append(targets, t.nets[n])
				}
			}
		}
		for _, p := range targets {
			if p == nil {
				continue
			}
			for _, i := range p.rules {
				if !yield(&t.rules[i]) {
					return
				}
			}
		}
	}
}
