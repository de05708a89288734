package rest

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/api/guesthttp"
	"github.com/engi-dev/engi/api/httpio"
	v1 "github.com/engi-dev/engi/api/v1"
)

type aProcess struct {
	ID      string `path:"id" doc:"of the sandbox"`
	Process string `path:"process" maxLength:"128" doc:"ID or tag of the process"`
}

type watchProcess struct {
	ID        string `path:"id" doc:"of the sandbox"`
	Process   string `path:"process" maxLength:"128" doc:"ID or tag of the process"`
	Offset    int64  `query:"offset" minimum:"0" doc:"where to begin: the offset of the last event seen"`
	LastEvent string `header:"Last-Event-ID" doc:"the same, as browsers send it; goes before offset"`
}

type viewTerminal struct {
	ID       string `path:"id" doc:"of the sandbox"`
	Process  string `path:"process" maxLength:"128" doc:"ID or tag of the process"`
	Offset   int64  `query:"offset" minimum:"-1" default:"-1" doc:"where to begin; -1 shows all that is kept"`
	ReadOnly bool   `query:"read_only" doc:"ignore what the viewer types"`
}

func (s *server) serveProcesses() {
	handle(s, s.opStartProcess(), s.startProcess)
	handle(s, s.opListProcesses(), s.listProcesses)
	handle(s, s.opGetProcess(), s.getProcess)
	handle(s, s.opWatchProcess(), s.watchProcess)
	handle(s, s.opInput(), s.processInput)
	handle(s, s.opProcessAct("close-input", "close-process-input", "End a process's standard input"), s.closeInput)
	handle(s, s.opSignal(), s.signalProcess)
	handle(s, s.opResize(), s.resizeProcess)
	handle(s, s.opTerminal(), s.viewTerminal)
}

// desk is what package inside needs to answer r. The caller cancels.
func (s *server) desk(w http.ResponseWriter, r *http.Request) (*guesthttp.Handler, context.CancelFunc) {
	ctx, cancel := s.waiting(r)
	return &guesthttp.Handler{
		W: w, R: r, Ctx: ctx, Beat: s.beat,
		Describe: func(err error) v1.Problem {
			if s.leaving() {
				err = errLeaving
			}
			s.logInternal(r, err)
			return httpio.Describe(err, callOf(r.Context()).id)
		},
	}, cancel
}

