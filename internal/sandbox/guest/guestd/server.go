// Package guestd is the program inside a sandbox. It starts processes and warm
// interpreters, serves files, ports and terminals, collects artifacts of runs,
// and reaps processes. As PID 1 it dials the host over the socket of package
// internal/sandbox/guest/wire; tests run it in their own process and serve any stream.
//
// It has no finer authorization: a holder of the token may do anything that the sandbox
// can. Of the packages below, child starts and reaps processes, warm prepares
// interpreters, tree works on files, envd serves the API of E2B's envd, and
// kernel serves the API of E2B's code interpreter.
package guestd

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"log"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/guest/guestd/child"
	"github.com/engi-dev/engi/internal/sandbox/guest/guestd/envd"
	"github.com/engi-dev/engi/internal/sandbox/guest/guestd/kernel"
	"github.com/engi-dev/engi/internal/sandbox/guest/wire"
)

// Options configures a Server. The zero value is for PID 1 of a sandbox.
type Options struct {
	Root      string // directory to use as /; empty means the real one
	Token     string // required in requests; empty means the token in guest.json
	InProcess bool   // for tests: the server is not PID 1, so it reaps and kills only its own children, and changes neither users nor kernel settings
}

// A Server is the guest of one sandbox. It is safe for concurrent use.
type Server struct {
	o     Options
	boot  string
	table *child.Table
	http  *http.Server

	e2b     *envd.Handler
	kernels *kernel.Kernels
	local   *http.Server // serves kernels to programs in the sandbox
	token   atomic.Pointer[string]

	dialing      atomic.Bool   // Run is dialing the host
	poweredOff   chan struct{} // closed on power-off
	powerOffOnce sync.Once
	quiesced     chan string // receives the current resume token when the host asks to quiesce
	work         sync.WaitGroup

	setupMu sync.Mutex // serializes setup requests

	chosenMu sync.Mutex // held during the start of a process whose ID the host has chosen

	mu      sync.Mutex
	closing bool
	current settings
	procs   procs
	runs    map[string]*run
	ended   []string // IDs of finished runs, oldest first
	warm    map[engi.Language]*warmInterpreter
	conns   map[net.Conn]bool
}

// New returns a server. It does nothing until Serve or Run is called.
func New(o Options) *Server {
	s := &Server{
		o:          o,
		boot:       rand.Text(),
		table:      child.NewTable(!o.InProcess),
		poweredOff: make(chan struct{}),
		quiesced:   make(chan string, 1),
		procs:      procs{byID: map[string]*proc{}},
		runs:       map[string]*run{},
		warm:       map[engi.Language]*warmInterpreter{},
		conns:      map[net.Conn]bool{},
	}
	s.token.Store(&o.Token)
	s.current = s.defaultSettings()
	var p http.Protocols
	p.SetUnencryptedHTTP2(true)
	p.SetHTTP1(true) // for debugging with curl
	s.http = &http.Server{
		Handler:   s.handler(),
		Protocols: &p,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams:          1000,
			MaxReadFrameSize:              256 << 10,
			MaxReceiveBufferPerConnection: 8 << 20,
			MaxReceiveBufferPerStream:     4 << 20,
		},
		MaxHeaderBytes: 64 << 10,
		ErrorLog:       log.New(os.Stderr, "engi-guest: ", 0),
	}
	return s
}

// Serve serves a host on conn until conn or ctx ends, and closes conn.
func (s *Server) Serve(ctx context.Context, conn net.Conn) error {
	l := newSingleListener(conn)
	s.mu.Lock()
	s.conns[l.conn] = true
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.conns, l.conn)
		s.mu.Unlock()
	}()
	stop := context.AfterFunc(ctx, func() { l.conn.Close() })
	defer stop()
	s.http.Serve(l) // returns at the end of the only connection
	<-l.conn.done
	if err := context.Cause(ctx); err != nil {
		return engi.Errorf(engi.Expired, "serve: %v", err)
	}
	return nil
}

// Close refuses further requests, kills everything that the server has started
// and waits for its end.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closing = true
	var all []*child.Child
	for _, p := range s.procs.byID {
		all = append(all, p.child)
	}
	for _, r := range s.runs {
		if r.proc != nil { // nil while the run's input is being received
			all = append(all, r.proc.child)
		}
	}
	for _, w := range s.warm {
		w.preload.Close()
	}
	s.mu.Unlock()
	s.closeConns()
	s.local.Close()
	s.kernels.Close()
	s.table.Close()
	for _, c := range all { // an ended process may have left descendants
		s.table.KillSession(c)
	}
	s.work.Wait()
	return nil
}

// begin adds a request to the work that Close waits for. Work that the request starts is
// added while the request counts, so Close never misses it. It reports whether to serve the request.
func (s *Server) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return false
	}
	s.work.Add(1)
	return true
}

