package egress

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/net/publicsuffix"
)

const (
	maxBound = 4096             // pairs of name and address of one sandbox
	grace    = 10 * time.Minute // after an answer's time to live: programs keep answers longer than they should
	maxNamed = 64               // names of one address
)

// names remembers which names our DNS gave an address for. It is safe for
// concurrent use; the zero value knows nothing.
type names struct {
	mu    sync.Mutex
	bound map[netip.Addr][]binding // guarded by mu
	pairs int                      // guarded by mu
}

type binding struct {
	name  string
	until time.Time
}

// bind remembers that a name was answered with an address.
func (n *names) bind(name string, a netip.Addr, ttl time.Duration) {
	now := time.Now()
	until := now.Add(ttl + grace)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.bound == nil {
		n.bound = make(map[netip.Addr][]binding)
	}
	list := n.bound[a]
	if i := slices.IndexFunc(list, func(b binding) bool { return b.name == name }); i >= 0 {
		list[i].until = until
		return
	}
	if n.pairs >= maxBound {
		n.evict(now)
	}
	list = n.bound[a]
	if len(list) >= maxNamed {
		oldest := 0
		for i := range list {
			if list[i].until.Before(list[oldest].until) {
				oldest = i
			}
		}
		list[oldest] = binding{name, until}
		return
	}
	n.bound[a] = append(list, binding{name, until})
	n.pairs++
}

// evict drops what has ended, and if that is little, the quarter that ends
// first. The caller holds n.mu.
func (n *names) evict(now time.Time) {
	ends := make([]time.Time, 0, n.pairs)
	for _, list := range n.bound {
		for _, b := range list {
			ends = append(ends, b.until)
		}
	}
	slices.SortFunc(ends, time.Time.Compare)
	limit := ends[len(ends)/4]
	if limit.Before(now) {
		limit = now
	}
	n.pairs = 0
	for a, list := range n.bound {
		list = slices.DeleteFunc(list, func(b binding) bool { return !b.until.After(limit) })
		if n.pairs += len(list); len(list) == 0 {
			delete(n.bound, a)
		} else {
			n.bound[a] = list
		}
	}
}

// of returns the names that an address was given out for.
func (n *names) of(a netip.Addr) []string {
	now := time.Now()
	n.mu.Lock()
	defer n.mu.Unlock()
	var all []string
	for _, b := range n.bound[a] {
		if now.Before(b.until) {
			all = append(all, b.name)
		}
	}
	return all
}

// Bounds against tunnels through DNS: what one sandbox can say to the owner of
// a domain by asking for names below it.
const (
	maxName     = 200              // characters of a name
	budgetSpan  = 10 * time.Minute // in which
	budgetChars = 8 << 10          // characters of different names below one domain can be asked for,
	budgetNames = 16 << 10         // and so many different names in all
)

// A budget counts what names say. It is safe for concurrent use.
type budget struct {
	mu      sync.Mutex
	domains map[string]*spent // guarded by mu
	total   int               // guarded by mu; names in domains
}

type spent struct {
	since time.Time
	chars int
	names map[string]bool
}

// spend reports whether a name may be asked for. The same name again is free.
func (b *budget) spend(name string) bool {
	domain, err := publicsuffix.EffectiveTLDPlusOne(name)
	if err != nil || domain == name {
		return true // nothing is said below it
	}
	below := len(name) - len(domain) - 1
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.domains == nil {
		b.domains = make(map[string]*spent)
	}
	s := b.domains[domain]
	if s != nil && now.Sub(s.since) > budgetSpan {
		b.total -= len(s.names)
		s = nil
	}
	if s == nil {
		s = &spent{since: now, names: make(map[string]bool)}
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