// commandOf translates a request, or reports every fault of it.
func commandOf(q v1.ProcessRequest) (engi.Command, error) {
	var c checker
	cmd := engi.Command{
		Args: q.Args, Env: q.Env, Dir: q.Dir, User: q.User, Tag: q.Tag, Timeout: q.Timeout.Std(), Output: int64(q.Output),
	}
	switch {
	case q.Command == "" && len(q.Args) == 0:
		c.addf("args", "it is missing: say what to run, or send command for a shell")
	case q.Command != "" && len(q.Args) > 0:
		c.addf("command", "there are args already; send one of them")
	case q.Command != "":
		c.text("command", q.Command)
		cmd.Args = []string{"/bin/sh", "-c", q.Command}
	case q.Args[0] == "":
		c.addf("args[0]", "it is empty")
	}
	if len(q.Args) > maxArgs {
		c.addf("args", "there are more than %d", maxArgs)
	}
	if slices.ContainsFunc(q.Args, func(a string) bool { return strings.ContainsRune(a, 0) }) {
		c.addf("args", "one has a NUL byte in it")
	}
	c.env(q.Env)
	if q.Dir != "" {
		c.absolute("dir", q.Dir)
	}
	c.text("user", q.User)
	if len(q.Tag) > 128 || strings.ContainsFunc(q.Tag, func(r rune) bool { return r < ' ' || r == 0x7f || r == '/' }) {
		c.addf("tag", "it is longer than 128 bytes, or has a slash or something invisible in it")
	}
	if q.Output > 64<<20 {
		c.addf("output", "%s is more than the 64MiB that can be kept", q.Output)
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
	return cmd, httpio.Invalid(c.faults)
}

func (s *server) startProcess(w http.ResponseWriter, r *http.Request, in *aSandbox) error {
	form, err := httpio.Negotiate(r, httpio.NDJSON, httpio.SSE, httpio.JSON)
	if err != nil {
		return err
	}
	q, err := decode[v1.ProcessRequest](s, w, r)
	if err != nil {
		return err
	}
	cmd, err := commandOf(q)
	if err != nil {
		return err
	}
	g, id, release, err := s.enter(r, in.ID)
	if err != nil {
		return err
	}
	defer release()
	leave, err := s.streams.Join(id)
	if err != nil {
		return err
	}
	defer leave()
	began := time.Now().UTC()
	p, err := g.Start(r.Context(), cmd)
	if err != nil {
		return err
	}
	about := v1.Process{ID: p.ID(), PID: p.PID(), Tag: cmd.Tag, Args: cmd.Args, Dir: cmd.Dir, Running: true, StartedAt: &began}
	w.Header().Set("Location", sandboxes+"/"+string(id)+"/processes/"+p.ID())
	if q.Detach {
		letGo(p)
		return s.reply(w, http.StatusCreated, about)
	}
	d, cancel := s.desk(w, r)
	defer cancel()
	if form != httpio.JSON {
		return d.Follow(form, p, about, 0)
	}
	res, err := guesthttp.Collect(d.Ctx, p, about)
	if err != nil {
		if s.gone(r) { // nobody else will ask for the answer
			ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), cancelTime)
			defer cancel()
			if err := p.Signal(ctx, "KILL"); err != nil && engi.KindOf(err) != engi.NotFound {
				return engi.Errorf(engi.Internal, "kill %s in %s, whose caller left: %w", p.ID(), id, err)
			}
		}
		return whole(d.Ctx, err)
	}
	return s.reply(w, http.StatusOK, res)
}

// letGo tells a guest that nobody here is going to read p's output.
func letGo(p engi.Process) {
	if r, ok := p.(interface{ Release() }); ok {
		r.Release()
	}
}

func (s *server) listProcesses(w http.ResponseWriter, r *http.Request, in *aSandbox) error {
	g, _, release, err := s.enter(r, in.ID)
	if err != nil {
		return err
	}
	defer release()
	xs, err := g.Processes(r.Context())
	if err != nil {
		return err
	}
	slices.SortStableFunc(xs, func(a, b engi.ProcessInfo) int { return b.Started.Compare(a.Started) })
	return s.reply(w, http.StatusOK, listOf(xs, processOf))
}

func processOf(x engi.ProcessInfo) v1.Process {
	args := make([]string, len(x.Args))
	for i, a := range x.Args {
		args[i] = strings.ToValidUTF8(a, "\uFFFD")
	}
	return v1.Process{ID: x.ID, PID: x.PID, Tag: x.Tag, Args: args, Dir: x.Dir, Running: !x.Ended, StartedAt: moment(x.Started)}
}

// process finds one by ID or tag. Of several with one tag it is the last that
// runs, else the last.
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
			WithRemedy("ended processes are remembered for a while only; list them to see which are there")
	}
	return processOf(*best), nil
}

func (s *server) getProcess(w http.ResponseWriter, r *http.Request, in *aProcess) error {
	g, _, release, err := s.enter(r, in.ID)
	if err != nil {
		return err
	}
	defer release()
	p, err := findProcess(r.Context(), g, in.Process)
	if err != nil {
		return err
	}
	return s.reply(w, http.StatusOK, p)
}

