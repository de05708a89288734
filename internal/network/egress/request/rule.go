// Package request judges HTTP requests by method, path and JSON body, according to
// [engi.RequestRule]. Requests that servers could read differently than this package
// (encoded slashes, dot segments, other ways to name the method, keys that come
// twice or in other letters) are refused and not interpreted, so that servers act on the
// request as it was judged.
//
// A [Set] holds the rules of one policy. [Read] returns a [Request] for the head of an
// HTTP request, and [Judging.First] finds the first rule that matches it; the body
// is read only if a rule has conditions for it. Package policy determines the rules for a
// host, and package intercept holds
// bodies.
package request

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/engi-dev/engi/internal/clip"
	"github.com/engi-dev/engi/internal/engi"
)

// Bounds of the rules of one policy.
const (
	MaxRules = 1000
	MaxBody  = 32 << 20 // bytes; maximum of RequestRule.MaxBody

	defaultBody     = 1 << 20
	maxMethods      = 16
	maxPath         = 1 << 10 // bytes; maximum length of a pattern of paths
	maxReason       = 300
	maxConditions   = 64 // maximum number of conditions of one rule
	maxConditionSum = 256 << 10
)

// WebSocket is the name in rules for the method of a request that opens a WebSocket.
const WebSocket = "WEBSOCKET"

// A Rule is a compiled rule. It is immutable.
type Rule struct {
	engi.RequestRule // with Action, Path and MaxBody filled in

	pattern    string
	conditions []int32 // numbers of the conditions in the set
}

// narrows reports whether a rule can only take requests away from the rules after it:
// then it also matches requests that a server could take for the ones it names.
func (r *Rule) narrows() bool { return r.Action != engi.RequestAllow }

// String returns the rule in the notation of users, shortened.
func (r *Rule) String() string {
	text := strings.Join(r.Methods, ",")
	if text == "" {
		text = "*"
	}
	text += " " + r.Host + r.Path
	if r.Action != engi.RequestAllow {
		text = string(r.Action) + " " + text
	}
	if len(r.Body) > 0 {
		text += " where " + strings.Join(r.Body, "; ")
	}
	return clip.Text(text, maxShown)
}

const maxShown = 200 // maximum number of bytes of a text in an error

// A Set holds the rules of a policy by their number, and judges all their conditions
// in one pass over a body. It is immutable after the last Add.
type Set struct {
	rules      []*Rule
	conditions []condition
	known      map[string]int32 // numbers of conditions, by text
	sum        int              // total size of all conditions in bytes
	root, deep *node
}

// Len returns the number of rules.
func (s *Set) Len() int { return len(s.rules) }

// Rule returns a rule by its number, from 0 in the order of Add.
func (s *Set) Rule(n int) *Rule { return s.rules[n] }

// Add compiles a rule. The caller checks the rule's host. Add reports Invalid for a rule that
// can never match or is malformed.
func (s *Set) Add(r engi.RequestRule) *engi.Error {
	c := &Rule{RequestRule: r}
	bad := func(format string, args ...any) *engi.Error {
		return engi.Errorf(engi.Invalid, "request rule %q %s", c, fmt.Sprintf(format, args...))
	}
	c.Action, c.Path, c.MaxBody = cmp.Or(r.Action, engi.RequestAllow), cmp.Or(r.Path, "/**"), cmp.Or(r.MaxBody, defaultBody)
	if len(s.rules) >= MaxRules {
		return engi.Errorf(engi.Invalid, "there are more than %d request rules", MaxRules).WithRemedy("use * and /** in paths instead of one rule each")
	}
	if !slices.Contains([]engi.RequestAction{engi.RequestAllow, engi.RequestDeny, engi.RequestAsk, engi.RequestAskExact}, c.Action) {
		return bad("has the unknown action").WithRemedy("use allow, deny, ask or ask_exact")
	}
	if len(r.Methods) > maxMethods {
		return bad("has %d methods", len(r.Methods)).WithRemedy("use at most %d; none means every method", maxMethods)
	}
	for i, m := range r.Methods {
		switch {
		case !plainMethod(m):
			return bad("has the bad method %q", clip.Text(m, maxShown)).WithRemedy("write methods in upper case, such as GET")
		case m == "CONNECT":
			return bad("has the method CONNECT, which never passes").WithRemedy("leave it out")
		case slices.Contains(r.Methods[:i], m):
			return bad("has the method %s twice", m).WithRemedy("write it once")
		case m == WebSocket && len(r.Body) > 0:
			return bad("has conditions for the body of a %s, which has none", m).WithRemedy("write a rule of its own for %s", m)
		}
	}
	if problem := c.setPattern(); problem != "" {
		return bad("has a path that %s", problem).
			WithRemedy("write the path as it is, not encoded and without the query; * is any text within a segment, and /** at the end everything below")
	}
	switch {
	case c.MaxBody < 0 || c.MaxBody > MaxBody:
		return bad("lets bodies have %d bytes", r.MaxBody).WithRemedy("use 1 to %d, or 0 for %d", MaxBody, defaultBody)
	case len(r.Reason) > maxReason || strings.ContainsFunc(r.Reason, func(b rune) bool { return b < ' ' || b == 0x7f }):
		return bad("has a bad reason").WithRemedy("write one line of at most %d bytes", maxReason)
	case len(r.Body) > maxConditions:
		return bad("has %d conditions", len(r.Body)).WithRemedy("use at most %d", maxConditions)
	case len(r.Body) > 0 && c.Action == engi.RequestDeny:
		return bad("denies by its body").WithRemedy("set the condition on bodies in a rule that allows: a request that no rule allows is refused")
	}
	for i, text := range r.Body {
		n, err := s.condition(text)
		if err != nil {
			return bad("has a bad condition: %s, number %d of body", err.Text, i+1).WithRemedy("%s", err.Remedy)
		}
		if slices.Contains(c.conditions, n) {
			return bad("has the condition %q twice", clip.Text(text, maxShown)).WithRemedy("write it once")
		}
		for _, other := range c.conditions {
			a, b := &s.conditions[n], &s.conditions[other]
			if a.path == b.path && (a.op == absent && b.op == present || a.op == present && b.op == absent) {
				return bad("wants %s to be both absent and present", a.path).WithRemedy("keep one of the two")
			}
		}
		c.conditions = append(c.conditions, n)
	}
	s.rules = append(s.rules, c)
	return nil
}

