package egress

import (
	"context"
	"encoding/binary"
	"io"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/gate/egress/policy"
	"github.com/engi-dev/engi/gate/egress/resolve"
)

const (
	maxQuestion  = 512 // bytes of a message that asks
	maxQuestions = 64  // of one sandbox, under way
	plainUDP     = 512 // bytes of an answer over UDP to who does not say that it takes more
	maxUDP       = 1232
	minTTL       = 5 * time.Second
	peerTTL      = 5 * time.Second // peers come and go

	typeSVCB, typeHTTPS dnsmessage.Type = 64, 65
)

// serveDNS answers questions that come as datagrams, until the side ends.
func (r *sandbox) serveDNS(s *side) error {
	slots := make(chan struct{}, maxQuestions)
	for _, a := range []netip.Addr{Gateway4, Gateway6} {
		local, proto := fullAddr(netip.AddrPortFrom(a, 53))
		c, err := gonet.DialUDP(s.stack, &local, nil, proto)
		if err != nil {
			return engi.Errorf(engi.Internal, "DNS of %s: %v", r.id, err)
		}
		stop := context.AfterFunc(s.ctx, func() { c.SetDeadline(time.Unix(1, 0)) })
		s.work.Go(func() {
			defer c.Close()
			defer stop()
			buf := make([]byte, maxQuestion)
			for {
				n, from, err := c.ReadFrom(buf)
				if err != nil {
					return
				}
				set := r.rules.Load()
				if set == nil || n == len(buf) {
					continue
				}
				select {
				case slots <- struct{}{}:
				default:
					continue // whoever wants an answer asks again
				}
				msg := append([]byte(nil), buf[:n]...)
				s.work.Go(func() {
					defer func() { <-slots }()
					if answer := r.answer(s.ctx, set, msg, true); answer != nil {
						c.WriteTo(answer, from)
					}
				})
			}
		})
	}
	return nil
}

// serveDNSOver answers questions of one connection, one after the other.
func (r *sandbox) serveDNSOver(ctx context.Context, set *rules, in *inside) {
	stop := context.AfterFunc(ctx, func() { in.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	for {
		in.SetDeadline(time.Now().Add(10 * time.Second))
		if ctx.Err() != nil {
			return
		}
		var size [2]byte
		if _, err := io.ReadFull(in, size[:]); err != nil {
			return
		}
		n := int(binary.BigEndian.Uint16(size[:]))
		if n > maxQuestion {
			return
		}
		msg := make([]byte, n)
		if _, err := io.ReadFull(in, msg); err != nil {
			return
		}
		answer := r.answer(ctx, set, msg, false)
		if answer == nil {
			return
		}
		if _, err := in.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(answer))), answer...)); err != nil {
			return
		}
	}
}

// ask is a question of a sandbox.
type ask struct {
	id      uint16
	recurse bool
	q       dnsmessage.Question
	size    int // bytes that an answer over UDP may have
	name    string
}

// parseAsk reads a question. It returns nil for what is none that could be
// answered at all.
func parseAsk(msg []byte) *ask {
	var p dnsmessage.Parser
	h, err := p.Start(msg)
	if err != nil || h.Response || h.OpCode != 0 {
		return nil
	}
	a := &ask{id: h.ID, recurse: h.RecursionDesired, size: plainUDP}
	if a.q, err = p.Question(); err != nil {
		return nil
	}
	if _, err := p.Question(); err != dnsmessage.ErrSectionDone {
		return nil
	}
	if p.SkipAllAnswers() != nil || p.SkipAllAuthorities() != nil {
		return nil
	}
	for range 4 {
		extra, err := p.AdditionalHeader()
		if err != nil {
			break
		}
		if extra.Type == dnsmessage.TypeOPT {
			a.size = min(max(int(extra.Class), plainUDP), maxUDP)
		}
		if p.SkipAdditional() != nil {
			break
		}
	}
	a.name = strings.ToLower(strings.TrimSuffix(a.q.Name.String(), "."))
	return a
}

