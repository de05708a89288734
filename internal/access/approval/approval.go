// Package approval holds requests that match an ask rule of a network policy until
// a decision, remembers decisions for later requests, and signs
// each decision, so that it can be verified without the node ([Record]).
//
// It does not evaluate rules and does not send requests: the
// egress gateway calls it ([engi.Approver]). The callers of [engi.Approvals] check
// who may decide, and a [Store] stores the records.
//
// An approval lives as long as requests wait for it in this process. The next process
// abandons approvals that a killed process left pending, since the
// connections of the waiting programs are gone. If several callers end an approval at the
// same time, the store determines which one succeeds.
package approval

import (
	"bytes"
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/time/rate"

	"github.com/engi-dev/engi/internal/clock"
	"github.com/engi-dev/engi/internal/engi"
)

// Limits.
const (
	maxPerSandbox = 100  // maximum number of waiting requests
	maxPerOwner   = 1000 // maximum number of waiting requests
	maxWaiting    = 10_000
	maxRemembered = 1000                // maximum number of remembered decisions of an owner
	maxMemory     = 30 * 24 * time.Hour // maximum time to remember a decision
	perSecond     = 5                   // maximum rate of new approvals of an owner, after the first maxPerOwner
	maxBody       = 4 << 10             // maximum bytes of a body shown
	maxHost       = 255
	maxMethod     = 64
	maxPath       = 4 << 10
	maxReason     = 500
	maxWait       = 24 * time.Hour
	keepCount     = 2000 // maximum number of ended approvals of an owner
	tidyEvery     = 10 * time.Minute
)

// A Store stores approvals durably, and appends an event for each change in the
// same transaction. Package approvaltest tests these promises.
//
//  1. Put records a pending approval and returns it with its Maker, the actor of
//     the first event about its sandbox.
//  2. End sets the fields of a pending approval that its end determines: State, Ended,
//     Decider, Reason, Memory, Record, Signature and PublicKey. It reports Conflict
//     if the approval has ended, and NotFound if it does not exist.
//  3. Get returns an approval that viewer sees; NotFound.
//  4. List returns the approvals that viewer sees, newest first. A filter for
//     remembered ones selects those remembered at the time now.
//  5. Forget sets Memory.Until to now; NotFound if viewer does not see the approval,
//     Conflict if it is no longer remembered.
//  6. Abandon ends all pending approvals, and returns their number.
//  7. Trim deletes ended approvals that are not remembered: those of an owner beyond
//     the newest keep, and those that ended before a time.
type Store interface {
	Put(ctx context.Context, a engi.Approval) (engi.Approval, error)
	End(ctx context.Context, a engi.Approval) error
	Get(ctx context.Context, viewer engi.Viewer, id engi.ApprovalID) (engi.Approval, error)
	List(ctx context.Context, viewer engi.Viewer, f engi.ApprovalFilter, now time.Time) ([]engi.Approval, error)
	Forget(ctx context.Context, viewer engi.Viewer, id engi.ApprovalID, now time.Time) error
	Abandon(ctx context.Context, now time.Time) (int, error)
	Trim(ctx context.Context, keep int, before, now time.Time) error
}

// Options configures a Manager.
type Options struct {
	Store Store
	Seed  []byte        // 32 secret bytes from which the signing key is derived
	Wait  time.Duration // maximum wait of a request; 0 means 15 minutes; at most 24 hours
	Keep  time.Duration // time for which ended approvals are kept; 0 means 30 days
	Log   *slog.Logger  // nil discards
}

// A Manager implements [engi.Approver] and [engi.Approvals]. It is safe for
// concurrent use.
type Manager struct {
	o   Options
	key ed25519.PrivateKey

	deciding sync.Mutex // held by Decide and Forget, so that the limit of remembered decisions holds

	mu         sync.Mutex
	alike      map[string]*held               // pending approvals by digest of their request; guarded by mu
	byID       map[engi.ApprovalID]*held      // pending approvals by ID; guarded by mu
	waiting    map[any]int                    // number of waiting requests by owner, by sandbox, and in all (nil); guarded by mu
	remembered map[engi.Owner][]engi.Approval // guarded by mu
	rates      map[engi.Owner]*rate.Limiter   // rate limiters of new approvals; guarded by mu
}

