package disk

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/disk/recipe"
)

// TestStages builds a template in two parts: programs use the first while Run
// builds the rest, and callers that need more get the time to retry.
func TestStages(t *testing.T) {
	builtins()["two"] = []byte("base: template:one\ncommands: [finish]\nlanguages: {go: /usr/bin/sh}\n")
	stages["two"] = stage{"one", []time.Duration{time.Second, time.Second, time.Second, time.Minute, time.Second}}
	t.Cleanup(func() {
		delete(builtins(), "two")
		delete(stages, "two")
	})
	finish := make(chan int)
	w := &fakeRunner{run: func(ctx context.Context, dir string, c engi.Command, out io.Writer) engi.Exit {
		select {
		case code := <-finish:
			return engi.Exit{Code: code, Cause: engi.CauseExited}
		case <-ctx.Done():
			return engi.Exit{Cause: engi.CauseCancelled}
		}
	}}
	d := openTemplates(t, Options{Runner: w}, map[string][]byte{"root.tar": tinyRoot(t)})
	if _, _, err := d.Use(t.Context(), "two"); !engi.Is(err, engi.Unavailable) {
		t.Fatalf("nothing is built: %v", err)
	}
	d.completeStages(t.Context()) // no template was requested
	first := build(t, d, "one", "base: tar:root.tar\nuser: user\n")

	wantKind(t, d.Incomplete("two"), engi.Unavailable, "first part")
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- d.Run(ctx, func() {}) }()
	for w.open.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	part, release, err := d.Use(t.Context(), "two")
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := part.Languages[engi.Go]; ok || !part.Partial || part.Name != "two" || part.Digest != first.Digest {
		t.Errorf("the first part is %+v", part)
	}
	release()
	if err := d.Remove(t.Context(), "two"); err == nil {
		t.Error("the first part was removed by the name of the whole")
	}
	err = d.Incomplete("two")
	wantKind(t, err, engi.Unavailable, "% complete, ready in about")
	if after := engi.RetryOf(err).AfterMillis; after < 1000 || after > 100_000 {
		t.Errorf("come back after %d ms", after)
	}
	_, err = d.Get(t.Context(), "two")
	wantKind(t, err, engi.Unavailable, "% complete")
	if engi.RetryOf(err) != (engi.Retry{}) {
		t.Error("who only looks is asked to wait")
	}
	changed := d.Changed()
	finish <- 0
	<-changed
	whole, release, err := d.Use(t.Context(), "two")
	if err != nil {
		t.Fatal(err)
	}
	release()
	if _, ok := whole.Languages[engi.Go]; !ok || whole.Partial || whole.Digest == first.Digest {
		t.Errorf("the whole is %+v", whole)
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestStagesOfBuiltins(t *testing.T) {
	for name, s := range stages {
		def, err := recipe.Parse(name, builtins()[name])
		if err != nil {
			t.Fatal(err)
		}
		if def.Base != "template:"+s.first || builtins()[s.first] == nil {
			t.Errorf("%s is based on %s, not on %s", name, def.Base, s.first)
		}
		steps := 4 + len(def.Commands) // begin, prepare, open a sandbox, finish
		if def.Go != nil {
			steps++
		}
		if len(s.usual) != steps {
			t.Errorf("%s has %d steps, and times of %d", name, steps, len(s.usual))
		}
	}
}

func TestProgressOfStages(t *testing.T) {
	usual := []time.Duration{10 * time.Second, 20 * time.Second, 10 * time.Second}
	began := time.Now()
	at := func(after time.Duration) time.Time { return began.Add(after) }
	for _, c := range []struct {
		c     completion
		at    time.Time
		share float64
		left  time.Duration
	}{
		{completion{began: began, since: began}, at(0), 0, 40 * time.Second},
		{completion{began: began, since: began, now: engi.Progress{Step: 1, Done: 1, Total: 2}}, at(5 * time.Second), 0.125, 35 * time.Second},
		{completion{began: began, since: at(20 * time.Second), now: engi.Progress{Step: 2}}, at(30 * time.Second), 0.5, 30 * time.Second}, // takes 1.5 times as long as usual
		{completion{began: began, since: at(30 * time.Second), now: engi.Progress{Step: 3}}, at(time.Hour), 0.975, 10 * time.Second},      // the share never reaches 1 before the end
	} {
		share, left := c.c.progress(usual, c.at)
		if share != c.share || left != c.left {
			t.Errorf("%+v: %v, %v left; want %v, %v", c.c.now, share, left, c.share, c.left)
		}
	}
}
