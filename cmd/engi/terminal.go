package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/term"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/client"
	"github.com/engi-dev/engi/internal/clock"
	"github.com/engi-dev/engi/internal/engi"
)

type terminalCommand struct {
	New     terminalNew     `cmd:"" aliases:"create" help:"Start a program in a terminal without attaching to it."`
	List    terminalList    `cmd:"" aliases:"ls" help:"List terminals of a session or sandbox."`
	Attach  terminalAttach  `cmd:"" help:"Attach to a terminal."`
	Screen  terminalScreen  `cmd:"" help:"Print the screen of a terminal."`
	Share   terminalShare   `cmd:"" help:"Create a link to a terminal."`
	Links   terminalLinks   `cmd:"" help:"List links to a terminal."`
	Unshare terminalUnshare `cmd:"" help:"Revoke a link."`
	Watch   terminalWatch   `cmd:"" help:"Attach to a terminal with a link."`
	Record  terminalRecord  `cmd:"" help:"Print the kept output of a terminal as a recording (asciicast)."`
	Replay  terminalReplay  `cmd:"" help:"Play a recording."`
	Kill    terminalKill    `cmd:"" aliases:"rm" help:"End the program of a terminal."`
}

// A terminalArg is an argument that names a terminal.
type terminalArg struct {
	Place string `arg:"" help:"Session, or ID of a sandbox." placeholder:"SESSION"`
	ID    string `arg:"" optional:"" help:"Terminal (default: the newest running one)." placeholder:"TERMINAL"`
}

// id returns the ID of the terminal.
func (a terminalArg) id(ctx context.Context, d *connection) (string, error) {
	if a.ID != "" {
		return a.ID, nil
	}
	t, err := newestTerminal(ctx, d, a.Place)
	if err == nil && t.ID == "" {
		err = engi.Errorf(engi.NotFound, "no terminal runs in %.140s", a.Place).WithRemedy("'engi terminal new %s' starts one", a.Place)
	}
	return t.ID, err
}

// newestTerminal returns the newest running terminal; empty if there is none.
func newestTerminal(ctx context.Context, d *connection, place string) (v1.Terminal, error) {
	all, err := d.Terminals(ctx, place)
	if i := slices.IndexFunc(all, func(t v1.Terminal) bool { return t.Running }); i >= 0 {
		return all[i], err
	}
	return v1.Terminal{}, err
}

type terminalNew struct {
	Place   string            `arg:"" help:"Session, or ID of a sandbox." placeholder:"SESSION"`
	Command []string          `arg:"" optional:"" help:"Program and arguments, after -- (default: the template's shell)." placeholder:"COMMAND"`
	Env     map[string]string `short:"e" help:"Environment variable of the program; may be repeated." placeholder:"NAME=VALUE" mapsep:"none"`
	Dir     string            `short:"w" help:"Working directory." placeholder:"DIR"`
	User    string            `short:"u" help:"User in the sandbox (default: the template's)." placeholder:"USER"`
	Cols    int               `help:"Columns." default:"80" placeholder:"N"`
	Rows    int               `help:"Rows." default:"24" placeholder:"N"`
	Keep    string            `help:"Size of the kept output, like 4MiB." placeholder:"SIZE"`
}

func (terminalNew) Help() string {
	return `Prints only the ID on standard output.

Examples:
  engi terminal new chat
  engi terminal new chat --cols 120 --rows 40 -- vim notes.md`
}

func (s *terminalNew) Run(ctx context.Context, g *globals) error {
	keep, err := size("--keep", s.Keep)
	if err != nil {
		return err
	}
	q := v1.TerminalRequest{Args: s.Command, Env: s.Env, Dir: s.Dir, User: s.User, Cols: s.Cols, Rows: s.Rows, Scrollback: keep}
	return create(ctx, g, func(d *connection) (v1.Terminal, error) { return d.CreateTerminal(ctx, s.Place, q) }, func(x v1.Terminal) string { return x.ID })
}

type terminalList struct {
	Place string `arg:"" help:"Session, or ID of a sandbox." placeholder:"SESSION"`
	Quiet bool   `short:"q" help:"Print IDs only."`
}