// closeConns closes every connection.
func (s *Server) closeConns() {
	s.mu.Lock()
	conns := slices.Collect(maps.Keys(s.conns))
	s.mu.Unlock()
	for _, c := range conns {
		c.Close()
	}
}

// handler checks the token, recovers from panics, and routes requests.
func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	s.routes(mux)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !s.begin() {
			writeError(w, engi.Errorf(engi.Unavailable, "the guest is closing"))
			return
		}
		defer s.work.Done()
		defer func() {
			switch p := recover(); p {
			case nil:
			case http.ErrAbortHandler:
				panic(p) // aborts an answer that has begun
			default:
				buf := make([]byte, 8<<10)
				log.Printf("engi-guest: %s %s: panic: %v\n%s", r.Method, r.URL.Path, p, buf[:runtime.Stack(buf, false)])
				writeError(w, engi.Errorf(engi.Internal, "the guest program panicked"))
			}
		}()
		want, got := *s.token.Load(), r.Header.Get(wire.TokenHeader)
		if want == "" || subtle.ConstantTimeCompare([]byte(want), []byte(got)) != 1 {
			writeError(w, engi.Errorf(engi.Anonymous, "the token is missing or wrong"))
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// handlerFunc is a handler that may fail before it has written anything.
type handlerFunc func(w http.ResponseWriter, r *http.Request) error

func (f handlerFunc) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := f(w, r); err != nil {
		writeError(w, err)
	}
}

func (s *Server) routes(mux *http.ServeMux) {
	for pattern, f := range map[string]handlerFunc{
		"GET " + wire.Prefix + "hello":                s.hello,
		"POST " + wire.Prefix + "setup":               s.setup,
		"POST " + wire.Prefix + "prepare":             s.prepare,
		"POST " + wire.Prefix + "kernels":             s.prepareKernels,
		"POST " + wire.Prefix + "run":                 s.run,
		"GET " + wire.Prefix + "run/{id}":             s.reattach,
		"GET " + wire.Prefix + "run/{id}/artifacts":   s.artifacts,
		"POST " + wire.Prefix + "process":             s.start,
		"GET " + wire.Prefix + "process":              s.list,
		"GET " + wire.Prefix + "process/{id}":         s.process(s.attach),
		"POST " + wire.Prefix + "process/{id}/input":  s.process(s.input),
		"POST " + wire.Prefix + "process/{id}/eof":    s.process(s.closeInput),
		"POST " + wire.Prefix + "process/{id}/signal": s.process(s.signal),
		"POST " + wire.Prefix + "process/{id}/resize": s.process(s.resize),
		"GET " + wire.Prefix + "process/{id}/history": s.process(s.history),
		"GET " + wire.Prefix + "usage":                s.usage,
		"POST " + wire.Prefix + "quiesce":             s.quiesce,
		"POST " + wire.Prefix + "poweroff":            s.powerOff,
	} {
		mux.Handle(pattern, f)
	}
	s.fileRoutes(mux)
	s.e2b = envd.New(&e2bSandbox{Server: s})
	s.kernels = kernel.New(kernelSandbox{s})
	s.local = &http.Server{Handler: s.kernels.Local(), MaxHeaderBytes: 64 << 10, ReadHeaderTimeout: time.Minute, ErrorLog: log.New(os.Stderr, "engi-guest: ", 0)}
	for _, routes := range []map[string]http.HandlerFunc{s.e2b.Routes(), s.kernels.Routes()} {
		for pattern, f := range routes {
			mux.Handle(pattern, f)
		}
	}
}

// path maps an absolute path in the sandbox to a path that this program can open.
func (s *Server) path(inside string) string {
	if s.o.Root == "" {
		return filepath.Clean(inside)
	}
	return filepath.Join(s.o.Root, filepath.Clean("/"+inside))
}

// inside is the inverse of path.
func (s *Server) inside(path string) string {
	if s.o.Root == "" {
		return path
	}
	return "/" + strings.TrimPrefix(strings.TrimPrefix(path, s.o.Root), "/")
}

func (s *Server) hello(w http.ResponseWriter, r *http.Request) error {
	var u unix.Utsname
	kernel := runtime.GOOS
	if unix.Uname(&u) == nil {
		kernel = unix.ByteSliceToString(u.Sysname[:]) + " " + unix.ByteSliceToString(u.Release[:])
	}
	caps := []string{wire.CapRun, wire.CapProcess, wire.CapFile, wire.CapPort, wire.CapE2B, wire.CapKernels}
	if !s.o.InProcess {
		caps = append(caps, wire.CapProcesses)
	}
	if s.dialing.Load() {
		caps = append(caps, wire.CapQuiesce, wire.CapPowerOff)
	}
	return wire.WriteJSON(w, wire.Hello{Version: wire.Version, Boot: s.boot, Kernel: kernel, Arch: runtime.GOARCH, Capabilities: caps})
}
