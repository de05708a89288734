package policy

import (
	"cmp"
	"slices"
	"strings"

	"github.com/engi-dev/engi/internal/clip"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/network/egress/request"
)

// requestRules holds the request rules of a policy and then of its grants.
type requestRules struct {
	set    request.Set
	judged *hostIndex // all rules by their hosts
	opened *hostIndex // the policy's rules that make their hosts reachable
	grants []int32    // index of each rule's grant; -1 for the policy's own rules
	limits []bool     // reports by grant whether it has rules
}

// maxRequestHosts bounds the hosts of all rules. The hosts of a grant count for each
// of its rules.
const maxRequestHosts = 20_000

// CheckRequest validates a single request rule of a grant or of a policy.
func CheckRequest(r engi.RequestRule, ofGrant bool) error {
	if err := checkRequestHost(r, ofGrant); err != nil {
		return err
	}
	if err := new(request.Set).Add(r); err != nil {
		return err
	}
	return nil
}

func checkRequestHost(r engi.RequestRule, ofGrant bool) *engi.Error {
	if !ofGrant {
		_, err := parseHost(r.Host)
		return err
	}
	if r.Host != "" {
		return engi.Errorf(engi.Invalid, "request rule of a grant has the host %q", clip.Text(r.Host, maxShown)).WithRemedy("leave it out: the rule is for the hosts of the grant")
	}
	return nil
}

func (p *Policy) addRequests() *engi.Error {
	q := &p.requests
	q.judged, q.opened, q.limits = newHostIndex(), newHostIndex(), make([]bool, len(p.source.Grants))
	var hosts [][]Host // hosts of each rule
	sum := 0
	add := func(grant int, number int, r engi.RequestRule, texts []string) *engi.Error {
		err := checkRequestHost(r, grant >= 0)
		if err == nil {
			err = q.set.Add(r)
		}
		if err != nil {
			where := "of requests"
			if grant >= 0 {
				where = "of the grant of " + p.source.Grants[grant].Secret
			}
			return engi.Errorf(err.Kind, "%s, number %d %s", err.Text, number+1, where).WithRemedy("%s", err.Remedy)
		}
		if sum += len(texts); sum > maxRequestHosts {
			return engi.Errorf(engi.Invalid, "the request rules of all grants have more than %d hosts", maxRequestHosts).WithRemedy("use *.SUFFIX instead of names, or fewer rules")
		}
		n := len(q.grants)
		var at []Host
		for _, text := range texts {
			h, err := parseHost(text)
			if err != nil {
				return err
			}
			at = append(at, h)
			q.judged.add(h, n)
			if grant < 0 && r.Action != engi.RequestDeny {
				q.opened.add(h, n)
			}
		}
		label := q.set.Rule(n).String()
		q.judged.labels, q.opened.labels = append(q.judged.labels, label), append(q.opened.labels, label)
		q.grants, hosts = append(q.grants, int32(grant)), append(hosts, at)
		return nil
	}
	for i, r := range p.source.Requests {
		if err := add(-1, i, r, []string{r.Host}); err != nil {
			return err
		}
	}
	for i, g := range p.source.Grants {
		q.limits[i] = len(g.Requests) > 0
		for k, r := range g.Requests {
			if err := add(i, k, r, g.Hosts); err != nil {
				return err
			}
		}
	}
	var useful []Host // hosts to which grants let some requests pass
	for i, g := range p.source.Grants {
		if n := slices.IndexFunc(g.Requests, func(r engi.RequestRule) bool { return r.Action != engi.RequestDeny }); n >= 0 {
			useful = append(useful, hosts[slices.Index(q.grants, int32(i))]...)
		}
	}
	for i := range hosts {
		if err := p.checkReach(hosts, useful, i); err != nil {
			return err
		}
	}
	return nil
}

// checkReach reports a rule that no request reaches, and a rule that denies requests where
// none is allowed.
func (p *Policy) checkReach(hosts [][]Host, granted []Host, i int) *engi.Error {
	q, h := &p.requests, hosts[i][0]
	meets := func(o Host) bool { return h.includes(o) || o.includes(h) }
	r, useful := q.set.Rule(i), q.grants[i] < 0 && slices.ContainsFunc(granted, meets)
	for j := range hosts {
		if q.grants[j] != q.grants[i] {
			continue
		}
		o := q.set.Rule(j)
		if j < i && hosts[j][0].includes(h) && o.Covers(r) {
			return engi.Errorf(engi.Invalid, "request rule %q is never reached: %q before it has all its requests", r, o).
				WithRemedy("the first matching rule decides: put the narrower rule first, or remove one of the two")
		}
		useful = useful || o.Action != engi.RequestDeny && meets(hosts[j][0])
	}
	if !useful && r.Action == engi.RequestDeny {
		return engi.Errorf(engi.Invalid, "request rule %q denies at a host where no rule allows anything", r).
			WithRemedy("add a rule for the other requests after it, such as %q", "* "+cmp.Or(r.Host, "HOST")+"/**")
	}
	return nil
}