func (terminalList) Help() string { return example("engi terminal list chat") }

func (s *terminalList) Run(ctx context.Context, g *globals) error {
	all := table[v1.Terminal]{"ID\tPROGRAM\tSTATE\tVIEWERS\tCREATED", func(x v1.Terminal) []any {
		state := "ended"
		if x.Running {
			state = "running"
		}
		var names []string
		for _, v := range x.Viewers {
			names = append(names, v.Name)
		}
		return []any{x.ID, strings.Join(x.Args, " "), state, strings.Join(names, " "), ago(x.CreatedAt)}
	}, func(x v1.Terminal) string { return x.ID }}
	return all.list(ctx, g, s.Quiet, func(d *connection) ([]v1.Terminal, error) { return d.Terminals(ctx, s.Place) })
}

type terminalAttach struct {
	terminalArg
	ReadOnly bool   `help:"Watch without typing."`
	Name     string `help:"Name that other viewers see (default: the owner's name)." placeholder:"NAME"`
}

func (terminalAttach) Help() string {
	return `Shows the kept output of the terminal, or its screen, then new output. Ctrl-] detaches and leaves
the program running. A broken connection is reopened, and no input is lost or sent twice.

Examples:
  engi terminal attach chat
  engi terminal attach --read-only chat`
}

func (s *terminalAttach) Run(ctx context.Context, g *globals) error {
	return g.atServer(ctx, func(d *connection) error {
		id, err := s.id(ctx, d)
		if err != nil {
			return err
		}
		err = g.attach(ctx, d, s.Place, id, client.AttachOptions{Offset: client.FromOldest, ReadOnly: s.ReadOnly, Name: s.Name})
		return g.leave(err, "terminal attach", s.Place)
	})
}

type terminalScreen struct{ terminalArg }

func (terminalScreen) Help() string {
	return example("engi terminal screen chat", "engi terminal screen chat --json    # with the cursor")
}

func (s *terminalScreen) Run(ctx context.Context, g *globals) error {
	return show(ctx, g, func(d *connection) (x v1.TerminalScreen, err error) {
		id, err := s.id(ctx, d)
		if err != nil {
			return x, err
		}
		return d.TerminalScreen(ctx, s.Place, id)
	}, func(x v1.TerminalScreen) { fmt.Fprint(g.out, strings.TrimRight(x.Text, "\n")+"\n") })
}

type terminalShare struct {
	terminalArg
	Write bool   `help:"Allow typing with the link."`
	TTL   string `name:"ttl" help:"Lifetime of the link (default: one hour)." placeholder:"D"`
	Name  string `help:"Name of viewers who use the link." placeholder:"NAME"`
}

func (terminalShare) Help() string {
	return `Prints the secret of the link, which opens this terminal and nothing else until the link expires or
is revoked: 'engi terminal watch SECRET'.

Examples:
  engi terminal share chat
  engi terminal share chat --write --ttl 10m --name bob`
}

func (s *terminalShare) Run(ctx context.Context, g *globals) error {
	ttl, err := duration("--ttl", s.TTL)
	if err != nil {
		return err
	}
	return create(ctx, g, func(d *connection) (x v1.TerminalLink, err error) {
		id, err := s.id(ctx, d)
		if err != nil {
			return x, err
		}
		return d.ShareTerminal(ctx, s.Place, id, v1.TerminalLinkRequest{Write: s.Write, TTL: ttl, Name: s.Name})
	}, func(x v1.TerminalLink) string { return x.Secret })
}

type terminalLinks struct{ terminalArg }

func (terminalLinks) Help() string { return example("engi terminal links chat") }

func (s *terminalLinks) Run(ctx context.Context, g *globals) error {
	links := table[v1.TerminalLink]{"ID\tNAME\tMAY TYPE\tENDS IN", func(x v1.TerminalLink) []any {
		return []any{x.ID, x.Name, x.Write, short(time.Until(x.ExpiresAt))}
	}, nil}
	return links.list(ctx, g, false, func(d *connection) ([]v1.TerminalLink, error) {
		id, err := s.id(ctx, d)
		if err != nil {
			return nil, err
		}
		return d.TerminalLinks(ctx, s.Place, id)
	})
}

