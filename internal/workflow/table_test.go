package workflow

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/test/seed"
)

// A person acts in the sequences of the test.
type person struct {
	actor   string
	viewer  engi.Viewer
	role    engi.WorkspaceRole // in the workspace; empty for none
	byModel bool
}

var (
	runOfAnn = string(engi.NewRunID())
	fnOfAnn  = string(engi.NewFunctionRunID())
	people   = []person{
		{"key_ann", "ann", engi.RoleOwner, false}, {"key_ann2", "ann", engi.RoleOwner, false}, {"key_ann", "ann", engi.RoleOwner, true}, {runOfAnn, "ann", engi.RoleOwner, false},
		{fnOfAnn, "ann", engi.RoleOwner, false}, {"key_admin", engi.Everyone, engi.RoleOwner, false}, {"", "ann", engi.RoleOwner, false},
		{"key_bob", "bob", engi.RoleEditor, false}, {"key_bob2", "bob", engi.RoleEditor, true}, {"key_carl", "carl", engi.RoleReviewer, false}, {"key_dora", "dora", engi.RoleViewer, false},
		{"key_eve", "eve", "", false},
	}
	space = engi.Workspace{ID: "wsp_a", Owner: "ann", Collaborators: []engi.Collaborator{{Owner: "bob", Role: engi.RoleEditor}, {Owner: "carl", Role: engi.RoleReviewer}, {Owner: "dora", Role: engi.RoleViewer}}}
)

// inPerson reports whether p may decide what was escalated, by what the documentation says.
func (p person) inPerson() bool {
	return p.role == engi.RoleOwner && !p.byModel && p.actor != runOfAnn && p.actor != fnOfAnn
}

// reviews reports whether p may review, by what the documentation says.
func (p person) reviews(named string) bool {
	may := p.role == engi.RoleOwner || p.role == engi.RoleEditor || p.role == engi.RoleReviewer
	return may && (named == "" || named == p.actor || p.viewer != engi.Everyone && named == string(p.viewer))
}

// A history is a workflow with its workspace, kept like a store keeps them, and what the test knows about them
// without the code that it tests.
type history struct {
	w         engi.Workflow
	events    []engi.WorkflowEvent
	revisions []engi.WorkspaceRevision // Commit is the hash of the content
	makers    map[string]map[string]bool
	counts    map[string]int
}

func (h *history) head() Content {
	if len(h.revisions) == 0 {
		return Content{}
	}
	return h.content(int64(len(h.revisions)))
}

func (h *history) content(n int64) Content { return Content{n, h.revisions[n-1].Commit} }

// claim notes that an actor has made or submitted a content.
func (h *history) claim(hash, actor string) {
	if h.makers[hash] == nil {
		h.makers[hash] = map[string]bool{}
	}
	if actor != "" {
		h.makers[hash][actor] = true
	}
}

// revise records a revision, and voids approvals, like a store.
func (h *history) revise(hash, actor string, now time.Time) error {
	h.revisions = append(h.revisions, engi.WorkspaceRevision{Number: int64(len(h.revisions)) + 1, Commit: hash, Actor: actor})
	h.claim(hash, actor)
	e, changed, err := Void(&h.w, h.head(), actor, now)
	if changed {
		h.counts["void"]++
		h.add(e)
	}
	return err
}

func (h *history) add(e engi.WorkflowEvent) {
	h.w.Events++
	e.Number = h.w.Events
	h.events = append(h.events, e)
}

// try takes a step; a step that is refused changes nothing.
func (h *history) try(s step) error {
	w := h.w
	e, err := take(&w, s)
	if err != nil {
		return err
	}
	h.w = w
	h.add(e)
	return nil
}

