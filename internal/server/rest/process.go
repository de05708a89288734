package rest

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/idempotency"
	"github.com/engi-dev/engi/internal/server/guesthttp"
	"github.com/engi-dev/engi/internal/server/httpio"
)

type processes struct{ sandboxes engi.Sandboxes }

type aProcess struct {
	aSandbox
	Process string `path:"process" maxLength:"128" doc:"ID or tag of the process"`
}

type watchProcess struct {
	aProcess
	Offset    int64  `query:"offset" minimum:"0" doc:"Offset to resume from: the offset of the last event received"`
	LastEvent string `header:"Last-Event-ID" doc:"Alias of offset, as browsers send it; takes precedence over offset"`
}

type viewTerminal struct {
	aProcess
	Offset   int64 `query:"offset" minimum:"-1" default:"-1" doc:"Offset to start at, in bytes of output; -1 means all output that is kept"`
	ReadOnly bool  `query:"read_only" doc:"Ignore input of this viewer"`
}

// Processes returns the routes that start programs in sandboxes and attach to them.
func Processes(sandboxes engi.Sandboxes) Resource {
	p := &processes{sandboxes}
	const path = sandboxPath + "/{id}/processes"
	located := map[string]string{"Location": "path of the process"}
	done, detached := jsonOf[v1.ProcessResult](http.StatusOK, nil), jsonOf[v1.Process](http.StatusCreated, nil)
	done.headers, detached.headers = located, located
	exampleEvent := json.RawMessage(`{"type": "stdout", "offset": 3, "data": "42\\n"}`)
	change := writes(engi.ScopeSandboxes)
	return Resource{tag: "processes", about: "programs in a sandbox, their output, input and terminals", routes: []Route{
		raw(Route{
			Pattern: "POST " + path, ID: "start-process", Summary: "Start a program in a sandbox", Access: change,
			Text: "Answers with a stream of events: started, output as it arrives, and exit as the last one. With Accept: application/json, the answer is one JSON document when the program has ended. " +
				"With detach, the answer is 201 at once. If a client that waits for JSON disconnects, the program is killed. Disconnecting from a stream changes nothing.",
			Creates: "a repeated key returns the first process, with its output from the beginning, instead of starting another; a process with a key continues if the client disconnects",
			Bodies: []example{
				{"a line", "a line for a shell", `{"command": "echo $((6*7))"}`},
				{"program", "a program with a time limit", `{"args": ["/bin/sh", "-c", "echo hello"], "timeout": "30s", "env": {"A": "b"}}`},
				{"server", "a server in the background", `{"command": "sleep 30", "tag": "server", "detach": true}`},
			},
			Answers: append(streamOf[v1.ProcessUpdate](exampleEvent, httpio.NDJSON, httpio.SSE), done, detached),
		}, p.start),
		list(Route{
			Pattern: "GET " + path, ID: "list-processes", Summary: "List processes", Access: reads(engi.ScopeSandboxes),
			Text: "The newest come first. Processes that have ended are listed for a while.",
		}, p.list, processOf),
		fetch(Route{
			Pattern: "GET " + path + "/{process}", ID: "get-process", Summary: "Get a process", Access: reads(engi.ScopeSandboxes),
		}, p.get),
		raw(Route{
			Pattern: "GET " + path + "/{process}/events", ID: "watch-process", Summary: "Watch a process", Access: reads(engi.ScopeSandboxes),
			Text: "Streams the process's events from an offset: started, output as it arrives, and exit as the last one. A client that reconnects with the offset of the last event it received loses nothing, " +
				"as long as that output is kept. If it is not, the answer is a conflict.",
			Answers: streamOf[v1.ProcessUpdate](nil, httpio.NDJSON, httpio.SSE),
		}, p.watch),
		act(Route{
			Pattern: "POST " + path + "/{process}/input", ID: "send-process-input", Summary: "Send input to a process", Access: change,
			Text: "The body, of any size, is passed to the standard input of the process as it arrives.", Uploads: []string{"application/octet-stream"},
		}, func(c *call, in *aProcess, _ none) error {
			d, cancel := c.guest()
			defer cancel()
			return p.attached(c, in, d.Input)
		}),
		act(Route{
			Pattern: "POST " + path + "/{process}/close-input", ID: "close-process-input", Summary: "Close the standard input of a process", Access: change,
		}, func(c *call, in *aProcess, _ none) error {
			return p.attached(c, in, func(p engi.Process) error { return p.CloseInput(c) })
		}),
		act(Route{
			Pattern: "POST " + path + "/{process}/signal", ID: "signal-process", Summary: "Send a signal to a process", Access: change,
		}, func(c *call, in *aProcess, q v1.SignalRequest) error {
			name := strings.TrimPrefix(strings.ToUpper(q.Signal), "SIG")
			if name == "" || len(name) > 16 {
				return invalid("signal", "it is not the name of a signal, such as TERM")
			}
			return p.attached(c, in, func(p engi.Process) error { return p.Signal(c, name) })
		}),
		act(Route{
			Pattern: "POST " + path + "/{process}/resize", ID: "resize-process", Summary: "Resize the terminal of a process", Access: change,
		}, func(c *call, in *aProcess, q v1.TerminalSize) error {
			size, err := guesthttp.SizeOf(q)
			if err != nil {
				return err
			}
			return p.attached(c, in, func(p engi.Process) error { return p.Resize(c, size) })
		}),
		raw(Route{
			// A viewer of a terminal also types into it.
			Pattern: "GET " + path + "/{process}/terminal", ID: "view-terminal", Summary: "Attach to the terminal of a process", Access: change,
			Text: "A WebSocket: binary messages are bytes, both ways; text messages are control messages in JSON: " +
				`{"type": "resize", "cols": 80, "rows": 24} to the server, {"type": "started", "offset": 0}, {"type": "exit", "exit": {…}} and {"type": "error", "error": {…}} from it. ` +
				"The first messages have the earlier output. Several clients can attach to one terminal.",
			Answers: []answer{{status: http.StatusSwitchingProtocols, headers: map[string]string{"Upgrade": "websocket"}}},
		}, p.terminal),
	}}
}