// held is a pending approval with waiting requests in this process.
type held struct {
	approval engi.Approval // immutable once stored is closed
	stored   chan struct{} // closed when the approval is stored, or could not be
	done     chan struct{} // closed when the approval has ended
	requests int           // guarded by Manager.mu
	expiring bool          // guarded by Manager.mu

	// The fields below are written before done is closed.
	decision engi.ApprovalDecision
	err      error
}

var (
	_ engi.Approver  = (*Manager)(nil)
	_ engi.Approvals = (*Manager)(nil)
)

// Open returns a Manager. It abandons approvals that an earlier process left pending.
func Open(ctx context.Context, o Options) (_ *Manager, err error) {
	defer engi.Annotate(&err, "open approvals")
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.Wait, o.Keep = min(cmp.Or(o.Wait, 15*time.Minute), maxWait), cmp.Or(o.Keep, 30*24*time.Hour)
	m := &Manager{
		o: o, key: ed25519.NewKeyFromSeed(o.Seed), alike: map[string]*held{}, byID: map[engi.ApprovalID]*held{},
		waiting: map[any]int{}, remembered: map[engi.Owner][]engi.Approval{}, rates: map[engi.Owner]*rate.Limiter{},
	}
	now := time.Now().UTC()
	if n, err := o.Store.Abandon(ctx, now); err != nil {
		return nil, err
	} else if n > 0 {
		o.Log.InfoContext(ctx, "requests that waited for a decision when the node ended are abandoned", "count", n)
	}
	all, err := o.Store.List(ctx, engi.Everyone, engi.ApprovalFilter{Remembered: true, Limit: -1}, now)
	for _, a := range all {
		m.remembered[a.Owner] = append(m.remembered[a.Owner], a)
	}
	return m, err
}

// Run deletes expired decisions and approvals until ctx ends.
func (m *Manager) Run(ctx context.Context, ready func()) error {
	ready()
	for range clock.Every(ctx, tidyEvery) {
		if err := m.tidy(ctx, time.Now().UTC()); err != nil && ctx.Err() == nil {
			m.o.Log.WarnContext(ctx, "forget old approvals; it is tried again", "error", err)
		}
	}
	return nil
}

func (m *Manager) tidy(ctx context.Context, now time.Time) error {
	m.mu.Lock()
	for owner := range m.remembered {
		m.prune(owner, func(a engi.Approval) bool { return !now.Before(a.Memory.Until) })
	}
	for owner, r := range m.rates {
		if r.TokensAt(now) >= maxPerOwner {
			delete(m.rates, owner)
		}
	}
	m.mu.Unlock()
	return m.o.Store.Trim(ctx, keepCount, now.Add(-m.o.Keep), now)
}

// prune removes remembered decisions of an owner for which gone returns true. Callers hold m.mu.
func (m *Manager) prune(owner engi.Owner, gone func(engi.Approval) bool) {
	if m.remembered[owner] = slices.DeleteFunc(m.remembered[owner], gone); len(m.remembered[owner]) == 0 {
		delete(m.remembered, owner)
	}
}

// PublicKey implements [engi.Approvals].
func (m *Manager) PublicKey() []byte { return slices.Clone(m.key.Public().(ed25519.PublicKey)) }

// digest returns a digest that is equal for equal requests.
func digest(r engi.HeldRequest, body [sha256.Size]byte) (string, error) {
	text, err := json.Marshal([]any{r.Owner, r.Sandbox, r.Host, r.Port, r.Method, r.Path, r.Secrets, r.Rule, body[:]})
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:]), err
}

// unclear returns the reason why the host, method or path of a request cannot be shown; empty
// if they can.
func unclear(r engi.HeldRequest) string {
	strange := func(s string) bool {
		return strings.ContainsFunc(s, func(c rune) bool { return c <= ' ' || c >= 0x7f })
	}
	switch {
	case len(r.Host) > maxHost, len(r.Method) > maxMethod, len(r.Path) > maxPath:
		return "its host, method or path is too long to ask somebody about it"
	case strange(r.Host), strange(r.Method), strange(r.Path):
		return "its host, method or path has characters that cannot be shown"
	}
	return ""
}

func withoutQuery(path string) string {
	path, _, _ = strings.Cut(path, "?")
	return path
}

