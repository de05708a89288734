package rest

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"strings"
	"time"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/network/egress/policy"
	"github.com/engi-dev/engi/internal/network/egress/request"
	"github.com/engi-dev/engi/internal/server/httpio"
)

// Limits on the lists of one policy.
const (
	maxGrants  = 100
	maxHeaders = 100 // maximum number of headers in one rule
)

// followSlice is the time that a stream waits for an event before it checks whether
// the sandbox is still running.
const followSlice = 5 * time.Second

type networks struct {
	sandboxes engi.Sandboxes
	log       engi.NetworkLog
}

type getNetworkEvents struct {
	aSandbox
	After     int64  `query:"after" minimum:"0" doc:"Only events after this seq: the seq of the last event received"`
	Limit     int    `query:"limit" minimum:"1" maximum:"10000" default:"1000" doc:"Maximum number of events in a list; a stream that follows has no limit"`
	Follow    bool   `query:"follow" doc:"Continue the stream until the sandbox stops; with JSON, wait up to half a minute for the first event"`
	LastEvent string `header:"Last-Event-ID" doc:"Alias of after, as browsers send it; takes precedence over after"`
}

// Networks returns the routes of network policies and of the log of connections; log may be
// nil.
func Networks(sandboxes engi.Sandboxes, log engi.NetworkLog) Resource {
	n := &networks{sandboxes, log}
	const path = sandboxPath + "/{id}/network"
	exampleEvent := json.RawMessage(`{"type": "connect", "seq": 7, "time": "2026-11-20T20:00:00Z", "sandbox_id": "sbx_u2dmwmlezjgprkqrgppgcz2mgu", "allowed": false, "protocol": "tcp", "address": "169.254.169.254:80", "reason": "metadata address"}`)
	return Resource{tag: "network", about: "the network policy of a sandbox, and a log of its connections", routes: []Route{
		fetch(Route{
			Pattern: "GET " + path, ID: "get-network", Summary: "Get the network policy of a sandbox", Access: reads(engi.ScopeSandboxes),
			Text: "Returns the policy as it was set. Passwords of proxies are never shown.",
		}, func(c *call, in *aSandbox) (v1.NetworkPolicy, error) {
			x, err := sandboxes.Get(c, c.viewer(), in.ID)
			return policyOf(x.Network), err
		}),
		send(Route{
			Pattern: "PUT " + path, ID: "set-network", Summary: "Replace the network policy of a sandbox", Access: writes(engi.ScopeSandboxes),
			Text: "Rules that the body does not have are removed; {} sets the node's default policy. The policy is in force when the answer is sent: connections that it does not allow are closed.",
			Bodies: []example{
				{"packages", "two registries and nothing else", `{"mode": "restricted", "allow": ["registry.example.com", "*.packages.example.com:443", "packages.example.com"]}`},
				{"secret", "a secret that never enters the sandbox", `{
		"mode": "restricted", "grants": [{"secret": "github", "hosts": ["api.github.com"], "as": "bearer", "strip": true}]}`},
				{"request", "one request with a secret, and nothing else", `{
		"mode": "restricted", "grants": [{"secret": "model", "hosts": ["api.example.com"], "as": "header", "name": "X-Api-Key",
			"requests": [{"methods": ["POST"], "path": "/v1/messages", "body": ["mcp_servers absent", "max_tokens max 4096"]}]}]}`},
				{"open", "the internet, but for one network", `{"mode": "open", "deny": ["203.0.113.0/24"], "limits": {"down": "10MiB", "total": "1GiB"}}`},
				{"group", "a sandbox that its group finds as db.shop.internal", `{"mode": "isolated", "group": "shop", "name": "db"}`},
			},
		}, n.set),
		raw(Route{
			Pattern: "GET " + path + "/events", ID: "list-network-events", Summary: "List the connections of a sandbox", Access: reads(engi.ScopeSandboxes),
			missing: missing(log != nil, "log of what crosses the egress gateway"),
			Text: "Lists every decision about a connection, oldest first: whether it was allowed, by which rule and why. The node keeps the latest decisions of each sandbox. " +
				"A client that reconnects with the seq of the last event it received loses nothing that is kept. Streams that follow send heartbeats: events of type heartbeat in NDJSON, comments in SSE.",
			Answers: append([]answer{jsonOf[v1.List[v1.NetworkRecord]](200, nil)}, streamOf[v1.NetworkRecord](exampleEvent, httpio.SSE, httpio.NDJSON)...),
		}, n.events),
	}}
}

// networkModes returns the modes of policies.
func networkModes() []string { return words(engi.Networks()...) }

var grantUses = words(engi.GrantHeader, engi.GrantBearer, engi.GrantBasic, engi.GrantQuery, engi.GrantPlaceholder)

