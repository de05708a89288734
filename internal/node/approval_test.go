package node

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/client"
	"github.com/engi-dev/engi/internal/engi"
)

// TestApprovalsOfANode decides over HTTP on what a node holds. What waits when a
// node ends is abandoned in the next one, which knows what was decided, and signs
// with the same key.
func TestApprovalsOfANode(t *testing.T) {
	conf, o := fakeNode(t)
	var c *client.Client
	run := func(t *testing.T) *Node {
		n, err := Open(t.Context(), conf, o)
		if err != nil {
			t.Fatal(err)
		}
		start(t, n)
		c = client.New(n.Endpoint().URL, n.AdminKey())
		return n
	}
	ask := func(n *Node, path string) (<-chan engi.ApprovalDecision, context.CancelFunc) {
		ctx, cancel := context.WithCancel(t.Context())
		told := make(chan engi.ApprovalDecision, 1)
		go func() {
			d, err := n.approvals.Ask(ctx, engi.HeldRequest{Owner: "ann", Sandbox: engi.NewSandboxID(), Host: "api.example.com", Port: 443, Method: "GET", Path: path, Rule: "ask *"})
			if err == nil {
				told <- d
			}
			close(told)
		}()
		return told, cancel
	}
	seen := map[string]string{}
	var last v1.Approval
	var key v1.ApprovalKey
	t.Run("a first node", func(t *testing.T) {
		n := run(t)
		told, leave := ask(n, "/first")
		defer leave()
		yes := true
		for e, err := range c.FollowApprovals(t.Context(), 0) {
			if err != nil {
				t.Fatal(err)
			}
			seen[e.Type] = e.Subject
			if e.Type == engi.EventApprovalDecided {
				break
			}
			if _, err := c.DecideApproval(t.Context(), e.Subject, v1.ApprovalDecision{Allow: &yes, Remember: &v1.ApprovalRemember{For: v1.Duration(time.Hour), AllSandboxes: true}}); err != nil {
				t.Fatal(err)
			}
		}
		if d := <-told; !d.Allowed {
			t.Errorf("%+v", d)
		}
		_, leaveLast := ask(n, "/last")
		defer leaveLast()
		waits := func() (all []v1.Approval) {
			all, err := c.Approvals(t.Context(), client.ApprovalFilter{State: v1.ApprovalPending})
			if err != nil {
				t.Fatal(err)
			}
			return all
		}
		for range 12000 {
			if len(waits()) == 1 {
				break
			}
			time.Sleep(5 * time.Millisecond)
		}
		last = waits()[0]
		var err error
		if key, err = c.ApprovalKey(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
	n := run(t)
	if a, err := c.Approval(t.Context(), last.ID); err != nil || a.State != v1.ApprovalAbandoned {
		t.Errorf("%+v %v", a, err)
	}
	a, err := c.Approval(t.Context(), seen[engi.EventApprovalDecided])
	if err != nil {
		t.Fatal(err)
	}
	if r, err := client.VerifyApproval(a, key.PublicKey); err != nil || r.Path != "/first" || !strings.HasPrefix(r.Decider, "key_") {
		t.Errorf("%+v %v", r, err)
	}
	again, leave := ask(n, "/first")
	defer leave()
	if d := <-again; !d.Allowed {
		t.Errorf("%+v is not remembered", d)
	}
}
