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

// A table finds matching rules in one list. Names are looked up in full and by
// each of their suffixes, addresses by each prefix length that occurs, ports by
// binary search: about a dozen steps for any number of rules.
type table struct {
	rules    []rule
	all      *portRules
	hosts    map[string]*portRules
	suffixes map[string]*portRules // rules by the SUFFIX of *.SUFFIX
	nets     map[netip.Prefix]*portRules
	bits4    []int // prefix lengths in use, longest first
	bits6    []int
}

// portRules holds the rules for one target, by protocol and port.
type portRules struct {
	rules        []int32 // indexes of the rules, in their order
	spans        [protocols][]span
	allPortsRule int32 // index of a rule for all ports of tcp and udp; -1 if there is none
}

// A span is a range of ports and the rule that decides for it. Spans of one list
// are sorted and do not overlap.
type span struct {
	lo, hi uint16
	rule   int32
}

// Ports that are treated specially.
const (
	portDNS   = 53
	portHTTP  = 80
	portHTTPS = 443
	portDoT   = 853 // DNS over TLS, and over QUIC
)

func newTable(rules []rule, allow bool) *table {
	t := &table{
		rules:    rules,
		hosts:    map[string]*portRules{},
		suffixes: map[string]*portRules{},
		nets:     map[netip.Prefix]*portRules{},
	}
	for i := range rules {
		r := &rules[i]
		var p *portRules
		switch {
		case r.all:
			if t.all == nil {
				t.all = &portRules{}
			}
			p = t.all
		case r.host != "":
			p = entry(t.hosts, r.host)
		case r.suffix != "":
			p = entry(t.suffixes, r.suffix)
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
		p.buildSpans(rules, allow)
	}
	t.bits4, t.bits6 = longestFirst(b4), longestFirst(b6)
	for _, p := range t.hosts {
		p.buildSpans(rules, allow)
	}
	for _, p := range t.suffixes {
		p.buildSpans(rules, allow)
	}
	if t.all != nil {
		t.all.buildSpans(rules, allow)
	}
	return t
}

func entry[K comparable](m map[K]*portRules, key K) *portRules {
	p := m[key]
	if p == nil {
		p = &portRules{}
		m[key] = p
	}
	return p
}

func longestFirst(set map[int]bool) []int {
	all := slices.Collect(maps.Keys(set))
	slices.SortFunc(all, func(a, b int) int { return cmp.Compare(b, a) })
	return all
}

// openPorts returns the ports of one protocol that an allow rule opens, in up to
// four ranges. Other ports in its range need a more explicit rule.
//
// Resolvers are opened only by a rule with ports, so that the gateway's resolver is not bypassed
// by accident. UDP shows no host name that could be checked: if the target is a
// name, it needs a rule with ports or udp://, and for the ports of QUIC udp://.
func (r *rule) openPorts(p proto) [][2]uint16 {
	if r.proto&p == 0 {
		return nil
	}
	lo, hi := r.lo, r.hi
	var shut []uint16
	switch {
	case p == icmp:
		return [][2]uint16{{0, 65535}}
	case p == udp && r.isName() && !r.protoGiven && !r.hasPorts:
		return nil
	case p == udp && r.isName() && !r.protoGiven:
		shut = []uint16{portHTTP, portHTTPS}
	case !r.hasPorts:
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

// buildSpans fills in spans. Where rules overlap, rules with ports take precedence
// over rules without, then narrower ones, then earlier ones.
func (p *portRules) buildSpans(rules []rule, allow bool) {
	order := slices.Clone(p.rules)
	slices.SortStableFunc(order, func(a, b int32) int {
		x, y := &rules[a], &rules[b]
		if x.hasPorts != y.hasPorts {
			if x.hasPorts {
				return -1
			}
			return 1
		}
		return cmp.Compare(x.hi-x.lo, y.hi-y.lo)
	})
	p.allPortsRule = -1
	for _, i := range p.rules {
		if r := &rules[i]; !r.hasPorts && r.proto == tcp|udp {
			p.allPortsRule = i
			break
		}
	}
	for k := range p.spans {
		var all []rankedSpan
		for rank, i := range order {
			switch {
			case allow:
				for _, g := range rules[i].openPorts(1 << k) {
					all = append(all, rankedSpan{span{g[0], g[1], i}, rank})
				}
			case rules[i].proto&(1<<k) != 0:
				all = append(all, rankedSpan{span{rules[i].lo, rules[i].hi, i}, rank})
			}
		}
		p.spans[k] = mergeSpans(all)
	}
}

// A rankedSpan is one of several spans that may overlap; the lowest rank takes precedence.
type rankedSpan struct {
	span
	rank int
}

// mergeSpans resolves overlaps, in n log n steps.
func mergeSpans(all []rankedSpan) []span {
	slices.SortFunc(all, func(a, b rankedSpan) int { return cmp.Compare(a.lo, b.lo) })
	edges := make([]int, 0, 2*len(all))
	for _, c := range all {
		edges = append(edges, int(c.lo), int(c.hi)+1)
	}
	slices.Sort(edges)
	edges = slices.Compact(edges)
	var spans []span
	var active spanHeap
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

// A spanHeap is a heap of spans, lowest rank first.
type spanHeap []rankedSpan

func (c spanHeap) Len() int           { return len(c) }
func (c spanHeap) Less(i, j int) bool { return c[i].rank < c[j].rank }
func (c spanHeap) Swap(i, j int)      { c[i], c[j] = c[j], c[i] }
func (c *spanHeap) Push(x any)        { *c = append(*c, x.(rankedSpan)) }
func (c *spanHeap) Pop() any {
	last := (*c)[len(*c)-1]
	*c = (*c)[:len(*c)-1]
	return last
}

// find returns the index of the rule for a port, or -1.
func (p *portRules) find(pr proto, port uint16) int32 {
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

// byName returns the rule with the most specific target for a canonical name, or
// nil.
func (t *table) byName(name string, pr proto, port uint16) *rule {
	if i := t.hosts[name].find(pr, port); i >= 0 {
		return &t.rules[i]
	}
	if len(t.suffixes) == 0 {
		return nil
	}
	for i := range len(name) {
		if name[i] == '.' {
			if i := t.suffixes[name[i+1:]].find(pr, port); i >= 0 {
				return &t.rules[i]
			}
		}
	}
	return nil
}

// ruleFor returns a rule for a canonical name and any port, or nil. If allPorts
// is set, it returns a rule for all ports of tcp and udp.
func (t *table) ruleFor(name string, allPorts bool) *rule {
	if r := t.first(t.hosts[name], allPorts); r != nil {
		return r
	}
	if len(t.suffixes) == 0 {
		return nil
	}
	for i := range len(name) {
		if name[i] == '.' {
			if r := t.first(t.suffixes[name[i+1:]], allPorts); r != nil {
				return r
			}
		}
	}
	return nil
}

// first returns the first rule of p or, if allPorts is set, the first rule for all ports of tcp
// and udp. It returns nil if there is none.
func (t *table) first(p *portRules, allPorts bool) *rule {
	switch {
	case p == nil || allPorts && p.allPortsRule < 0:
		return nil
	case allPorts:
		return &t.rules[p.allPortsRule]
	default:
		return &t.rules[p.rules[0]]
	}
}

// byAddr returns the rule with the longest prefix for a canonical address, or nil.
// Rules for everything are not considered.
func (t *table) byAddr(a netip.Addr, pr proto, port uint16) *rule {
	for _, bits := range t.lengths(a) {
		n, err := a.Prefix(bits)
		if err != nil {
			continue // unreachable: the lengths belong to the address's family
		}
		if i := t.nets[n].find(pr, port); i >= 0 {
			return &t.rules[i]
		}
	}
	return nil
}

// forAddr returns a rule for a canonical address and any port, or nil.
func (t *table) forAddr(a netip.Addr) *rule {
	for _, bits := range t.lengths(a) {
		n, err := a.Prefix(bits)
		if err != nil {
			continue
		}
		if r := t.first(t.nets[n], false); r != nil {
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

// forAll returns the rule for everything on a port, or nil.
func (t *table) forAll(pr proto, port uint16) *rule {
	if i := t.all.find(pr, port); i >= 0 {
		return &t.rules[i]
	}
	return nil
}

// coverers yields the rules whose targets include all of the target of r.
func (t *table) coverers(r *rule) iter.Seq[*rule] {
	return func(yield func(*rule) bool) {
		var targets []*portRules
		targets = append(targets, t.all, t.hosts[r.host])
		name := r.host
		if r.suffix != "" {
			name = r.suffix
			targets = append(targets, t.suffixes[name])
		}
		for i := range len(name) {
			if name[i] == '.' {
				targets = append(targets, t.suffixes[name[i+1:]])
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
