// Package resolve queries DNS servers on behalf of sandboxes, which cannot reach DNS
// servers themselves. It sends each query over UDP, then over TCP if the response is
// truncated, caches answers for their time to live, and takes only the requested records
// from a response.
//
// Package policy decides which names and addresses are allowed.
package resolve

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/engi-dev/engi/internal/engi"
)

// Bounds of the data accepted from servers and cached.
const (
	MaxAddrs      = 32      // maximum number of addresses of one answer
	MaxRecords    = 32      // maximum number of other records of one answer
	maxAliases    = 8       // maximum number of aliases in a chain
	maxMessage    = 8 << 10 // bytes; maximum size of a response over UDP
	maxCached     = 4096    // maximum number of cached answers
	maxTTL        = 5 * time.Minute
	negativeTTL   = 5 * time.Second // time to live of answers without records
	serverTimeout = 2 * time.Second // timeout of each attempt
)

// An Answer is the result of a lookup.
type Answer struct {
	Missing bool                  // the name does not exist
	Alias   string                // canonical target of the name's CNAME record; empty if there is none
	Addrs   []netip.Addr          // addresses; only for A and AAAA
	Records []dnsmessage.Resource // records of other types
	TTL     time.Duration         // time to live; at most 5 minutes
}

type question struct {
	name string
	kind dnsmessage.Type
}

type cached struct {
	Answer
	until time.Time
}

// A Resolver queries servers and caches answers. It is safe for concurrent use.
type Resolver struct {
	servers []netip.AddrPort
	slots   chan struct{} // holds a value for each query in flight

	mu    sync.Mutex
	cache map[question]cached // guarded by mu
}

// New returns a Resolver that queries the given servers, or the servers in the host's
// /etc/resolv.conf if servers is empty. If there are none, every lookup fails.
func New(servers []netip.AddrPort) *Resolver {
	if len(servers) == 0 {
		servers = HostServers("/etc/resolv.conf")
	}
	return &Resolver{servers: servers, slots: make(chan struct{}, 256), cache: make(map[question]cached)}
}

// HostServers returns the servers in a resolv.conf file, at most three.
func HostServers(path string) []netip.AddrPort {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	var all []netip.AddrPort
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) < 2 || f[0] != "nameserver" {
			continue
		}
		if a, err := netip.ParseAddr(f[1]); err == nil && len(all) < 3 {
			all = append(all, netip.AddrPortFrom(a, 53))
		}
	}
	return all
}

// Lookup looks up records of a canonical name. It reports Unavailable if no server
// gave a usable answer.
func (r *Resolver) Lookup(ctx context.Context, name string, kind dnsmessage.Type) (Answer, error) {
	q := question{name, kind}
	now := time.Now()
	r.mu.Lock()
	k, ok := r.cache[q]
	r.mu.Unlock()
	if ok && now.Before(k.until) {
		k.Answer.TTL = k.until.Sub(now)
		return k.Answer, nil
	}
	select {
	case r.slots <- struct{}{}:
		defer func() { <-r.slots }()
	case <-ctx.Done():
		return Answer{}, engi.Errorf(engi.Expired, "look up %s: %v", name, ctx.Err())
	}
	err := error(engi.Errorf(engi.Unavailable, "look up %s: this node has no resolver", name).
		WithRemedy("set 'resolver' in [network], or nameservers in /etc/resolv.conf"))
	for range 2 {
		for _, server := range r.servers {
			var a Answer
			if a, err = queryServer(ctx, server, q); err == nil {
				r.store(q, a)
				return a, nil
			}
			if ctx.Err() != nil {
				return Answer{}, err
			}
		}
	}
	return Answer{}, err
}

func (r *Resolver) store(q question, a Answer) {
	if a.TTL <= 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.cache) >= maxCached {
		now, n := time.Now(), 0
		for old, k := range r.cache { // drop expired answers and a random eighth of the others
			if n++; now.After(k.until) || n%8 == 0 {
				delete(r.cache, old)
			}
		}
	}
	r.cache[q] = cached{a, time.Now().Add(a.TTL)}
}

