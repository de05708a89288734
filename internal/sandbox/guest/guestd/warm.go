package guestd

import (
	"crypto/rand"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/guest/guestd/child"
	"github.com/engi-dev/engi/internal/sandbox/guest/guestd/warm"
	"github.com/engi-dev/engi/internal/sandbox/guest/wire"
)

// warmInterpreter is an interpreter that waits for its program.
type warmInterpreter struct {
	interpreter string
	child       *child.Child
	streams     *streams
	preload     *warm.Preload
}

// startTimeout bounds the start of an interpreter, until it waits for its program.
const startTimeout = 60 * time.Second

func (s *Server) prepare(w http.ResponseWriter, r *http.Request) error {
	var in wire.Prepare
	if err := readJSON(r, &in); err != nil {
		return err
	}
	if err := wire.CheckAbsolute(in.Interpreter); err != nil {
		return err
	}
	wt, err := s.startWarm(in)
	if err != nil {
		return engi.Errorf(engi.KindOf(err), "prepare %s: %w", in.Language, err)
	}
	s.mu.Lock()
	old := s.warm[in.Language]
	s.warm[in.Language] = wt
	s.mu.Unlock()
	if old != nil {
		s.discard(old)
	}
	// A sandbox in a pool waits for a long time and should be small. It should not
	// collect garbage in the middle of its only run.
	debug.FreeOSMemory()
	return noContent(w)
}

func (s *Server) startWarm(in wire.Prepare) (*warmInterpreter, error) {
	cfg := s.settings()
	st, err := pipes(true)
	if err != nil {
		return nil, err
	}
	wt := &warmInterpreter{interpreter: in.Interpreter, streams: st}
	wt.preload, err = warm.NewPreload(in.Language, s.privateDir(), cfg.owner.UID, cfg.owner.GID)
	if err != nil {
		st.close()
		return nil, err
	}
	start, err := warm.WaitingCommand(in.Language, in.Interpreter, cfg.ownEnv(), wt.preload.Dir)
	if err == nil {
		wt.child, err = s.table.Start(child.Spec{Path: start.Args[0], Args: start.Args, Env: environ(start.Env), Dir: cfg.WorkDir,
			User: cfg.user, Limits: cfg.limits(cfg.user), Files: st.childFDs})
	}
	if err != nil {
		wt.preload.Close()
		st.close()
		return nil, err
	}
	st.closeChildEnds()
	if err := wt.preload.WaitReady(wt.child.Done(), startTimeout); err != nil {
		said := wt.output()
		s.discard(wt)
		return nil, engi.Errorf(engi.KindOf(err), "%w%s", err, said)
	}
	return wt, nil
}

// privateDir returns a new path for a private directory of the guest.
func (s *Server) privateDir() string {
	return s.path("/run/engi/") + "/" + strings.ToLower(rand.Text()[:8])
}

// output returns the text printed by an interpreter that never reached its waiting state.
func (wt *warmInterpreter) output() string {
	text := ""
	for _, o := range wt.streams.output {
		var b [2 << 10]byte
		o.file.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		if n, _ := o.file.Read(b[:]); n > 0 {
			text += ": " + strings.TrimSpace(string(b[:n]))
		}
	}
	return strings.ToValidUTF8(text, "?")
}

func (s *Server) discard(wt *warmInterpreter) {
	wt.preload.Close()
	s.table.KillSession(wt.child)
	<-wt.child.Done()
	wt.streams.close()
}

// claimWarm returns the waiting interpreter for a run if the run behaves exactly as
// in a fresh one. An unsuitable interpreter is discarded.
func (s *Server) claimWarm(r *wire.Run, entry string, env map[string]string) *warmInterpreter {
	s.mu.Lock()
	wt := s.warm[r.Language]
	fits := wt != nil && wt.interpreter == r.Interpreter && warm.CanServe(r.Language, entry, r.Args, env)
	if wt != nil {
		delete(s.warm, r.Language)
	}
	s.mu.Unlock()
	if wt == nil {
		return nil
	}
	select {
	case <-wt.child.Done():
		fits = false
	default:
	}
	if !fits {
		s.discard(wt)
		return nil
	}
	return wt
}

// coldPreload installs the script that makes a fresh Python print line by line, and returns its directory. Without it
// the program still runs.
func (s *Server) coldPreload(l engi.Language, cfg *settings) string {
	if l != engi.Python {
		return ""
	}
	p, err := warm.NewPreload(l, s.privateDir(), cfg.owner.UID, cfg.owner.GID)
	if err != nil {
		return ""
	}
	p.ClosePipes()
	return p.Dir
}