// answer returns the answer to a message; nil to say nothing.
func (r *sandbox) answer(ctx context.Context, set *rules, msg []byte, datagram bool) []byte {
	a := parseAsk(msg)
	if a == nil {
		r.event(set, engi.NetworkEvent{Kind: engi.NetworkLookup, Reason: "a malformed DNS message"})
		return nil
	}
	if set.lookups != nil && !set.lookups.Allow() {
		r.limited(set, "", netip.AddrPort{}, "the sandbox asks more DNS questions per second than its policy allows")
		return a.reply(dnsmessage.RCodeRefused, nil, datagram)
	}
	ctx, cancel := context.WithTimeout(ctx, 8*time.Second)
	defer cancel()
	code, records := r.lookup(ctx, set, a)
	return a.reply(code, records, datagram)
}

// record is one of an answer; its name is that of the question.
type record struct {
	ttl  time.Duration
	body dnsmessage.ResourceBody
}

func (a *ask) reply(code dnsmessage.RCode, records []record, datagram bool) []byte {
	cut := false
	for {
		b := dnsmessage.NewBuilder(make([]byte, 0, 512), dnsmessage.Header{ID: a.id, Response: true, RecursionDesired: a.recurse,
			RecursionAvailable: true, RCode: code, Truncated: cut})
		b.EnableCompression()
		ok := b.StartQuestions() == nil && b.Question(a.q) == nil && b.StartAnswers() == nil
		for _, rec := range records {
			h := dnsmessage.ResourceHeader{Name: a.q.Name, Class: dnsmessage.ClassINET, TTL: uint32(max(rec.ttl, time.Second) / time.Second)}
			ok = ok && add(&b, h, rec.body) == nil
		}
		msg, err := b.Finish()
		if !ok || err != nil || len(msg) > 0xffff {
			if len(records) == 0 {
				return nil
			}
			code, records = dnsmessage.RCodeServerFailure, nil
			continue
		}
		if datagram && len(msg) > a.size && len(records) > 0 {
			cut, records = true, nil
			continue
		}
		return msg
	}
}

func add(b *dnsmessage.Builder, h dnsmessage.ResourceHeader, body dnsmessage.ResourceBody) error {
	switch v := body.(type) {
	case *dnsmessage.AResource:
		return b.AResource(h, *v)
	case *dnsmessage.AAAAResource:
		return b.AAAAResource(h, *v)
	case *dnsmessage.CNAMEResource:
		return b.CNAMEResource(h, *v)
	case *dnsmessage.MXResource:
		return b.MXResource(h, *v)
	case *dnsmessage.SRVResource:
		return b.SRVResource(h, *v)
	case *dnsmessage.TXTResource:
		return b.TXTResource(h, *v)
	}
	return engi.Errorf(engi.Internal, "a DNS record of another kind")
}

// lookup judges and answers a question.
func (r *sandbox) lookup(ctx context.Context, set *rules, a *ask) (dnsmessage.RCode, []record) {
	e := engi.NetworkEvent{Kind: engi.NetworkLookup, Host: clip(a.name)}
	refuse := func(reason string) (dnsmessage.RCode, []record) {
		e.Reason = reason
		r.event(set, e)
		return dnsmessage.RCodeNameError, nil
	}
	if a.q.Class != dnsmessage.ClassINET {
		e.Reason = "a DNS question of another class than Internet"
		r.event(set, e)
		return dnsmessage.RCodeRefused, nil
	}
	if own := set.policy.Source().Group; own != "" {
		if member, group, ok := inGroup(a.name); ok && group == own {
			return r.lookupPeer(set, a, e, member)
		}
	}
	if a.q.Type == dnsmessage.TypePTR {
		return dnsmessage.RCodeNameError, nil // programs only want it for show
	}
	v := set.policy.Lookup(a.name)
	e.Allowed, e.Rule, e.Reason = v.Allowed, v.Rule, v.Reason
	if !v.Allowed {
		return refuse(v.Reason)
	}
	name, err := policy.CheckName(a.name)
	if err != nil {
		e.Allowed = false
		return refuse(err.Error())
	}
	if v.Rule != name && (len(name) > maxName || !r.budget.spend(name)) {
		e.Kind, e.Allowed = engi.NetworkLimit, false
		return refuse("names below one domain say more than DNS is for")
	}
	switch a.q.Type {
	case dnsmessage.TypeA, dnsmessage.TypeAAAA, dnsmessage.TypeCNAME, dnsmessage.TypeMX, dnsmessage.TypeSRV, dnsmessage.TypeTXT:
	default:
		// Among them HTTPS, whose answers could hold addresses of their own and
		// keys that hide the name a client claims: there are none. Browsers ask
		// for them with each name, which says nothing.
		if a.q.Type != typeSVCB && a.q.Type != typeHTTPS {
			e.Allowed, e.Reason = false, "our DNS has no records of this kind"
			r.event(set, e)
		}
		return dnsmessage.RCodeSuccess, nil
	}
	began := time.Now()
	answer, err := r.resolve(ctx, set, name, a.q.Type)
	if err != nil {
		e.Reason = err.Error()
		r.event(set, e)
		return dnsmessage.RCodeServerFailure, nil
	}
	r.g.metrics.lookup.Observe(time.Since(began).Seconds())
	if answer.Missing {
		e.Reason = "there is no such name"
		r.event(set, e)
		return dnsmessage.RCodeNameError, nil
	}
	records := r.take(set, a, name, e, answer)
	return dnsmessage.RCodeSuccess, records
}

