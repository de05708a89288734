package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
)

type netCommand struct {
	Show netShow `cmd:"" help:"Show the network policy of a sandbox."`
	Set  netSet  `cmd:"" help:"Change the network policy of a sandbox, effective at once."`
	Log  netLog  `cmd:"" help:"Print the allowed and refused connections of a sandbox."`
}

// networkFlags are the flags for the network policy of a sandbox.
type networkFlags struct {
	Net     string   `aliases:"mode" help:"Network mode: none, isolated, restricted or open (default: restricted with --allow, --secret or --request; otherwise the node's default)." placeholder:"MODE"`
	Allow   []string `help:"Allow a host name, *.SUFFIX, address or network, optionally with :PORT; may be repeated." placeholder:"RULE" sep:"none"`
	Deny    []string `help:"Deny a host name, *.SUFFIX, address or network, unless --allow has it; may be repeated." placeholder:"RULE" sep:"none"`
	Secret  []string `aliases:"grant" help:"Add a secret to requests to hosts; the secret never enters the sandbox. HOW is bearer, header=NAME, basic=USER, query=NAME or env=VARIABLE, optionally followed by :strip; may be repeated." placeholder:"NAME@HOST[,HOST][:HOW]" sep:"none"`
	Request []string `help:"Allow only matching HTTP requests to a host; the first matching rule decides. METHOD may be a list or *, PATH may end in /**, and conditions on a JSON body follow 'where'; may be repeated." placeholder:"[deny|ask] METHOD HOST/PATH" sep:"none"`
	Group   string   `help:"Network group, whose sandboxes can reach each other." placeholder:"GROUP"`
	As      string   `help:"Host name in the group: NAME.GROUP.internal." placeholder:"NAME"`
}

// given reports whether any flag is set.
func (f *networkFlags) given() bool {
	return f.Net != "" || len(f.Allow)+len(f.Deny)+len(f.Secret)+len(f.Request) > 0 || f.Group != "" || f.As != ""
}

// apply changes p according to the flags.
func (f *networkFlags) apply(p *v1.NetworkPolicy) error {
	if f.Net != "" {
		p.Mode = f.Net
	}
	if len(f.Allow) > 0 {
		p.Allow = rulesOf(f.Allow)
	}
	if len(f.Deny) > 0 {
		p.Deny = rulesOf(f.Deny)
	}
	if len(f.Secret) > 0 {
		p.Grants = nil
		for _, text := range rulesOf(f.Secret) {
			g, err := grantOf(text)
			if err != nil {
				return err
			}
			p.Grants = append(p.Grants, g)
		}
	}
	if len(f.Request) > 0 {
		p.Requests = nil
		for _, text := range rulesOf(f.Request) {
			r, err := requestOf(text)
			if err != nil {
				return err
			}
			p.Requests = append(p.Requests, r)
		}
	}
	if f.Group != "" {
		p.Group = f.Group
		if p.Mode == "" && len(p.Allow)+len(p.Grants)+len(p.Requests) == 0 {
			p.Mode = v1.NetworkIsolated
		}
	}
	if f.As != "" {
		p.Name = f.As
	}
	return nil
}

// rulesOf returns the rules of a list, which are none if it is the word none.
func rulesOf(list []string) []string {
	if len(list) == 1 && list[0] == "none" {
		return nil
	}
	return list
}

// policy returns the policy of the flags; nil if no flag is set.
func (f *networkFlags) policy() (*v1.NetworkPolicy, error) {
	if !f.given() {
		return nil, nil
	}
	var p v1.NetworkPolicy
	if err := f.apply(&p); err != nil {
		return nil, err
	}
	return &p, nil
}

const grantForm = "write it like github@api.github.com, or key@api.example.com:header=X-API-Key"

// ways are the ways to use a secret on a command line.
var ways = []string{"bearer", "basic", "header", "query", "env", "format", "strip"}

