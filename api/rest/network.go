package rest

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/api/httpio"
	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/gate/egress/policy"
)

// Bounds on what one policy may list.
const (
	maxRules   = policy.MaxRules
	maxGrants  = 100
	maxHeaders = 100 // of one rule
)

// followSlice is how long a stream waits for an event before it looks whether
// the sandbox is still there.
const followSlice = 5 * time.Second

type getNetworkEvents struct {
	ID        string `path:"id" doc:"of the sandbox"`
	After     int64  `query:"after" minimum:"0" doc:"only events after this seq: that of the last one seen"`
	Limit     int    `query:"limit" minimum:"1" maximum:"10000" default:"1000" doc:"events at most, unless a stream follows"`
	Follow    bool   `query:"follow" doc:"a stream goes on until the sandbox stops; JSON waits half a minute for the first event"`
	LastEvent string `header:"Last-Event-ID" doc:"the same as after, as browsers send it; goes before it"`
}

func (s *server) serveNetwork() {
	handle(s, s.opGetNetwork(), s.getNetwork)
	handle(s, s.opSetNetwork(), s.setNetwork)
	handle(s, s.opNetworkEvents(), s.getNetworkEvents)
}

// networkModes are the words of policies.
func networkModes() []string {
	var all []string
	for _, m := range engi.Networks() {
		all = append(all, string(m))
	}
	return all
}

var grantUses = []string{string(engi.GrantHeader), string(engi.GrantBearer), string(engi.GrantBasic), string(engi.GrantQuery), string(engi.GrantPlaceholder)}

// networkOf translates a policy. Field is where it stands in the request,
// empty if it is the whole.
func networkOf(c *checker, field string, q *v1.NetworkPolicy) engi.NetworkPolicy {
	at := func(name string) string { return strings.TrimPrefix(field+"."+name, ".") }
	before := len(c.faults)
	c.oneOf(at("mode"), q.Mode, networkModes())
	p := engi.NetworkPolicy{Mode: engi.Network(q.Mode), Allow: q.Allow, Deny: q.Deny, Group: q.Group, Name: q.Name}
	for name, list := range map[string][]string{"allow": q.Allow, "deny": q.Deny} {
		if len(list) > maxRules {
			c.addf(at(name), "there are more than %d", maxRules)
			return p
		}
		for i, rule := range list {
			if rule == "" {
				c.addf(fmt.Sprintf("%s[%d]", at(name), i), "it is empty")
			}
		}
	}
	if len(q.Grants) > maxGrants {
		c.addf(at("grants"), "there are more than %d", maxGrants)
		return p
	}
	for i, g := range q.Grants {
		here := fmt.Sprintf("%s[%d]", at("grants"), i)
		c.oneOf(here+".as", g.As, grantUses)
		if g.Secret == "" {
			c.addf(here+".secret", "it is missing; say which secret")
		}
		if len(g.Hosts) == 0 {
			c.addf(here+".hosts", "it is empty; say which hosts may have the secret")
		}
		as := engi.GrantUse(g.As)
		if (as == engi.GrantHeader || as == engi.GrantQuery) && g.Name == "" {
			c.addf(here+".name", "it is missing; say which %s", map[engi.GrantUse]string{engi.GrantHeader: "header", engi.GrantQuery: "query parameter"}[as])
		}
		if as == engi.GrantPlaceholder && g.Env == "" {
			c.addf(here+".env", "it is missing; say which variable is to have the placeholder")
		}
		if g.Format != "" && !strings.Contains(g.Format, "{}") {
			c.addf(here+".format", "it has no {}, where the secret would be")
		}
		p.Grants = append(p.Grants, engi.Grant{Secret: g.Secret, Hosts: g.Hosts, As: as, Name: g.Name, Format: g.Format, Env: g.Env, Strip: g.Strip})
	}
	for i, h := range q.Headers {
		here := fmt.Sprintf("%s[%d]", at("headers"), i)
		if h.Host == "" {
			c.addf(here+".host", "it is missing")
		}
		if len(h.Headers) == 0 || len(h.Headers) > maxHeaders {
			c.addf(here+".headers", "there are %d; 1 to %d can be", len(h.Headers), maxHeaders)
		}
		p.Headers = append(p.Headers, engi.HeaderRule{Host: h.Host, Headers: h.Headers})
	}
	if q.Proxy != nil {
		p.Proxy = &engi.UpstreamProxy{Address: q.Proxy.Address, User: q.Proxy.User, Password: q.Proxy.Password}
		if q.Proxy.Address == "" {
			c.addf(at("proxy.address"), "it is missing")
		}
		if q.Proxy.Password != "" && q.Proxy.User == "" {
			c.addf(at("proxy.user"), "it is missing, but there is a password")
		}
	}
	if l := q.Limits; l != nil {
		c.natural(at("limits.connections"), float64(l.Connections))
		c.natural(at("limits.new_connections"), float64(l.NewConnections))
		c.natural(at("limits.lookups"), float64(l.Lookups))
		p.Limits = engi.NetworkLimits{
			Up: int64(l.Up), Down: int64(l.Down), Connections: l.Connections, NewConnections: l.NewConnections, Lookups: l.Lookups, Total: int64(l.Total),
		}
	}
	if p.Mode == "" && len(p.Allow)+len(p.Grants) > 0 {
		p.Mode = engi.NetworkRestricted
	}
	if len(c.faults) == before {
		c.rules(at, field, p)
	}
	return p
}

