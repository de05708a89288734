// Package attack attacks a node as hostile programs and tenants would, and reports
// the outcomes: escapes from sandboxes, ways around the egress gateway, secrets, the objects of
// other tenants, and exhaustion. Operators can run it against their own node, with
// "engi attack"; tests of the whole system run the same programs.
//
// An attack that could not be tried is reported as skipped, with the reason, and
// so is an attack whose control shows that it would not have succeeded anyway. The package needs
// only the API, and does no harm: it removes all objects that it creates.
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
var Groups = []string{"escape", "egress", "secrets", "tenancy", "exhaustion"}

// Outcomes of an attack.
const (
	Held    = "held"    // the attack was tried, and failed
	Broke   = "broke"   // the attack succeeded
	Skipped = "skipped" // the attack was not tried, or would have failed anyway
)

// A Result is the result of one attack.
type Result struct {
	Group   string `json:"group"`
	Name    string `json:"name"`
	Outcome string `json:"outcome"`
	Why     string `json:"why,omitempty"`     // reason why the attack succeeded or was skipped
	Control string `json:"control,omitempty"` // evidence that the attack could have succeeded
}

// Options configures a run. The client's key must be an administrator's for the
// group tenancy, which creates keys of two owners.
type Options struct {
	Client *client.Client
	As     func(key string) *client.Client // returns a client of the same node with another key
	Only   []string                        // groups to run; empty means all

	// Canary is the path of a file of the node's host that no sandbox may see, with
	// a unique name. Empty if the host is another machine.
	Canary string
	// Here lists addresses of the node's host, each with a TCP port that sends Greeting to
	// every client that connects. Empty if the host is another machine.
	Here []string

	Progress func(Result) // called with each result; nil for none
}

// Greeting is the text that listeners on the node's host send.
const Greeting = "REACHED the host of the node\r\n"

type run struct {
	Options
	all []Result
}

// Run attacks the node. It returns an error only if no attack could be tried.
func Run(ctx context.Context, o Options) ([]Result, error) {
	if _, err := o.Client.Node(ctx); err != nil {
		return nil, err
	}
	r := &run{Options: o}
	for i, f := range []func(context.Context){r.escapes, r.egress, r.secrets, r.tenancy, r.exhaustion} {
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

// verdict returns the result that the output of a program reports.
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

// escapes runs each program in a separate execution.
func (r *run) escapes(ctx context.Context) {
	for _, p := range Escapes(r.Canary) {
		if p.Host && r.Canary == "" {
			r.skip("escape", p.Name, fmt.Errorf("the node is on another machine: this command cannot read files of its host"))
			continue
		}
		x, err := r.Client.Run(ctx, v1.ExecutionRequest{Language: p.Language, Code: p.Code, Timeout: patience})
		r.add(verdict("escape", p.Name, x, err))
	}
	r.devices(ctx)
}

// name returns a unique name.
func name() string { return "engi-attack-" + strings.ToLower(rand.Text()[:10]) }

// clean calls f for a cleanup, with a context that lives even if ctx has ended.
func clean(ctx context.Context, f func(context.Context) error) {
	soon, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	_ = f(soon) // lifetimes end the remaining objects
}

// DefaultPolicy returns the network policy of sandboxes created without one; nil if
// it cannot be determined.
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
		p.Mode = "none" // the meaning of an empty mode
	}
	return &p
}
