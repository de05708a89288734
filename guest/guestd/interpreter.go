package guestd

import (
	"log"
	"net/http"
	"os"
	"runtime/debug"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/guest/guestd/child"
	"github.com/engi-dev/engi/guest/guestd/kernel"
	"github.com/engi-dev/engi/guest/wire"
)

// interpreter shows the server to package kernel.
type interpreter struct{ *Server }

var _ kernel.Sandbox = interpreter{}

func (s interpreter) Account() kernel.Account {
	a := s.account()
	return kernel.Account{UID: a.owner.UID, GID: a.owner.GID, Home: a.Home, Env: a.env}
}

func (s interpreter) LookPath(name string) (string, error) {
	return lookPath(name, "/", s.account().env["PATH"])
}

func (s interpreter) Start(p kernel.Program) (*child.Child, [2]*os.File, error) {
	a := s.account()
	st, err := pipes(false)
	if err != nil {
		return nil, [2]*os.File{}, err
	}
	if p.Stdin != nil {
		null := st.theirs[0]
		if st.theirs[0], err = unix.FcntlInt(p.Stdin.Fd(), unix.F_DUPFD_CLOEXEC, 3); err != nil {
			st.theirs[0] = null
			st.close()
			return nil, [2]*os.File{}, engi.Errorf(engi.Exhausted, "give the kernel its input: %v", err)
		}
		syscall.Close(null)
	}
	c, err := s.table.Start(child.Spec{Path: p.Args[0], Args: p.Args, Env: list(p.Env), Dir: p.Dir, User: a.user,
		Limits: a.limits(a.user), Files: st.theirs, Placed: true})
	if err != nil {
		st.close()
		return nil, [2]*os.File{}, err
	}
	st.handed()
	return c, [2]*os.File{st.output[0].file, st.output[1].file}, nil
}

func (s interpreter) Signal(c *child.Child, sig syscall.Signal, group bool) {
	send := s.table.Signal
	if group {
		send = s.table.SignalGroup
	}
	if err := send(c, sig); err != nil && engi.KindOf(err) != engi.NotFound {
		log.Printf("engi-guest: signal a kernel: %v", err)
	}
}

func (s interpreter) Kill(c *child.Child)              { s.table.KillSession(c) }
func (s interpreter) Resolve(path, home string) string { return s.resolve(path, home) }
func (s interpreter) Inside(path string) string        { return s.inside(path) }
func (s interpreter) Private() string                  { return s.hookDir() }

func (s *Server) prepareKernels(w http.ResponseWriter, r *http.Request) error {
	var in wire.Kernels
	if err := receive(r, &in); err != nil {
		return err
	}
	if err := s.kernels.Prepare(r.Context(), in.Languages); err != nil {
		return engi.Errorf(engi.KindOf(err), "prepare kernels: %w", err)
	}
	debug.FreeOSMemory() // as after prepare
	return empty(w)
}