// includes reports whether h includes all of o.
func (h Host) includes(o Host) bool {
	if h.TLS != o.TLS || h.Port != 0 && h.Port != o.Port {
		return false
	}
	return h.Name == o.Name && h.Below == o.Below || h.Below && isBelow(o.Name, h.Name) && o.Name != h.Name
}

// HasRequests reports whether there are request rules.
func (p *Policy) HasRequests() bool { return p.requests.set.Len() > 0 }

// Judges reports whether request rules judge requests to a host, on every port,
// over TLS or not.
func (p *Policy) Judges(host string) bool {
	if p.requests.judged.empty() {
		return false
	}
	name, problem := canonical(host)
	return problem == "" && p.requests.judged.applies(name)
}

// anyJudged reports whether request rules judge one of names.
func (p *Policy) anyJudged(names []string) bool { return slices.ContainsFunc(names, p.Judges) }

// granting returns the verdict by which a grant or a request rule makes a canonical
// name reachable over TLS; port 0 means any port.
func (p *Policy) granting(name string, port uint16) (Verdict, bool) {
	if g, ok := p.grants.granting(name, port); ok {
		return Verdict{Allowed: true, Rule: g, Reason: "allowed by a grant"}, true
	}
	r, ok := p.requests.opened.granting(name, port)
	return Verdict{Allowed: ok, Rule: r, Reason: "allowed by a request rule"}, ok
}

// A RequestVerdict is the judgement of a request to a host for which [Policy.Judges] is true.
type RequestVerdict struct {
	Action engi.RequestAction
	Rule   *request.Rule // deciding rule; nil if none decided
	Grant  string        // secret of the grant to which the rule belongs; empty for the policy's own rules
	// Withheld reports by the number of a grant that its secret is not sent with
	// the request.
	Withheld []bool
}

// Request judges a request to a canonical host. It returns an error with the reason if the
// rules need the request's body and it cannot be judged.
func (p *Policy) Request(host string, port uint16, tls bool, j *request.Judging) (v RequestVerdict, err error) {
	q := &p.requests
	v = RequestVerdict{Action: engi.RequestDeny, Withheld: q.limits}
	j.Set = &q.set
	rules := q.at(host, port, tls)
	granted := false
	for len(rules) > 0 {
		n := slices.IndexFunc(rules, func(r int32) bool { return q.grants[r] != q.grants[rules[0]] })
		if n < 0 {
			n = len(rules)
		}
		grant, group := q.grants[rules[0]], rules[:n]
		rules = rules[n:]
		r, err := j.First(group)
		if err != nil {
			v.Action = engi.RequestDeny
			v.decided(p, r, grant)
			return v, err
		}
		switch {
		case r == nil:
			continue
		case grant < 0:
			v.Action = r.Action
			v.decided(p, r, grant)
			if r.Action == engi.RequestDeny {
				return v, nil
			}
		case r.Action == engi.RequestDeny:
			if v.Rule == nil {
				v.decided(p, r, grant)
			}
			continue
		default:
			if !granted {
				v.Withheld, granted = slices.Clone(v.Withheld), true
			}
			v.Withheld[grant] = false
			if v.Action == engi.RequestDeny || v.Action == engi.RequestAllow && r.Action.Asks() || v.Action == engi.RequestAsk && r.Action == engi.RequestAskExact {
				v.Action = r.Action
				v.decided(p, r, grant)
			}
		}
	}
	return v, nil
}

func (v *RequestVerdict) decided(p *Policy, r *request.Rule, grant int32) {
	v.Rule, v.Grant = r, ""
	if grant >= 0 {
		v.Grant = p.source.Grants[grant].Secret
	}
}

// at returns the rules for a canonical host, in their order.
func (q *requestRules) at(host string, port uint16, tls bool) []int32 {
	var rules []int32
	for at := range q.judged.entries(host) {
		if at.tls == tls && (at.port == 0 || at.port == port) {
			rules = append(rules, at.index)
		}
	}
	slices.Sort(rules)
	return slices.Compact(rules)
}

// RequestsTo describes the requests that request rules let pass to a canonical host.
func (p *Policy) RequestsTo(host string, port uint16, tls bool) string {
	const most = 5
	var list []string
	for _, n := range p.requests.at(host, port, tls) {
		if p.requests.set.Rule(int(n)).Action == engi.RequestDeny {
			continue
		}
		if len(list) == most {
			list = append(list, "…")
			break
		}
		list = append(list, p.requests.judged.labels[n])
	}
	return strings.Join(list, ", ")
}
