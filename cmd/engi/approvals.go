package main

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"os"
	"slices"
	"strings"
	"time"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/client"
	"github.com/engi-dev/engi/internal/engi"
)

type approvalsCommand struct {
	List       approvalsList       `cmd:"" aliases:"ls" help:"List requests of sandboxes that wait for a decision."`
	Show       approvalsShow       `cmd:"" aliases:"get" help:"Show a request and its decision."`
	Watch      approvalsWatch      `cmd:"" help:"Show requests as they arrive, and ask for decisions."`
	Allow      approvalsAllow      `cmd:"" help:"Allow requests."`
	Deny       approvalsDeny       `cmd:"" help:"Refuse requests."`
	Remembered approvalsRemembered `cmd:"" help:"List remembered decisions, which also apply to later requests."`
	Forget     approvalsForget     `cmd:"" help:"Delete remembered decisions."`
	Verify     approvalsVerify     `cmd:"" help:"Check the signature of a decision."`
}

// approvalRows prints approvals as a table.
var approvalRows = table[v1.Approval]{"APPROVAL\tSTATE\tREQUEST\tSECRETS\tSANDBOX\tCREATED", func(a v1.Approval) []any {
	return []any{a.ID, a.State, clip(requestLine(a)), strings.Join(a.Secrets, " "), a.SandboxID, ago(a.CreatedAt)}
}, func(a v1.Approval) string { return a.ID }}

// requestLine returns the request in one line.
func requestLine(a v1.Approval) string {
	host := a.Host
	if a.Port != 443 && a.Port != 80 {
		host = fmt.Sprintf("%s:%d", host, a.Port)
	}
	return fmt.Sprintf("%s %s%s", a.Method, host, a.Path)
}

// clip shortens a text that would fill a line.
func clip(s string) string {
	if r := []rune(s); len(r) > 80 {
		return string(r[:79]) + "…"
	}
	return s
}

type approvalsList struct {
	State string `help:"Only approvals in this state: pending, allowed, denied, expired or abandoned (default: pending)." enum:"pending,allowed,denied,expired,abandoned" default:"pending" placeholder:"STATE"`
	All   bool   `short:"a" help:"Approvals in every state."`
	Limit int    `short:"n" help:"Maximum number of results." default:"20" placeholder:"N"`
	Quiet bool   `short:"q" help:"Print IDs only."`
}

func (approvalsList) Help() string {
	return `A request waits if a rule of its sandbox's network policy has the action ask. The newest come first.

Examples:
  engi approvals list
  engi approvals list --all --json
  engi approvals list --state denied`
}

func (l *approvalsList) Run(ctx context.Context, g *globals) error {
	f := client.ApprovalFilter{State: l.State, Limit: l.Limit}
	if l.All {
		f.State = ""
	}
	return approvalRows.list(ctx, g, l.Quiet, func(d *connection) ([]v1.Approval, error) { return d.Approvals(ctx, f) })
}

type approvalsShow struct {
	ID string `arg:"" help:"Approval." placeholder:"ID"`
}

func (approvalsShow) Help() string {
	return example("engi approvals show apv_u2dmwmlezjgprkqrgppgcz2mgu")
}

func (s *approvalsShow) Run(ctx context.Context, g *globals) error {
	return show(ctx, g, func(d *connection) (v1.Approval, error) { return d.Approval(ctx, s.ID) }, func(a v1.Approval) { approvalFacts(a).print(g) })
}

// approvalFacts returns the facts that a user needs to judge a request, and its
// decision.
func approvalFacts(a v1.Approval) (f facts) {
	f.add("approval", "%s", a.ID)
	f.add("request", "%s", requestLine(a))
	f.add("secrets", "%s", strings.Join(a.Secrets, " "))
	body := a.Body
	if a.BodyBase64 != nil {
		body = "(base64) " + base64.StdEncoding.EncodeToString(a.BodyBase64)
	}
	for i, line := range strings.SplitN(strings.TrimRight(body, "\r\n"), "\n", 20) {
		name := "body"
		if i > 0 {
			name = ""
		}
		f.add(name, "%s", strings.TrimSuffix(line, "\r"))
	}
	if shown := max(len(a.Body), len(a.BodyBase64)); a.BodySize > shown {
		f.add("", "(the first %d of %d bytes)", shown, a.BodySize)
	}
	f.add("rule", "%s", a.Rule)
	f.add("sandbox", "%s", a.SandboxID)
	f.add("made by", "%s", a.Maker)
	f.add("owner", "%s", a.Owner)
	f.add("state", "%s", a.State)
	if a.ExactOnly {
		f.add("remember", "only for the same query and body, because the rule says ask_exact")
	}
	f.add("asked", "%s", ago(a.CreatedAt))
	if a.State == v1.ApprovalPending {
		f.add("expires", "in %s", short(time.Until(a.ExpiresAt)))
	}
	f.add("decided by", "%s", a.Decider)
	f.add("reason", "%s", a.Reason)
	if a.RememberedUntil != nil {
		f.add("remembered", "%s", rememberedLine(a))
	}
	return f
}

