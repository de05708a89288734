package apitest

import (
	"context"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

// Hold makes a sandbox of owner request a path of api.example.com, and returns the
// approval for which it waits and a channel with the decision. Close ends the
// wait.
func (w *Fixture) Hold(owner engi.Owner, path string) (engi.Approval, <-chan engi.ApprovalDecision) {
	told := make(chan engi.ApprovalDecision, 1)
	r := engi.HeldRequest{
		Owner: owner, Sandbox: engi.NewSandboxID(), Host: "api.example.com", Port: 443, Method: "POST", Path: path,
		Secrets: []string{"bank"}, Rule: "ask POST api.example.com/*", Body: []byte(`{"amount": 5}`),
	}
	w.held.Go(func() {
		d, err := w.Approvals.Ask(w.life, r)
		if err == nil {
			told <- d
		}
	})
	for {
		all, err := w.Approvals.List(context.Background(), owner.Viewer(), engi.ApprovalFilter{State: engi.ApprovalPending, Limit: 1000})
		if err != nil {
			panic(err)
		}
		for _, a := range all {
			if a.Sandbox == r.Sandbox {
				return a, told
			}
		}
		time.Sleep(time.Millisecond)
	}
}
