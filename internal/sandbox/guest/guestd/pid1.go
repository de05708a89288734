package guestd

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/engi-dev/engi/internal/clock"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/guest/wire"
)

const (
	minBackoff = 10 * time.Millisecond
	maxBackoff = 250 * time.Millisecond
	resumePoll = 10 * time.Millisecond
	flushDelay = 10 * time.Millisecond // time to send an answer before its connection is closed
)

// Run is the main loop of PID 1: it reads guest.json, dials the host and serves it.
// Run returns when ctx ends or on power-off.
func (s *Server) Run(ctx context.Context) error {
	if !s.o.InProcess {
		defer holdSignals()()
		go s.table.Reap() // runs until PID 1 ends
	}
	if err := s.configure(false); err != nil {
		return err
	}
	s.dialing.Store(true)
	defer s.dialing.Store(false)
	for ctx.Err() == nil {
		live, cancel := context.WithCancel(ctx)
		dialed := make(chan struct{})
		go func() {
			defer close(dialed)
			s.keepDialing(live, ctx)
		}()
		select {
		case <-s.poweredOff:
			time.Sleep(flushDelay)
			cancel()
			<-dialed
			s.closeConns()
			return nil
		case <-ctx.Done():
			cancel()
			<-dialed
		case token := <-s.quiesced:
			time.Sleep(flushDelay)
			cancel()
			<-dialed // the spare connection is closed before those in use
			s.closeConns()
			if err := s.awaitResume(ctx, token); err != nil {
				return err
			}
		}
	}
	return engi.Errorf(engi.Expired, "run the guest: %v", ctx.Err())
}

// holdSignals prevents signals sent by programs from ending PID 1. It does not ignore
// the signals, because programs would inherit the ignored state.
func holdSignals() (release func()) {
	drop := make(chan os.Signal, 1)
	for n := syscall.Signal(1); n < 32; n++ {
		switch n {
		case syscall.SIGKILL, syscall.SIGSTOP, syscall.SIGCHLD, syscall.SIGURG, syscall.SIGPROF:
		default:
			signal.Notify(drop, n)
		}
	}
	return func() { signal.Stop(drop) }
}

// channelPath returns the path of a file in the host's directory.
func (s *Server) channelPath(name string) string { return filepath.Join(s.path(wire.Dir), name) }

// configure applies guest.json. After a restore it also sets the clock.
func (s *Server) configure(restored bool) error {
	b, err := os.ReadFile(s.channelPath(wire.ConfigName))
	if err != nil {
		return engi.Errorf(engi.Internal, "read configuration: %v", err)
	}
	var c wire.Config
	if err := json.Unmarshal(b, &c); err != nil {
		return engi.Errorf(engi.Invalid, "read configuration: %v", err)
	}
	if s.o.Token == "" {
		s.token.Store(&c.Token)
	}
	if s.o.InProcess {
		return nil
	}
	// A kernel that does not permit these calls has the values set already.
	if c.Hostname != "" {
		if err := unix.Sethostname([]byte(c.Hostname)); err != nil && !errors.Is(err, unix.EPERM) {
			log.Printf("engi-guest: set host name: %v", err)
		}
	}
	if restored && c.Time != 0 {
		ts := unix.NsecToTimespec(c.Time)
		if err := unix.ClockSettime(unix.CLOCK_REALTIME, &ts); err != nil && !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.ENOSYS) {
			log.Printf("engi-guest: set clock: %v", err)
		}
	}
	if len(c.Entropy) > 0 {
		if err := os.WriteFile("/dev/urandom", c.Entropy, 0); err != nil {
			log.Printf("engi-guest: mix entropy: %v", err)
		}
	}
	return nil
}

// keepDialing keeps one spare connection to the host until ctx ends.
// Connections in use are served until serving ends.
func (s *Server) keepDialing(ctx, serving context.Context) {
	var d net.Dialer
	for wait := minBackoff; ctx.Err() == nil; {
		conn, err := d.DialContext(ctx, "unix", s.channelPath(wire.SocketName))
		if err == nil {
			var first []byte
			if first, err = readFirst(ctx, conn); err == nil {
				wait = minBackoff
				s.work.Add(1)
				go func() {
					defer s.work.Done()
					s.Serve(serving, &prefixedConn{Conn: conn, prefix: first})
				}()
				continue
			}
			conn.Close()
		}
		_ = clock.Sleep(ctx, wait)
		wait = min(2*wait, maxBackoff)
	}
}

// readFirst waits until the host sends on a connection, and returns the first bytes.
func readFirst(ctx context.Context, conn net.Conn) ([]byte, error) {
	stop := context.AfterFunc(ctx, func() { conn.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	b := make([]byte, 64)
	n, err := conn.Read(b)
	if n > 0 {
		return b[:n], nil
	}
	if err == nil {
		err = io.ErrNoProgress
	}
	return nil, err
}

// prefixedConn is a connection whose first bytes have been read into prefix.
type prefixedConn struct {
	net.Conn
	prefix []byte // bytes already read; owned by the reading goroutine
}

func (b *prefixedConn) Read(p []byte) (int, error) {
	if len(b.prefix) > 0 {
		n := copy(p, b.prefix)
		b.prefix = b.prefix[n:]
		return n, nil
	}
	return b.Conn.Read(p)
}

// quiesce sends its answer; then every connection is closed. The host knows that no connection
// is left when the connection of its request ends.
func (s *Server) quiesce(w http.ResponseWriter, r *http.Request) error {
	if !s.dialing.Load() {
		return engi.Errorf(engi.Unsupported, "quiesce: this guest does not dial its host")
	}
	token, err := s.readResume()
	if err != nil {
		return engi.Errorf(engi.Internal, "quiesce: %v", err)
	}
	select {
	case s.quiesced <- token:
	default:
		return engi.Errorf(engi.Conflict, "quiesce: in progress already")
	}
	return noContent(w)
}

// awaitResume waits until the resume token differs from before, and applies
// the new configuration.
func (s *Server) awaitResume(ctx context.Context, before string) error {
	for {
		token, err := s.readResume()
		if err != nil {
			log.Printf("engi-guest: look for %s: %v", wire.ResumeName, err)
		} else if token != before {
			return s.configure(true)
		}
		if clock.Sleep(ctx, resumePoll) != nil {
			return engi.Errorf(engi.Expired, "wait for the restore: %v", ctx.Err())
		}
	}
}

// readResume returns the current resume token, empty if there is none.
func (s *Server) readResume() (string, error) {
	b, err := os.ReadFile(s.channelPath(wire.ResumeName))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return "token " + string(b), err
}

func (s *Server) powerOff(w http.ResponseWriter, r *http.Request) error {
	if !s.dialing.Load() {
		return engi.Errorf(engi.Unsupported, "power off: this guest runs inside another program")
	}
	s.powerOffOnce.Do(func() { close(s.poweredOff) })
	return noContent(w)
}
