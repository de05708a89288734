//go:build linux

// Command engi-js is the helper process of the script tier. It confines itself, then
// runs small programs from standard input, one at a time, and writes results to
// standard output. Package script starts it; package internal/sandbox/script/wire is the protocol.
package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/script/engine"
	"github.com/engi-dev/engi/internal/sandbox/script/wire"
)

func main() {
	if err := serve(); err != nil {
		fmt.Fprintln(os.Stderr, "engi-js:", err)
		os.Exit(1)
	}
}

func serve() error {
	e, err := engine.New()
	if err != nil {
		return err
	}
	// Deadlines need a descriptor in non-blocking mode.
	if err := unix.SetNonblock(0, true); err != nil {
		return fmt.Errorf("standard input: %v", err)
	}
	h := &host{in: os.NewFile(0, "stdin")}
	h.r = bufio.NewReader(h.in)
	if err := confine(); err != nil {
		return err
	}
	// The first frame reports that this process is confined.
	if err := wire.Write(os.Stdout, wire.From{}, wire.MaxFrame); err != nil {
		return err
	}
	for {
		run, err := h.next()
		if engi.Is(err, engi.Unavailable) {
			return nil // the host has closed the pipe
		}
		if err != nil {
			return err
		}
		if err := h.serve(e, *run); err != nil {
			return err
		}
		if err := e.Prepare(*run); err != nil {
			return err
		}
	}
}

// A host is the process that started this one.
type host struct {
	in *os.File
	r  *bufio.Reader
}

// next returns the next run. It skips late answers to the one before.
func (h *host) next() (*wire.Run, error) {
	if err := h.in.SetReadDeadline(time.Time{}); err != nil {
		return nil, fmt.Errorf("standard input: %v", err)
	}
	for {
		var to wire.To
		if err := wire.Read(h.r, &to, wire.MaxFrame); err != nil {
			return nil, err
		}
		if to.Run != nil {
			return to.Run, nil
		}
	}
}

// serve runs a program and writes its result.
func (h *host) serve(e *engine.Engine, run wire.Run) error {
	done, err := e.Run(run, engine.Host{
		Answer: h.answer,
		Call: func(c wire.Call) error {
			c.Run = run.ID
			return wire.Write(os.Stdout, wire.From{Call: &c}, run.Limits.Frame())
		},
	})
	if err != nil {
		return err
	}
	done.Run = run.ID
	err = wire.Write(os.Stdout, wire.From{Done: &done}, run.Limits.Frame())
	if engi.Is(err, engi.Invalid) { // the engine's limits should prevent this
		done = wire.Done{Run: run.ID, Duration: done.Duration, Error: &wire.Error{Kind: engi.ScriptMemory, Name: "RangeError", Message: "the answer is too large"}}
		err = wire.Write(os.Stdout, wire.From{Done: &done}, run.Limits.Frame())
	}
	return err
}

// answer waits for an answer. Once its first byte has arrived, it waits for the rest.
func (h *host) answer(until time.Time) (a wire.Answer, ok bool, err error) {
	if err := h.in.SetReadDeadline(until); err != nil {
		return a, false, fmt.Errorf("standard input: %v", err)
	}
	if _, err := h.r.Peek(1); errors.Is(err, os.ErrDeadlineExceeded) {
		return a, false, nil
	}
	if err := h.in.SetReadDeadline(time.Time{}); err != nil {
		return a, false, fmt.Errorf("standard input: %v", err)
	}
	var to wire.To
	if err := wire.Read(h.r, &to, wire.MaxFrame); err != nil {
		return a, false, err
	}
	if to.Answer == nil {
		return a, false, engi.Errorf(engi.Invalid, "got a frame that is not an answer")
	}
	return *to.Answer, true, nil
}
