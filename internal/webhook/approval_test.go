package webhook_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/access/approval"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/store"
	"github.com/engi-dev/engi/internal/webhook"
)

// TestDecisionsOfWebhooks makes a webhook decide on waiting requests.
func TestDecisionsOfWebhooks(t *testing.T) {
	db := open(t)
	approvals, err := approval.Open(t.Context(), approval.Options{Store: store.Approvals(db), Seed: make([]byte, 32), Wait: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	fx, _ := serve(t, db, webhook.Options{Formats: map[string]engi.WebhookFormat{engi.WebhookApproval: webhook.NewApprovalFormat(approvals)}})
	type asked struct {
		Type, Subject string
		Data          struct{ Host, Method, Path, Body string }
	}
	requests := make(chan asked, 10)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var x asked
		if err := json.NewDecoder(r.Body).Decode(&x); err != nil || r.Header.Get("webhook-signature") == "" {
			t.Errorf("%v, %v", r.Header, err)
		}
		requests <- x
		// The body of the request contains the answer.
		_, _ = io.WriteString(w, x.Data.Body)
	}))
	defer srv.Close()
	hook, _ := fx.create(t, engi.WebhookSpec{Owner: "ann", URL: srv.URL, Format: engi.WebhookApproval})
	ask := func(owner engi.Owner, path, body string) chan engi.ApprovalDecision {
		answer := make(chan engi.ApprovalDecision, 1)
		go func() {
			d, err := approvals.Ask(t.Context(), engi.HeldRequest{Owner: owner, Sandbox: engi.NewSandboxID(), Host: "bank.test", Port: 443, Method: "POST", Path: path, Rule: "POST bank.test", Body: []byte(body)})
			if err != nil && t.Context().Err() == nil {
				t.Error(err)
			}
			answer <- d
		}()
		return answer
	}
	for body, want := range map[string]engi.ApprovalDecision{
		`{"allow":true,"reason":"small"}`:  {Allowed: true, Reason: "small"},
		`{"allow":false,"reason":"large"}`: {Reason: "large"},
	} {
		if got := <-ask("ann", "/pay?n=1", body); got != want {
			t.Errorf("%s: %+v", body, got)
		}
		x := <-requests
		if x.Type != engi.EventApprovalRequested || x.Data.Host != "bank.test" || x.Data.Path != "/pay?n=1" || x.Data.Method != "POST" {
			t.Errorf("the webhook got %+v", x)
		}
		a, err := approvals.Get(t.Context(), "ann", engi.ApprovalID(x.Subject))
		if err != nil || a.Decider != string(hook.ID) || len(a.Signature) == 0 {
			t.Errorf("%+v, %v", a, err)
		}
	}
	// A remembered decision is requested only once.
	kind := `{"allow":true,"remember":{"for":"1h","all_sandboxes":true,"whole_rule":true}}`
	if d := <-ask("ann", "/remembered", kind); !d.Allowed {
		t.Errorf("%+v", d)
	}
	<-requests
	if d := <-ask("ann", "/other", `{"allow":false}`); !d.Allowed || len(requests) > 0 {
		t.Errorf("%+v, asked %d times more", d, len(requests))
	}
	all, err := approvals.List(t.Context(), "ann", engi.ApprovalFilter{Remembered: true})
	if err != nil || len(all) != 1 {
		t.Fatalf("%+v, %v", all, err)
	}
	if err := approvals.Forget(t.Context(), "ann", all[0].ID); err != nil {
		t.Fatal(err)
	}
	kind = `{"allow":true,"remember":{"for":"1h","all_sandboxes":true,"exact":true}}`
	if d := <-ask("ann", "/exact", kind); !d.Allowed {
		t.Errorf("%+v", d)
	}
	<-requests
	if d := <-ask("ann", "/exact", kind); !d.Allowed || len(requests) > 0 {
		t.Errorf("%+v, asked %d times more", d, len(requests))
	}
	if d := <-ask("ann", "/exact", `{"allow":false}`); d.Allowed {
		t.Errorf("another body is allowed: %+v", d)
	}
	<-requests
	// Another owner's webhook does not decide.
	waits := ask("bob", "/", `{"allow":true}`)
	var bobs []engi.Approval
	for deadline := time.Now().Add(time.Minute); len(bobs) == 0 && time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if bobs, err = approvals.List(t.Context(), "bob", engi.ApprovalFilter{State: engi.ApprovalPending}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := approvals.Decide(t.Context(), "bob", bobs[0].ID, engi.ApprovalAnswer{Reason: "bob's"}); err != nil {
		t.Errorf("ann's webhook has decided on bob's: %v", err)
	}
	if d := <-waits; d.Reason != "bob's" || len(requests) > 0 {
		t.Errorf("%+v", d)
	}
	// An answer without a decision leaves it to others.
	for _, body := range []string{"", "ok", `{"allowed":true}`, `{"allow":"yes"}`, `[{"allow":true}]`, `{"allow":true`, `{"allow":true,"remember":{"for":"ever"}}`, `{"allow":true,"remember":{"for":"9999h"}}`} {
		waits := ask("ann", "/people", body)
		x := <-requests
		for x.Data.Body != body { // a failed attempt is repeated
			x = <-requests
		}
		if _, err := approvals.Decide(t.Context(), "ann", engi.ApprovalID(x.Subject), engi.ApprovalAnswer{Reason: "no"}); err != nil {
			t.Errorf("%s has decided: %v", body, err)
		}
		if d := <-waits; d.Allowed || d.Reason != "no" {
			t.Errorf("%s: %+v", body, d)
		}
	}
	for name, spec := range map[string]engi.WebhookSpec{
		"http://decide.example/": {URL: "http://decide.example/"}, "types": {URL: "https://decide.example/", Types: []string{"key.created"}}, "secret": {URL: "https://decide.example/", Secret: "x"},
	} {
		spec.Format, spec.Owner = engi.WebhookApproval, "ann"
		if _, _, err := fx.Create(t.Context(), spec); !engi.Is(err, engi.Invalid) || !strings.Contains(err.Error(), name[:4]) && !strings.Contains(err.Error(), "unencrypted") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