// rememberedLine returns a text for the later requests that a decision covers.
func rememberedLine(a v1.Approval) string {
	what, where := "the same host, port, method and path, any query and body,", "of this sandbox"
	if a.WholeRule {
		what = "all that the rule asks about"
	}
	if a.Exact {
		what = "exactly this request"
	}
	if a.AllSandboxes {
		where = "of all sandboxes"
	}
	return fmt.Sprintf("%s %s until %s", what, where, a.RememberedUntil.Local().Format(time.DateTime))
}

// An approvalAnswer holds the flags of decisions.
type approvalAnswer struct {
	IDs          []string      `arg:"" name:"id" help:"Approvals." placeholder:"ID"`
	Reason       string        `short:"r" help:"Reason, which the program sees." placeholder:"TEXT"`
	For          time.Duration `help:"Apply the decision to later requests with the same host, port, method and path, and any query and body, for this long; 720h at most." placeholder:"DURATION"`
	AllSandboxes bool          `help:"With --for: include requests of the owner's other sandboxes."`
	WholeRule    bool          `help:"With --for: include all requests that match the same rule with the same secrets." xor:"exact"`
	Exact        bool          `help:"With --for: only requests with the same query and body." xor:"exact"`
}

func (x approvalAnswer) run(ctx context.Context, g *globals, allow bool) error {
	q := v1.ApprovalDecision{Allow: &allow, Reason: x.Reason}
	if x.For != 0 || x.AllSandboxes || x.WholeRule || x.Exact {
		if x.For <= 0 {
			return engi.Errorf(engi.Invalid, "--all-sandboxes, --whole-rule and --exact need --for").WithRemedy("say for how long to remember the decision, like --for 1h")
		}
		q.Remember = &v1.ApprovalRemember{For: v1.Duration(x.For), AllSandboxes: x.AllSandboxes, WholeRule: x.WholeRule, Exact: x.Exact}
	}
	return each(ctx, g, x.IDs, func(d *connection, id string) (v1.Approval, error) { return d.DecideApproval(ctx, id, q) },
		func(a v1.Approval) string { return a.ID + " " + a.State })
}

type approvalsAllow struct{ approvalAnswer }

func (approvalsAllow) Help() string {
	return `Needs an admin key, or a key that was created with the scope approvals.

Examples:
  engi approvals allow apv_u2dmwmlezjgprkqrgppgcz2mgu
  engi approvals allow apv_u2dmwmlezjgprkqrgppgcz2mgu --for 24h --exact
  engi approvals allow apv_u2dmwmlezjgprkqrgppgcz2mgu --for 1h --whole-rule --reason 'agreed with the bank'`
}

func (x *approvalsAllow) Run(ctx context.Context, g *globals) error { return x.run(ctx, g, true) }

type approvalsDeny struct{ approvalAnswer }

func (approvalsDeny) Help() string {
	return `Needs an admin key, or a key that was created with the scope approvals.

Examples:
  engi approvals deny apv_u2dmwmlezjgprkqrgppgcz2mgu --reason 'ask the bank first'
  engi approvals deny apv_u2dmwmlezjgprkqrgppgcz2mgu --for 24h --all-sandboxes`
}

func (x *approvalsDeny) Run(ctx context.Context, g *globals) error { return x.run(ctx, g, false) }

type approvalsRemembered struct{}

func (approvalsRemembered) Help() string { return example("engi approvals remembered") }