// TestSequences takes 10,000 sequences of actions by actors that are drawn. There is no way to an approval without a reviewer who has neither made
// nor submitted the content, and no approved workflow whose workspace has other content.
func TestSequences(t *testing.T) {
	random, counts := seed.New(t), map[string]int{}
	for i := range 10_000 {
		h := &history{makers: map[string]map[string]bool{}, counts: counts}
		participants := []string{"", "", "", "ann", "bob", "key_bob", "carl", runOfAnn}
		h.w = engi.Workflow{
			ID: "wfl_a", Owner: "ann", Workspace: space.ID, MaxRevisions: 1 + random.IntN(2), Creator: participants[random.IntN(len(participants))], Reviewer: participants[random.IntN(len(participants))], Events: 1,
			Limits: engi.WorkflowLimits{Review: time.Duration(random.IntN(2)) * time.Minute},
		}
		now := time.Unix(0, 0)
		enter(&h.w, engi.WorkflowCreation, false, now)
		for range 40 {
			now = now.Add(time.Second)
			if err := sequenceStep(h, random, now); err != nil {
				t.Fatalf("sequence %d: %v\n%+v\n%+v", i, err, h.w, h.events)
			}
			if err := h.check(); err != nil {
				t.Fatalf("sequence %d: %v\n%+v\n%+v", i, err, h.w, h.events)
			}
		}
	}
	for _, what := range []string{"approve", "approve by the owner", "void", "escalate", "expire", "reject", "cancel", "sent back", "maker", "stale", "denied"} {
		if counts[what] < 20 {
			t.Errorf("%s happened %d times", what, counts[what])
		}
	}
	t.Log(counts)
}

// sequenceStep draws an actor and an action.
func sequenceStep(h *history, random *rand.Rand, now time.Time) error {
	p := people[random.IntN(len(people))]
	last := h.head()
	switch n := random.IntN(10); {
	case n < 2 && (p.role == engi.RoleOwner || p.role == engi.RoleEditor):
		actor := p.actor
		if random.IntN(4) == 0 {
			actor = "" // a program in the sandbox
		}
		return h.revise(fmt.Sprint("content ", random.IntN(4)), actor, now)
	case n == 2:
		err := h.try(step{action: engi.ActExpire, roles: []engi.WorkflowRole{engi.RoleWorkNode}, now: now})
		if err == nil {
			h.counts["expire"]++
		}
		return engi.Ignore(err, engi.Conflict)
	}
	action := []engi.WorkflowAction{engi.ActSubmit, engi.ActSubmit, engi.ActApprove, engi.ActApprove, engi.ActApprove, engi.ActSendBack, engi.ActSendBack, engi.ActReject, engi.ActCancel, engi.ActEscalate, engi.ActVoid, engi.ActExpire}[random.IntN(12)]
	if (action == engi.ActReject || action == engi.ActCancel) && random.IntN(4) > 0 {
		action = engi.ActApprove
	}
	s := step{action: action, actor: p.actor, roles: rolesOf(h.w, space, p.viewer, p.actor, "", p.byModel), head: last, now: now}
	if isReview(action) && h.w.Revision > 0 {
		s.seen = h.content(1 + random.Int64N(last.Revision))
		for a := range h.makers[h.w.Hash] {
			s.makers = append(s.makers, a)
		}
		s.review = &engi.ReviewResult{}
	}
	before := h.w
	err := h.try(s)
	if err != nil && !reflect.DeepEqual(before, h.w) {
		return fmt.Errorf("%s failed, and changed it: %w", action, err)
	}
	if action == engi.ActApprove {
		isMaker := p.actor == "" || h.makers[before.Hash][p.actor]
		stale := last.Hash != before.Hash || s.seen.Hash != before.Hash
		may := p.reviews(before.Reviewer)
		if before.Escalated {
			may = p.inPerson()
		}
		if want := before.Stage == engi.WorkflowReview && may && !isMaker && !stale; want != (err == nil) {
			return fmt.Errorf("%+v approves: %v; want it allowed: %t", p, err, want)
		}
		switch {
		case err == nil && before.Escalated:
			h.counts["approve by the owner"]++
		case before.Stage == engi.WorkflowReview && may && isMaker && !stale:
			h.counts["maker"]++
		case before.Stage == engi.WorkflowReview && may && stale:
			h.counts["stale"]++
		}
	}
	if (p.role == "" || p.role == engi.RoleViewer) && err == nil {
		return fmt.Errorf("%+v may %s", p, action)
	}
	switch {
	case err == nil:
		h.counts[string(h.events[len(h.events)-1].Action)]++
		if action == engi.ActSubmit {
			h.claim(h.w.Hash, p.actor)
		}
		if action == engi.ActSendBack && h.w.Round > before.Round {
			h.counts["sent back"]++
		}
	case engi.Is(err, engi.Denied):
		h.counts["denied"]++
	case !engi.Is(err, engi.Conflict):
		return err
	}
	return nil
}