// Ask implements [engi.Approver]. Requests that are equal to the last byte
// wait for one approval.
func (m *Manager) Ask(ctx context.Context, r engi.HeldRequest) (_ engi.ApprovalDecision, err error) {
	defer engi.Annotate(&err, "ask about a request of sandbox %s", r.Sandbox)
	if why := unclear(r); why != "" {
		return engi.ApprovalDecision{Reason: why}, nil
	}
	r.Secrets = slices.Sorted(slices.Values(r.Secrets))
	body := sha256.Sum256(r.Body) // the body may be large
	sum, err := digest(r, body)
	if err != nil {
		return engi.ApprovalDecision{}, engi.Errorf(engi.Internal, "%v", err)
	}
	h, fresh, known, err := m.join(r, sum, hex.EncodeToString(body[:]))
	if err != nil || known != nil {
		return known.decided(), err
	}
	defer m.leave(ctx, h)
	if fresh {
		m.put(ctx, h)
	}
	select {
	case <-h.stored:
	case <-ctx.Done():
		return engi.ApprovalDecision{}, gone(ctx)
	}
	timer := time.NewTimer(time.Until(h.approval.Expires))
	defer timer.Stop()
	select {
	case <-timer.C:
		m.expire(ctx, h)
	case <-h.done:
	case <-ctx.Done():
		// A decision at the same time still counts.
		select {
		case <-h.done:
		default:
			return engi.ApprovalDecision{}, gone(ctx)
		}
	}
	select {
	case <-h.done:
		return h.decision, h.err
	case <-ctx.Done():
		return engi.ApprovalDecision{}, gone(ctx)
	}
}

func gone(ctx context.Context) error {
	return engi.Errorf(engi.Expired, "the program has not waited: %v", context.Cause(ctx))
}

// A recalled is a remembered decision; nil means none.
type recalled engi.ApprovalDecision

func (d *recalled) decided() engi.ApprovalDecision {
	if d == nil {
		return engi.ApprovalDecision{}
	}
	return engi.ApprovalDecision(*d)
}

// join returns the remembered decision for a request, or the approval that it waits
// for; fresh says that the caller must store that approval.
func (m *Manager) join(r engi.HeldRequest, sum, body string) (h *held, fresh bool, d *recalled, err error) {
	now := time.Now().UTC()
	m.mu.Lock()
	defer m.mu.Unlock()
	if d := m.recall(r, body, now); d != nil {
		return nil, false, d, nil
	}
	for _, bound := range []struct {
		of   any
		most int
		what string
	}{{r.Sandbox, maxPerSandbox, "of this sandbox"}, {r.Owner, maxPerOwner, "of this owner"}, {nil, maxWaiting, "of this node"}} {
		if m.waiting[bound.of] >= bound.most {
			return nil, false, nil, engi.Errorf(engi.Exhausted, "%d requests %s wait for a decision already", bound.most, bound.what).
				WithRemedy("'engi approvals list' shows them; decide on some, or have the program send fewer requests at a time")
		}
	}
	if h = m.alike[sum]; h == nil {
		if m.rates[r.Owner] == nil {
			m.rates[r.Owner] = rate.NewLimiter(perSecond, maxPerOwner)
		}
		if !m.rates[r.Owner].Allow() {
			return nil, false, nil, engi.Errorf(engi.Exhausted, "this owner's sandboxes ask for too many decisions").WithRetry(engi.Retry{AfterMillis: 1000})
		}
		size := len(r.Body)
		r.Body = bytes.Clone(r.Body[:min(size, maxBody)])
		h = &held{stored: make(chan struct{}), done: make(chan struct{}), approval: engi.Approval{
			ID: engi.NewApprovalID(), HeldRequest: r, BodySize: size, Digest: sum, BodyHash: body, State: engi.ApprovalPending, Created: now, Expires: now.Add(m.o.Wait),
		}}
		m.alike[sum], m.byID[h.approval.ID], fresh = h, h, true
	}
	h.requests++
	m.count(r, 1)
	return h, fresh, nil, nil
}

// count adds n to the numbers of waiting requests. Callers hold m.mu.
func (m *Manager) count(r engi.HeldRequest, n int) {
	for _, of := range []any{r.Sandbox, r.Owner, nil} {
		if m.waiting[of] += n; m.waiting[of] == 0 {
			delete(m.waiting, of)
		}
	}
}

// matches reports whether a remembered decision applies to r, whose body has the given hash.
func matches(a engi.Approval, r engi.HeldRequest, body string) bool {
	return a.Owner == r.Owner && a.Rule == r.Rule && slices.Equal(a.Secrets, r.Secrets) && (a.Memory.AllSandboxes || a.Sandbox == r.Sandbox) &&
		(a.Memory.WholeRule || a.Host == r.Host && a.Port == r.Port && a.Method == r.Method && withoutQuery(a.Path) == withoutQuery(r.Path)) &&
		(!a.Memory.Exact || a.Path == r.Path && a.BodyHash == body)
}

