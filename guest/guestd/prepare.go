package guestd

import (
	"crypto/rand"
	"net/http"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/guest/guestd/child"
	"github.com/engi-dev/engi/guest/guestd/warm"
	"github.com/engi-dev/engi/guest/wire"
)

// waiting is a started interpreter nobody has used yet.
type waiting struct {
	interpreter string
	child       *child.Child
	streams     *streams
	hook        *warm.Hook
}

// startup bounds how long an interpreter may take until it waits.
const startup = 60 * time.Second

func (s *Server) prepare(w http.ResponseWriter, r *http.Request) error {
	var in wire.Prepare
	if err := receive(r, &in); err != nil {
		return err
	}
	if err := wire.CheckAbsolute(in.Interpreter); err != nil {
		return err
	}
	wt, err := s.wait(in)
	if err != nil {
		return engi.Errorf(engi.KindOf(err), "prepare %s: %w", in.Language, err)
	}
	s.mu.Lock()
	old := s.waits[in.Language]
	s.waits[in.Language] = wt
	s.mu.Unlock()
	if old != nil {
		s.giveUp(old)
	}
	// A member of a pool waits long and should be small. It also should not
	// collect garbage in the middle of its one run.
	debug.FreeOSMemory()
	return empty(w)
}

func (s *Server) wait(in wire.Prepare) (*waiting, error) {
	a := s.account()
	st, err := pipes(true)
	if err != nil {
		return nil, err
	}
	wt := &waiting{interpreter: in.Interpreter, streams: st}
	wt.hook, err = warm.Install(in.Language, s.hookDir(), a.owner.UID, a.owner.GID)
	if err != nil {
		st.close()
		return nil, err
	}
	start, err := warm.Waiting(in.Language, in.Interpreter, a.own(), wt.hook.Dir)
	if err == nil {
		wt.child, err = s.table.Start(child.Spec{Path: start.Args[0], Args: start.Args, Env: list(start.Env), Dir: a.WorkDir,
			User: a.user, Limits: a.limits(a.user), Files: st.theirs})
	}
	if err != nil {
		wt.hook.Close()
		st.close()
		return nil, err
	}
	st.handed()
	if err := wt.hook.Wait(wt.child.Done(), startup); err != nil {
		said := wt.said()
		s.giveUp(wt)
		return nil, engi.Errorf(engi.KindOf(err), "%w%s", err, said)
	}
	return wt, nil
}

// hookDir names a fresh directory that programs do not look into.
func (s *Server) hookDir() string {
	return s.path("/run/engi/") + "/" + strings.ToLower(rand.Text()[:8])
}

// said returns the end of what an interpreter printed instead of waiting.
func (wt *waiting) said() string {
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

func (s *Server) giveUp(wt *waiting) {
	wt.hook.Close()
	s.table.KillSession(wt.child)
	<-wt.child.Done()
	wt.streams.close()
}

// claim takes the waiting interpreter of a run if it can serve it exactly.
func (s *Server) claim(r *wire.Run, entry string, env map[string]string) *waiting {
	s.mu.Lock()
	wt := s.waits[r.Language]
	fits := wt != nil && wt.interpreter == r.Interpreter && warm.Fits(r.Language, entry, r.Args, env)
	if wt != nil {
		delete(s.waits, r.Language)
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
		s.giveUp(wt)
		return nil
	}
	return wt
}

// coldHook installs what a cold Python needs to print line by line. Without
// it the program still runs.
func (s *Server) coldHook(l engi.Language, a *account) string {
	if l != engi.Python {
		return ""
	}
	h, err := warm.Install(l, s.hookDir(), a.owner.UID, a.owner.GID)
	if err != nil {
		return ""
	}
	h.Forget()
	return h.Dir
}

func removeHook(dir string) {
	if dir != "" {
		os.RemoveAll(dir)
	}
}