// grantOf parses NAME@HOST[,HOST][:HOW][:strip], where a host may have a scheme
// and a port.
func grantOf(text string) (g v1.Grant, err error) {
	name, rest, ok := strings.Cut(text, "@")
	if !ok || name == "" || rest == "" {
		return g, engi.Errorf(engi.Invalid, "--secret %.80q lacks a secret or a host", text).WithRemedy(grantForm)
	}
	parts := strings.Split(rest, ":")
	first := slices.IndexFunc(parts, func(part string) bool {
		way, _, _ := strings.Cut(part, "=")
		return slices.Contains(ways, way)
	})
	if first < 0 {
		first = len(parts)
	}
	g = v1.Grant{Secret: name, Hosts: strings.Split(strings.Join(parts[:first], ":"), ",")}
	for _, h := range g.Hosts {
		if _, after, ok := strings.Cut(h, "//"); ok {
			h = after
		}
		if host, port, ok := strings.Cut(h, ":"); host == "" || ok && strings.Trim(port, "0123456789") != "" || ok && port == "" {
			return g, engi.Errorf(engi.Invalid, "--secret %.80q: %.80q is not a host", text, h).WithRemedy(grantForm)
		}
	}
	for _, part := range parts[first:] {
		way, value, valued := strings.Cut(part, "=")
		switch {
		case way == "bearer" && !valued:
			g.As = "bearer"
		case way == "strip" && !valued:
			g.Strip = true
		case way == "basic":
			g.As, g.Name = "basic", value
		case (way == "header" || way == "query") && value != "":
			g.As, g.Name = way, value
		case way == "env" && value != "":
			g.As, g.Env = "placeholder", value
		case way == "format" && value != "":
			g.Format = value
		default:
			return g, engi.Errorf(engi.Invalid, "--secret %.80q: %.40q is not a way to use a secret", text, part).
				WithRemedy("use bearer, header=NAME, basic=USER, query=NAME or env=VARIABLE, then maybe format=TEXT or strip")
		}
	}
	return g, nil
}

// requestOf parses [allow|deny|ask|ask_exact] METHOD[,METHOD]|* HOST[/PATH] [where CONDITION{; CONDITION}],
// where a host may have a scheme and a port.
func requestOf(text string) (r v1.RequestRule, err error) {
	head, conditions, conditional := strings.Cut(text, " where ")
	words := strings.Fields(head)
	if len(words) == 3 && slices.Contains([]string{"allow", "deny", "ask", "ask_exact"}, words[0]) {
		r.Action, words = words[0], words[1:]
	}
	if len(words) != 2 {
		return r, engi.Errorf(engi.Invalid, "--request %.200q is not a method and a host", text).
			WithRemedy("write it like 'POST api.example.com/v1/messages', 'deny * api.example.com/admin/**' or 'POST api.example.com/v1/messages where mcp_servers absent; max_tokens max 4096'")
	}
	if words[0] != "*" {
		r.Methods = strings.Split(words[0], ",")
	}
	start := 0
	if _, after, ok := strings.Cut(words[1], "://"); ok {
		start = len(words[1]) - len(after)
	}
	r.Host = words[1]
	if slash := strings.IndexByte(words[1][start:], '/'); slash >= 0 {
		r.Host, r.Path = words[1][:start+slash], words[1][start+slash:]
	}
	if conditional {
		for c := range strings.SplitSeq(conditions, "; ") {
			r.Body = append(r.Body, strings.TrimSpace(c))
		}
	}
	return r, nil
}

// requestText returns a rule in the form that requestOf parses.
func requestText(r v1.RequestRule) string {
	text := strings.Join(r.Methods, ",")
	if text == "" {
		text = "*"
	}
	text += " " + r.Host + r.Path
	if r.Action != "" {
		text = r.Action + " " + text
	}
	if len(r.Body) > 0 {
		text += " where " + strings.Join(r.Body, "; ")
	}
	return text
}