// commandOf converts a request, or reports all of its faults.
func commandOf(q v1.ProcessRequest) (engi.Command, error) {
	var c checker
	cmd := engi.Command{
		Args: q.Args, Env: q.Env, Dir: q.Dir, User: q.User, Tag: q.Tag, Timeout: q.Timeout.Std(), Output: int64(q.Output),
	}
	switch {
	case q.Command == "" && len(q.Args) == 0:
		c.addf("args", "it is missing: name the program to run, or send command for a shell")
	case q.Command != "" && len(q.Args) > 0:
		c.addf("command", "there are args already; send one of them")
	case q.Command != "":
		c.text("command", q.Command)
		cmd.Args = []string{"/bin/sh", "-c", q.Command}
	case q.Args[0] == "":
		c.addf("args[0]", "it is empty")
	}
	const most = 10_000
	if len(q.Args) > most {
		c.addf("args", "there are more than %d", most)
	}
	if slices.ContainsFunc(q.Args, func(a string) bool { return strings.ContainsRune(a, 0) }) {
		c.addf("args", "one contains a NUL byte")
	}
	c.Env("env", q.Env)
	if q.Dir != "" {
		c.absolute("dir", q.Dir)
	}
	c.text("user", q.User)
	if len(q.Tag) > 128 || strings.ContainsFunc(q.Tag, func(r rune) bool { return r < ' ' || r == 0x7f || r == '/' }) {
		c.addf("tag", "it is longer than 128 bytes, or has a slash or an invisible character")
	}
	if q.Output > engi.MaxOutput {
		c.addf("output", "%s is more than the %s that can be kept", q.Output, v1.Bytes(engi.MaxOutput))
	}
	if q.Stdin {
		cmd.Stdin = engi.StdinPipe
	}
	if q.Terminal != nil {
		size, err := guesthttp.SizeOf(*q.Terminal)
		if err != nil {
			c.addf("terminal", "%s", err)
		}
		cmd.Terminal = &size
	}
	return cmd, c.err()
}

func (p *processes) start(c *call, in *aSandbox, q v1.ProcessRequest) error {
	cmd, err := commandOf(q)
	if err != nil {
		return err
	}
	g, leave, err := p.enter(c, in.ID)
	if err != nil {
		return err
	}
	defer leave()
	began := time.Now().UTC()
	// The guest stores the ID. If it already has a process with this ID, it
	// attaches to that process.
	started, err := once(c, q, idempotency.Creation[engi.Process]{
		IDs: []string{"prc_" + strings.ToLower(rand.Text())},
		Work: func(ids []string) (engi.Process, error) {
			cmd.ID = idempotency.FirstID[string](ids)
			return g.Start(c, cmd)
		},
		Find: func(ids []string, _ bool) (engi.Process, error) { return g.Attach(c, ids[0]) },
	})
	if err != nil {
		return err
	}
	about := v1.Process{ID: started.ID(), PID: started.PID(), Tag: cmd.Tag, Args: cmd.Args, Dir: cmd.Dir, Running: true, StartedAt: &began}
	c.location(sandboxPath, string(in.ID), "processes", about.ID)
	if q.Detach {
		letGo(started)
		return c.reply(http.StatusCreated, about)
	}
	d, cancel := c.guest()
	defer cancel()
	if c.form != httpio.JSON {
		return d.Follow(c.form, started, about, 0)
	}
	res, err := guesthttp.Collect(d.Ctx, started, about)
	if err != nil {
		if c.gone() && c.key == "" { // the caller cannot ask for the answer again
			ctx, cancel := context.WithTimeout(context.WithoutCancel(c), cancelTime)
			defer cancel()
			if err := engi.Ignore(started.Signal(ctx, "KILL"), engi.NotFound); err != nil {
				return engi.Errorf(engi.Internal, "kill %s in %s, whose caller left: %w", about.ID, in.ID, err)
			}
		}
		return orEnded(d.Ctx, err)
	}
	return c.reply(http.StatusOK, res)
}

