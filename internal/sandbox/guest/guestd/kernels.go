package guestd

import (
	"log"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/guest/guestd/child"
	"github.com/engi-dev/engi/internal/sandbox/guest/guestd/kernel"
	"github.com/engi-dev/engi/internal/sandbox/guest/wire"
)

// kernelSandbox adapts the server to package kernel.
type kernelSandbox struct{ *Server }

var _ kernel.Sandbox = kernelSandbox{}

func (s kernelSandbox) User() kernel.User {
	cfg := s.settings()
	return kernel.User{UID: cfg.owner.UID, GID: cfg.owner.GID, Home: cfg.Home, Env: cfg.env}
}

func (s kernelSandbox) LookPath(name string) (string, error) {
	return lookPath(name, "/", s.settings().env["PATH"])
}

func (s kernelSandbox) Start(p kernel.Program) (*child.Child, [2]*os.File, error) {
	cfg := s.settings()
	st, err := pipes(false)
	if err != nil {
		return nil, [2]*os.File{}, err
	}
	if p.Stdin != nil {
		null := st.childFDs[0]
		if st.childFDs[0], err = unix.FcntlInt(p.Stdin.Fd(), unix.F_DUPFD_CLOEXEC, 3); err != nil {
			st.childFDs[0] = null
			st.close()
			return nil, [2]*os.File{}, engi.Errorf(engi.Exhausted, "pass the kernel its input: %v", err)
		}
		syscall.Close(null)
	}
	c, err := s.table.Start(child.Spec{Path: p.Args[0], Args: p.Args, Env: environ(p.Env), Dir: p.Dir, User: cfg.user,
		Limits: cfg.limits(cfg.user), Files: st.childFDs, ChdirFirst: true})
	if err != nil {
		st.close()
		return nil, [2]*os.File{}, err
	}
	st.closeChildEnds()
	return c, [2]*os.File{st.output[0].file, st.output[1].file}, nil
}

func (s kernelSandbox) Signal(c *child.Child, sig syscall.Signal, group bool) {
	send := s.table.Signal
	if group {
		send = s.table.SignalGroup
	}
	if err := engi.Ignore(send(c, sig), engi.NotFound); err != nil {
		log.Printf("engi-guest: signal a kernel: %v", err)
	}
}

func (s kernelSandbox) Kill(c *child.Child)              { s.table.KillSession(c) }
func (s kernelSandbox) Resolve(path, home string) string { return s.resolve(path, home) }
func (s kernelSandbox) Inside(path string) string        { return s.inside(path) }
func (s kernelSandbox) Private() string                  { return s.privateDir() }

// serveKernels serves the code interpreter to programs in the sandbox on its usual
// port, unless a program already listens there.
func (s *Server) serveKernels() {
	for _, host := range []string{"127.0.0.1", "::1"} {
		l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(kernel.Port)))
		if err != nil {
			log.Printf("engi-guest: serve the code interpreter: %v", err)
			continue
		}
		s.work.Add(1)
		go func() {
			defer s.work.Done()
			s.local.Serve(l) // returns at Close
		}()
	}
}

func (s *Server) prepareKernels(w http.ResponseWriter, r *http.Request) error {
	var in wire.Kernels
	if err := readJSON(r, &in); err != nil {
		return err
	}
	if err := s.kernels.Prepare(r.Context(), in.Languages); err != nil {
		return engi.Errorf(engi.KindOf(err), "prepare kernels: %w", err)
	}
	debug.FreeOSMemory() // see prepare
	return noContent(w)
}