// recall returns the remembered decision for r; a refusal takes precedence. Callers
// hold m.mu.
func (m *Manager) recall(r engi.HeldRequest, body string, now time.Time) (d *recalled) {
	for _, a := range m.remembered[r.Owner] {
		if now.Before(a.Memory.Until) && matches(a, r, body) && (d == nil || d.Allowed) {
			d = new(recalled(a.Decision()))
		}
	}
	return d
}

// put stores the approval of a first request.
func (m *Manager) put(ctx context.Context, h *held) {
	a, err := m.o.Store.Put(context.WithoutCancel(ctx), h.approval)
	m.mu.Lock()
	h.approval.Maker = a.Maker
	m.mu.Unlock()
	close(h.stored)
	if err != nil {
		m.finish(h, engi.ApprovalDecision{}, err)
	}
}

// leave removes a waiting request. The last one abandons the
// approval unless it has ended.
func (m *Manager) leave(ctx context.Context, h *held) {
	m.mu.Lock()
	h.requests--
	m.count(h.approval.HeldRequest, -1)
	last := h.requests == 0 && m.byID[h.approval.ID] == h
	if last {
		m.remove(h)
	}
	m.mu.Unlock()
	if last {
		m.end(ctx, h, engi.ApprovalAbandoned)
	}
}

// remove prevents new requests from waiting for h. Callers hold m.mu.
func (m *Manager) remove(h *held) {
	delete(m.byID, h.approval.ID)
	delete(m.alike, h.approval.Digest)
}

// expire ends an approval that was not decided in time.
func (m *Manager) expire(ctx context.Context, h *held) {
	m.mu.Lock()
	first := !h.expiring
	h.expiring = true
	m.mu.Unlock()
	if first {
		m.end(ctx, h, engi.ApprovalExpired)
	}
}

// end ends an approval without a decision. A decision in the meantime
// takes precedence. After any error, the waiting requests are not sent.
func (m *Manager) end(ctx context.Context, h *held, s engi.ApprovalState) {
	ctx = context.WithoutCancel(ctx)
	a := h.approval
	a.State, a.Ended = s, time.Now().UTC()
	err := m.o.Store.End(ctx, a)
	if engi.Is(err, engi.Conflict) {
		a, err = m.o.Store.Get(ctx, engi.Everyone, a.ID)
	}
	if err != nil {
		m.o.Log.WarnContext(ctx, "the end of an approval is not recorded; the next start of the node does it", "approval", a.ID, "state", s, "error", err)
		a.State = s
	}
	m.finish(h, a.Decision(), nil)
}

// finish reports the end to the waiting requests.
func (m *Manager) finish(h *held, d engi.ApprovalDecision, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.byID[h.approval.ID] == h {
		m.remove(h)
	}
	select {
	case <-h.done:
	default:
		h.decision, h.err = d, err
		close(h.done)
	}
}

// Get implements [engi.Approvals].
func (m *Manager) Get(ctx context.Context, viewer engi.Viewer, id engi.ApprovalID) (engi.Approval, error) {
	return m.o.Store.Get(ctx, viewer, id)
}

// List implements [engi.Approvals].
func (m *Manager) List(ctx context.Context, viewer engi.Viewer, f engi.ApprovalFilter) ([]engi.Approval, error) {
	f.Limit = min(max(cmp.Or(f.Limit, 100), 0), 1000)
	return m.o.Store.List(ctx, viewer, f, time.Now().UTC())
}