// networkOf converts a policy. field is the name of the policy in the request,
// and is empty if the policy is the whole request.
func networkOf(c *checker, field string, q *v1.NetworkPolicy) engi.NetworkPolicy {
	at := func(name string) string { return strings.TrimPrefix(field+"."+name, ".") }
	before := len(c.Faults)
	c.oneOf(at("mode"), q.Mode, networkModes())
	p := engi.NetworkPolicy{Mode: engi.Network(q.Mode), Allow: q.Allow, Deny: q.Deny, Group: q.Group, Name: q.Name}
	for name, list := range map[string][]string{"allow": q.Allow, "deny": q.Deny} {
		if len(list) > engi.MaxRules {
			c.addf(at(name), "there are more than %d", engi.MaxRules)
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
			c.addf(here+".secret", "it is missing; name the secret")
		}
		if len(g.Hosts) == 0 {
			c.addf(here+".hosts", "it is empty; name the hosts that may receive the secret")
		}
		as := engi.GrantUse(g.As)
		if (as == engi.GrantHeader || as == engi.GrantQuery) && g.Name == "" {
			c.addf(here+".name", "it is missing; name the %s", map[engi.GrantUse]string{engi.GrantHeader: "header", engi.GrantQuery: "query parameter"}[as])
		}
		if as == engi.GrantPlaceholder && g.Env == "" {
			c.addf(here+".env", "it is missing; name the variable that gets the placeholder")
		}
		if g.Format != "" && !strings.Contains(g.Format, "{}") {
			c.addf(here+".format", "it has no {}, where the secret would be")
		}
		p.Grants = append(p.Grants, engi.Grant{Secret: g.Secret, Hosts: g.Hosts, As: as, Name: g.Name, Format: g.Format, Env: g.Env, Strip: g.Strip,
			Requests: c.requests(here+".requests", g.Requests, true)})
	}
	p.Requests = c.requests(at("requests"), q.Requests, false)
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
	if p.Mode == "" && len(p.Allow)+len(p.Grants)+len(p.Requests) > 0 {
		p.Mode = engi.NetworkRestricted
	}
	if len(c.Faults) == before {
		c.rules(at, field, p)
	}
	return p
}

// requests converts the request rules of the given field.
func (c *checker) requests(field string, list []v1.RequestRule, ofGrant bool) (rules []engi.RequestRule) {
	if len(list) > request.MaxRules {
		c.addf(field, "there are more than %d", request.MaxRules)
		return nil
	}
	for i, q := range list {
		r := engi.RequestRule{Host: q.Host, Methods: q.Methods, Path: q.Path, Body: q.Body, MaxBody: int64(q.MaxBody), Action: engi.RequestAction(q.Action), Reason: q.Reason}
		if err := policy.CheckRequest(r, ofGrant); err != nil {
			c.addf(fmt.Sprintf("%s[%d]", field, i), "%s", reasonOf(err))
		}
		rules = append(rules, r)
	}
	return rules
}

func requestsOf(rules []engi.RequestRule) (list []v1.RequestRule) {
	for _, r := range rules {
		list = append(list, v1.RequestRule{Host: r.Host, Methods: r.Methods, Path: r.Path, Body: r.Body, MaxBody: v1.Bytes(r.MaxBody), Action: string(r.Action), Reason: r.Reason})
	}
	return list
}

// anywhere is a node that allows every address: the network itself refuses
// addresses that this node does not allow.
var anywhere = policy.Node{Private: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}}