// resolve asks the operator's table, and then the node's resolver.
func (r *sandbox) resolve(ctx context.Context, set *rules, name string, kind dnsmessage.Type) (resolve.Answer, error) {
	if addrs, ok := set.policy.Static(name); ok {
		a := resolve.Answer{TTL: time.Minute}
		for _, ip := range addrs {
			if ip.Is4() == (kind == dnsmessage.TypeA) && (kind == dnsmessage.TypeA || kind == dnsmessage.TypeAAAA) {
				a.Addrs = append(a.Addrs, ip)
			}
		}
		return a, nil
	}
	return r.g.resolver.Lookup(ctx, name, kind)
}

// take makes records of what the sandbox may know of an answer, and remembers
// the addresses in them.
func (r *sandbox) take(set *rules, a *ask, name string, e engi.NetworkEvent, answer resolve.Answer) []record {
	ttl := max(answer.TTL, minTTL)
	var records []record
	switch a.q.Type {
	case dnsmessage.TypeA, dnsmessage.TypeAAAA:
		for _, ip := range answer.Addrs {
			ip = ip.Unmap()
			if v := set.policy.Answer(name, ip); !v.Allowed {
				refused := e
				refused.Allowed, refused.Address, refused.Rule, refused.Reason = false, netip.AddrPortFrom(ip, 0), v.Rule, v.Reason
				r.event(set, refused)
				continue
			}
			if ip.Is4() != (a.q.Type == dnsmessage.TypeA) {
				continue
			}
			r.names.bind(name, ip, ttl)
			if ip.Is4() {
				records = append(records, record{ttl, &dnsmessage.AResource{A: ip.As4()}})
			} else {
				records = append(records, record{ttl, &dnsmessage.AAAAResource{AAAA: ip.As16()}})
			}
		}
	case dnsmessage.TypeCNAME:
		if n, err := dnsmessage.NewName(answer.Alias + "."); err == nil && answer.Alias != "" {
			records = append(records, record{ttl, &dnsmessage.CNAMEResource{CNAME: n}})
		}
	default:
		for _, rec := range answer.Records {
			records = append(records, record{ttl, rec.Body})
		}
	}
	if len(records) > 0 || len(answer.Addrs) == 0 {
		r.event(set, e)
	}
	return records
}

// lookupPeer answers for the sandbox's own group.
func (r *sandbox) lookupPeer(set *rules, a *ask, e engi.NetworkEvent, member string) (dnsmessage.RCode, []record) {
	addr, ok := r.g.groups.named(r, member)
	if !ok {
		if member != "" && strings.Contains(member, ".") {
			return dnsmessage.RCodeNameError, nil // another name, tried in the search domain
		}
		e.Reason = "no sandbox of the group has this name"
		r.event(set, e)
		return dnsmessage.RCodeNameError, nil
	}
	e.Allowed, e.Rule = true, "group"
	r.event(set, e)
	if a.q.Type != dnsmessage.TypeA {
		return dnsmessage.RCodeSuccess, nil
	}
	return dnsmessage.RCodeSuccess, []record{{peerTTL, &dnsmessage.AResource{A: addr.As4()}}}
}

// clip keeps a name from outside short and printable.
func clip(name string) string {
	if len(name) > 253 {
		name = name[:253]
	}
	return strings.Map(func(c rune) rune {
		if c <= ' ' || c >= 0x7f {
			return '?'
		}
		return c
	}, name)
}
