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

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/network/egress/policy"
	"github.com/engi-dev/engi/internal/network/egress/resolve"
)

const (
	maxQuery   = 512 // bytes; maximum size of a query
	maxQueries = 64  // maximum number of concurrent queries of one sandbox
	plainUDP   = 512 // bytes; maximum size of a response over UDP, unless the client accepts more
	maxUDP     = 1232
	minTTL     = 5 * time.Second
	peerTTL    = 5 * time.Second // time to live of answers about peers; short, since peers start and stop

	typeSVCB, typeHTTPS dnsmessage.Type = 64, 65
)

// serveDNS answers queries over UDP until the stack is closed.
func (s *sandbox) serveDNS(n *netstack) error {
	slots := make(chan struct{}, maxQueries)
	for _, a := range []netip.Addr{Gateway4, Gateway6} {
		local, proto := fullAddr(netip.AddrPortFrom(a, 53))
		c, err := gonet.DialUDP(n.stack, &local, nil, proto)
		if err != nil {
			return engi.Errorf(engi.Internal, "DNS of %s: %v", s.id, err)
		}
		stop := context.AfterFunc(n.ctx, func() { c.SetDeadline(time.Unix(1, 0)) })
		n.workers.Go(func() {
			defer c.Close()
			defer stop()
			buf := make([]byte, maxQuery)
			for {
				size, from, err := c.ReadFrom(buf)
				if err != nil {
					return
				}
				set := s.rules.Load()
				if set == nil || size == len(buf) {
					continue
				}
				select {
				case slots <- struct{}{}:
				default:
					continue // clients repeat their queries
				}
				msg := append([]byte(nil), buf[:size]...)
				n.workers.Go(func() {
					defer func() { <-slots }()
					if answer := s.answerQuery(n.ctx, set, msg, true); answer != nil {
						c.WriteTo(answer, from)
					}
				})
			}
		})
	}
	return nil
}

// serveDNSConn answers queries over one TCP connection, one after the other.
func (s *sandbox) serveDNSConn(ctx context.Context, set *rules, in *sandboxConn) {
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
		if n > maxQuery {
			return
		}
		msg := make([]byte, n)
		if _, err := io.ReadFull(in, msg); err != nil {
			return
		}
		answer := s.answerQuery(ctx, set, msg, false)
		if answer == nil {
			return
		}
		if _, err := in.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(answer))), answer...)); err != nil {
			return
		}
	}
}

// A query is a DNS query of a sandbox.
type query struct {
	id       uint16
	recurse  bool
	question dnsmessage.Question
	size     int // maximum size of a response over UDP in bytes
	name     string
}

// parseQuery parses a query. It returns nil for other messages.
func parseQuery(msg []byte) *query {
	var p dnsmessage.Parser
	h, err := p.Start(msg)
	if err != nil || h.Response || h.OpCode != 0 {
		return nil
	}
	q := &query{id: h.ID, recurse: h.RecursionDesired, size: plainUDP}
	if q.question, err = p.Question(); err != nil {
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
			q.size = min(max(int(extra.Class), plainUDP), maxUDP)
		}
		if p.SkipAdditional() != nil {
			break
		}
	}
	q.name = strings.ToLower(strings.TrimSuffix(q.question.Name.String(), "."))
	return q
}

// answerQuery returns the response to a message, or nil for no response.
func (s *sandbox) answerQuery(ctx context.Context, set *rules, msg []byte, datagram bool) []byte {
	q := parseQuery(msg)
	if q == nil {
		s.logEvent(set, engi.NetworkRecord{Kind: engi.NetworkLookup, Reason: "a malformed DNS message"})
		return nil
	}
	if set.lookups != nil && !set.lookups.Allow() {
		s.logLimit(set, "", netip.AddrPort{}, "the sandbox sends more DNS queries per second than its policy allows; keep the answers, or raise limits.lookups of the policy")
		return q.reply(dnsmessage.RCodeRefused, nil, datagram)
	}
	ctx, cancel := context.WithTimeout(ctx, 8*time.Second)
	defer cancel()
	code, records := s.lookup(ctx, set, q)
	return q.reply(code, records, datagram)
}

// A record is a record of a response. Its name is the name of the question.
type record struct {
	ttl  time.Duration
	body dnsmessage.ResourceBody
}

func (q *query) reply(code dnsmessage.RCode, records []record, datagram bool) []byte {
	cut := false
	for {
		b := dnsmessage.NewBuilder(make([]byte, 0, 512), dnsmessage.Header{ID: q.id, Response: true, RecursionDesired: q.recurse,
			RecursionAvailable: true, RCode: code, Truncated: cut})
		b.EnableCompression()
		ok := b.StartQuestions() == nil && b.Question(q.question) == nil && b.StartAnswers() == nil
		for _, rec := range records {
			h := dnsmessage.ResourceHeader{Name: q.question.Name, Class: dnsmessage.ClassINET, TTL: uint32(max(rec.ttl, time.Second) / time.Second)}
			ok = ok && addRecord(&b, h, rec.body) == nil
		}
		msg, err := b.Finish()
		if !ok || err != nil || len(msg) > 0xffff {
			if len(records) == 0 {
				return nil
			}
			code, records = dnsmessage.RCodeServerFailure, nil
			continue
		}
		if datagram && len(msg) > q.size && len(records) > 0 {
			cut, records = true, nil
			continue
		}
		return msg
	}
}

