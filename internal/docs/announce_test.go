package docs_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/engi-dev/engi/internal/docs"
	"github.com/engi-dev/engi/internal/engi"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func endedRun(session, text string) engi.Run {
	return engi.Run{ID: engi.NewRunID(), Owner: "ann", Session: session, State: engi.RunDone, Text: text}
}

// announcing returns an answer that announces modules.
func announcing(paths ...string) string {
	text := "Here it is.\n"
	for _, p := range paths {
		text += fmt.Sprintf(`{"type":"code_modules","modules":[{"path":%q,"description":"Does %s.","exports":["f"],"usage":"import { f } from './%s'"}]}`, p, p, p) + "\n"
	}
	return text
}

func chatSession(files ...string) *fakeSessions {
	guest := fakeGuest{byPath: map[string]string{}}
	for _, f := range files {
		guest.byPath["/workspace/"+f] = "export const f = 1"
	}
	return &fakeSessions{guest: guest, session: engi.Session{ID: engi.NewSessionID(), Owner: "ann", Name: "s", Volume: engi.NewVolumeID(), State: engi.SessionIdle}}
}

// TestAnnouncedModulesAreSaved checks that the modules that answers announce are saved, and
// nothing else.
func TestAnnouncedModulesAreSaved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := open(t, docs.Options{Sessions: chatSession("lib/a.ts", "lib/b.ts", "lib/last.ts", "failed.ts", "nowhere.ts")})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- l.Run(ctx, func() {}) }()

		failed := endedRun("s", announcing("failed.ts"))
		nodes := endedRun("s", announcing("failed.ts")) // a run of the node whose agent named a session of ann
		nodes.Owner = ""
		failed.State = engi.RunFailed
		for _, r := range []engi.Run{
			endedRun("s", announcing("lib/a.ts", "missing.ts", "lib/b.ts")), // one of them was never written
			endedRun("", announcing("nowhere.ts")),
			endedRun("s", "no modules\n{\"type\":\"code_modules\",\"modules\":[{}]}\n{\"type\":\"patches\"}"),
			failed, nodes,
		} {
			l.RunEnded(ctx, r)
		}
		synctest.Wait()
		all, err := l.Modules(t.Context(), "ann", "s")
		if err != nil || len(all) != 2 || all[0].Path != "lib/a.ts" || all[1].Usage != "import { f } from './lib/b.ts'" {
			t.Errorf("%+v %v", all, err)
		}

		// Modules that are announced just before the end are also saved.
		l.RunEnded(ctx, endedRun("s", announcing("lib/last.ts")))
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if all, err := l.Modules(t.Context(), "ann", "s"); err != nil || len(all) != 3 {
			t.Errorf("%+v %v", all, err)
		}
	})
}

// stuckSessions never admits anybody.
type stuckSessions struct {
	*fakeSessions
	calls int
}

func (s *stuckSessions) Enter(ctx context.Context, _ engi.Viewer, _ string) (engi.Guest, func(), error) {
	s.calls++
	<-ctx.Done()
	return nil, nil, ctx.Err()
}

// TestRunEndedNeverBlocks uses a session that does not boot: runs must end
// nevertheless, and so must the index.
func TestRunEndedNeverBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stuckSessions{fakeSessions: chatSession()}
		l := open(t, docs.Options{Sessions: s})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- l.Run(ctx, func() {}) }()
		began := time.Now()
		for range 1000 {
			l.RunEnded(ctx, endedRun("s", announcing("lib/a.ts")))
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("it took %v", took)
		}
		synctest.Wait()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took > 10*time.Second || s.calls == 0 {
			t.Errorf("it took %v to stop, after %d calls", took, s.calls)
		}
	})
}