type terminalUnshare struct {
	Place string `arg:"" help:"Session, or ID of a sandbox." placeholder:"SESSION"`
	Link  string `arg:"" help:"Link." placeholder:"LINK"`
	ID    string `arg:"" optional:"" help:"Terminal (default: the newest running one)." placeholder:"TERMINAL"`
}

func (terminalUnshare) Help() string {
	return example("engi terminal unshare chat tlk_u2dmwmlezjgprkqrgppgcz2mgu")
}

func (s *terminalUnshare) Run(ctx context.Context, g *globals) error {
	return g.atServer(ctx, func(d *connection) error {
		id, err := terminalArg{s.Place, s.ID}.id(ctx, d)
		if err != nil {
			return err
		}
		return d.UnshareTerminal(ctx, s.Place, id, s.Link)
	})
}

type terminalWatch struct {
	Secret   string `arg:"" help:"Secret of the link." placeholder:"SECRET"`
	ReadOnly bool   `help:"Watch without typing, even if the link allows typing."`
	Name     string `help:"Name that other viewers see." placeholder:"NAME"`
}

func (terminalWatch) Help() string { return example("engi terminal watch $SECRET") }

func (s *terminalWatch) Run(ctx context.Context, g *globals) error {
	g.Key = s.Secret // a link needs no key
	return g.atServer(ctx, func(d *connection) error {
		err := g.viewNew(ctx, func(o client.AttachOptions) (*client.Attachment, error) { return d.FollowTerminal(ctx, s.Secret, o) },
			client.AttachOptions{Offset: client.FromOldest, ReadOnly: s.ReadOnly, Name: s.Name})
		if errors.Is(err, errDetached) {
			return nil
		}
		return err
	})
}

type terminalRecord struct {
	terminalArg
	Format int    `help:"Version of asciicast: 2 or 3." default:"2" placeholder:"N"`
	Output string `short:"o" help:"File to write (default: standard output)." placeholder:"FILE"`
}

func (terminalRecord) Help() string {
	return `The last part of what every terminal prints is kept with its times: nothing has to be started.

Examples:
  engi terminal record chat -o demo.cast
  engi terminal record chat --format 3 | asciinema play -`
}

func (s *terminalRecord) Run(ctx context.Context, g *globals) error {
	return g.atServer(ctx, func(d *connection) (err error) {
		id, err := s.id(ctx, d)
		if err != nil {
			return err
		}
		recording, err := d.TerminalRecording(ctx, s.Place, id, s.Format)
		if err != nil {
			return err
		}
		defer recording.Close()
		to := g.out
		if s.Output != "" {
			f, err := os.Create(s.Output)
			if err != nil {
				return engi.Errorf(engi.Denied, "%v", err)
			}
			defer f.Close()
			to = f
		}
		if _, err := io.Copy(to, recording); err != nil {
			return engi.Errorf(engi.Unavailable, "write the recording: %v", err)
		}
		return nil
	})
}

type terminalReplay struct {
	File  string  `arg:"" help:"Recording; - reads standard input." placeholder:"FILE"`
	Speed float64 `help:"Speed factor." default:"1" placeholder:"X"`
	Idle  float64 `help:"Maximum pause, in seconds." default:"2" placeholder:"S"`
}

func (terminalReplay) Help() string {
	return `Plays asciicast, versions 2 and 3.

Examples:
  engi terminal replay demo.cast
  engi terminal replay --speed 4 demo.cast`
}

// maxCastLine is the maximum size of one event of a recording in bytes.
const maxCastLine = 16 << 20