// enter returns the guest of a sandbox for a stream, which counts against the limit until leave.
func (p *processes) enter(c *call, id engi.SandboxID) (_ engi.Guest, leave func(), _ error) {
	g, release, err := p.sandboxes.Enter(c, c.viewer(), id)
	if err != nil {
		return nil, nil, err
	}
	free, err := c.s.streams.Join(string(id))
	if err != nil {
		release()
		return nil, nil, err
	}
	return g, func() { free(); release() }, nil
}

// letGo tells a guest that the node stops reading p's output.
func letGo(p engi.Process) {
	if r, ok := p.(interface{ Release() }); ok {
		r.Release()
	}
}

func (p *processes) list(c *call, in *aSandbox) ([]engi.ProcessInfo, error) {
	g, release, err := p.sandboxes.Enter(c, c.viewer(), in.ID)
	if err != nil {
		return nil, err
	}
	defer release()
	xs, err := g.Processes(c)
	slices.SortStableFunc(xs, func(a, b engi.ProcessInfo) int { return b.Started.Compare(a.Started) })
	return xs, err
}

func processOf(x engi.ProcessInfo) v1.Process {
	args := make([]string, len(x.Args))
	for i, a := range x.Args {
		args[i] = strings.ToValidUTF8(a, "\uFFFD")
	}
	return v1.Process{ID: x.ID, PID: x.PID, Tag: x.Tag, Args: args, Dir: x.Dir, Running: !x.Ended, StartedAt: moment(x.Started)}
}

// process finds a process by its ID or tag. Of several with the same tag it returns the last
// running one, or else the last one.
func findProcess(ctx context.Context, g engi.Guest, name string) (v1.Process, error) {
	xs, err := g.Processes(ctx)
	if err != nil {
		return v1.Process{}, err
	}
	var best *engi.ProcessInfo
	for i := range xs {
		x := &xs[i]
		switch {
		case x.ID == name:
			return processOf(*x), nil
		case x.Tag != name || name == "":
		case best == nil, best.Ended && !x.Ended, best.Ended == x.Ended && x.Started.After(best.Started):
			best = x
		}
	}
	if best == nil {
		return v1.Process{}, engi.Errorf(engi.NotFound, "there is no process %.80q", name).
			WithRemedy("ended processes are kept for a limited time; list the processes to see the rest")
	}
	return processOf(*best), nil
}

func (p *processes) get(c *call, in *aProcess) (v1.Process, error) {
	g, release, err := p.sandboxes.Enter(c, c.viewer(), in.ID)
	if err != nil {
		return v1.Process{}, err
	}
	defer release()
	return findProcess(c, g, in.Process)
}

func (p *processes) watch(c *call, in *watchProcess, _ none) error {
	from, err := lastEvent(in.LastEvent, in.Offset)
	if err != nil {
		return err
	}
	g, leave, err := p.enter(c, in.ID)
	if err != nil {
		return err
	}
	defer leave()
	about, err := findProcess(c, g, in.Process)
	if err != nil {
		return err
	}
	found, err := g.Attach(c, about.ID)
	if err != nil {
		return err
	}
	d, cancel := c.guest()
	defer cancel()
	return d.Follow(c.form, found, about, from)
}

// attached calls do with a process.
func (p *processes) attached(c *call, in *aProcess, do func(engi.Process) error) error {
	g, release, err := p.sandboxes.Enter(c, c.viewer(), in.ID)
	if err != nil {
		return err
	}
	defer release()
	found, err := g.Attach(c, in.Process)
	if err != nil {
		return err
	}
	letGo(found)
	return do(found)
}

func (p *processes) terminal(c *call, in *viewTerminal, _ none) error {
	if err := wantsWebSocket(c, "a terminal is a WebSocket", "connect with a WebSocket client"); err != nil {
		return err
	}
	g, leave, err := p.enter(c, in.ID)
	if err != nil {
		return err
	}
	defer leave()
	found, err := g.Attach(c, in.Process)
	if err != nil {
		return err
	}
	d, cancel := c.guest()
	defer cancel()
	from := in.Offset
	if from < 0 {
		from = engi.OldestOutput
	}
	return d.Terminal(found, guesthttp.TerminalOptions{From: from, ReadOnly: in.ReadOnly})
}