// anywhere is a node that opens everything: whether this one does is the
// wall's to say.
var anywhere = policy.Node{Private: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}}

// rules says what is wrong with the rules of a policy, and where.
func (c *checker) rules(at func(string) string, field string, p engi.NetworkPolicy) {
	_, err := policy.Compile(p, anywhere)
	if err == nil || engi.KindOf(err) != engi.Invalid {
		return
	}
	before := len(c.faults)
	try := func(where string, part engi.NetworkPolicy) {
		if part.Mode == "" {
			part.Mode = engi.NetworkRestricted
		}
		if _, err := policy.Compile(part, anywhere); engi.KindOf(err) == engi.Invalid {
			c.addf(where, "%s", reasonOf(err))
		}
	}
	for i, rule := range p.Allow {
		try(fmt.Sprintf("%s[%d]", at("allow"), i), engi.NetworkPolicy{Allow: []string{rule}})
	}
	for i, rule := range p.Deny {
		try(fmt.Sprintf("%s[%d]", at("deny"), i), engi.NetworkPolicy{Mode: engi.NetworkOpen, Deny: []string{rule}})
	}
	for i, g := range p.Grants {
		try(fmt.Sprintf("%s[%d]", at("grants"), i), engi.NetworkPolicy{Grants: []engi.Grant{g}})
	}
	for i, h := range p.Headers {
		// A header rule needs a host that is allowed.
		try(fmt.Sprintf("%s[%d]", at("headers"), i), engi.NetworkPolicy{Mode: engi.NetworkOpen, Headers: []engi.HeaderRule{h}})
	}
	if p.Proxy != nil {
		try(at("proxy"), engi.NetworkPolicy{Mode: engi.NetworkOpen, Proxy: p.Proxy})
	}
	if len(c.faults) == before { // the parts are good, but not together
		c.addf(field, "%s", reasonOf(err))
	}
}

// reasonOf is an error with its remedy, for one line.
func reasonOf(err error) string {
	text := err.Error()
	if r := engi.RemedyOf(err); r != "" {
		text += "; " + r
	}
	return text
}

// policyOf translates back. Passwords stay here.
func policyOf(n engi.NetworkPolicy) v1.NetworkPolicy {
	p := v1.NetworkPolicy{Mode: string(n.Mode), Allow: n.Allow, Deny: n.Deny, Group: n.Group, Name: n.Name}
	for _, g := range n.Grants {
		p.Grants = append(p.Grants, v1.Grant{Secret: g.Secret, Hosts: g.Hosts, As: string(g.As), Name: g.Name, Format: g.Format, Env: g.Env, Strip: g.Strip})
	}
	for _, h := range n.Headers {
		p.Headers = append(p.Headers, v1.HeaderRule{Host: h.Host, Headers: maps.Clone(h.Headers)})
	}
	if n.Proxy != nil {
		p.Proxy = &v1.UpstreamProxy{Address: n.Proxy.Address, User: n.Proxy.User}
	}
	if l := n.Limits; l != (engi.NetworkLimits{}) {
		size := func(n int64) v1.Bytes { return v1.Bytes(max(0, n)) }
		p.Limits = &v1.NetworkLimits{
			Up: size(l.Up), Down: size(l.Down), Connections: max(0, l.Connections), NewConnections: max(0, l.NewConnections), Lookups: max(0, l.Lookups), Total: size(l.Total),
		}
	}
	return p
}

// emptyNetwork reports whether p says nothing.
func emptyNetwork(p engi.NetworkPolicy) bool {
	return p.Mode == "" && len(p.Allow)+len(p.Deny)+len(p.Grants)+len(p.Headers) == 0 && p.Proxy == nil && p.Group == "" && p.Name == "" &&
		p.Limits == (engi.NetworkLimits{})
}