// Decide implements [engi.Approvals].
func (m *Manager) Decide(ctx context.Context, viewer engi.Viewer, id engi.ApprovalID, x engi.ApprovalAnswer) (a engi.Approval, err error) {
	defer engi.Annotate(&err, "decide on approval %s", id)
	now := time.Now().UTC()
	if err := check(x, now); err != nil {
		return a, err
	}
	m.deciding.Lock()
	defer m.deciding.Unlock()
	if a, err = m.o.Store.Get(ctx, viewer, id); err != nil {
		return a, err
	}
	m.mu.Lock()
	h, full := m.byID[id], false
	if !x.Remember.Until.IsZero() {
		m.prune(a.Owner, func(a engi.Approval) bool { return !now.Before(a.Memory.Until) })
		full = len(m.remembered[a.Owner]) >= maxRemembered
	}
	m.mu.Unlock()
	switch {
	case a.State != engi.ApprovalPending:
		return a, engi.Errorf(engi.Conflict, "it is %s already", a.State).WithRemedy("if the program tries again, a new approval is requested; 'engi approvals list' shows the waiting ones")
	case h == nil:
		return a, engi.Errorf(engi.Conflict, "the program has stopped waiting").WithRemedy("if the program tries again, a new approval is requested")
	case a.Exact && x.Remember.WholeRule:
		return a, engi.Errorf(engi.Invalid, "the rule asks about each query and body, so no decision can apply to all of its requests").WithRemedy("remember the decision without the whole rule, or have the policy say ask instead of ask_exact")
	case full:
		return a, engi.Errorf(engi.Exhausted, "%d decisions are remembered already", maxRemembered).WithRemedy("forget some, remember a whole rule, or decide without remembering")
	}
	x.Remember.Exact = x.Remember.Exact || a.Exact && !x.Remember.Until.IsZero()
	if a, err = m.decide(ctx, h, x); err != nil {
		return a, err
	}
	if x.Remember.Until.IsZero() {
		return a, nil
	}
	m.mu.Lock()
	m.remembered[a.Owner] = append(m.remembered[a.Owner], a)
	var others []*held
	for _, other := range m.byID {
		if matches(a, other.approval.HeldRequest, other.approval.BodyHash) {
			others = append(others, other)
		}
	}
	m.mu.Unlock()
	x.Remember = engi.ApprovalMemory{}
	for _, other := range others {
		if _, err := m.decide(ctx, other, x); err != nil && !engi.Is(err, engi.Conflict) {
			m.o.Log.WarnContext(ctx, "a remembered decision is not made for a request that waited already", "approval", other.approval.ID, "error", err)
		}
	}
	return a, nil
}

// check reports Invalid for an invalid answer.
func check(x engi.ApprovalAnswer, now time.Time) error {
	until := x.Remember.Until
	switch {
	case len(x.Reason) > maxReason, !utf8.ValidString(x.Reason), strings.ContainsFunc(x.Reason, func(r rune) bool { return !unicode.IsPrint(r) }):
		return engi.Errorf(engi.Invalid, "the reason has more than %d bytes, or characters that are not printable", maxReason).WithRemedy("write one short line")
	case until.IsZero() && (x.Remember.AllSandboxes || x.Remember.WholeRule || x.Remember.Exact):
		return engi.Errorf(engi.Invalid, "the time until which to remember the decision is missing").WithRemedy("give an end, at most 30 days from now")
	case x.Remember.Exact && x.Remember.WholeRule:
		return engi.Errorf(engi.Invalid, "a decision cannot apply to the whole rule and only to the same query and body").WithRemedy("choose one of the two")
	case !until.IsZero() && (!until.After(now) || until.After(now.Add(maxMemory))):
		return engi.Errorf(engi.Invalid, "a decision cannot be remembered until %s", until.Format(time.RFC3339)).WithRemedy("choose an end in the future, at most 30 days from now")
	}
	return nil
}

// decide stores a decision, and then reports it to the waiting requests.
func (m *Manager) decide(ctx context.Context, h *held, x engi.ApprovalAnswer) (engi.Approval, error) {
	<-h.stored
	a := h.approval
	a.State, a.Ended, a.Decider, a.Reason, a.Memory = engi.ApprovalDenied, time.Now().UTC(), engi.ActorOf(ctx), x.Reason, x.Remember
	if x.Allow {
		a.State = engi.ApprovalAllowed
	}
	a.Memory.Until = a.Memory.Until.UTC()
	if err := m.sign(&a); err != nil {
		return a, err
	}
	if err := m.o.Store.End(ctx, a); err != nil {
		return a, err
	}
	m.finish(h, a.Decision(), nil)
	return a, nil
}

// Forget implements [engi.Approvals].
func (m *Manager) Forget(ctx context.Context, viewer engi.Viewer, id engi.ApprovalID) (err error) {
	defer engi.Annotate(&err, "forget the decision on approval %s", id)
	m.deciding.Lock()
	defer m.deciding.Unlock()
	a, err := m.o.Store.Get(ctx, viewer, id)
	if err != nil {
		return err
	}
	if err := m.o.Store.Forget(ctx, viewer, id, time.Now().UTC()); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.prune(a.Owner, func(a engi.Approval) bool { return a.ID == id })
	return nil
}