func (s *server) watchProcess(w http.ResponseWriter, r *http.Request, in *watchProcess) error {
	form, err := httpio.Negotiate(r, httpio.NDJSON, httpio.SSE)
	if err != nil {
		return err
	}
	from, err := lastEvent(in.LastEvent, in.Offset)
	if err != nil {
		return err
	}
	g, id, release, err := s.enter(r, in.ID)
	if err != nil {
		return err
	}
	defer release()
	leave, err := s.streams.Join(id)
	if err != nil {
		return err
	}
	defer leave()
	about, err := findProcess(r.Context(), g, in.Process)
	if err != nil {
		return err
	}
	p, err := g.Attach(r.Context(), about.ID)
	if err != nil {
		return err
	}
	d, cancel := s.desk(w, r)
	defer cancel()
	return d.Follow(form, p, about, from)
}

// onProcess makes a handler of an act on a process that says nothing.
func (s *server) onProcess(w http.ResponseWriter, r *http.Request, in *aProcess, act func(engi.Process) error) error {
	g, _, release, err := s.enter(r, in.ID)
	if err != nil {
		return err
	}
	defer release()
	p, err := g.Attach(r.Context(), in.Process)
	if err != nil {
		return err
	}
	letGo(p)
	if err := act(p); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *server) processInput(w http.ResponseWriter, r *http.Request, in *aProcess) error {
	d, cancel := s.desk(w, r)
	defer cancel()
	return s.onProcess(w, r, in, d.Input)
}

func (s *server) closeInput(w http.ResponseWriter, r *http.Request, in *aProcess) error {
	return s.onProcess(w, r, in, func(p engi.Process) error { return p.CloseInput(r.Context()) })
}

func (s *server) signalProcess(w http.ResponseWriter, r *http.Request, in *aProcess) error {
	q, err := decode[v1.SignalRequest](s, w, r)
	if err != nil {
		return err
	}
	name := strings.TrimPrefix(strings.ToUpper(q.Signal), "SIG")
	if name == "" || len(name) > 16 {
		return httpio.Invalid([]v1.Fault{{Field: "signal", Detail: "it is not the name of a signal, such as TERM"}})
	}
	return s.onProcess(w, r, in, func(p engi.Process) error { return p.Signal(r.Context(), name) })
}

func (s *server) resizeProcess(w http.ResponseWriter, r *http.Request, in *aProcess) error {
	q, err := decode[v1.TerminalSize](s, w, r)
	if err != nil {
		return err
	}
	size, err := guesthttp.SizeOf(q)
	if err != nil {
		return err
	}
	return s.onProcess(w, r, in, func(p engi.Process) error { return p.Resize(r.Context(), size) })
}

func (s *server) viewTerminal(w http.ResponseWriter, r *http.Request, in *viewTerminal) error {
	if !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
		e := httpio.Errorf(http.StatusUpgradeRequired, "connect with a WebSocket client", "a terminal is a WebSocket")
		e.Header = http.Header{"Upgrade": {"websocket"}, "Connection": {"Upgrade"}}
		return e
	}
	g, id, release, err := s.enter(r, in.ID)
	if err != nil {
		return err
	}
	defer release()
	leave, err := s.streams.Join(id)
	if err != nil {
		return err
	}
	defer leave()
	p, err := g.Attach(r.Context(), in.Process)
	if err != nil {
		return err
	}
	d, cancel := s.desk(w, r)
	defer cancel()
	from := in.Offset
	if from < 0 {
		from = engi.OldestOutput
	}
	return d.Terminal(p, guesthttp.TerminalOptions{From: from, ReadOnly: in.ReadOnly})
}

const processes = sandboxes + "/{id}/processes"

