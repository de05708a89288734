// Package attack attacks a node as hostile programs and tenants would, and says
// what held: escapes from sandboxes, ways around the wall, secrets, the objects of
// other tenants, and exhaustion. Anybody can run it against their own node, with
// "engi attack"; tests of the whole system run the same programs.
//
// It is honest: an attack that could not be tried is skipped, with the reason, and
// so is one whose control shows that it would not have succeeded anyway. It needs
// nothing but the API, and harms nothing: what it makes, it removes.
package attack

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/client"
)

// Groups of attacks, in the order in which they are tried.
var Groups = []string{"escape", "wall", "secrets", "tenancy", "exhaustion"}

// Outcomes of an attack.
const (
	Held    = "held"    // it was tried, and got nothing
	Broke   = "broke"   // it succeeded
	Skipped = "skipped" // it was not tried, or would have failed anyway
)

// A Result is what came of one attack.
type Result struct {
	Group   string `json:"group"`
	Name    string `json:"name"`
	Outcome string `json:"outcome"`
	Why     string `json:"why,omitempty"`     // it broke, or was skipped
	Control string `json:"control,omitempty"` // what shows that it could have succeeded
}

// Options configure a run. The client's key must be an administrator's for the
// group tenancy, which makes keys of two owners.
type Options struct {
	Client *client.Client
	As     func(key string) *client.Client // a client of the same node with another key
	Only   []string                        // groups; empty means all

	// Canary is the path of a file of the node's host that no sandbox may see, with
	// a name that nothing else has. Empty if that host is another machine.
	Canary string
	// Here are addresses of the node's host, each with a TCP port that greets
	// whoever connects with Greeting. Empty if the host is another machine.
	Here []string

	Progress func(Result) // is told of each; nil for nobody
}

// Greeting is what listeners on the node's host say.
const Greeting = "REACHED the host of the node\r\n"

type run struct {
	Options
	all []Result
}

// Run attacks the node. It returns an error only if nothing could be tried at all.
func Run(ctx context.Context, o Options) ([]Result, error) {
	if _, err := o.Client.Node(ctx); err != nil {
		return nil, err
	}
	r := &run{Options: o}
	for i, f := range []func(context.Context){r.escapes, r.wall, r.secrets, r.tenancy, r.exhaustion} {
		if len(o.Only) == 0 || slices.Contains(o.Only, Groups[i]) {
			f(ctx)
		}
		if err := ctx.Err(); err != nil {
			return r.all, err
		}
	}
	return r.all, nil
}

func (r *run) add(x Result) {
	r.all = append(r.all, x)
	if r.Progress != nil {
		r.Progress(x)
	}
}

func (r *run) skip(group, name string, why error) {
	r.add(Result{Group: group, Name: name, Outcome: Skipped, Why: why.Error()})
}

// verdict is what a program says of itself.
func verdict(group, name string, x v1.Execution, err error) Result {
	res := Result{Group: group, Name: name, Outcome: Skipped}
	switch {
	case err != nil:
		res.Why = err.Error()
	case x.Result == nil:
		res.Why = "the program did not end"
	case strings.Contains(x.Result.Stdout, "ESCAPED"):
		res.Outcome, res.Why = Broke, last(x.Result.Stdout, "ESCAPED")
	case strings.Contains(x.Result.Stdout, "DENIED"):
		res.Outcome = Held
	default:
		res.Why = fmt.Sprintf("the program did not come to its end: %s %.200s", x.Result.Cause, x.Result.Stderr)
	}
	return res
}

// last returns the line of text that contains word.
func last(text, word string) string {
	for line := range strings.Lines(text) {
		if strings.Contains(line, word) {
			text = strings.TrimSpace(line)
		}
	}
	return text[:min(len(text), 300)]
}

const patience = v1.Duration(time.Minute)

// escapes runs each program by itself.
func (r *run) escapes(ctx context.Context) {
	for _, p := range Escapes(r.Canary) {
		if p.Host && r.Canary == "" {
			r.skip("escape", p.Name, fmt.Errorf("the node is on another machine: no file of its host is known here"))
			continue
		}
		x, err := r.Client.Run(ctx, v1.ExecutionRequest{Language: p.Language, Code: p.Code, Timeout: patience})
		r.add(verdict("escape", p.Name, x, err))
	}
	r.devices(ctx)
}

// name returns a name that nothing else has.
func name() string { return "engi-attack-" + strings.ToLower(rand.Text()[:10]) }

// clean calls f, which must succeed though ctx may have ended.
func clean(ctx context.Context, f func(context.Context) error) {
	soon, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	_ = f(soon) // lifetimes end what stays
}

// DefaultPolicy returns what sandboxes may reach if nobody says anything; nil if
// that cannot be known.
func DefaultPolicy(ctx context.Context, c *client.Client) *v1.NetworkPolicy {
	s, err := c.CreateSandbox(ctx, v1.SandboxRequest{Lifetime: v1.Lifetime{Timeout: patience}})
	if err != nil {
		return nil
	}
	defer clean(ctx, func(ctx context.Context) error { return c.StopSandbox(ctx, s.ID) })
	p, err := c.Network(ctx, s.ID)
	if err != nil {
		return nil
	}
	if p.Mode == "" {
		p.Mode = "none" // which the absent one is
	}
	return &p
}