type netShow struct {
	ID string `arg:"" help:"Sandbox." placeholder:"SANDBOX"`
}

func (netShow) Help() string {
	return `Examples:
  engi net show sbx_u2dmwmlezjgprkqrgppgcz2mgu
  engi net show sbx_u2dmwmlezjgprkqrgppgcz2mgu --json`
}

func (n *netShow) Run(ctx context.Context, g *globals) error {
	return g.atServer(ctx, func(d *connection) error {
		p, err := d.Network(ctx, n.ID)
		if err != nil {
			return err
		}
		return g.showNetwork(p)
	})
}

func (g *globals) showNetwork(p v1.NetworkPolicy) error {
	if g.JSON {
		return g.printJSON(p)
	}
	row := func(name, format string, args ...any) {
		fmt.Fprintf(g.out, "%-9s%s\n", name, fmt.Sprintf(format, args...))
	}
	mode := p.Mode
	if mode == "" {
		mode = "the node's default"
	}
	row("mode", "%s", mode)
	if p.Group != "" {
		name := p.Name
		if name == "" {
			name = "(its own)"
		}
		row("group", "%s, as %s", p.Group, name)
	}
	for _, r := range p.Allow {
		row("allow", "%s", r)
	}
	for _, r := range p.Deny {
		row("deny", "%s", r)
	}
	for _, x := range p.Grants {
		how := x.As
		switch {
		case x.Env != "":
			how = "in place of what $" + x.Env + " holds"
		case x.Name != "":
			how += " " + x.Name
		case how == "":
			how = "bearer"
		}
		if x.Strip {
			how += ", cut out of answers"
		}
		row("secret", "%s to %s: %s", x.Secret, strings.Join(x.Hosts, ", "), how)
		for _, r := range x.Requests {
			row("", "  with %s", requestText(r))
		}
	}
	for _, r := range p.Requests {
		row("request", "%s", requestText(r))
	}
	for _, h := range p.Headers {
		row("headers", "%s: %s", h.Host, strings.Join(slices.Sorted(maps.Keys(h.Headers)), ", "))
	}
	if p.Proxy != nil {
		row("proxy", "%s", p.Proxy.Address)
	}
	if l := p.Limits; l != nil {
		var parts []string
		for _, x := range []struct {
			set  bool
			text string
		}{
			{l.Up > 0, fmt.Sprintf("%s/s up", l.Up)}, {l.Down > 0, fmt.Sprintf("%s/s down", l.Down)}, {l.Total > 0, fmt.Sprintf("%s in all", l.Total)},
			{l.Connections > 0, fmt.Sprintf("%d connections", l.Connections)}, {l.NewConnections > 0, fmt.Sprintf("%d new ones/s", l.NewConnections)},
			{l.Lookups > 0, fmt.Sprintf("%d lookups/s", l.Lookups)},
		} {
			if x.set {
				parts = append(parts, x.text)
			}
		}
		row("limits", "%s", orDash(strings.Join(parts, ", ")))
	}
	return nil
}

type netSet struct {
	ID string `arg:"" help:"Sandbox." placeholder:"SANDBOX"`
	networkFlags
	Replace bool `help:"Reset the settings that are not given (default: keep them)."`
}

func (netSet) Help() string {
	return `Connections that the new policy does not allow are closed. A list that is given replaces the current
one; 'none' empties it.

Examples:
  engi net set sbx_u2dmwmlezjgprkqrgppgcz2mgu --allow registry.example.com --allow '*.example.com:443'
  engi net set sbx_u2dmwmlezjgprkqrgppgcz2mgu --mode open --deny 203.0.113.0/24
  engi net set sbx_u2dmwmlezjgprkqrgppgcz2mgu --grant github@api.github.com,uploads.github.com
  engi net set sbx_u2dmwmlezjgprkqrgppgcz2mgu --grant key@api.example.com:header=X-API-Key:strip
  engi net set sbx_u2dmwmlezjgprkqrgppgcz2mgu --grant key@api.example.com --request 'POST api.example.com/v1/messages'
  engi net set sbx_u2dmwmlezjgprkqrgppgcz2mgu --replace --mode isolated --group shop --as db`
}

