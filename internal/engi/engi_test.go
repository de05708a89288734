package engi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
)

func TestKindsSurviveTheWire(t *testing.T) {
	for _, k := range Kinds() {
		if got := ParseKind(k.String()); got != k {
			t.Errorf("ParseKind(%q) = %v, want %v", k, got, k)
		}
		if remedies[k] == "" {
			t.Errorf("kind %v has no general remedy", k)
		}
	}
	if got := ParseKind("from the future"); got != Internal {
		t.Errorf("unknown kind parsed as %v, want internal", got)
	}
}

func TestKindShowsThrough(t *testing.T) {
	inner := Errorf(NotFound, "no such thing").WithRemedy("look elsewhere")
	err := error(inner)
	Annotate(&err, "open %s", "x")
	if !Is(err, NotFound) {
		t.Errorf("kind of %v is %v, want not_found", err, KindOf(err))
	}
	if got, want := err.Error(), "open x: no such thing"; got != want {
		t.Errorf("text %q, want %q", got, want)
	}
	if got := RemedyOf(err); got != "look elsewhere" {
		t.Errorf("remedy %q, want the given one", got)
	}
	reclassified := Errorf(Unavailable, "reach node: %w", err)
	if !Is(reclassified, Unavailable) {
		t.Errorf("outermost kind must win, got %v", KindOf(reclassified))
	}
	if got := RemedyOf(reclassified); got != "look elsewhere" {
		t.Errorf("remedy %q did not show through", got)
	}
}

func TestKindOfForeignErrors(t *testing.T) {
	for err, want := range map[error]Kind{
		io.EOF:           Internal,
		context.Canceled: Expired,
		fmt.Errorf("x: %w", context.DeadlineExceeded): Expired,
		errors.New("boom"):                            Internal,
	} {
		if got := KindOf(err); got != want {
			t.Errorf("KindOf(%v) = %v, want %v", err, got, want)
		}
	}
}

func TestIsAndIgnore(t *testing.T) {
	none, lost := error(nil), error(Errorf(NotFound, "lost"))
	Annotate(&lost, "look")
	if KindOf(none) != NoKind || Is(none, Internal) || Is(none, NoKind) || Ignore(none) != nil {
		t.Error("nil has a kind")
	}
	if !Is(lost, Conflict, NotFound) || Is(lost) || Is(lost, Conflict) {
		t.Errorf("%v is not of the kind not_found alone", lost)
	}
	if Ignore(lost, Conflict, NotFound) != nil || Ignore(lost, Conflict) != lost {
		t.Errorf("%v is ignored for another kind, or not for its own", lost)
	}
	if slices.Contains(Kinds(), NoKind) || len(Kinds()) != 10 {
		t.Errorf("the kinds are %v", Kinds())
	}
}

func TestRetrySurvivesAnnotation(t *testing.T) {
	err := error(Errorf(Exhausted, "full").WithRetry(Retry{AfterMillis: 250, Position: 3}))
	Annotate(&err, "claim")
	if got := RetryOf(err); got != (Retry{250, 3}) {
		t.Errorf("retry %+v, want 250 ms and position 3", got)
	}
}

func TestIDs(t *testing.T) {
	seen := map[SandboxID]bool{}
	for range 1000 {
		id := NewSandboxID()
		if _, err := ParseSandboxID(string(id)); err != nil {
			t.Fatal(err)
		}
		if len(id) != len(sandboxPrefix)+idLength || seen[id] {
			t.Fatalf("bad or repeated ID %q", id)
		}
		seen[id] = true
	}
	good := string(NewExecutionID())
	for _, bad := range []string{"", "exe_", good[:len(good)-1], good + "a", strings.ToUpper(good),
		"sbx_" + good[4:], good[:10] + "/" + good[11:], good[:10] + "\x00" + good[11:], "../" + good} {
		if _, err := ParseExecutionID(bad); !Is(err, Invalid) {
			t.Errorf("ParseExecutionID(%q): %v, want invalid", bad, err)
		}
	}
}

func TestLifeOfASandbox(t *testing.T) {
	for _, from := range States() {
		for _, to := range States() {
			got, err := from.To(to)
			allowed := slices.Contains(nextStates[from], to)
			if allowed && (err != nil || got != to) || !allowed && (!Is(err, Conflict) || got != from) {
				t.Errorf("%s to %s: %s, %v", from, to, got, err)
			}
		}
		if from != Stopped && !slices.Contains(nextStates[from], Stopped) && from != Stopping {
			t.Errorf("a %s sandbox cannot be stopped", from)
		}
	}
	if _, err := Stopped.To(Running); !Is(err, Conflict) {
		t.Error("a stopped sandbox came back")
	}
}

func TestEveryCauseHasARemedy(t *testing.T) {
	for _, c := range Causes() {
		if (c.Remedy() == "") != (c == CauseExited) {
			t.Errorf("cause %s has remedy %q", c, c.Remedy())
		}
	}
	if len(causeRemedies) != len(Causes()) {
		t.Errorf("%d remedies for %d causes", len(causeRemedies), len(Causes()))
	}
}

func TestSize(t *testing.T) {
	max := Size{VCPUs: 2, Memory: 1 << 30}
	if s := (Size{VCPUs: 1}).Or(max); s.VCPUs != 1 || s.Memory != 1<<30 {
		t.Errorf("Or gave %+v", s)
	}
	if !(Size{VCPUs: 2, Disk: 1 << 50}).Fits(max) || (Size{Memory: 1<<30 + 1}).Fits(max) {
		t.Error("Fits is wrong")
	}
	if err := (Size{OpenFiles: -1}).Validate(); !Is(err, Invalid) {
		t.Errorf("negative limit: %v, want invalid", err)
	}
}