func (s *terminalReplay) Run(ctx context.Context, g *globals) error {
	if s.Speed <= 0 || s.Idle < 0 {
		return engi.Errorf(engi.Invalid, "--speed must be positive, and --idle not negative")
	}
	in := io.Reader(g.in)
	if s.File != "-" {
		f, err := os.Open(s.File)
		if err != nil {
			return engi.Errorf(engi.NotFound, "%v", err)
		}
		defer f.Close()
		in = f
	}
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, maxCastLine)
	version, last := 0, 0.0
	for n := 1; lines.Scan(); n++ {
		line := lines.Bytes()
		if len(line) == 0 || line[0] == '#' && version == 3 {
			continue
		}
		if version == 0 {
			var head struct{ Version int }
			if err := json.Unmarshal(line, &head); err != nil || head.Version != 2 && head.Version != 3 {
				return engi.Errorf(engi.Invalid, "%s is no recording in asciicast, version 2 or 3", s.File)
			}
			version = head.Version
			continue
		}
		var event [3]any
		err := json.Unmarshal(line, &event)
		at, ok := event[0].(float64)
		data, text := event[2].(string)
		if err != nil || !ok || !text {
			return engi.Errorf(engi.Invalid, "line %d of %s is no event of a recording", n, s.File)
		}
		pause := at
		if version == 2 {
			pause, last = at-last, at
		}
		if clock.Sleep(ctx, time.Duration(max(0, min(pause, s.Idle))/s.Speed*float64(time.Second))) != nil {
			return exitCode(exitCancelled)
		}
		if event[1] == "o" {
			if _, err := io.WriteString(g.out, data); err != nil {
				return engi.Errorf(engi.Unavailable, "write output: %v", err)
			}
		}
	}
	if err := lines.Err(); err != nil {
		return engi.Errorf(engi.Invalid, "%s: %v", s.File, err)
	}
	if version == 0 {
		return engi.Errorf(engi.Invalid, "%s is empty", s.File)
	}
	return nil
}

type terminalKill struct{ terminalArg }

func (terminalKill) Help() string { return example("engi terminal kill chat") }

func (s *terminalKill) Run(ctx context.Context, g *globals) error {
	return g.atServer(ctx, func(d *connection) error {
		id, err := s.id(ctx, d)
		if err != nil {
			return err
		}
		return d.EndTerminal(ctx, s.Place, id)
	})
}

// terminalRequest returns a request for a shell in a terminal like this one.
func (g *globals) terminalRequest(user, dir string) v1.TerminalRequest {
	cols, rows := g.windowSize()
	q := v1.TerminalRequest{User: user, Dir: dir, Cols: min(cols, 512), Rows: min(rows, 256)}
	if v := os.Getenv("TERM"); v != "" {
		q.Env = map[string]string{"TERM": v}
	}
	return q
}

// shell attaches to the newest terminal of a session or sandbox, or starts one.
func (g *globals) shell(ctx context.Context, place, user, dir string, fresh bool) error {
	return g.atServer(ctx, func(d *connection) error {
		var t v1.Terminal
		var err error
		if !fresh {
			t, err = newestTerminal(ctx, d, place)
		}
		if err == nil && t.ID == "" {
			t, err = d.CreateTerminal(ctx, place, g.terminalRequest(user, dir))
		}
		if err != nil {
			return err
		}
		noun := "session"
		if t.SessionID == "" {
			noun = "sandbox"
		}
		return g.leave(g.attach(ctx, d, place, t.ID, client.AttachOptions{Offset: client.FromOldest}), noun, place)
	})
}

// leave prints how to reattach to a terminal, if err says that it was detached.
func (g *globals) leave(err error, noun, place string) error {
	if !errors.Is(err, errDetached) {
		return err
	}
	switch noun {
	case "sandbox", "session":
		fmt.Fprintf(g.err, "\r\nengi: left; 'engi %s shell %s' comes back, 'engi %s kill %s' ends it\r\n", noun, place, noun, place)
	default:
		fmt.Fprintf(g.err, "\r\nengi: left; 'engi %s %s' comes back\r\n", noun, place)
	}
	return nil
}

func (g *globals) attach(ctx context.Context, d *connection, place, id string, o client.AttachOptions) error {
	return g.viewNew(ctx, func(o client.AttachOptions) (*client.Attachment, error) { return d.AttachTerminal(ctx, place, id, o) }, o)
}

