package approval_test

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/engi-dev/engi/internal/access/approval"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/store"
	"github.com/engi-dev/engi/internal/store/storetest"
	"github.com/engi-dev/engi/test/seed"
)

var signSeed = []byte("01234567890123456789012345678901")

func open(t *testing.T, s approval.Store, wait time.Duration) *approval.Manager {
	t.Helper()
	m, err := approval.Open(t.Context(), approval.Options{Store: s, Seed: signSeed, Wait: wait})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// fresh returns a Manager on an empty database, and the database.
func fresh(t *testing.T, wait time.Duration) (*approval.Manager, *store.DB) {
	t.Helper()
	db := storetest.Open(t)
	return open(t, store.Approvals(db), wait), db
}

func request(path string) engi.HeldRequest {
	return engi.HeldRequest{
		Owner: "ann", Sandbox: "sbx_aaaaaaaaaaaaaaaaaaaaaaaaaa", Host: "api.example.com", Port: 443, Method: "POST", Path: path,
		Secrets: []string{"token"}, Rule: "ask POST api.example.com/*", Body: []byte(`{"amount":1}`),
	}
}

// An answer is what Ask returned.
type answer struct {
	engi.ApprovalDecision
	err error
}

// ask asks in the background.
func ask(ctx context.Context, m *approval.Manager, r engi.HeldRequest) <-chan answer {
	c := make(chan answer, 1)
	go func() {
		d, err := m.Ask(ctx, r)
		c <- answer{d, err}
	}()
	return c
}

// pending waits until n approvals are pending and returns them, oldest first.
func pending(t *testing.T, m engi.Approvals, n int) []engi.Approval {
	t.Helper()
	for range 12000 {
		all := list(t, m, engi.Everyone, engi.ApprovalFilter{State: engi.ApprovalPending, Limit: 1000})
		if len(all) == n {
			slices.Reverse(all)
			return all
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatalf("there are not %d pending approvals", n)
	return nil
}

// waiting waits until n requests wait.
func waiting(t *testing.T, m *approval.Manager, n int) {
	t.Helper()
	for range 12000 {
		if m.Waiting() == n {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatalf("%d requests wait, want %d", m.Waiting(), n)
}

func list(t *testing.T, m engi.Approvals, viewer engi.Viewer, f engi.ApprovalFilter) []engi.Approval {
	t.Helper()
	all, err := m.List(t.Context(), viewer, f)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func decide(t *testing.T, m engi.Approvals, id engi.ApprovalID, x engi.ApprovalAnswer) engi.Approval {
	t.Helper()
	a, err := m.Decide(engi.WithActor(t.Context(), "key_decider"), engi.Everyone, id, x)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func wantKind(t *testing.T, what string, err error, kind engi.Kind) {
	t.Helper()
	if !engi.Is(err, kind) {
		t.Errorf("%s: %v, want kind %s", what, err, kind)
	}
}

func TestDecisions(t *testing.T) {
	m, _ := fresh(t, time.Hour)
	for _, allow := range []bool{true, false} {
		c := ask(t.Context(), m, request("/pay"))
		a := pending(t, m, 1)[0]
		if a.State != engi.ApprovalPending || string(a.Body) != `{"amount":1}` || a.Owner != "ann" || a.Decider != "" || len(a.Record) != 0 {
			t.Errorf("%+v", a)
		}
		_, err := m.Decide(t.Context(), "bob", a.ID, engi.ApprovalAnswer{Allow: true})
		wantKind(t, "another's decision", err, engi.NotFound)
		decided := decide(t, m, a.ID, engi.ApprovalAnswer{Allow: allow, Reason: "as agreed"})
		if got := <-c; got.err != nil || got.Allowed != allow || got.Reason != "as agreed" {
			t.Errorf("%+v", got)
		}
		got, err := m.Get(t.Context(), "ann", a.ID)
		if diff := cmp.Diff(decided, got); diff != "" || err != nil || got.Decider != "key_decider" || got.Ended.IsZero() {
			t.Errorf("%v (-want +got):\n%s", err, diff)
		}
		_, err = m.Decide(t.Context(), "ann", a.ID, engi.ApprovalAnswer{Allow: true})
		wantKind(t, "a second decision", err, engi.Conflict)
	}
}

func TestNobodyDecides(t *testing.T) {
	m, _ := fresh(t, 20*time.Millisecond)
	got := <-ask(t.Context(), m, request("/pay"))
	if got.err != nil || got.Allowed || got.Reason != "nobody decided in time" {
		t.Errorf("%+v", got)
	}
	a := list(t, m, "ann", engi.ApprovalFilter{})[0]
	_, err := m.Decide(t.Context(), "ann", a.ID, engi.ApprovalAnswer{Allow: true})
	if wantKind(t, "too late", err, engi.Conflict); a.State != engi.ApprovalExpired || a.Decider != "" {
		t.Errorf("%+v", a)
	}
}

func TestProgramsLeave(t *testing.T) {
	m, _ := fresh(t, time.Hour)
	ctx, leave := context.WithCancel(t.Context())
	first, second := ask(ctx, m, request("/pay")), ask(t.Context(), m, request("/pay"))
	waiting(t, m, 2)
	leave()
	if got := <-first; !engi.Is(got.err, engi.Expired) || got.Allowed {
		t.Errorf("%+v", got)
	}
	decide(t, m, pending(t, m, 1)[0].ID, engi.ApprovalAnswer{Allow: true}) // the other still waits
	if got := <-second; !got.Allowed {
		t.Errorf("%+v", got)
	}

	ctx, leave = context.WithCancel(t.Context())
	alone := ask(ctx, m, request("/pay"))
	a := pending(t, m, 1)[0]
	leave()
	<-alone
	pending(t, m, 0)
	if got, err := m.Get(t.Context(), engi.Everyone, a.ID); err != nil || got.State != engi.ApprovalAbandoned {
		t.Errorf("%+v %v", got, err)
	}
	_, err := m.Decide(t.Context(), engi.Everyone, a.ID, engi.ApprovalAnswer{Allow: true})
	wantKind(t, "nobody waits", err, engi.Conflict)
}

// TestAlikeRequestsAreJoined checks that what differs in anything, also in what
// is not shown, is asked about by itself.
func TestAlikeRequestsAreJoined(t *testing.T) {
	m, _ := fresh(t, time.Hour)
	long := request("/pay")
	long.Body = make([]byte, 8<<10)
	longer := long
	longer.Body = slices.Clone(long.Body)
	longer.Body[8000] = 1 // after what is shown
	changes := []engi.HeldRequest{request("/pay"), request("/other"), long, longer}
	for _, change := range []func(*engi.HeldRequest){
		func(r *engi.HeldRequest) { r.Owner = "bob" }, func(r *engi.HeldRequest) { r.Sandbox = "sbx_b" }, func(r *engi.HeldRequest) { r.Host = "b.example.com" },
		func(r *engi.HeldRequest) { r.Port = 80 }, func(r *engi.HeldRequest) { r.Method = "PUT" }, func(r *engi.HeldRequest) { r.Path += "?to=mallory" },
		func(r *engi.HeldRequest) { r.Secrets = nil }, func(r *engi.HeldRequest) { r.Rule = "other" }, func(r *engi.HeldRequest) { r.Body = []byte(`{"amount":1000000}`) },
	} {
		r := request("/pay")
		change(&r)
		changes = append(changes, r)
	}
	var answers []<-chan answer
	for range 7 {
		for _, r := range changes {
			answers = append(answers, ask(t.Context(), m, r))
		}
	}
	waiting(t, m, 7*len(changes))
	all := pending(t, m, len(changes))
	for _, a := range all {
		if len(a.Body) > 4<<10 {
			t.Errorf("%d bytes are kept", len(a.Body))
		}
		if a.Sandbox == "sbx_b" {
			decide(t, m, a.ID, engi.ApprovalAnswer{Allow: true})
		} else {
			decide(t, m, a.ID, engi.ApprovalAnswer{})
		}
	}
	allowed := 0
	for _, c := range answers {
		got := <-c
		if got.err != nil {
			t.Error(got.err)
		}
		if got.Allowed {
			allowed++
		}
	}
	if allowed != 7 {
		t.Errorf("%d are allowed, want the 7 of one sandbox", allowed)
	}
}

// TestThousandWait holds as many requests as an owner may have, and refuses the
// next at once; others are not concerned.
func TestThousandWait(t *testing.T) {
	m, _ := fresh(t, time.Hour)
	var answers []<-chan answer
	for i := range 1000 {
		r := request(fmt.Sprintf("/pay/%d", i))
		r.Sandbox = engi.SandboxID(fmt.Sprintf("sbx_%d", i/100))
		answers = append(answers, ask(t.Context(), m, r))
	}
	waiting(t, m, 1000)
	all := pending(t, m, 1000)
	r := request("/more")
	r.Sandbox = "sbx_0"
	_, err := m.Ask(t.Context(), r)
	wantKind(t, "one more of the sandbox", err, engi.Exhausted)
	r.Sandbox = "sbx_new"
	_, err = m.Ask(t.Context(), r)
	wantKind(t, "one more of the owner", err, engi.Exhausted)
	r.Owner = "bob"
	bobs := ask(t.Context(), m, r)
	for _, a := range all {
		decide(t, m, a.ID, engi.ApprovalAnswer{Allow: true})
	}
	for _, c := range answers {
		if got := <-c; !got.Allowed {
			t.Fatalf("%+v", got)
		}
	}
	decide(t, m, pending(t, m, 1)[0].ID, engi.ApprovalAnswer{Allow: true})
	if got := <-bobs; !got.Allowed {
		t.Errorf("%+v", got)
	}
}

// forgetful is a store that records nothing.
type forgetful struct{ approval.Store }

func (forgetful) Put(_ context.Context, a engi.Approval) (engi.Approval, error) { return a, nil }
func (forgetful) End(context.Context, engi.Approval) error                      { return nil }

// TestAskingOnAndOn: a program that asks and leaves, again and again, cannot fill
// the log.
func TestAskingOnAndOn(t *testing.T) {
	m := open(t, forgetful{store.Approvals(storetest.Open(t))}, time.Hour)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for i := range 5000 {
		_, err := m.Ask(ctx, request(fmt.Sprint("/", i)))
		if engi.Is(err, engi.Exhausted) {
			if i < 1000 || engi.RetryOf(err).AfterMillis == 0 {
				t.Errorf("after %d: %v", i, err)
			}
			return
		}
		wantKind(t, "who has left", err, engi.Expired)
	}
	t.Error("5000 approvals are recorded")
}

func TestWhatNobodyCanJudgeIsRefused(t *testing.T) {
	m, _ := fresh(t, time.Hour)
	for name, change := range map[string]func(*engi.HeldRequest){
		"long path":   func(r *engi.HeldRequest) { r.Path = "/" + string(make([]byte, 5000)) },
		"escape":      func(r *engi.HeldRequest) { r.Path = "/\x1b[2Jfine" },
		"bidi":        func(r *engi.HeldRequest) { r.Path = "/\u202egnp.exe" },
		"space":       func(r *engi.HeldRequest) { r.Method = "GET /harmless" },
		"long method": func(r *engi.HeldRequest) { r.Method = string(make([]byte, 100)) },
		"host":        func(r *engi.HeldRequest) { r.Host = "a\u0430.example" },
	} {
		r := request("/pay")
		change(&r)
		d, err := m.Ask(t.Context(), r)
		if err != nil || d.Allowed || d.Reason == "" {
			t.Errorf("%s: %+v %v", name, d, err)
		}
	}
	if all := list(t, m, engi.Everyone, engi.ApprovalFilter{}); len(all) != 0 {
		t.Errorf("%+v", all)
	}
}

func TestRemembered(t *testing.T) {
	m, db := fresh(t, time.Hour)
	until := time.Now().Add(time.Hour).UTC().Truncate(time.Millisecond)
	remember := func(r engi.HeldRequest, x engi.ApprovalAnswer) engi.Approval {
		t.Helper()
		c := ask(t.Context(), m, r)
		a := decide(t, m, pending(t, m, 1)[0].ID, x)
		if got := <-c; got.Allowed != x.Allow {
			t.Fatalf("%+v", got)
		}
		return a
	}
	other := func(change func(*engi.HeldRequest)) engi.HeldRequest {
		r := request("/pay")
		r.Body = []byte("other")
		r.Path += "?q=1"
		change(&r)
		return r
	}
	same := other(func(*engi.HeldRequest) {})
	sandbox := other(func(r *engi.HeldRequest) { r.Sandbox = "sbx_other" })
	path := other(func(r *engi.HeldRequest) { r.Path = "/pay/more" })
	exact := request("/pay")
	exactElsewhere := request("/pay")
	exactElsewhere.Sandbox = "sbx_other"
	query, body := request("/pay?q=1"), request("/pay")
	body.Body = append(slices.Clone(body.Body), '\n')
	both := other(func(r *engi.HeldRequest) { r.Path, r.Sandbox = "/pay/more", "sbx_other" })
	for _, x := range []struct {
		memory engi.ApprovalMemory
		known  []engi.HeldRequest
		asked  []engi.HeldRequest
	}{
		{engi.ApprovalMemory{Until: until}, []engi.HeldRequest{same}, []engi.HeldRequest{sandbox, path, both}},
		{engi.ApprovalMemory{Until: until, AllSandboxes: true}, []engi.HeldRequest{same, sandbox}, []engi.HeldRequest{path, both}},
		{engi.ApprovalMemory{Until: until, WholeRule: true}, []engi.HeldRequest{same, path}, []engi.HeldRequest{sandbox, both}},
		{engi.ApprovalMemory{Until: until, AllSandboxes: true, WholeRule: true}, []engi.HeldRequest{same, sandbox, path, both}, nil},
		{engi.ApprovalMemory{Until: until, Exact: true}, []engi.HeldRequest{exact}, []engi.HeldRequest{exactElsewhere, query, body, path}},
		{engi.ApprovalMemory{Until: until, Exact: true, AllSandboxes: true}, []engi.HeldRequest{exact, exactElsewhere}, []engi.HeldRequest{query, body, both}},
	} {
		a := remember(request("/pay"), engi.ApprovalAnswer{Allow: true, Remember: x.memory})
		asked := append(x.asked,
			other(func(r *engi.HeldRequest) { r.Owner = "bob" }),
			other(func(r *engi.HeldRequest) { r.Rule = "another" }),
			other(func(r *engi.HeldRequest) { r.Secrets = []string{"token", "more"} }))
		if !x.memory.WholeRule {
			asked = append(asked, other(func(r *engi.HeldRequest) { r.Port = 80 }), other(func(r *engi.HeldRequest) { r.Method = "DELETE" }), other(func(r *engi.HeldRequest) { r.Host = "x.example" }))
		}
		check := func(m *approval.Manager) {
			t.Helper()
			for _, r := range x.known {
				if d, err := m.Ask(t.Context(), r); err != nil || !d.Allowed {
					t.Errorf("%+v: %s %s: %+v %v", x.memory, r.Sandbox, r.Path, d, err)
				}
			}
			ctx, cancel := context.WithCancel(t.Context())
			var answers []<-chan answer
			for _, r := range asked {
				answers = append(answers, ask(ctx, m, r))
			}
			waiting(t, m, len(asked))
			cancel()
			for i, c := range answers {
				if got := <-c; got.err == nil {
					t.Errorf("%+v: %+v is not asked about", x.memory, asked[i])
				}
			}
		}
		check(m)
		check(open(t, store.Approvals(db), time.Hour)) // after a restart
		if all := list(t, m, "ann", engi.ApprovalFilter{Remembered: true}); len(all) != 1 || all[0].ID != a.ID {
			t.Errorf("%+v", all)
		}
		wantKind(t, "another's", m.Forget(t.Context(), "bob", a.ID), engi.NotFound)
		if err := m.Forget(t.Context(), "ann", a.ID); err != nil {
			t.Fatal(err)
		}
		wantKind(t, "forgotten", m.Forget(t.Context(), "ann", a.ID), engi.Conflict)
	}

	// A refusal goes before a permission, whichever was first.
	wide := engi.ApprovalMemory{Until: until, AllSandboxes: true, WholeRule: true}
	first, second := ask(t.Context(), m, request("/a")), ask(t.Context(), m, func() engi.HeldRequest { r := request("/b"); r.Sandbox = "sbx_other"; return r }())
	all := pending(t, m, 2)
	if all[0].Path != "/a" {
		slices.Reverse(all)
	}
	decide(t, m, all[0].ID, engi.ApprovalAnswer{Remember: engi.ApprovalMemory{Until: until}})
	decide(t, m, all[1].ID, engi.ApprovalAnswer{Allow: true, Remember: wide})
	<-first
	<-second
	if d, err := m.Ask(t.Context(), request("/a")); err != nil || d.Allowed {
		t.Errorf("%+v %v", d, err)
	}
	if d, err := m.Ask(t.Context(), request("/c")); err != nil || !d.Allowed {
		t.Errorf("%+v %v", d, err)
	}
}

// TestRememberedDecidesOnWhatWaits: nobody has to say the same to each of the
// requests that wait already.
func TestRememberedDecidesOnWhatWaits(t *testing.T) {
	m, _ := fresh(t, time.Hour)
	var answers []<-chan answer
	for i := range 5 {
		answers = append(answers, ask(t.Context(), m, request(fmt.Sprint("/", i))))
	}
	r := request("/other")
	r.Rule = "another"
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	apart := ask(ctx, m, r)
	all := pending(t, m, 6)
	a := all[slices.IndexFunc(all, func(a engi.Approval) bool { return a.Rule != "another" })]
	decide(t, m, a.ID, engi.ApprovalAnswer{Allow: true, Remember: engi.ApprovalMemory{Until: time.Now().Add(time.Hour), WholeRule: true}})
	for _, c := range answers {
		if got := <-c; !got.Allowed {
			t.Errorf("%+v", got)
		}
	}
	if left := pending(t, m, 1); left[0].Rule != "another" {
		t.Errorf("%+v", left)
	}
	for _, a := range list(t, m, "ann", engi.ApprovalFilter{State: engi.ApprovalAllowed}) {
		if len(a.Signature) == 0 || a.Decider != "key_decider" {
			t.Errorf("%+v has no record of its own", a)
		}
	}
	if n := len(list(t, m, engi.Everyone, engi.ApprovalFilter{Remembered: true})); n != 1 {
		t.Errorf("%d are remembered", n)
	}
	cancel()
	<-apart
}

// TestRulesThatAskAboutEachBody checks that whoever decides on a request of such a rule cannot
// allow another query or body, also not of one that waits already.
func TestRulesThatAskAboutEachBody(t *testing.T) {
	m, db := fresh(t, time.Hour)
	held := func(path, body string) engi.HeldRequest {
		r := request(path)
		r.Exact, r.Body = true, []byte(body)
		return r
	}
	first, other := ask(t.Context(), m, held("/pay", "1")), ask(t.Context(), m, held("/pay", "2"))
	all := pending(t, m, 2)
	i := slices.IndexFunc(all, func(a engi.Approval) bool { return string(a.Body) == "1" })
	_, err := m.Decide(t.Context(), "ann", all[i].ID, engi.ApprovalAnswer{Allow: true, Remember: engi.ApprovalMemory{Until: time.Now().Add(time.Hour), WholeRule: true}})
	if wantKind(t, "the whole rule", err, engi.Invalid); engi.RemedyOf(err) == "" {
		t.Errorf("%v has no remedy", err)
	}
	a := decide(t, m, all[i].ID, engi.ApprovalAnswer{Allow: true, Remember: engi.ApprovalMemory{Until: time.Now().Add(time.Hour)}})
	if got := <-first; !got.Allowed || !a.Memory.Exact || !a.Exact {
		t.Errorf("%+v: %+v", got, a)
	}
	var r approval.Record
	if err := json.Unmarshal(a.Record, &r); err != nil || !r.Exact || r.BodyHash == "" {
		t.Errorf("%v: the record is %s", err, a.Record)
	}
	if left := pending(t, m, 1); string(left[0].Body) != "2" {
		t.Errorf("%+v", left)
	}
	decide(t, m, all[1-i].ID, engi.ApprovalAnswer{})
	if got := <-other; got.Allowed {
		t.Errorf("%+v", got)
	}
	for _, m := range []*approval.Manager{m, open(t, store.Approvals(db), time.Hour)} {
		if d, err := m.Ask(t.Context(), held("/pay", "1")); err != nil || !d.Allowed {
			t.Errorf("%+v %v", d, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		c := ask(ctx, m, held("/pay?to=mallory", "1"))
		waiting(t, m, 1)
		cancel()
		if got := <-c; got.err == nil {
			t.Errorf("another query is not asked about: %+v", got)
		}
	}
}

func TestRememberedEnds(t *testing.T) {
	m, _ := fresh(t, time.Hour)
	c := ask(t.Context(), m, request("/pay"))
	decide(t, m, pending(t, m, 1)[0].ID, engi.ApprovalAnswer{Allow: true, Remember: engi.ApprovalMemory{Until: time.Now().Add(2 * time.Second)}})
	<-c
	for range 12000 {
		if len(list(t, m, engi.Everyone, engi.ApprovalFilter{Remembered: true})) == 0 {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	ctx, cancel := context.WithCancel(t.Context())
	c = ask(ctx, m, request("/pay"))
	pending(t, m, 1)
	cancel()
	<-c
}

func TestBadAnswers(t *testing.T) {
	m, _ := fresh(t, time.Hour)
	ctx, cancel := context.WithCancel(t.Context())
	c := ask(ctx, m, request("/pay"))
	id := pending(t, m, 1)[0].ID
	now := time.Now()
	for name, x := range map[string]engi.ApprovalAnswer{
		"past":           {Remember: engi.ApprovalMemory{Until: now.Add(-time.Second)}},
		"too far":        {Remember: engi.ApprovalMemory{Until: now.Add(31 * 24 * time.Hour)}},
		"no end":         {Remember: engi.ApprovalMemory{WholeRule: true}},
		"exact, no end":  {Remember: engi.ApprovalMemory{Exact: true}},
		"exact and all":  {Remember: engi.ApprovalMemory{Until: now.Add(time.Hour), Exact: true, WholeRule: true}},
		"long reason":    {Reason: string(make([]byte, 501))},
		"control":        {Reason: "\x1b[2J"},
		"not even UTF-8": {Reason: "\xff"},
	} {
		_, err := m.Decide(t.Context(), engi.Everyone, id, x)
		wantKind(t, name, err, engi.Invalid)
		if engi.RemedyOf(err) == "" {
			t.Errorf("%s: no remedy in %v", name, err)
		}
	}
	pending(t, m, 1)
	cancel()
	<-c
}

func TestSignatures(t *testing.T) {
	m, _ := fresh(t, time.Hour)
	c := ask(t.Context(), m, request("/pay"))
	until := time.Now().Add(time.Hour).UTC()
	a := decide(t, m, pending(t, m, 1)[0].ID, engi.ApprovalAnswer{Allow: true, Reason: "as <agreed>", Remember: engi.ApprovalMemory{Until: until, AllSandboxes: true}})
	<-c
	if !ed25519.Verify(m.PublicKey(), a.Record, a.Signature) || !slices.Equal(a.PublicKey, m.PublicKey()) {
		t.Error("the signature is wrong")
	}
	for i := range a.Record {
		forged := slices.Clone(a.Record)
		forged[i] ^= 1
		if ed25519.Verify(m.PublicKey(), forged, a.Signature) {
			t.Fatalf("with byte %d changed, the signature still holds", i)
		}
	}
	var got approval.Record
	if err := json.Unmarshal(a.Record, &got); err != nil {
		t.Fatal(err)
	}
	want := approval.Record{
		Approval: a.ID, Owner: "ann", Sandbox: a.Sandbox, Host: a.Host, Port: 443, Method: "POST", Path: "/pay", Secrets: []string{"token"}, Rule: a.Rule, Digest: a.Digest, BodyHash: "c2b11e657e12fd177359627ca89412018e2274d0873cfbfcf1fc50f685582e9e", // of {"amount":1}
		Requested: a.Created, Decision: engi.ApprovalAllowed, Reason: "as <agreed>", Decider: "key_decider", Decided: a.Ended, Until: &until, AllSandboxes: true,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// failing is a store whose ends fail while it is told to.
type failing struct {
	approval.Store
	broken atomic.Bool
}

var errDisk = errors.New("the disk is full")

func (f *failing) Put(ctx context.Context, a engi.Approval) (engi.Approval, error) {
	if f.broken.Load() {
		return a, errDisk
	}
	return f.Store.Put(ctx, a)
}

func (f *failing) End(ctx context.Context, a engi.Approval) error {
	if f.broken.Load() {
		return errDisk
	}
	return f.Store.End(ctx, a)
}

// TestFailuresRefuse checks that what cannot be recorded is not sent, and that
// nobody waits for ever.
func TestFailuresRefuse(t *testing.T) {
	db := storetest.Open(t)
	f := &failing{Store: store.Approvals(db)}
	m := open(t, f, 200*time.Millisecond)
	f.broken.Store(true)
	if d, err := m.Ask(t.Context(), request("/pay")); err == nil || d.Allowed {
		t.Errorf("%+v %v", d, err)
	}
	f.broken.Store(false)
	c := ask(t.Context(), m, request("/pay"))
	a := pending(t, m, 1)[0]
	f.broken.Store(true)
	if _, err := m.Decide(t.Context(), engi.Everyone, a.ID, engi.ApprovalAnswer{Allow: true}); err == nil {
		t.Error("a decision that is not recorded was accepted")
	}
	if got := <-c; got.err != nil || got.Allowed {
		t.Errorf("%+v", got)
	}
	f.broken.Store(false)
	open(t, f, time.Hour)
	if a, err := m.Get(t.Context(), engi.Everyone, a.ID); err != nil || a.State != engi.ApprovalAbandoned {
		t.Errorf("%+v %v", a, err)
	}
}

// TestEverybodyAtOnce lets deciders, the clock, programs that leave and restarts
// race for the same approvals: each ends once, and a request is sent only if the
// record says so.
func TestEverybodyAtOnce(t *testing.T) {
	dir := t.TempDir()
	db, err := storetest.Create(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { db.Close() }()
	sent := map[string]int{} // by path
	random := seed.New(t)
	for round := range 12 {
		m := open(t, store.Approvals(db), time.Duration(5+random.IntN(20))*time.Millisecond)
		ctx, stop := context.WithCancel(t.Context())
		var everybody sync.WaitGroup
		var mu sync.Mutex
		for i := range 40 {
			everybody.Go(func() {
				mine, leave := context.WithTimeout(ctx, time.Duration(random.IntN(30))*time.Millisecond)
				defer leave()
				path := fmt.Sprintf("/%d/%d", round, i/2) // two are alike
				d, err := m.Ask(mine, request(path))
				mu.Lock()
				defer mu.Unlock()
				if d.Allowed {
					sent[path]++
				}
				if d.Allowed && err != nil {
					t.Errorf("allowed, with %v", err)
				}
			})
		}
		for range 4 {
			everybody.Go(func() {
				for ctx.Err() == nil {
					all, err := m.List(t.Context(), engi.Everyone, engi.ApprovalFilter{State: engi.ApprovalPending})
					if err != nil {
						t.Error(err)
					}
					for _, a := range all {
						if _, err := m.Decide(t.Context(), "ann", a.ID, engi.ApprovalAnswer{Allow: random.IntN(2) == 0}); err != nil && !engi.Is(err, engi.Conflict) {
							t.Error(err)
						}
					}
				}
			})
		}
		time.Sleep(time.Duration(random.IntN(40)) * time.Millisecond)
		if round%2 == 0 { // as after a kill: the next process opens what is there
			copied, err := store.Open(t.Context(), filepath.Join(dir, "engi.db"))
			if err != nil {
				t.Fatal(err)
			}
			open(t, store.Approvals(copied), time.Hour)
			if err := copied.Close(); err != nil {
				t.Fatal(err)
			}
		}
		stop()
		everybody.Wait()
	}
	m := open(t, store.Approvals(db), time.Hour)
	allowed := map[string]bool{}
	ends := map[string]int{}
	for _, a := range list(t, m, engi.Everyone, engi.ApprovalFilter{Limit: 1000}) {
		if a.State == engi.ApprovalPending || a.Ended.IsZero() {
			t.Errorf("%+v", a)
		}
		allowed[a.Path] = allowed[a.Path] || a.State == engi.ApprovalAllowed
		if decided := a.State == engi.ApprovalAllowed || a.State == engi.ApprovalDenied; decided != ed25519.Verify(m.PublicKey(), a.Record, a.Signature) {
			t.Errorf("%s and its signature do not agree", a.State)
		}
	}
	for path := range sent {
		if !allowed[path] {
			t.Errorf("%s was sent, and nobody has allowed it", path)
		}
	}
	events, err := store.Events(db).List(t.Context(), engi.Everyone, engi.EventFilter{Limit: 1000, Types: []string{"approval.decided", "approval.expired", "approval.abandoned"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range events {
		if ends[e.Subject]++; ends[e.Subject] > 1 {
			t.Errorf("%s has ended more than once", e.Subject)
		}
	}
	t.Logf("%d ends, %d sent", len(ends), len(sent))
}