// setPattern compiles the path of the rule.
func (r *Rule) setPattern() (problem string) {
	if len(r.Path) > maxPath {
		return fmt.Sprintf("is longer than %d bytes", maxPath)
	}
	if strings.ContainsAny(r.Path, "%?#") {
		return "has %, ? or # in it"
	}
	if problem = checkPath(r.Path); problem != "" {
		return problem
	}
	if strings.Contains(strings.TrimSuffix(r.Path, "/**"), "**") {
		return "has ** in another place than its end, after a /"
	}
	r.pattern = r.Path
	if r.narrows() {
		r.pattern = loose(r.Path)
	}
	return ""
}

// Covers reports whether no request reaches o after r, if both are for the same
// host. It does not detect all such rules.
func (r *Rule) Covers(o *Rule) bool {
	if len(r.conditions) > 0 {
		return false
	}
	if len(r.Methods) == 0 {
		if !r.narrows() && (slices.Contains(o.Methods, WebSocket) || len(o.Methods) == 0 && o.narrows()) {
			return false
		}
	} else if len(o.Methods) == 0 || slices.ContainsFunc(o.Methods, func(m string) bool { return !slices.Contains(r.Methods, m) }) {
		return false
	}
	if r.Path == o.Path {
		return true
	}
	prefix, all := strings.CutSuffix(r.Path, "**")
	return all && !strings.Contains(prefix, "*") && strings.HasPrefix(o.Path, prefix)
}

// matchesHead reports whether method and path match. loosePath is the path in the form that
// [loose] returns.
func (r *Rule) matchesHead(method, path, loosePath string) bool {
	if len(r.Methods) > 0 && !slices.Contains(r.Methods, method) || len(r.Methods) == 0 && method == WebSocket && !r.narrows() {
		return false
	}
	if !r.narrows() {
		return matchPath(r.pattern, path)
	}
	other, ok := strings.CutSuffix(loosePath, "/")
	if !ok {
		other += "/"
	}
	return matchPath(r.pattern, loosePath) || matchPath(r.pattern, other)
}

// A Judging is the judgement of one request. It is for one goroutine.
type Judging struct {
	Set     *Set
	Request Request
	// Body returns the whole body if it is JSON by its header and has at most
	// limit bytes. It may be called repeatedly. Its errors are the reasons for which the
	// request is refused.
	Body func(limit int64) ([]byte, error)

	loosePath string
	evaluated bool
	broken    []breach // breaches by condition; nil until the body is read
	missed    int32    // number, from 1, of the condition that prevented a match of the last rule
}

// Missed describes the breach, by the body, of a condition of the last rule that would have
// matched without this breach. It is empty if there is no such rule.
func (j *Judging) Missed() string {
	if j.missed == 0 {
		return ""
	}
	return j.Set.why(j.missed-1, j.broken[j.missed-1])
}

// First returns the first matching rule among the given numbers, or nil. It
// reports an error if a rule needs the body and the body cannot be judged.
func (j *Judging) First(rules []int32) (*Rule, error) {
	if j.loosePath == "" {
		j.loosePath = loose(j.Request.Path)
	}
next:
	for _, n := range rules {
		r := j.Set.rules[n]
		if !r.matchesHead(j.Request.Method, j.Request.Path, j.loosePath) {
			continue
		}
		if len(r.conditions) > 0 {
			body, err := j.Body(r.MaxBody)
			if err != nil {
				return r, err
			}
			if !j.evaluated {
				if j.broken, err = j.Set.evaluate(body); err != nil {
					return r, err
				}
				j.evaluated = true
			}
			for _, c := range r.conditions {
				if j.broken[c].is {
					j.missed = c + 1
					continue next
				}
			}
		}
		return r, nil
	}
	return nil, nil
}