// viewNew shows the terminal that attach attaches to.
func (g *globals) viewNew(ctx context.Context, attach func(client.AttachOptions) (*client.Attachment, error), o client.AttachOptions) error {
	v := &quietView{real: term.IsTerminal(int(g.in.Fd()))}
	o.Message = func(m v1.TerminalMessage) {
		switch {
		case m.Type == v1.TerminalAttached && m.ReadOnly != nil:
			v.readOnly.Store(*m.ReadOnly)
		case m.Type == v1.TerminalReplayed:
			v.replayed.Store(true)
		case m.Type == v1.TerminalMissing && o.Offset >= 0:
			g.note("some output is missing: it is no longer kept")
		}
	}
	a, err := attach(o)
	if err != nil {
		return err
	}
	v.Attachment = a
	return g.view(ctx, v)
}

// quietView is an attachment that drops the local terminal's answers
// to queries in old output: they were answered when they were new.
type quietView struct {
	*client.Attachment
	real     bool // input is interactive, not piped in
	readOnly atomic.Bool
	replayed atomic.Bool
}

func (v *quietView) Write(typed []byte) (int, error) {
	answer := v.real && !v.replayed.Load() && bytes.HasPrefix(typed, []byte{0x1b})
	if len(typed) == 0 || answer || v.readOnly.Load() {
		return len(typed), nil
	}
	return v.Attachment.Write(typed)
}

func (v *quietView) Resize(cols, rows int) {
	if !v.readOnly.Load() {
		v.Attachment.Resize(cols, rows)
	}
}

// A terminalView is a terminal on the server.
type terminalView interface {
	Output(ctx context.Context) iter.Seq2[[]byte, error]
	Write(typed []byte) (int, error)
	Flush(ctx context.Context) error // waits until all input has arrived
	Resize(cols, rows int)
	Exit() *v1.Exit
	Close() error
}

// view shows a terminal in the local one until its program ends, or until the user
// detaches: errDetached. It closes t.
func (g *globals) view(ctx context.Context, t terminalView) error {
	// Keys like Ctrl-C are sent to the program; signals to engi end the connection.
	defer t.Close()
	restore := func() {}
	if fd := int(g.in.Fd()); term.IsTerminal(fd) {
		old, err := term.MakeRaw(fd)
		if err != nil {
			return engi.Errorf(engi.Unsupported, "make the terminal raw: %v", err)
		}
		var once sync.Once
		restore = func() { once.Do(func() { _ = term.Restore(fd, old) }) }
	}
	defer restore()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	resized, stop := watchWindow()
	defer stop()
	go func() { // the goroutine ends with ctx
		for {
			t.Resize(g.windowSize())
			select {
			case <-resized:
			case <-ctx.Done():
				return
			}
		}
	}()
	// The goroutine is not waited for, because a read of a terminal cannot be interrupted.
	go func() {
		buf := make([]byte, 4096)
		for {
			n, err := g.in.Read(buf)
			if i := slices.Index(buf[:n], detachKey); i >= 0 {
				_, _ = t.Write(buf[:i])
				soon, done := context.WithTimeout(ctx, time.Second)
				_ = t.Flush(soon) // do not wait for a program that does not read
				done()
				cancel(errDetached)
				return
			}
			if n > 0 {
				if _, err := t.Write(buf[:n]); err != nil {
					fmt.Fprint(g.err, "\a") // the program does not read, so ring the bell like a terminal
				}
			}
			if err != nil {
				if err == io.EOF && !term.IsTerminal(int(g.in.Fd())) {
					_, _ = t.Write([]byte{4}) // end of input, as a terminal sends it
				}
				return
			}
		}
	}()
	for data, err := range t.Output(ctx) {
		if err != nil {
			if errors.Is(context.Cause(ctx), errDetached) {
				return errDetached
			}
			return err
		}
		if _, err := g.out.Write(data); err != nil {
			return engi.Errorf(engi.Unavailable, "write output: %v", err)
		}
	}
	restore()
	if x := t.Exit(); x != nil {
		return endLike(*x)
	}
	return nil
}
