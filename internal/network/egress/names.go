package egress

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/net/publicsuffix"
)

const (
	maxBindings     = 4096             // maximum number of pairs of name and address of one sandbox
	bindingGrace    = 10 * time.Minute // time for which a binding outlives the answer's time to live, because programs keep answers too long
	maxNamesPerAddr = 64               // maximum number of names of one address
)

// bindings records the names for which the gateway's DNS gave out each address. The zero value
// is empty. It is safe for concurrent use.
type bindings struct {
	mu    sync.Mutex
	bound map[netip.Addr][]binding // guarded by mu
	pairs int                      // guarded by mu
}

type binding struct {
	name  string
	until time.Time
}

// bind records that a name was resolved to an address.
func (bs *bindings) bind(name string, a netip.Addr, ttl time.Duration) {
	now := time.Now()
	until := now.Add(ttl + bindingGrace)
	bs.mu.Lock()
	defer bs.mu.Unlock()
	if bs.bound == nil {
		bs.bound = make(map[netip.Addr][]binding)
	}
	list := bs.bound[a]
	if i := slices.IndexFunc(list, func(b binding) bool { return b.name == name }); i >= 0 {
		list[i].until = until
		return
	}
	if bs.pairs >= maxBindings {
		bs.evict(now)
	}
	list = bs.bound[a]
	if len(list) >= maxNamesPerAddr {
		oldest := 0
		for i := range list {
			if list[i].until.Before(list[oldest].until) {
				oldest = i
			}
		}
		list[oldest] = binding{name, until}
		return
	}
	bs.bound[a] = append(list, binding{name, until})
	bs.pairs++
}

// evict drops expired bindings, and at least the quarter of bindings that expires first. The
// caller holds bs.mu.
func (bs *bindings) evict(now time.Time) {
	ends := make([]time.Time, 0, bs.pairs)
	for _, list := range bs.bound {
		for _, b := range list {
			ends = append(ends, b.until)
		}
	}
	slices.SortFunc(ends, time.Time.Compare)
	limit := ends[len(ends)/4]
	if limit.Before(now) {
		limit = now
	}
	bs.pairs = 0
	for a, list := range bs.bound {
		list = slices.DeleteFunc(list, func(b binding) bool { return !b.until.After(limit) })
		if bs.pairs += len(list); len(list) == 0 {
			delete(bs.bound, a)
		} else {
			bs.bound[a] = list
		}
	}
}

// names returns the names for which an address was given out.
func (bs *bindings) names(a netip.Addr) []string {
	now := time.Now()
	bs.mu.Lock()
	defer bs.mu.Unlock()
	var all []string
	for _, b := range bs.bound[a] {
		if now.Before(b.until) {
			all = append(all, b.name)
		}
	}
	return all
}

// Bounds against tunnels through DNS. They limit the information that a sandbox can pass to the owner of a
// domain by lookups of names below the domain.
const (
	maxName     = 200              // maximum number of characters of a name
	budgetSpan  = 10 * time.Minute // time span of the following two bounds
	budgetChars = 8 << 10          // maximum number of characters of different names below one domain
	budgetNames = 16 << 10         // maximum number of different names of all domains
)

// A nameBudget bounds the information in looked-up names. The zero value is
// unused. It is safe for concurrent use.
type nameBudget struct {
	mu      sync.Mutex
	domains map[string]*domainBudget // guarded by mu
	total   int                      // number of names in domains; guarded by mu
}

type domainBudget struct {
	since time.Time
	chars int
	names map[string]bool
}

// allow reports whether a name may be looked up. A repeated name does not use the budget.
func (b *nameBudget) allow(name string) bool {
	domain, err := publicsuffix.EffectiveTLDPlusOne(name)
	if err != nil || domain == name {
		return true // the name has no part that the sandbox could choose
	}
	below := len(name) - len(domain) - 1
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.domains == nil {
		b.domains = make(map[string]*domainBudget)
	}
	s := b.domains[domain]
	if s != nil && now.Sub(s.since) > budgetSpan {
		b.total -= len(s.names)
		s = nil
	}
	if s == nil {
		s = &domainBudget{since: now, names: make(map[string]bool)}
		b.domains[domain] = s
	}
	if s.names[name] {
		return true
	}
	if b.total >= budgetNames {
		for d, old := range b.domains {
			if now.Sub(old.since) > budgetSpan {
				b.total -= len(old.names)
				delete(b.domains, d)
			}
		}
	}
	if s.chars+below > budgetChars || b.total >= budgetNames {
		if len(s.names) == 0 {
			delete(b.domains, domain)
		}
		return false
	}
	s.chars += below
	s.names[name] = true
	b.total++
	return true
}
