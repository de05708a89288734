package library

import (
	"context"
	"log/slog"
	"time"

	"github.com/engi-dev/engi"
	room "github.com/engi-dev/engi/library"
)

const (
	queued   = 256              // answers that wait
	saveTime = 2 * time.Minute  // a session may have to boot
	lastTime = 10 * time.Second // for all that wait when the node stops
)

// A finisher saves the modules of answers in the background, one answer after
// the other. Whatever goes wrong is logged: the answer is given already.
type finisher struct {
	library engi.Library
	log     *slog.Logger
	queue   chan finished
}

// finished are the modules that a run has announced.
type finished struct {
	run     engi.Run
	modules []engi.CodeModule
}

func newFinisher(l engi.Library, log *slog.Logger) *finisher {
	return &finisher{l, log, make(chan finished, queued)}
}

// ended is quick and never blocks.
func (f *finisher) ended(r engi.Run) {
	if r.Session == "" || r.State != engi.RunDone && r.State != engi.RunStopped {
		return
	}
	modules := room.ModulesIn(r.Text)
	if len(modules) == 0 {
		return
	}
	select {
	case f.queue <- finished{r, modules}:
	default:
		f.log.Warn("modules of an answer are lost: too many wait", "run", r.ID, "modules", len(modules))
	}
}

// run saves what comes until ctx ends, then what waits still, and returns.
func (f *finisher) run(ctx context.Context) {
	for {
		select {
		case x := <-f.queue:
			f.save(ctx, x)
			continue
		case <-ctx.Done():
		}
		break
	}
	rest, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastTime)
	defer cancel()
	for {
		select {
		case x := <-f.queue:
			f.save(rest, x)
		default:
			return
		}
	}
}

func (f *finisher) save(ctx context.Context, x finished) {
	ctx, cancel := context.WithTimeout(ctx, saveTime)
	defer cancel()
	err := f.library.SaveModules(ctx, x.run.Owner, x.run.Session, x.modules)
	if engi.KindOf(err) == engi.NotFound && len(x.modules) > 1 {
		// Models announce files that they never wrote: those that are there
		// are saved none the less.
		for _, m := range x.modules {
			f.save(ctx, finished{x.run, []engi.CodeModule{m}})
		}
		return
	}
	if err != nil {
		f.log.Warn("save the modules of an answer", "run", x.run.ID, "session", x.run.Session, "err", err)
		return
	}
	f.log.Debug("saved the modules of an answer", "run", x.run.ID, "session", x.run.Session, "modules", len(x.modules))
}
