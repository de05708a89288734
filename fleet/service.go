package fleet

import (
	"cmp"
	"context"
	"strings"
	"time"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/guest"
)

const (
	// readyTime bounds how long what a template starts may take to come up.
	readyTime = 2 * time.Minute
	// readyPoll is the pause between questions whether it has.
	readyPoll = 100 * time.Millisecond
	// saidMost is how much of what it said is shown when it has not.
	saidMost = 2 << 10
)

// launchServices starts what sandboxes of t begin with in a machine that has
// just booted: its command, and, if there is time for that, the kernels of the
// code interpreter, which else start when they are needed.
func launchServices(ctx context.Context, g *guest.Client, t engi.Template, kernels bool) error {
	if t.Start == "" && (len(t.Kernels) == 0 || !kernels) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, readyTime)
	defer cancel()
	if t.Start != "" {
		if err := launchStart(ctx, g, t); err != nil {
			return err
		}
	}
	if kernels && len(t.Kernels) > 0 {
		return g.PrepareKernels(ctx, t.Kernels)
	}
	return nil
}

// launchStart runs the start command and waits until its template says that it
// has come up. The command goes on.
func launchStart(ctx context.Context, g *guest.Client, t engi.Template) error {
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
			return engi.Errorf(engi.Invalid, "the start command of template %s ended with %d: %s", t.Name, exit.Code, saidBy(ctx, service)).
				WithRemedy("correct the template's start command and build it again")
		case <-ctx.Done():
			return engi.Errorf(engi.Invalid, "the start command of template %s has not come up: %s", t.Name, saidBy(ctx, service)).
				WithRemedy("correct the template's start or ready command and build it again")
		case <-time.After(readyPoll):
		}
	}
}

// saidBy is the end of what a process printed so far, for people.
func saidBy(ctx context.Context, p engi.Process) string {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	var said []byte
	for c, err := range p.Output(ctx, 0) {
		if err != nil {
			break
		}
		said = append(said, c.Data...)
		said = said[max(0, len(said)-saidMost):]
	}
	text := strings.TrimSpace(strings.ToValidUTF8(string(said), "\ufffd"))
	return cmp.Or(text, "it said nothing")
}