func queryServer(ctx context.Context, server netip.AddrPort, q question) (Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, serverTimeout)
	defer cancel()
	var id [2]byte
	rand.Read(id[:])
	msg, err := packQuery(q, binary.BigEndian.Uint16(id[:]))
	if err != nil {
		return Answer{}, engi.Errorf(engi.Invalid, "look up %.80q: %v", q.name, err)
	}
	for _, network := range []string{"udp", "tcp"} {
		a, cut, err := exchange(ctx, network, server, q, msg)
		if err != nil {
			return Answer{}, engi.Errorf(engi.Unavailable, "look up %s: server %s: %v", q.name, server, err)
		}
		if !cut {
			return a, nil
		}
	}
	return Answer{}, engi.Errorf(engi.Unavailable, "look up %s: server %s sends no complete response", q.name, server)
}

func packQuery(q question, id uint16) ([]byte, error) {
	name, err := dnsmessage.NewName(q.name + ".")
	if err != nil {
		return nil, err
	}
	b := dnsmessage.NewBuilder(make([]byte, 2, 512), dnsmessage.Header{ID: id, RecursionDesired: true})
	b.EnableCompression()
	if err := b.StartQuestions(); err != nil {
		return nil, err
	}
	if err := b.Question(dnsmessage.Question{Name: name, Type: q.kind, Class: dnsmessage.ClassINET}); err != nil {
		return nil, err
	}
	if err := b.StartAdditionals(); err != nil {
		return nil, err
	}
	var opt dnsmessage.ResourceHeader
	if err := opt.SetEDNS0(1232, dnsmessage.RCodeSuccess, false); err != nil {
		return nil, err
	}
	if err := b.OPTResource(opt, dnsmessage.OPTResource{}); err != nil {
		return nil, err
	}
	return b.Finish() // the first two bytes are reserved for the length
}

// exchange sends a message, which begins with two bytes for its length, and waits
// for its response, ignoring others.
func exchange(ctx context.Context, network string, server netip.AddrPort, q question, msg []byte) (a Answer, cut bool, err error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, network, server.String())
	if err != nil {
		return Answer{}, false, err
	}
	defer c.Close()
	if until, ok := ctx.Deadline(); ok {
		c.SetDeadline(until)
	}
	defer context.AfterFunc(ctx, func() { c.SetDeadline(time.Unix(1, 0)) })()
	id := binary.BigEndian.Uint16(msg[2:])
	if network == "tcp" {
		binary.BigEndian.PutUint16(msg, uint16(len(msg)-2))
		if _, err := c.Write(msg); err != nil {
			return Answer{}, false, err
		}
		var size [2]byte
		if _, err := io.ReadFull(c, size[:]); err != nil {
			return Answer{}, false, err
		}
		buf := make([]byte, min(int(binary.BigEndian.Uint16(size[:])), 64<<10))
		if _, err := io.ReadFull(c, buf); err != nil {
			return Answer{}, false, err
		}
		a, _, err = Parse(buf, id, q.name, q.kind)
		return a, false, err
	}
	if _, err := c.Write(msg[2:]); err != nil {
		return Answer{}, false, err
	}
	buf := make([]byte, maxMessage)
	for range 16 { // limits the number of forged responses to read
		n, err := c.Read(buf)
		if err != nil {
			return Answer{}, false, err
		}
		a, cut, err := Parse(buf[:n], id, q.name, q.kind)
		if err == nil || engi.Is(err, engi.Unavailable) {
			return a, cut, err
		}
	}
	return Answer{}, false, engi.Errorf(engi.Unavailable, "no response to the query")
}