// check compares a workflow with what must always be true.
func (h *history) check() error {
	w := h.w
	if w.Stage == engi.WorkflowApproved && h.head().Hash != w.Hash {
		return fmt.Errorf("the content %q is approved, and the workspace has %q", w.Hash, h.head().Hash)
	}
	stage := engi.WorkflowCreation
	sentBack := 0
	for i, e := range h.events {
		if e.From != stage || e.Number != int64(i)+2 {
			return fmt.Errorf("event %d comes from %s, and the one before leads to %s", e.Number, e.From, stage)
		}
		if stage = e.To; e.Action == engi.ActSendBack && e.Role == engi.RoleWorkReviewer {
			sentBack++
		}
		if e.To == engi.WorkflowApproved && (e.Action != engi.ActApprove || e.Role != engi.RoleWorkReviewer && e.Role != engi.RoleWorkOwner || e.Actor == "") {
			return fmt.Errorf("approved by %+v", e)
		}
	}
	switch {
	case stage != w.Stage:
		return fmt.Errorf("the history leads to %s", stage)
	case sentBack > w.MaxRevisions:
		return fmt.Errorf("reviewers have sent it back %d times", sentBack)
	case w.Escalated && (w.Current != engi.RoleWorkOwner || !w.Deadline.IsZero()):
		return fmt.Errorf("it is escalated, and waits for %q until %v", w.Current, w.Deadline)
	case w.Deadline.IsZero() != (w.Escalated || w.Limits.Of(w.Stage) == 0):
		return fmt.Errorf("the deadline is %v", w.Deadline)
	}
	return nil
}

// TestTable checks that the table has one row for each action of a stage, and that only a review leads to an approval.
func TestTable(t *testing.T) {
	seen := map[string]bool{}
	for _, x := range table {
		key := fmt.Sprint(x.from, x.escalated, x.action)
		if seen[key] {
			t.Errorf("there are two rows for %s", key)
		}
		seen[key] = true
		if x.to == engi.WorkflowApproved && (x.from != engi.WorkflowReview || x.action != engi.ActApprove) {
			t.Errorf("%+v leads to an approval", x)
		}
		if x.from == engi.WorkflowRejected || x.from == engi.WorkflowApproved && x.action != engi.ActVoid {
			t.Errorf("%+v leaves an end", x)
		}
		if x.escalated && slices.ContainsFunc(x.roles, func(r engi.WorkflowRole) bool { return r != engi.RoleWorkOwner }) {
			t.Errorf("%+v: others than the owner decide", x)
		}
	}
}

// TestLongHistoriesEnd checks that a workflow with a long history can only end.
func TestLongHistoriesEnd(t *testing.T) {
	w := engi.Workflow{Events: maxHistory}
	enter(&w, engi.WorkflowReview, false, time.Now())
	roles := []engi.WorkflowRole{engi.RoleWorkCreator, engi.RoleWorkReviewer, engi.RoleWorkOwner}
	for action, want := range map[engi.WorkflowAction]engi.Kind{engi.ActSubmit: engi.Exhausted, engi.ActSendBack: engi.Exhausted, engi.ActCancel: engi.NoKind, engi.ActReject: engi.NoKind} {
		x := w
		if _, err := take(&x, step{action: action, roles: roles, head: Content{1, "h"}}); engi.KindOf(err) != want {
			t.Errorf("%s: %v", action, err)
		}
	}
}