func (s *server) opStartProcess() huma.Operation {
	op := s.operation(http.MethodPost, processes, "start-process", "processes", "Start a program in a sandbox",
		"Answers with a stream of events: started, output as it comes, and exit, which is the last. Who wants one JSON document when the program has ended accepts application/json. "+
			"With detach the answer is 201 at once. A caller that waits for JSON and leaves kills the program; leaving a stream changes nothing.", http.StatusOK)
	accepts[v1.ProcessRequest](s, &op, map[string]*huma.Example{
		"a line":  {Summary: "a line for a shell", Value: json.RawMessage(`{"command": "echo $((6*7))"}`)},
		"program": {Summary: "a program with a time limit", Value: json.RawMessage(`{"args": ["/bin/sh", "-c", "echo hello"], "timeout": "30s", "env": {"A": "b"}}`)},
		"server":  {Summary: "a server in the background", Value: json.RawMessage(`{"command": "sleep 30", "tag": "server", "detach": true}`)},
	})
	event := json.RawMessage(`{"type": "stdout", "offset": 3, "data": "42\\n"}`)
	answers[v1.ProcessEvent](s, &op, http.StatusOK, string(httpio.NDJSON), event)
	answers[v1.ProcessEvent](s, &op, http.StatusOK, string(httpio.SSE), nil)
	answers[v1.ProcessResult](s, &op, http.StatusOK, string(httpio.JSON), nil)
	answers[v1.Process](s, &op, http.StatusCreated, string(httpio.JSON), nil)
	header(&op, http.StatusOK, "Location", "path of the process")
	header(&op, http.StatusCreated, "Location", "path of the process")
	return op
}

func (s *server) opListProcesses() huma.Operation {
	op := s.operation(http.MethodGet, processes, "list-processes", "processes", "List processes", "The newest come first. Ended ones are remembered for a while.", http.StatusOK)
	answers[v1.List[v1.Process]](s, &op, http.StatusOK, string(httpio.JSON), nil)
	return op
}

func (s *server) opGetProcess() huma.Operation {
	op := s.operation(http.MethodGet, processes+"/{process}", "get-process", "processes", "Get a process", "", http.StatusOK)
	answers[v1.Process](s, &op, http.StatusOK, string(httpio.JSON), nil)
	return op
}

func (s *server) opWatchProcess() huma.Operation {
	op := s.operation(http.MethodGet, processes+"/{process}/events", "watch-process", "processes", "Watch a process",
		"Streams its events from an offset on: started, output as it comes, and exit, which is the last. Whoever comes back with the offset of the last event seen loses nothing, "+
			"as long as it is kept; else it is a conflict.", http.StatusOK)
	answers[v1.ProcessEvent](s, &op, http.StatusOK, string(httpio.NDJSON), nil)
	answers[v1.ProcessEvent](s, &op, http.StatusOK, string(httpio.SSE), nil)
	return op
}

func (s *server) opInput() huma.Operation {
	op := s.opProcessAct("input", "send-process-input", "Send input to a process")
	op.Description = "The body is what it reads, of any size; it is passed on as it comes."
	op.RequestBody = binaryBody()
	return op
}

func binaryBody() *huma.RequestBody {
	return &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{
		"application/octet-stream": {Schema: &huma.Schema{Type: huma.TypeString, Format: "binary"}},
	}}
}

func (s *server) opProcessAct(act, id, summary string) huma.Operation {
	return s.operation(http.MethodPost, processes+"/{process}/"+act, id, "processes", summary, "", http.StatusNoContent)
}

func (s *server) opSignal() huma.Operation {
	op := s.opProcessAct("signal", "signal-process", "Send a signal to a process")
	accepts[v1.SignalRequest](s, &op, nil)
	return op
}

func (s *server) opResize() huma.Operation {
	op := s.opProcessAct("resize", "resize-process", "Tell a terminal its size")
	accepts[v1.TerminalSize](s, &op, nil)
	return op
}

func (s *server) opTerminal() huma.Operation {
	op := s.operation(http.MethodGet, processes+"/{process}/terminal", "view-terminal", "processes", "Look at a terminal",
		"A WebSocket: binary messages are bytes, both ways; text messages are control messages in JSON: "+
			`{"type": "resize", "cols": 80, "rows": 24} to the server, {"type": "started", "offset": 0}, {"type": "exit", "exit": {…}} and {"type": "error", "error": {…}} from it. `+
			"It begins with what was printed before. Many may look at one terminal.", http.StatusSwitchingProtocols)
	header(&op, http.StatusSwitchingProtocols, "Upgrade", "websocket")
	return op
}
