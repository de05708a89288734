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

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/guest/wire"
)

const (
	firstBackoff = 10 * time.Millisecond
	lastBackoff  = 250 * time.Millisecond
	resumePoll   = 10 * time.Millisecond
	lastWord     = 10 * time.Millisecond // for an answer to get out before its connection closes
)

// Run is the life of PID 1: it reads guest.json, dials the host and serves
// for ever. It returns only when ctx ends or on power-off.
func (s *Server) Run(ctx context.Context) error {
	if !s.o.Twin {
		defer holdSignals()()
		go s.table.Reap() // for as long as PID 1 lives
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
			s.dialForever(live, ctx)
		}()
		select {
		case <-s.off:
			time.Sleep(lastWord)
			cancel()
			<-dialed
			s.hangUp()
			return nil
		case <-ctx.Done():
			cancel()
			<-dialed
		case sign := <-s.quiet:
			time.Sleep(lastWord)
			cancel()
			<-dialed // the spare connection is closed before those in use
			s.hangUp()
			if err := s.sleep(ctx, sign); err != nil {
				return err
			}
		}
	}
	return engi.Errorf(engi.Expired, "run the guest: %v", ctx.Err())
}

// holdSignals keeps signals from inside from ending PID 1. They are not
// ignored, because programs would inherit that.
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

// channel returns the path of a file of the host's directory.
func (s *Server) channel(name string) string { return filepath.Join(s.path(wire.Dir), name) }

// configure reads guest.json. After a restore it also sets what the saved
// machine has wrong.
func (s *Server) configure(restored bool) error {
	b, err := os.ReadFile(s.channel(wire.ConfigName))
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
	if s.o.Twin {
		return nil
	}
	// A kernel that refuses these is one whose machine set them already.
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

// dialForever keeps one spare connection with the host until ctx ends. Those
// in use are served until serving ends.
func (s *Server) dialForever(ctx, serving context.Context) {
	var d net.Dialer
	for wait := firstBackoff; ctx.Err() == nil; {
		conn, err := d.DialContext(ctx, "unix", s.channel(wire.SocketName))
		if err == nil {
			var first []byte
			if first, err = firstBytes(ctx, conn); err == nil {
				wait = firstBackoff
				s.work.Add(1)
				go func() {
					defer s.work.Done()
					s.Serve(serving, &begun{Conn: conn, first: first})
				}()
				continue
			}
			conn.Close()
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
		wait = min(2*wait, lastBackoff)
	}
}

// firstBytes waits until the host uses a connection.
func firstBytes(ctx context.Context, conn net.Conn) ([]byte, error) {
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

// begun is a connection whose first bytes were read already.
type begun struct {
	net.Conn
	first []byte // for the one goroutine that reads
}

func (b *begun) Read(p []byte) (int, error) {
	if len(b.first) > 0 {
		n := copy(p, b.first)
		b.first = b.first[n:]
		return n, nil
	}
	return b.Conn.Read(p)
}

// quiesce answers, then closes every connection. The host knows that none is
// left when it sees the end of the one it asked on.
func (s *Server) quiesce(w http.ResponseWriter, r *http.Request) error {
	if !s.dialing.Load() {
		return engi.Errorf(engi.Unsupported, "quiesce: this guest does not dial its host")
	}
	sign, err := s.resumeSign()
	if err != nil {
		return engi.Errorf(engi.Internal, "quiesce: %v", err)
	}
	select {
	case s.quiet <- sign:
	default:
		return engi.Errorf(engi.Conflict, "quiesce: the guest does so already")
	}
	return empty(w)
}

// sleep waits until the host's sign is another than that of before, and takes
// up the new configuration.
func (s *Server) sleep(ctx context.Context, before string) error {
	for {
		sign, err := s.resumeSign()
		if err != nil {
			log.Printf("engi-guest: look for %s: %v", wire.ResumeName, err)
		} else if sign != before {
			return s.configure(true)
		}
		select {
		case <-time.After(resumePoll):
		case <-ctx.Done():
			return engi.Errorf(engi.Expired, "wait for the restore: %v", ctx.Err())
		}
	}
}

// resumeSign reads the host's sign to go on; empty if there is none.
func (s *Server) resumeSign() (string, error) {
	b, err := os.ReadFile(s.channel(wire.ResumeName))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return "sign " + string(b), err
}

func (s *Server) powerOff(w http.ResponseWriter, r *http.Request) error {
	if !s.dialing.Load() {
		return engi.Errorf(engi.Unsupported, "power off: this guest lives in another program")
	}
	s.offOnce.Do(func() { close(s.off) })
	return empty(w)
}
