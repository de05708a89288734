//go:build linux

// Command engi-js is the helper of the script tier: it locks itself in, then
// runs small programs that arrive on standard input, one at a time, and
// answers on standard output. Package script starts it; see script/wire for
// what is said.
package main

import (
	"bufio"
	"fmt"
	"os"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/script/engine"
	"github.com/engi-dev/engi/script/wire"
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
	if err := confine(); err != nil {
		return err
	}
	// The first frame says that the walls stand.
	if err := wire.Write(os.Stdout, wire.From{}, wire.MaxFrame); err != nil {
		return err
	}
	runs := make(chan wire.Run)
	answers := make(chan wire.Answer, 64)
	gone := make(chan error, 1)
	go func() {
		in := bufio.NewReader(os.Stdin)
		for {
			var to wire.To
			if err := wire.Read(in, &to, wire.MaxFrame); err != nil {
				gone <- err
				close(answers)
				close(runs)
				return
			}
			switch {
			case to.Run != nil:
				runs <- *to.Run
			case to.Answer != nil:
				answers <- *to.Answer
			}
		}
	}()
	for run := range runs {
		for drained := false; !drained; { // of a run before
			select {
			case <-answers:
			default:
				drained = true
			}
		}
		done, err := e.Run(run, engine.Host{
			Answers: answers,
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
		if engi.KindOf(err) == engi.Invalid { // the engine's bounds should not let that be
			done = wire.Done{Run: run.ID, Duration: done.Duration, Error: &wire.Error{Kind: engi.ScriptMemory, Name: "RangeError", Message: "the answer is too large"}}
			err = wire.Write(os.Stdout, wire.From{Done: &done}, run.Limits.Frame())
		}
		if err != nil {
			return err
		}
		if err := e.Prepare(run); err != nil {
			return err
		}
	}
	if err := <-gone; engi.KindOf(err) != engi.Unavailable {
		return err
	}
	return nil
}