// rules adds the faults of a policy's rules, each with its field.
func (c *checker) rules(at func(string) string, field string, p engi.NetworkPolicy) {
	_, err := policy.Compile(p, anywhere)
	if !engi.Is(err, engi.Invalid) {
		return
	}
	before := len(c.Faults)
	try := func(where string, part engi.NetworkPolicy) {
		if part.Mode == "" {
			part.Mode = engi.NetworkRestricted
		}
		if _, err := policy.Compile(part, anywhere); engi.Is(err, engi.Invalid) {
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
		// A header rule needs an allowed host.
		try(fmt.Sprintf("%s[%d]", at("headers"), i), engi.NetworkPolicy{Mode: engi.NetworkOpen, Headers: []engi.HeaderRule{h}})
	}
	if p.Proxy != nil {
		try(at("proxy"), engi.NetworkPolicy{Mode: engi.NetworkOpen, Proxy: p.Proxy})
	}
	if len(c.Faults) == before && len(p.Requests) > 0 {
		try(at("requests"), engi.NetworkPolicy{Grants: p.Grants, Requests: p.Requests})
	}
	if len(c.Faults) == before { // each rule is valid, but not the combination
		c.addf(field, "%s", reasonOf(err))
	}
}

// reasonOf returns an error and its remedy in one line.
func reasonOf(err error) string {
	text := err.Error()
	if r := engi.RemedyOf(err); r != "" {
		text += "; " + r
	}
	return text
}

// policyOf converts a policy for the wire, without passwords.
func policyOf(n engi.NetworkPolicy) v1.NetworkPolicy {
	p := v1.NetworkPolicy{Mode: string(n.Mode), Allow: n.Allow, Deny: n.Deny, Requests: requestsOf(n.Requests), Group: n.Group, Name: n.Name}
	for _, g := range n.Grants {
		p.Grants = append(p.Grants, v1.Grant{Secret: g.Secret, Hosts: g.Hosts, As: string(g.As), Name: g.Name, Format: g.Format, Env: g.Env, Strip: g.Strip,
			Requests: requestsOf(g.Requests)})
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

// emptyNetwork reports whether p sets nothing.
func emptyNetwork(p engi.NetworkPolicy) bool {
	return p.Mode == "" && len(p.Allow)+len(p.Deny)+len(p.Grants)+len(p.Headers)+len(p.Requests) == 0 && p.Proxy == nil && p.Group == "" && p.Name == "" &&
		p.Limits == (engi.NetworkLimits{})
}

func networkEventOf(e engi.NetworkRecord) v1.NetworkRecord {
	x := v1.NetworkRecord{
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

// keepPassword fills in the password of an unchanged proxy, because a client that
// reads a policy and sends it back changed never sees the password.
func keepPassword(c *call, sandboxes engi.Sandboxes, id engi.SandboxID, p *engi.NetworkPolicy) error {
	if p.Proxy == nil || p.Proxy.User == "" || p.Proxy.Password != "" {
		return nil
	}
	x, err := sandboxes.Get(c, c.viewer(), id)
	if err != nil {
		return err
	}
	if old := x.Network.Proxy; old != nil && old.Address == p.Proxy.Address && old.User == p.Proxy.User {
		p.Proxy.Password = old.Password
	}
	return nil
}

func (n *networks) set(c *call, in *aSandbox, q v1.NetworkPolicy) (v1.NetworkPolicy, error) {
	var check checker
	p := networkOf(&check, "", &q)
	if err := check.err(); err != nil {
		return q, err
	}
	if err := keepPassword(c, n.sandboxes, in.ID, &p); err != nil {
		return q, err
	}
	x, err := n.sandboxes.Update(c, c.viewer(), in.ID, engi.SandboxUpdate{Network: &p})
	return policyOf(x.Network), err
}

func (n *networks) events(c *call, in *getNetworkEvents, _ none) (err error) {
	if in.After, err = lastEvent(in.LastEvent, in.After); err != nil {
		return err
	}
	if _, err := n.sandboxes.Get(c, c.viewer(), in.ID); err != nil {
		return err
	}
	if in.Follow || c.form != httpio.JSON {
		leave, err := c.s.watches.Join(string(in.ID))
		if err != nil {
			return err
		}
		defer leave()
	}
	if c.form != httpio.JSON {
		return n.stream(c, in)
	}
	ctx, cancel := c.waiting()
	defer cancel()
	if in.Follow {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeout(ctx, maxWait)
		defer stop()
	}
	all, err := n.log.Events(ctx, c.viewer(), in.ID, in.After, in.Limit, in.Follow)
	if err != nil {
		return orEnded(ctx, err)
	}
	return c.reply(200, listOf(all, networkEventOf))
}

// stream sends the events after a number, and new events if the request asks for them.
func (n *networks) stream(c *call, in *getNetworkEvents) error {
	seq := in.After
	return stream(c, func(ctx context.Context) iter.Seq2[engi.NetworkRecord, error] { return n.follow(ctx, c.viewer(), in) },
		func(out *httpio.EventWriter, e engi.NetworkRecord) (bool, error) {
			seq = e.Seq
			return false, out.Send(string(e.Kind), atOffset(e.Seq), networkEventOf(e))
		},
		func(kind string, p *v1.Problem) any { return v1.NetworkRecord{Type: kind, Seq: seq, Error: p} })
}

// follow yields events up to the limit. If the request asks for it, it also yields new events until the
// sandbox has stopped.
func (n *networks) follow(ctx context.Context, viewer engi.Viewer, in *getNetworkEvents) iter.Seq2[engi.NetworkRecord, error] {
	return func(yield func(engi.NetworkRecord, error) bool) {
		// The last events of a sandbox may be recorded shortly after it stopped. So the loop
		// reads once more after it has seen that the sandbox is stopped.
		for seq, stopped, left := in.After, false, in.Limit; ; {
			slice, stop := context.WithTimeout(ctx, followSlice)
			all, err := n.log.Events(slice, viewer, in.ID, seq, left, in.Follow && !stopped)
			stop()
			if err == nil && in.Follow {
				err = context.Cause(ctx)
			}
			if err != nil {
				yield(engi.NetworkRecord{}, err)
				return
			}
			for _, e := range all {
				if !yield(e, nil) {
					return
				}
				seq = e.Seq
			}
			if !in.Follow {
				if left -= len(all); left <= 0 || len(all) == 0 {
					return
				}
				continue
			}
			if len(all) > 0 {
				continue
			}
			if stopped {
				return
			}
			x, err := n.sandboxes.Get(ctx, viewer, in.ID)
			if err != nil {
				yield(engi.NetworkRecord{}, err)
				return
			}
			stopped = x.State == engi.Stopped
		}
	}
}