func networkEventOf(e engi.NetworkEvent) v1.NetworkEvent {
	x := v1.NetworkEvent{
		Type: string(e.Kind), Seq: e.Seq, Time: moment(e.Time), SandboxID: string(e.Sandbox), Allowed: e.Allowed, Protocol: e.Protocol,
		Host: strings.ToValidUTF8(e.Host, "\uFFFD"), Rule: e.Rule, Reason: strings.ToValidUTF8(e.Reason, "\uFFFD"),
		Up: v1.Bytes(max(0, e.Up)), Down: v1.Bytes(max(0, e.Down)),
	}
	switch {
	case !e.Address.Addr().IsValid():
	case e.Address.Port() == 0:
		x.Address = e.Address.Addr().String()
	default:
		x.Address = e.Address.String()
	}
	return x
}

// keepPassword fills in the password of a proxy that stays as it was: whoever
// reads a policy and sends it back changed never saw it.
func (s *server) keepPassword(ctx context.Context, viewer engi.Owner, id engi.SandboxID, p *engi.NetworkPolicy) error {
	if p.Proxy == nil || p.Proxy.User == "" || p.Proxy.Password != "" {
		return nil
	}
	x, err := s.sandboxes.Get(ctx, viewer, id)
	if err != nil {
		return err
	}
	if old := x.Network.Proxy; old != nil && old.Address == p.Proxy.Address && old.User == p.Proxy.User {
		p.Proxy.Password = old.Password
	}
	return nil
}

func (s *server) getNetwork(w http.ResponseWriter, r *http.Request, in *aSandbox) error {
	viewer, id, err := subject(r, in.ID)
	if err != nil {
		return err
	}
	x, err := s.sandboxes.Get(r.Context(), viewer, id)
	if err != nil {
		return err
	}
	return s.reply(w, http.StatusOK, policyOf(x.Network))
}

func (s *server) setNetwork(w http.ResponseWriter, r *http.Request, in *aSandbox) error {
	viewer, id, err := subject(r, in.ID)
	if err != nil {
		return err
	}
	q, err := decode[v1.NetworkPolicy](s, w, r)
	if err != nil {
		return err
	}
	var c checker
	p := networkOf(&c, "", &q)
	if err := httpio.Invalid(c.faults); err != nil {
		return err
	}
	if err := s.keepPassword(r.Context(), viewer, id, &p); err != nil {
		return err
	}
	x, err := s.sandboxes.Update(r.Context(), viewer, id, engi.SandboxUpdate{Network: &p})
	if err != nil {
		return err
	}
	return s.reply(w, http.StatusOK, policyOf(x.Network))
}

func (s *server) getNetworkEvents(w http.ResponseWriter, r *http.Request, in *getNetworkEvents) error {
	viewer, id, err := subject(r, in.ID)
	if err != nil {
		return err
	}
	form, err := httpio.Negotiate(r, httpio.JSON, httpio.SSE, httpio.NDJSON)
	if err != nil {
		return err
	}
	if in.After, err = lastEvent(in.LastEvent, in.After); err != nil {
		return err
	}
	if err := needed(s.networks != nil, "log of what crosses the wall"); err != nil {
		return err
	}
	if _, err := s.sandboxes.Get(r.Context(), viewer, id); err != nil {
		return err
	}
	if in.Follow || form != httpio.JSON {
		leave, err := s.watches.Join(id)
		if err != nil {
			return err
		}
		defer leave()
	}
	ctx, cancel := s.waiting(r)
	defer cancel()
	if form != httpio.JSON {
		return s.streamNetwork(ctx, w, r, form, viewer, id, in)
	}
	if in.Follow {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeout(ctx, maxWait)
		defer stop()
	}
	list, err := s.networks.Events(ctx, viewer, id, in.After, in.Limit, in.Follow)
	if err != nil {
		return whole(ctx, err)
	}
	return s.reply(w, http.StatusOK, listOf(list, networkEventOf))
}

