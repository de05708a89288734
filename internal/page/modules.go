package page

import (
	"context"
	"time"

	"github.com/engi-dev/engi/internal/clock"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/idempotency"
)

const (
	saveTries   = 4
	saveTimeout = 2 * time.Minute // includes the time to boot the session
)

// save starts saving the modules that answers of a session have announced, in the background.
func (s *Service) save(id engi.SessionID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, busy := s.savers[id]; busy {
		s.savers[id] = true
		return
	}
	if !s.serving {
		return // the next process saves them
	}
	s.savers[id] = false
	s.wg.Go(func() {
		for {
			s.saveModules(id)
			s.mu.Lock()
			if !s.savers[id] || s.base.Err() != nil {
				delete(s.savers, id)
				s.mu.Unlock()
				return
			}
			s.savers[id] = false
			s.mu.Unlock()
		}
	})
}

// saveModules saves the waiting modules. When the node stops, the rest is left to the next
// process.
func (s *Service) saveModules(id engi.SessionID) {
	ctx, wait := s.base, s.opt.Backoff
	for {
		r, err := s.opt.Store.Get(ctx, id)
		if err == nil && len(r.Modules) == 0 || engi.Is(err, engi.NotFound) {
			return
		}
		if err == nil {
			err = s.saveOne(ctx, r, r.Modules[0])
		}
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			s.opt.Log.WarnContext(ctx, "save the modules of an answer; it is tried again", "session", id, "error", err)
			_ = clock.Sleep(ctx, wait)
			wait = min(2*wait, time.Minute)
		}
	}
}

// saveOne saves modules, or reports to the page's watchers why they cannot be saved, and
// removes them from the record.
func (s *Service) saveOne(ctx context.Context, r Record, m Modules) error {
	var lost []eventData
	for _, x := range s.unsaved(ctx, r, m.List) {
		lost = append(lost, eventData{Run: m.Run, Text: x.Error(), Remedy: engi.RemedyOf(x)})
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	_, err := s.opt.Store.Change(engi.WithActor(ctx, string(m.Run)), r.Session, func(r *Record, emit Emit) error {
		for _, d := range lost {
			data, err := d.encode()
			if err != nil {
				return err
			}
			if _, err := emit(engi.EventPageFailed, data, idempotency.Request{}); err != nil {
				return err
			}
		}
		r.Modules = r.Modules[1:]
		return nil
	})
	return err
}

// unsaved saves modules and returns the errors of those that cannot be saved. Models announce files that
// they have not written; the other modules are saved nevertheless.
func (s *Service) unsaved(ctx context.Context, r Record, list []engi.CodeModule) (lost []error) {
	if s.opt.Docs == nil {
		return nil // docs were disabled after the modules were announced
	}
	err := s.try(ctx, r, list)
	switch {
	case err == nil:
		return nil
	case len(list) > 1 && (engi.Is(err, engi.NotFound, engi.Invalid)):
		for _, m := range list {
			lost = append(lost, s.unsaved(ctx, r, []engi.CodeModule{m})...)
		}
		return lost
	}
	return []error{engi.Errorf(engi.KindOf(err), "the code in the answer was not found when it was read again: %w", err).WithRemedy("%s", engi.RemedyOf(err))}
}

// try saves modules in the docs, and repeats the attempt if that may help.
func (s *Service) try(ctx context.Context, r Record, list []engi.CodeModule) (err error) {
	wait := s.opt.Backoff
	for i := range saveTries {
		if i > 0 {
			_ = clock.Sleep(ctx, wait)
			wait *= 2
		}
		saving, cancel := context.WithTimeout(ctx, saveTimeout)
		err = s.opt.Docs.SaveModules(saving, r.Owner.Viewer(), string(r.Session), list)
		cancel()
		if err == nil || ctx.Err() != nil {
			return err
		}
		if engi.Is(err, engi.NotFound, engi.Invalid, engi.Unsupported, engi.Denied, engi.Conflict) {
			return err // another attempt would fail in the same way
		}
	}
	return err
}