func (n *netSet) Run(ctx context.Context, g *globals) error {
	if !n.given() && !n.Replace {
		return engi.Errorf(engi.Invalid, "no change is requested").WithRemedy("give --mode, --allow, --deny, --grant, --request or --group; 'engi net show' prints the current policy")
	}
	return g.atServer(ctx, func(d *connection) error {
		var p v1.NetworkPolicy
		if !n.Replace {
			var err error
			if p, err = d.Network(ctx, n.ID); err != nil {
				return err
			}
		}
		if n.Net == "" && p.Mode == v1.NetworkNone && len(n.Allow)+len(n.Secret)+len(n.Request) > 0 {
			p.Mode = v1.NetworkRestricted
		}
		if err := n.apply(&p); err != nil {
			return err
		}
		p, err := d.SetNetwork(ctx, n.ID, p)
		if err != nil {
			return err
		}
		return g.showNetwork(p)
	})
}

type netLog struct {
	ID     string `arg:"" help:"Sandbox." placeholder:"SANDBOX"`
	Follow bool   `short:"f" help:"Continue until the sandbox stops."`
	Denied bool   `help:"Only refused connections."`
	After  int64  `help:"Start after this event." placeholder:"N"`
}

func (netLog) Help() string {
	return `Prints one line for each decision: its number, time, target and result. With --json, prints one
event per line.

Examples:
  engi net log sbx_u2dmwmlezjgprkqrgppgcz2mgu
  engi net log sbx_u2dmwmlezjgprkqrgppgcz2mgu --follow --denied
  engi net log sbx_u2dmwmlezjgprkqrgppgcz2mgu --json | jq -r 'select(.allowed | not) | .host // .address'`
}

func (n *netLog) Run(ctx context.Context, g *globals) error {
	return g.atServer(ctx, func(d *connection) error {
		events := d.NetworkLog(ctx, n.ID, n.After)
		if n.Follow {
			events = d.WatchNetwork(ctx, n.ID, n.After)
		}
		for e, err := range events {
			if err != nil {
				if n.Follow && ctx.Err() != nil { // the user ended the stream
					return exitCode(exitCancelled)
				}
				return err
			}
			if n.Denied && e.Allowed {
				continue
			}
			if g.JSON {
				if err := g.printLine(e); err != nil {
					return err
				}
				continue
			}
			if _, err := fmt.Fprintln(g.out, networkLine(e)); err != nil {
				return engi.Errorf(engi.Unavailable, "%v", err)
			}
		}
		return nil
	})
}

// networkLine returns a record as one line. The sandbox chooses the names in it.
func networkLine(e v1.NetworkRecord) string {
	at := "-"
	if e.Time != nil {
		at = e.Time.Local().Format(time.DateTime)
	}
	verdict := "denied"
	if e.Allowed {
		verdict = "allowed"
	}
	target := e.Host
	if e.Address != "" {
		target = strings.TrimSpace(target + " " + e.Address)
	}
	if e.Protocol != "" {
		target = e.Protocol + " " + target
	}
	why := strings.TrimSpace(e.Reason)
	switch {
	case e.Rule != "" && why != "":
		why = "by " + e.Rule + "; " + why
	case e.Rule != "":
		why = "by " + e.Rule
	}
	if e.Type == v1.NetworkClose {
		why = fmt.Sprintf("%d bytes out, %d in", e.Up, e.Down)
	}
	return printable(strings.TrimRight(fmt.Sprintf("%6d  %s  %-7s  %-7s  %s  %s", e.Seq, at, e.Type, verdict, orDash(target), why), " "))
}

// printable replaces characters that would move the cursor of a terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, s)
}