func (approvalsRemembered) Run(ctx context.Context, g *globals) error {
	remembered := table[v1.Approval]{"APPROVAL\tSTATE\tREQUEST\tFOR", func(a v1.Approval) []any {
		return []any{a.ID, a.State, clip(requestLine(a)), rememberedLine(a)}
	}, nil}
	return remembered.list(ctx, g, false, func(d *connection) ([]v1.Approval, error) {
		return d.Approvals(ctx, client.ApprovalFilter{Remembered: true, Limit: 1000})
	})
}

type approvalsForget struct {
	IDs []string `arg:"" name:"id" help:"Approvals." placeholder:"ID"`
}

func (approvalsForget) Help() string {
	return `Later requests wait for a decision again. Records stay.

Examples:
  engi approvals forget apv_u2dmwmlezjgprkqrgppgcz2mgu`
}

func (x *approvalsForget) Run(ctx context.Context, g *globals) error {
	return g.removeAll(ctx, "forgotten", x.IDs, func(d *connection, id string) error { return d.ForgetApproval(ctx, id) })
}

type approvalsVerify struct {
	ID        string `arg:"" optional:"" help:"Approval; or else --file." placeholder:"ID"`
	File      string `short:"f" help:"File with an approval, as 'engi approvals show --json' prints it; - reads standard input." placeholder:"FILE"`
	PublicKey string `help:"Public key in base64 that must have signed it, from an earlier 'engi approvals verify --key-only' (default: the server's current key)." placeholder:"KEY"`
	KeyOnly   bool   `help:"Print the server's current public key, and check nothing."`
}

func (approvalsVerify) Help() string {
	return `Prints the signed decision, and exits with 1 if the signature does not match the key or the approval
does not match the signed record. With --file and --public-key, no server is needed. A public key
that was stored elsewhere proves more than the key that the server returns.

Examples:
  engi approvals verify apv_u2dmwmlezjgprkqrgppgcz2mgu
  engi approvals verify --key-only > engi.pub
  engi approvals verify --file approval.json --public-key "$(cat engi.pub)"`
}

func (x *approvalsVerify) Run(ctx context.Context, g *globals) error {
	if !x.KeyOnly && (x.ID == "") == (x.File == "") {
		return engi.Errorf(engi.Invalid, "there is no data to verify").WithRemedy("give the ID of an approval, or --file")
	}
	key, err := base64.StdEncoding.DecodeString(x.PublicKey)
	if err != nil {
		return engi.Errorf(engi.Invalid, "--public-key is not base64")
	}
	var a v1.Approval
	if x.File != "" {
		if a, err = x.read(g); err != nil {
			return err
		}
	}
	if x.File == "" || len(key) == 0 {
		if err := g.atServer(ctx, func(d *connection) (err error) {
			if len(key) == 0 {
				var k v1.ApprovalKey
				if k, err = d.ApprovalKey(ctx); err != nil {
					return err
				}
				key = k.PublicKey
			}
			if x.ID != "" {
				a, err = d.Approval(ctx, x.ID)
			}
			return err
		}); err != nil {
			return err
		}
	}
	if x.KeyOnly {
		fmt.Fprintln(g.out, base64.StdEncoding.EncodeToString(key))
		return nil
	}
	r, err := client.VerifyApproval(a, key)
	if err != nil {
		return engi.Errorf(engi.Denied, "approval %s: %v", printable(a.ID), err).WithRemedy("if the key of secrets was rotated since then, use --public-key with the earlier key")
	}
	if g.JSON {
		return g.printJSON(r)
	}
	var f facts
	f.add("decision", "%s", r.Decision)
	f.add("decided by", "%s", r.Decider)
	f.add("at", "%s", r.DecidedAt.Format(time.RFC3339))
	f.add("request", "%s", requestLine(v1.Approval{Method: r.Method, Host: r.Host, Port: r.Port, Path: r.Path}))
	f.add("secrets", "%s", strings.Join(r.Secrets, " "))
	f.add("reason", "%s", r.Reason)
	f.add("signature", "good")
	f.print(g)
	return nil
}

// read reads the approval of --file.
func (x *approvalsVerify) read(g *globals) (a v1.Approval, err error) {
	in := g.in
	if x.File != "-" {
		if in, err = os.Open(x.File); err != nil {
			return a, engi.Errorf(engi.Invalid, "--file: %v", err)
		}
		defer in.Close()
	}
	data, err := io.ReadAll(io.LimitReader(in, maxData))
	if err == nil {
		err = json.Unmarshal(data, &a)
	}
	if err != nil {
		return a, engi.Errorf(engi.Invalid, "--file: it has no approval: %v", err).WithRemedy("'engi approvals show ID --json' prints one")
	}
	return a, nil
}

