package docs

import (
	"context"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

const (
	maxAnnounced = 256              // maximum number of runs whose modules wait to be saved
	saveTimeout  = 2 * time.Minute  // includes the time to boot the session
	drainTimeout = 10 * time.Second // total time for waiting modules when Run ends
)

// An announcement holds the modules that a run has announced in its answer.
type announcement struct {
	run     engi.Run
	modules []engi.CodeModule
}

// RunEnded saves the modules that a run has announced in its answer, see
// [ModulesIn]. It returns at once: Run saves them, one run after the other, and
// logs errors.
func (l *Index) RunEnded(_ context.Context, r engi.Run) {
	if r.Session == "" || r.State != engi.RunDone && r.State != engi.RunStopped {
		return
	}
	modules := ModulesIn(r.Text)
	if len(modules) == 0 {
		return
	}
	select {
	case l.announced <- announcement{r, modules}:
	default:
		l.log.Warn("modules of an answer are lost: too many wait to be saved", "run", r.ID, "modules", len(modules))
	}
}

// saveAnnounced saves announced modules until ctx ends, and then, for up to
// drainTimeout, those that are still waiting.
func (l *Index) saveAnnounced(ctx context.Context) {
	saving, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(drainTimeout, cancel) })()
	for ctx.Err() == nil || len(l.announced) > 0 {
		select {
		case a := <-l.announced:
			l.saveModulesOf(saving, a)
		case <-ctx.Done():
		}
	}
}

func (l *Index) saveModulesOf(ctx context.Context, a announcement) {
	ctx, cancel := context.WithTimeout(ctx, saveTimeout)
	defer cancel()
	err := l.SaveModules(ctx, a.run.Owner.Viewer(), a.run.Session, a.modules)
	if engi.Is(err, engi.NotFound) && len(a.modules) > 1 {
		// Models announce files that they have not written: save the others.
		for _, m := range a.modules {
			l.saveModulesOf(ctx, announcement{a.run, []engi.CodeModule{m}})
		}
		return
	}
	if err != nil {
		l.log.Warn("save the modules of an answer", "run", a.run.ID, "session", a.run.Session, "error", err)
		return
	}
	l.log.Debug("saved the modules of an answer", "run", a.run.ID, "session", a.run.Session, "modules", len(a.modules))
}