// streamNetwork sends events from one on, and what comes if that was asked for.
func (s *server) streamNetwork(ctx context.Context, w http.ResponseWriter, r *http.Request, f httpio.Format, viewer engi.Owner, id engi.SandboxID, in *getNetworkEvents) error {
	out := httpio.NewEventWriter(w, f)
	if err := out.Begin(); err != nil {
		return nil // the caller has left
	}
	send := func(e v1.NetworkEvent) bool {
		if out.Send(e.Type, strconv.FormatInt(e.Seq, 10), e) != nil {
			s.gone(r)
			return false
		}
		return true
	}
	fail := func(seq int64, err error) error {
		if s.gone(r) {
			return nil
		}
		if s.leaving() {
			err = errLeaving
		}
		s.logInternal(r, err)
		send(v1.NetworkEvent{Type: v1.EventError, Seq: seq, Error: new(httpio.Describe(err, callOf(r.Context()).id))})
		return nil
	}
	// A sandbox that has stopped leaves events behind for a moment: what is
	// there after it was seen stopped is all.
	for seq, stopped, left := in.After, false, in.Limit; ; {
		slice, stop := context.WithTimeout(ctx, min(followSlice, s.beat))
		list, err := s.networks.Events(slice, viewer, id, seq, left, in.Follow && !stopped)
		stop()
		if err != nil {
			return fail(seq, whole(ctx, err))
		}
		for _, e := range list {
			if !send(networkEventOf(e)) {
				return nil
			}
			seq = e.Seq
		}
		switch {
		case !in.Follow:
			if left -= len(list); left <= 0 || len(list) == 0 {
				return nil
			}
			continue
		case ctx.Err() != nil:
			return fail(seq, context.Cause(ctx))
		case len(list) > 0:
			continue
		case stopped:
			return nil
		}
		if out.Beat(v1.NetworkEvent{Type: v1.EventHeartbeat, Seq: seq}, s.beat) != nil {
			s.gone(r)
			return nil
		}
		x, err := s.sandboxes.Get(ctx, viewer, id)
		if err != nil {
			return fail(seq, whole(ctx, err))
		}
		stopped = x.State == engi.Stopped
	}
}

// choiceSchema describes v1.NetworkChoice.
type choiceSchema struct{}

func (choiceSchema) Schema(reg huma.Registry) *huma.Schema {
	modes := &huma.Schema{Type: huma.TypeString}
	for _, m := range networkModes() {
		modes.Enum = append(modes.Enum, m)
	}
	return &huma.Schema{
		OneOf:       []*huma.Schema{modes, reg.Schema(reflect.TypeFor[v1.NetworkPolicy](), true, "")},
		Description: "a policy, or its mode alone",
	}
}

var exampleNetwork = map[string]*huma.Example{
	"packages": {Summary: "two registries and nothing else", Value: json.RawMessage(`{"mode": "restricted", "allow": ["registry.example.com", "*.packages.example.com:443", "packages.example.com"]}`)},
	"secret": {Summary: "a secret that never enters the sandbox", Value: json.RawMessage(`{
		"mode": "restricted", "grants": [{"secret": "github", "hosts": ["api.github.com"], "as": "bearer", "strip": true}]}`)},
	"open":  {Summary: "the internet, but for one network", Value: json.RawMessage(`{"mode": "open", "deny": ["203.0.113.0/24"], "limits": {"down": "10MiB", "total": "1GiB"}}`)},
	"group": {Summary: "a sandbox that its group finds as db.shop.internal", Value: json.RawMessage(`{"mode": "isolated", "group": "shop", "name": "db"}`)},
}

func (s *server) opGetNetwork() huma.Operation {
	op := s.operation(http.MethodGet, sandboxes+"/{id}/network", "get-network", "network", "What may a sandbox reach?",
		"The policy as it was asked for. Passwords of proxies are never shown.", http.StatusOK)
	answers[v1.NetworkPolicy](s, &op, http.StatusOK, string(httpio.JSON), nil)
	return op
}

func (s *server) opSetNetwork() huma.Operation {
	op := s.operation(http.MethodPut, sandboxes+"/{id}/network", "set-network", "network", "Replace what a sandbox may reach",
		"Whatever is absent is gone, and {} is the node's default. It is in force when the answer comes: connections that are not allowed any more break.", http.StatusOK)
	accepts[v1.NetworkPolicy](s, &op, exampleNetwork)
	answers[v1.NetworkPolicy](s, &op, http.StatusOK, string(httpio.JSON), nil)
	return op
}

func (s *server) opNetworkEvents() huma.Operation {
	op := s.operation(http.MethodGet, sandboxes+"/{id}/network/events", "list-network-events", "network", "What did a sandbox try to reach?",
		"Every decision of the wall, the oldest first: what was allowed, what was not, by which rule and why. The last ones of each sandbox are kept. "+
			"Whoever comes back with the seq of the last event seen loses nothing that is kept. Followed streams have heartbeats: events of that type on NDJSON, comments on SSE.", http.StatusOK)
	example := json.RawMessage(`{"type": "connect", "seq": 7, "time": "2026-11-20T20:00:00Z", "sandbox_id": "sbx_u2dmwmlezjgprkqrgppgcz2mgu", "allowed": false, "protocol": "tcp", "address": "169.254.169.254:80", "reason": "metadata address"}`)
	answers[v1.List[v1.NetworkEvent]](s, &op, http.StatusOK, string(httpio.JSON), nil)
	answers[v1.NetworkEvent](s, &op, http.StatusOK, string(httpio.NDJSON), example)
	answers[v1.NetworkEvent](s, &op, http.StatusOK, string(httpio.SSE), nil)
	return op
}
