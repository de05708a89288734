package library

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/api/apitest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func answer(session, text string) engi.Run {
	return engi.Run{ID: engi.NewRunID(), Owner: "ann", Session: session, State: engi.RunDone, Text: text}
}

func announced(paths ...string) string {
	text := "Here it is.\n"
	for _, p := range paths {
		text += fmt.Sprintf(`{"type":"code_modules","modules":[{"path":%q,"description":"Does %s.","exports":["f"],"usage":"import { f } from './%s'"}]}`, p, p, p) + "\n"
	}
	return text
}

// TestS0_8_Finisher saves what answers announce, and nothing else.
func TestS0_8_Finisher(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		twin := &apitest.Library{}
		f := newFinisher(twin, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); f.run(ctx) }()

		failed := answer("s", announced("failed.ts"))
		failed.State = engi.RunFailed
		for _, r := range []engi.Run{
			answer("s", announced("lib/a.ts", "missing.ts", "lib/b.ts")), // one of them was never written
			answer("", announced("nowhere.ts")),
			answer("s", "no modules\n{\"type\":\"code_modules\",\"modules\":[{}]}\n{\"type\":\"patches\"}"),
			failed,
		} {
			f.ended(r)
		}
		synctest.Wait()
		all, err := twin.Modules(t.Context(), "ann", "s")
		if err != nil || len(all) != 2 || all[0].Path != "lib/a.ts" || all[1].Usage != "import { f } from './lib/b.ts'" {
			t.Errorf("%+v %v", all, err)
		}

		// What waits when the node stops is saved still.
		f.ended(answer("s", announced("lib/last.ts")))
		cancel()
		<-done
		if all, err := twin.Modules(t.Context(), "ann", "s"); err != nil || len(all) != 3 {
			t.Errorf("%+v %v", all, err)
		}
	})
}

// stuck never comes to an end by itself.
type stuck struct {
	engi.Library
	calls int
}

func (s *stuck) SaveModules(ctx context.Context, _ engi.Owner, _ string, _ []engi.CodeModule) error {
	s.calls++
	<-ctx.Done()
	return ctx.Err()
}

// TestFinisherHoldsUpNobody has a library that does not answer: runs end all
// the same, and so does the node.
func TestFinisherHoldsUpNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stuck{}
		f := newFinisher(s, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); f.run(ctx) }()
		began := time.Now()
		for range 2 * queued {
			f.ended(answer("s", announced("lib/a.ts")))
		}
		if time.Since(began) != 0 || len(f.queue) != queued {
			t.Errorf("it took %v, and %d wait", time.Since(began), len(f.queue))
		}
		cancel()
		<-done
		if took := time.Since(began); took > lastTime || s.calls == 0 {
			t.Errorf("it took %v to stop, after %d calls", took, s.calls)
		}
	})
}
