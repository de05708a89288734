package rest_test

import (
	"strings"
	"testing"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/client"
	"github.com/engi-dev/engi/internal/engi"
)

// TestWhoMayDecide checks that a decision needs a key that names the scope, or an
// admin's: what agents and sandboxes' makers usually have will not do.
func TestWhoMayDecide(t *testing.T) {
	w := newFixture(t, nil)
	key := func(k engi.Key) []string {
		t.Helper()
		_, secret, err := w.Keys.Create(t.Context(), k)
		if err != nil {
			t.Fatal(err)
		}
		return []string{"Authorization", "Bearer " + secret}
	}
	var others []engi.Scope
	for _, s := range engi.Scopes() {
		if s != engi.ScopeApprovals {
			others = append(others, s)
		}
	}
	waits, told := w.Hold("ann", "/v1/pay")
	path := "/v1/approvals/" + string(waits.ID)
	for name, k := range map[string][]string{"without scopes": {"Authorization", "Bearer " + w.User}, "with all other scopes": key(engi.Key{Owner: "ann", Scopes: others})} {
		p := refused(t, ask(t, w, "POST", path+"/decision", `{"allow":true}`, k...), 403, engi.Denied)
		if !strings.Contains(p.Remedy, "--scope approvals") {
			t.Errorf("%s: %q", name, p.Remedy)
		}
		refused(t, ask(t, w, "DELETE", path+"/remembered", "", k...), 403, engi.Denied)
		if a := read[v1.Approval](t, ask(t, w, "GET", path, "", k...), 200); a.State != v1.ApprovalPending {
			t.Errorf("%s: %+v", name, a)
		}
	}
	decider := key(engi.Key{Owner: "ann", Scopes: []engi.Scope{engi.ScopeApprovals}})
	refused(t, ask(t, w, "POST", path+"/decision", `{"allow":true}`, key(engi.Key{Owner: "bob", Scopes: []engi.Scope{engi.ScopeApprovals}})...), 404, engi.NotFound)
	a := read[v1.Approval](t, ask(t, w, "POST", path+"/decision", `{"allow":true,"reason":"fine","remember":{"for":"1h","whole_rule":true}}`, decider...), 200)
	if d := <-told; !d.Allowed || d.Reason != "fine" {
		t.Errorf("%+v", d)
	}
	if a.State != v1.ApprovalAllowed || !strings.HasPrefix(a.Decider, "key_") || a.RememberedUntil == nil || !a.WholeRule || a.AllSandboxes || a.Body != `{"amount": 5}` {
		t.Errorf("%+v", a)
	}
	refused(t, ask(t, w, "POST", path+"/decision", `{"allow":false}`, decider...), 409, engi.Conflict)

	// The record is what was decided, by whom and where.
	public := read[v1.ApprovalKey](t, ask(t, w, "GET", "/v1/approvals/key", "", decider...), 200).PublicKey
	r, err := client.VerifyApproval(a, public)
	if err != nil || r.Decider != a.Decider || r.Path != "/v1/pay" || r.Decision != v1.ApprovalAllowed || r.Secrets[0] != "bank" {
		t.Errorf("%+v %v", r, err)
	}
	for name, tamper := range map[string]func(*v1.Approval){
		"record":    func(a *v1.Approval) { a.Record = strings.Replace(a.Record, "allowed", "denied", 1) },
		"state":     func(a *v1.Approval) { a.State = v1.ApprovalDenied },
		"host":      func(a *v1.Approval) { a.Host = "evil.example" },
		"path":      func(a *v1.Approval) { a.Path = "/v1/other" },
		"secrets":   func(a *v1.Approval) { a.Secrets = nil },
		"body":      func(a *v1.Approval) { a.BodySHA256 = "" },
		"scope":     func(a *v1.Approval) { a.WholeRule = false },
		"exact":     func(a *v1.Approval) { a.Exact = true },
		"decider":   func(a *v1.Approval) { a.Decider = "key_other" },
		"time":      func(a *v1.Approval) { a.EndedAt = nil },
		"signature": func(a *v1.Approval) { a.Signature = append([]byte{1}, a.Signature[1:]...) },
		"none":      func(a *v1.Approval) { a.Record = "" },
	} {
		forged := a
		tamper(&forged)
		if _, err := client.VerifyApproval(forged, public); err == nil {
			t.Errorf("a changed %s is not noticed", name)
		}
	}
	if _, err := client.VerifyApproval(a, append([]byte{1}, public[1:]...)); err == nil {
		t.Error("another key is not noticed")
	}

	if all := read[v1.List[v1.Approval]](t, ask(t, w, "GET", "/v1/approvals?remembered=true", "", decider...), 200).Items; len(all) != 1 {
		t.Errorf("%+v", all)
	}
	if rec := ask(t, w, "DELETE", path+"/remembered", "", decider...); rec.Code != 204 {
		t.Errorf("%d %s", rec.Code, rec.Body)
	}
	refused(t, ask(t, w, "DELETE", path+"/remembered", "", decider...), 409, engi.Conflict)
	a = read[v1.Approval](t, ask(t, w, "GET", path, "", decider...), 200)
	if _, err := client.VerifyApproval(a, public); err != nil {
		t.Errorf("forgetting changes the record: %v", err)
	}
	// The key sees events of approvals and no others.
	events := read[v1.List[v1.Event]](t, ask(t, w, "GET", "/v1/approvals/events?after=0", "", decider...), 200).Items
	if len(events) != 3 || events[0].Type != engi.EventApprovalRequested || events[2].Type != engi.EventApprovalForgotten {
		t.Errorf("%+v", events)
	}
	refused(t, ask(t, w, "GET", "/v1/events", "", decider...), 403, engi.Denied)
}