// Parse parses a server's response to a query. It reports Unavailable if the
// server could not answer, and Invalid if b is not a response to this query. If
// cut is true, the query must be repeated over TCP.
func Parse(b []byte, id uint16, name string, kind dnsmessage.Type) (a Answer, cut bool, err error) {
	var p dnsmessage.Parser
	h, err := p.Start(b)
	if err != nil {
		return Answer{}, false, engi.Errorf(engi.Invalid, "bad message: %v", err)
	}
	if !h.Response || h.ID != id || h.OpCode != 0 {
		return Answer{}, false, engi.Errorf(engi.Invalid, "not a response to the query")
	}
	qs, err := p.Question()
	if err != nil || canonical(qs.Name) != name || qs.Type != kind || qs.Class != dnsmessage.ClassINET {
		return Answer{}, false, engi.Errorf(engi.Invalid, "a response to another query")
	}
	switch h.RCode {
	case dnsmessage.RCodeSuccess:
	case dnsmessage.RCodeNameError:
		return Answer{Missing: true, TTL: negativeTTL}, false, nil
	default:
		return Answer{}, false, engi.Errorf(engi.Unavailable, "the server says %v", h.RCode)
	}
	if h.Truncated {
		return Answer{}, true, nil
	}
	if err := p.SkipAllQuestions(); err != nil {
		return Answer{}, false, engi.Errorf(engi.Invalid, "bad message: %v", err)
	}
	a, err = parseRecords(&p, name, kind)
	return a, false, err
}

func parseRecords(p *dnsmessage.Parser, name string, kind dnsmessage.Type) (Answer, error) {
	a := Answer{TTL: maxTTL}
	alias := make(map[string]string)
	byName := make(map[string][]netip.Addr)
	bad := func(err error) (Answer, error) {
		return Answer{}, engi.Errorf(engi.Invalid, "bad message: %v", err)
	}
	other := make(map[string][]dnsmessage.Resource)
	for n := 0; ; n++ {
		h, err := p.AnswerHeader()
		if err == dnsmessage.ErrSectionDone {
			break
		}
		if err != nil {
			return bad(err)
		}
		if h.Class != dnsmessage.ClassINET || n >= MaxAddrs+MaxRecords {
			if err := p.SkipAnswer(); err != nil {
				return bad(err)
			}
			continue
		}
		owner := canonical(h.Name)
		a.TTL = min(a.TTL, time.Duration(h.TTL)*time.Second)
		switch {
		case h.Type == dnsmessage.TypeCNAME:
			r, err := p.CNAMEResource()
			if err != nil {
				return bad(err)
			}
			alias[owner] = canonical(r.CNAME)
		case h.Type != kind:
			if err := p.SkipAnswer(); err != nil {
				return bad(err)
			}
		case kind == dnsmessage.TypeA:
			r, err := p.AResource()
			if err != nil {
				return bad(err)
			}
			byName[owner] = append(byName[owner], netip.AddrFrom4(r.A))
		case kind == dnsmessage.TypeAAAA:
			r, err := p.AAAAResource()
			if err != nil {
				return bad(err)
			}
			byName[owner] = append(byName[owner], netip.AddrFrom16(r.AAAA))
		default:
			r, err := p.Answer()
			if err != nil {
				return bad(err)
			}
			if len(other[owner]) < MaxRecords {
				other[owner] = append(other[owner], r)
			}
		}
	}
	a.Alias = alias[name]
	at := name
	for range maxAliases {
		to, ok := alias[at]
		if !ok {
			break
		}
		at = to
	}
	a.Addrs, a.Records = byName[at], other[at]
	if len(a.Addrs) > MaxAddrs {
		a.Addrs = a.Addrs[:MaxAddrs]
	}
	if len(a.Addrs)+len(a.Records) == 0 && a.Alias == "" {
		a.TTL = negativeTTL
	}
	return a, nil
}

// canonical returns a name in lower case without the final dot.
func canonical(n dnsmessage.Name) string {
	return strings.ToLower(strings.TrimSuffix(n.String(), "."))
}