func addRecord(b *dnsmessage.Builder, h dnsmessage.ResourceHeader, body dnsmessage.ResourceBody) error {
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

// lookup judges a query and resolves it.
func (s *sandbox) lookup(ctx context.Context, set *rules, q *query) (dnsmessage.RCode, []record) {
	e := engi.NetworkRecord{Kind: engi.NetworkLookup, Host: printable(q.name)}
	refuse := func(reason string) (dnsmessage.RCode, []record) {
		e.Reason = reason
		s.logEvent(set, e)
		return dnsmessage.RCodeNameError, nil
	}
	if q.question.Class != dnsmessage.ClassINET {
		e.Reason = "a DNS query for a class other than Internet"
		s.logEvent(set, e)
		return dnsmessage.RCodeRefused, nil
	}
	if own := set.policy.Source().Group; own != "" {
		if member, group, ok := splitGroupName(q.name); ok && (group == own || group == workspace) {
			return s.lookupPeer(set, q, e, member)
		}
	}
	if q.question.Type == dnsmessage.TypePTR {
		return dnsmessage.RCodeNameError, nil // programs use reverse names only for display
	}
	v := set.policy.Lookup(q.name)
	e.Allowed, e.Rule, e.Reason = v.Allowed, v.Rule, v.Reason
	if !v.Allowed {
		return refuse(v.Reason)
	}
	name, err := policy.CheckName(q.name)
	if err != nil {
		e.Allowed = false
		return refuse(err.Error())
	}
	if v.Rule != name && (len(name) > maxName || !s.lookupBudget.allow(name)) {
		e.Kind, e.Allowed = engi.NetworkLimit, false
		return refuse("DNS names below one domain carry too much data")
	}
	switch q.question.Type {
	case dnsmessage.TypeA, dnsmessage.TypeAAAA, dnsmessage.TypeCNAME, dnsmessage.TypeMX, dnsmessage.TypeSRV, dnsmessage.TypeTXT:
	default:
		// Other types get an empty answer. HTTPS records, for example, could contain addresses and keys
		// that hide the name claimed by a client. Browsers look them up together
		// with each name, so queries for them are not logged.
		if q.question.Type != typeSVCB && q.question.Type != typeHTTPS {
			e.Allowed, e.Reason = false, "DNS records of this type are not supported"
			s.logEvent(set, e)
		}
		return dnsmessage.RCodeSuccess, nil
	}
	if _, ok := set.policy.Packages(name); ok {
		s.logEvent(set, e)
		if q.question.Type != dnsmessage.TypeA {
			return dnsmessage.RCodeSuccess, nil
		}
		return dnsmessage.RCodeSuccess, []record{{time.Minute, &dnsmessage.AResource{A: Gateway4.As4()}}}
	}
	began := time.Now()
	answer, err := s.resolve(ctx, set, name, q.question.Type)
	if err != nil {
		e.Reason = err.Error()
		s.logEvent(set, e)
		return dnsmessage.RCodeServerFailure, nil
	}
	s.g.metrics.lookup.Observe(time.Since(began).Seconds())
	if answer.Missing {
		e.Reason = "the name does not exist"
		s.logEvent(set, e)
		return dnsmessage.RCodeNameError, nil
	}
	records := s.allowedRecords(set, q, name, e, answer)
	return dnsmessage.RCodeSuccess, records
}

// resolve looks a name up in the operator's hosts, or else with the resolver.
func (s *sandbox) resolve(ctx context.Context, set *rules, name string, kind dnsmessage.Type) (resolve.Answer, error) {
	if addrs, ok := set.policy.Static(name); ok {
		a := resolve.Answer{TTL: time.Minute}
		for _, ip := range addrs {
			if ip.Is4() == (kind == dnsmessage.TypeA) && (kind == dnsmessage.TypeA || kind == dnsmessage.TypeAAAA) {
				a.Addrs = append(a.Addrs, ip)
			}
		}
		return a, nil
	}
	return s.g.resolver.Lookup(ctx, name, kind)
}

// allowedRecords returns the records of an answer that the sandbox may receive, and
// binds the addresses in them to the name.
func (s *sandbox) allowedRecords(set *rules, q *query, name string, e engi.NetworkRecord, answer resolve.Answer) []record {
	ttl := max(answer.TTL, minTTL)
	var records []record
	switch q.question.Type {
	case dnsmessage.TypeA, dnsmessage.TypeAAAA:
		for _, ip := range answer.Addrs {
			ip = ip.Unmap()
			if v := set.policy.Answer(name, ip); !v.Allowed {
				refused := e
				refused.Allowed, refused.Address, refused.Rule, refused.Reason = false, netip.AddrPortFrom(ip, 0), v.Rule, v.Reason
				s.logEvent(set, refused)
				continue
			}
			if ip.Is4() != (q.question.Type == dnsmessage.TypeA) {
				continue
			}
			s.bindings.bind(name, ip, ttl)
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
		s.logEvent(set, e)
	}
	return records
}

// lookupPeer answers queries for names of the sandbox's own group.
func (s *sandbox) lookupPeer(set *rules, q *query, e engi.NetworkRecord, member string) (dnsmessage.RCode, []record) {
	addr, ok := s.g.groups.memberAddr(s, member)
	if !ok {
		if member != "" && strings.Contains(member, ".") {
			return dnsmessage.RCodeNameError, nil // a name outside the group with the search domain appended
		}
		e.Reason = "no sandbox of the group has this name"
		s.logEvent(set, e)
		return dnsmessage.RCodeNameError, nil
	}
	e.Allowed, e.Rule = true, "group"
	s.logEvent(set, e)
	if q.question.Type != dnsmessage.TypeA {
		return dnsmessage.RCodeSuccess, nil
	}
	return dnsmessage.RCodeSuccess, []record{{peerTTL, &dnsmessage.AResource{A: addr.As4()}}}
}

// printable shortens an untrusted name and replaces unprintable characters.
func printable(name string) string {
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