type approvalsWatch struct{}

func (approvalsWatch) Help() string {
	return `Shows each waiting request, the oldest first, and reads an answer from standard input: y allows it,
n refuses it, yh and nh also apply to requests with the same host, port, method and path, and any query and
body, for one hour, ye and ne only to exactly the same request, and any other answer leaves the decision to others. With --json, prints events of approvals, one per line, and asks nothing.

Examples:
  engi approvals watch
  engi approvals watch --json`
}

func (approvalsWatch) Run(ctx context.Context, g *globals) error {
	if g.JSON {
		return follow(ctx, g, func(d *connection) iter.Seq2[v1.Event, error] { return d.FollowApprovals(ctx, -1) }, nil)
	}
	return g.atServer(ctx, func(d *connection) error {
		lines := g.lines()
		after := int64(0)
		newest, err := d.ApprovalEvents(ctx, 1)
		if err != nil {
			return err
		}
		if len(newest) > 0 {
			after = newest[0].Seq
		}
		all, err := d.Approvals(ctx, client.ApprovalFilter{State: v1.ApprovalPending, Limit: 1000})
		if err != nil {
			return err
		}
		g.note("%d requests wait; Ctrl-C ends this", len(all))
		asked := map[string]bool{}
		for _, a := range slices.Backward(all) {
			asked[a.ID] = true
			if done, err := g.askAbout(ctx, d, a.ID, lines); done || err != nil {
				return err
			}
		}
		for e, err := range d.FollowApprovals(ctx, after) {
			switch {
			case err != nil && ctx.Err() != nil:
				return nil
			case err != nil:
				return err
			case e.Type != engi.EventApprovalRequested || asked[e.Subject]:
				continue
			}
			if done, err := g.askAbout(ctx, d, e.Subject, lines); done || err != nil {
				return err
			}
		}
		return nil
	})
}

// lines returns the lines of standard input. It reads until the process
// ends, since a read cannot be interrupted.
func (g *globals) lines() <-chan string {
	c := make(chan string)
	go func() {
		defer close(c)
		in := bufio.NewScanner(g.in)
		in.Buffer(nil, 1<<20)
		for in.Scan() {
			c <- strings.TrimSpace(in.Text())
		}
	}()
	return c
}

// askAbout shows a waiting request, and sends the answer in the next line; done says that
// the input has ended.
func (g *globals) askAbout(ctx context.Context, d *connection, id string, lines <-chan string) (done bool, err error) {
	a, err := d.Approval(ctx, id)
	if err != nil || a.State != v1.ApprovalPending {
		return false, err // the request has ended while others were shown
	}
	fmt.Fprintln(g.out)
	approvalFacts(a).print(g)
	if isTerminal(g.in) { // input typed before is no answer to this request
		select {
		case <-lines:
		default:
		}
	}
	similar := "yh/nh for an hour with any query and body, "
	if a.ExactOnly {
		similar = ""
	}
	fmt.Fprintf(g.err, "allow? [y/n, %sye/ne for an hour for exactly this request, Enter to leave it] ", similar)
	var line string
	var ok bool
	select {
	case line, ok = <-lines:
	case <-ctx.Done():
	}
	if !ok {
		fmt.Fprintln(g.err)
		return true, nil
	}
	q := v1.ApprovalDecision{}
	switch line = strings.ToLower(line); line {
	case "y", "yes", "yh", "ye":
		q.Allow = new(true)
	case "n", "no", "nh", "ne":
		q.Allow = new(false)
	default:
		g.note("%s is left to others", a.ID)
		return false, nil
	}
	if slices.Contains([]string{"yh", "nh", "ye", "ne"}, line) {
		q.Remember = &v1.ApprovalRemember{For: v1.Duration(time.Hour), Exact: strings.HasSuffix(line, "e")}
	}
	a, err = d.DecideApproval(ctx, id, q)
	switch {
	case client.IsKind(err, v1.Conflict):
		g.complain(err)
	case err != nil:
		return false, err
	default:
		g.note("%s is %s", a.ID, a.State)
	}
	return false, nil
}