func TestBadDecisions(t *testing.T) {
	w := newFixture(t, nil)
	waits, _ := w.Hold("ann", "/v1/pay")
	for _, body := range []string{
		`{}`, `{"allow":null}`, `{"reason":"x"}`, `{"allow":true,"remember":{}}`, `{"allow":true,"remember":{"for":"31d"}}`, `{"allow":true,"remember":{"for":"-1h"}}`,
		`{"allow":true,"remember":{"for":"1h","until":"2030-01-01T00:00:00Z"}}`, `{"allow":true,"remember":{"until":"2020-01-01T00:00:00Z"}}`,
		`{"allow":true,"reason":"\u001b[2J"}`, `{"allow":true,"reason":"` + strings.Repeat("x", 501) + `"}`,
	} {
		refused(t, ask(t, w, "POST", "/v1/approvals/"+string(waits.ID)+"/decision", body, "Authorization", "Bearer "+w.Admin), 400, engi.Invalid)
	}
}

// TestWhoMayHaveWebhooksDecide checks that a webhook whose answers decide needs
// the same key as a decision.
func TestWhoMayHaveWebhooksDecide(t *testing.T) {
	w := newFixture(t, nil)
	_, secret, err := w.Keys.Create(t.Context(), engi.Key{Owner: "ann", Scopes: []engi.Scope{engi.ScopeApprovals, engi.ScopeEvents}})
	if err != nil {
		t.Fatal(err)
	}
	decider := []string{"Authorization", "Bearer " + secret}
	const body = `{"url":"https://decide.example/","format":"approval"}`
	refused(t, ask(t, w, "POST", "/v1/webhooks", body), 403, engi.Denied)
	hook := read[v1.Webhook](t, ask(t, w, "POST", "/v1/webhooks", body, decider...), 201)
	if hook.Format != engi.WebhookApproval || hook.Owner != "ann" {
		t.Errorf("%+v", hook)
	}
	for _, change := range []string{`{"url":"https://evil.example/"}`, `{"secret":""}`, `{"enabled":true}`} {
		refused(t, ask(t, w, "PATCH", "/v1/webhooks/"+hook.ID, change), 403, engi.Denied)
	}
	read[v1.Webhook](t, ask(t, w, "PATCH", "/v1/webhooks/"+hook.ID, `{"name":"x"}`, decider...), 200)
	refused(t, ask(t, w, "PATCH", "/v1/webhooks/"+hook.ID, `{"url":"http://decide.example/"}`, decider...), 400, engi.Invalid)
	if rec := ask(t, w, "DELETE", "/v1/webhooks/"+hook.ID, ""); rec.Code != 204 {
		t.Errorf("its owner cannot stop it: %d %s", rec.Code, rec.Body)
	}
}
