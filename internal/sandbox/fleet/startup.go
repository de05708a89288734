package fleet

import (
	"cmp"
	"context"
	"strings"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/guest"
)

const (
	readyTime  = 2 * time.Minute        // maximum time for the services of a template to become ready
	readyEvery = 100 * time.Millisecond // pause between runs of the ready command
	outputMost = 2 << 10                // maximum bytes of a failed service's output in the error
)

// startServices starts the services of t in a machine that has just booted:
// its start command and, with kernels, the kernels of the code interpreter,
// which otherwise start on first use.
func startServices(ctx context.Context, g *guest.Client, t engi.Template, kernels bool) error {
	if t.Start == "" && (len(t.Kernels) == 0 || !kernels) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, readyTime)
	defer cancel()
	if t.Start != "" {
		if err := runStartCommand(ctx, g, t); err != nil {
			return err
		}
	}
	if kernels && len(t.Kernels) > 0 {
		return g.PrepareKernels(ctx, t.Kernels)
	}
	return nil
}

// runStartCommand runs the start command of t, which keeps running, and waits until
// the ready command succeeds.
func runStartCommand(ctx context.Context, g *guest.Client, t engi.Template) error {
	shell := cmp.Or(t.Shell, "/bin/sh")
	dir := cmp.Or(t.WorkDir, workDir)
	service, err := g.Start(ctx, engi.Command{Args: []string{shell, "-c", t.Start}, Dir: dir, Tag: "start"})
	if err != nil {
		return err
	}
	if t.Ready == "" {
		return nil
	}
	failed := make(chan engi.Exit, 1)
	watch, stop := context.WithCancel(ctx)
	defer stop()
	watched := make(chan struct{})
	defer func() { stop(); <-watched }()
	go func() {
		defer close(watched)
		if exit, err := service.Wait(watch); err == nil && exit.Code != 0 {
			failed <- exit
		}
	}()
	for {
		p, err := g.Start(ctx, engi.Command{Args: []string{shell, "-c", t.Ready}, Dir: dir, Timeout: 10 * time.Second})
		if err != nil {
			return err
		}
		exit, err := p.Wait(ctx)
		if err == nil && exit.Code == 0 {
			return nil
		}
		if err != nil && ctx.Err() == nil {
			return err
		}
		select {
		case exit := <-failed:
			return engi.Errorf(engi.Invalid, "the start command of template %s ended with %d: %s", t.Name, exit.Code, outputTail(ctx, service)).
				WithRemedy("correct the template's start command and build it again")
		case <-ctx.Done():
			return engi.Errorf(engi.Invalid, "the start command of template %s has not come up: %s", t.Name, outputTail(ctx, service)).
				WithRemedy("correct the template's start or ready command and build it again")
		case <-time.After(readyEvery):
		}
	}
}

// outputTail returns the end of the output of a process so far.
func outputTail(ctx context.Context, p engi.Process) string {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	var tail []byte
	for c, err := range p.Output(ctx, 0) {
		if err != nil {
			break
		}
		tail = append(tail, c.Data...)
		tail = tail[max(0, len(tail)-outputMost):]
	}
	text := strings.TrimSpace(strings.ToValidUTF8(string(tail), "\ufffd"))
	return cmp.Or(text, "it printed nothing")
}
