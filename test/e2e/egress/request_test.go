package egress

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/client"
	"github.com/engi-dev/engi/internal/engi"

	"github.com/engi-dev/engi/test/env"
)

// TestRequestRules: a program's requests are judged by method, path and body, over
// TLS and without, and by other rules later.
func TestRequestRules(t *testing.T) {
	w := testInternet(t)
	var mu sync.Mutex
	var got []string
	w.name("model.test", "93.184.218.60")
	w.site("model.test", http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		got = append(got, fmt.Sprintf("%s %s %s", r.Method, r.RequestURI, body))
		fmt.Fprint(rw, "answered")
	}))
	b := newSandbox(t, "mallory", engi.NetworkPolicy{Mode: engi.NetworkRestricted, Allow: []string{"model.test"}, Requests: []engi.RequestRule{
		{Host: "model.test", Methods: []string{"POST"}, Path: "/v1/messages", Body: []string{"mcp_servers absent"}},
		{Host: "model.test", Methods: []string{"GET"}, Path: "/v1/models"},
	}})
	for _, c := range []struct{ args, want string }{
		{"https://model.test/v1/models", "answered"},
		{"https://model.test/v1/files", "what may pass: POST model.test/v1/messages where mcp_servers absent, GET model.test/v1/models"},
		{"http://model.test/v1/models", "the network policy allows no traffic"},
		{`https://model.test/v1/messages --json {"a":1}`, "answered"},
		{`https://model.test/v1/messages --json {"mcp_servers":[]}`, `the body breaks "mcp_servers absent"`},
		{`https://model.test/v1/messages --json {"mcpServers":[]}`, `the body breaks "mcp_servers absent"`},
	} {
		out, _ := b.run(t, time.Minute, append([]string{"curl", "-sS", "--path-as-is"}, strings.Fields(c.args)...)...)
		if !strings.Contains(out, c.want) {
			t.Errorf("curl %s: %s", c.args, out)
		}
	}
	mu.Lock()
	text := strings.Join(got, "\n")
	mu.Unlock()
	if text != "GET /v1/models \nPOST /v1/messages {\"a\":1}" {
		t.Errorf("the host got:\n%s", text)
	}
	wantRefusal(t, b.refusals(t), `request tcp .*GET /v1/files: 403`)
	b.open(t, engi.NetworkPolicy{Mode: engi.NetworkRestricted, Requests: []engi.RequestRule{{Host: "model.test", Methods: []string{"GET"}, Path: "/v1/files"}}})
	if out, _ := b.run(t, time.Minute, "curl", "-sS", "https://model.test/v1/files"); !strings.Contains(out, "answered") {
		t.Errorf("after a change: %s", out)
	}
}

// TestHeldRequests: requests of a program wait until an approval is decided over the
// API: once, with a reason, and for later requests, too.
func TestHeldRequests(t *testing.T) {
	env.Slow(t)
	w := testInternet(t)
	var got atomic.Int64
	w.name("bank.test", "93.184.218.61")
	w.site("bank.test", http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		got.Add(1)
		fmt.Fprint(rw, "answered")
	}))
	b := newSandbox(t, "mallory", engi.NetworkPolicy{Mode: engi.NetworkRestricted, Requests: []engi.RequestRule{{Host: "bank.test", Methods: []string{"POST"}, Path: "/pay", Action: engi.RequestAsk}}})
	admin := client.New(b.node.Endpoint().URL, b.node.AdminKey())
	pay := func(amount string, decide func(v1.Approval)) string {
		t.Helper()
		out := make(chan string, 1)
		go func() {
			text, _ := b.run(t, time.Minute, "curl", "-sS", "https://bank.test/pay?to=ann", "--json", `{"amount":`+amount+`}`)
			out <- text
		}()
		if decide != nil {
			for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
				all, err := admin.Approvals(t.Context(), client.ApprovalFilter{State: v1.ApprovalPending})
				if err != nil || time.Now().After(deadline) {
					t.Fatalf("%d requests wait, %v", len(all), err)
				}
				if len(all) == 1 {
					decide(all[0])
					break
				}
			}
		}
		return <-out
	}
	answer := func(q v1.ApprovalDecision) func(v1.Approval) {
		return func(a v1.Approval) {
			if a.Method != "POST" || a.Host != "bank.test" || a.Path != "/pay?to=ann" || !strings.Contains(string(a.Body), `{"amount":`) || a.SandboxID != string(b.id) || a.Owner != "mallory" {
				t.Errorf("asked about %+v", a)
			}
			if _, err := admin.DecideApproval(t.Context(), a.ID, q); err != nil {
				t.Error(err)
			}
		}
	}
	if text := pay("5", answer(v1.ApprovalDecision{Allow: new(false), Reason: "not on a Sunday"})); !strings.Contains(text, "not on a Sunday") || got.Load() != 0 {
		t.Errorf("refused: %s", text)
	}
	if text := pay("6", answer(v1.ApprovalDecision{Allow: new(true)})); text != "answered" || got.Load() != 1 {
		t.Errorf("allowed once: %s", text)
	}
	exactly := v1.ApprovalDecision{Allow: new(true), Remember: &v1.ApprovalRemember{For: v1.Duration(time.Hour), Exact: true}}
	if text := pay("7", answer(exactly)); text != "answered" {
		t.Errorf("allowed for exactly this request: %s", text)
	}
	if text := pay("7", nil); text != "answered" || got.Load() != 3 {
		t.Errorf("exactly this request again: %s", text)
	}
	if text := pay("70", answer(v1.ApprovalDecision{Allow: new(true), Remember: &v1.ApprovalRemember{For: v1.Duration(time.Hour)}})); text != "answered" {
		t.Errorf("allowed for an hour: %s", text)
	}
	if text := pay("8", nil); text != "answered" || got.Load() != 5 {
		t.Errorf("remembered: %s", text)
	}
}
