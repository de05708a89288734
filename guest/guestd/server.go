// Package guestd is the program inside a sandbox: it starts processes and
// warm interpreters, serves files, ports and terminals, collects what runs
// leave behind, and reaps what dies. As PID 1 it dials the host over the
// socket of package guest/wire; in-process twins are served over any stream.
//
// It decides nothing about who may do what: whoever holds the token may do
// everything the sandbox can. Its parts below know nothing of each other:
// child starts and reaps, warm prepares interpreters, tree touches files,
// envd speaks E2B's dialect, kernel is the code interpreter.
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

	"golang.org/x/sys/unix"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/guest/guestd/child"
	"github.com/engi-dev/engi/guest/guestd/envd"
	"github.com/engi-dev/engi/guest/guestd/kernel"
	"github.com/engi-dev/engi/guest/wire"
)

// Options say where a Server lives. The zero value is a sandbox's PID 1.
type Options struct {
	Root  string // directory that stands for /; empty means the real one
	Token string // that requests must carry; empty means the one of guest.json
	Twin  bool   // not PID 1: reap and kill only what this server started, change no user, leave the kernel alone
}

// A Server is one guest. It is safe for concurrent use.
type Server struct {
	o     Options
	boot  string
	table *child.Table
	http  *http.Server

	dialect *envd.Handler
	kernels *kernel.Kernels
	token   atomic.Pointer[string]

	dialing atomic.Bool   // Run dials the host
	off     chan struct{} // closed on power-off
	offOnce sync.Once
	quiet   chan string // receives when the host asks for silence: its last sign to go on
	work    sync.WaitGroup

	settingUp sync.Mutex // held over a whole set-up

	chosen sync.Mutex // held while a process starts whose ID the host has chosen

	mu    sync.Mutex
	setup account
	procs procs
	runs  map[string]*run
	ended []string // IDs of finished runs, oldest first
	waits map[engi.Language]*waiting
	conns map[net.Conn]bool
}

// New returns a server that does nothing until Serve or Run is called.
func New(o Options) *Server {
	s := &Server{
		o:     o,
		boot:  rand.Text(),
		table: child.NewTable(!o.Twin),
		off:   make(chan struct{}),
		quiet: make(chan string, 1),
		procs: procs{byID: map[string]*proc{}},
		runs:  map[string]*run{},
		waits: map[engi.Language]*waiting{},
		conns: map[net.Conn]bool{},
	}
	s.token.Store(&o.Token)
	s.setup = s.defaultAccount()
	var p http.Protocols
	p.SetUnencryptedHTTP2(true)
	p.SetHTTP1(true) // for people with curl
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

// Serve speaks to a host over conn until conn or ctx ends, and closes conn.
func (s *Server) Serve(ctx context.Context, conn net.Conn) error {
	l := newSingle(conn)
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
	s.http.Serve(l) // it ends when the only connection did
	<-l.conn.done
	if err := context.Cause(ctx); err != nil {
		return engi.Errorf(engi.Expired, "serve: %v", err)
	}
	return nil
}

// Close kills everything the server started and waits until it is gone.
func (s *Server) Close() error {
	s.mu.Lock()
	var all []*child.Child
	for _, p := range s.procs.byID {
		all = append(all, p.child)
	}
	for _, r := range s.runs {
		if r.proc != nil { // nil while its input is on the way
			all = append(all, r.proc.child)
		}
	}
	for _, w := range s.waits {
		w.hook.Close()
	}
	s.mu.Unlock()
	s.hangUp()
	s.kernels.Close()
	s.table.Close()
	for _, c := range all { // what ended may have left others behind
		s.table.KillSession(c)
	}
	s.work.Wait()
	return nil
}

// hangUp closes every connection.
func (s *Server) hangUp() {
	s.mu.Lock()
	conns := slices.Collect(maps.Keys(s.conns))
	s.mu.Unlock()
	for _, c := range conns {
		c.Close()
	}
}

// handler demands the token, survives whatever a request does, and routes.
func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	s.routes(mux)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			switch p := recover(); p {
			case nil:
			case http.ErrAbortHandler:
				panic(p) // an answer that began and cannot be finished
			default:
				buf := make([]byte, 8<<10)
				log.Printf("engi-guest: %s %s: panic: %v\n%s", r.Method, r.URL.Path, p, buf[:runtime.Stack(buf, false)])
				fail(w, engi.Errorf(engi.Internal, "the guest program panicked"))
			}
		}()
		want, got := *s.token.Load(), r.Header.Get(wire.TokenHeader)
		if want == "" || subtle.ConstantTimeCompare([]byte(want), []byte(got)) != 1 {
			fail(w, engi.Errorf(engi.Anonymous, "the token is missing or wrong"))
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// act is a request handler that may fail before it has answered anything.
type act func(w http.ResponseWriter, r *http.Request) error

func (f act) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := f(w, r); err != nil {
		fail(w, err)
	}
}

func (s *Server) routes(mux *http.ServeMux) {
	for pattern, f := range map[string]act{
		"GET " + wire.Prefix + "hello":                s.hello,
		"POST " + wire.Prefix + "setup":               s.doSetup,
		"POST " + wire.Prefix + "prepare":             s.prepare,
		"POST " + wire.Prefix + "kernels":             s.prepareKernels,
		"POST " + wire.Prefix + "run":                 s.run,
		"GET " + wire.Prefix + "run/{id}":             s.reattach,
		"GET " + wire.Prefix + "run/{id}/artifacts":   s.artifacts,
		"POST " + wire.Prefix + "process":             s.start,
		"GET " + wire.Prefix + "process":              s.list,
		"GET " + wire.Prefix + "process/{id}":         s.attach,
		"POST " + wire.Prefix + "process/{id}/input":  s.input,
		"POST " + wire.Prefix + "process/{id}/eof":    s.closeInput,
		"POST " + wire.Prefix + "process/{id}/signal": s.signal,
		"POST " + wire.Prefix + "process/{id}/resize": s.resize,
		"GET " + wire.Prefix + "usage":                s.usage,
		"POST " + wire.Prefix + "quiesce":             s.quiesce,
		"POST " + wire.Prefix + "poweroff":            s.powerOff,
	} {
		mux.Handle(pattern, f)
	}
	s.fileRoutes(mux)
	s.dialect = envd.New(&dialect{Server: s})
	mux.Handle("/", s.dialect)
	s.kernels = kernel.New(interpreter{s})
	mux.Handle(kernel.Prefix, s.kernels.Handler())
}

// path maps an absolute path inside to one this program can open.
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
	if !s.o.Twin {
		caps = append(caps, wire.CapProcesses)
	}
	if s.dialing.Load() {
		caps = append(caps, wire.CapQuiesce, wire.CapPowerOff)
	}
	return reply(w, wire.Hello{Version: wire.Version, Boot: s.boot, Kernel: kernel, Arch: runtime.GOARCH, Capabilities: caps})
}
