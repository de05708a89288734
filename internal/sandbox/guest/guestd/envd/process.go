package envd

import (
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/guest/guestd/child"
	"github.com/engi-dev/engi/internal/sandbox/guest/wire"
)

type processConfig struct {
	Cmd  string            `json:"cmd"`
	Args []string          `json:"args,omitempty"`
	Envs map[string]string `json:"envs,omitempty"`
	Cwd  string            `json:"cwd,omitempty"`
}

type pty struct {
	Size struct {
		Cols uint16 `json:"cols"`
		Rows uint16 `json:"rows"`
	} `json:"size"`
}

type startRequest struct {
	Process processConfig `json:"process"`
	Pty     *pty          `json:"pty"`
	Tag     string        `json:"tag"`
	Stdin   *bool         `json:"stdin"` // nil means true
}

type selector struct {
	PID int    `json:"pid"`
	Tag string `json:"tag"`
}

type inputBytes struct {
	Stdin []byte `json:"stdin"`
	Pty   []byte `json:"pty"`
}

type processRequest struct {
	Process selector `json:"process"`
}

func (h *Handler) find(s selector) (Process, error) { return h.sandbox.Find(s.PID, s.Tag) }

func (h *Handler) start(r *http.Request, in *startRequest, out *streamWriter, deadline time.Duration) error {
	user := userOf(r)
	if _, _, err := h.sandbox.User(user); err != nil {
		return err
	}
	c := wire.Command{Args: append([]string{in.Process.Cmd}, in.Process.Args...), Env: in.Process.Envs, Dir: in.Process.Cwd,
		User: user, Tag: in.Tag, Input: in.Stdin == nil || *in.Stdin, Timeout: deadline}
	if in.Pty != nil {
		c.Cols, c.Rows = max(1, in.Pty.Size.Cols), max(1, in.Pty.Size.Rows)
	}
	p, err := h.sandbox.Start(c)
	if err != nil {
		return err
	}
	return h.events(r, p, 0, out, 0)
}

func (h *Handler) connect(r *http.Request, in *processRequest, out *streamWriter, deadline time.Duration) error {
	p, err := h.find(in.Process)
	if err != nil {
		return err
	}
	return h.events(r, p, -1, out, deadline)
}

// Bounds of the output in one event, in bytes.
const (
	maxPiece    = 32 << 10
	maxTerminal = 16 << 10
)

func event(name string, v any) any {
	return map[string]any{"event": map[string]any{name: v}}
}

// events follows a process until it ends, the client disconnects or the deadline
// passes.
func (h *Handler) events(r *http.Request, p Process, from int64, out *streamWriter, deadline time.Duration) error {
	log, err := p.Log().Read(from)
	if err != nil {
		return err
	}
	defer log.Close()
	if err := out.send(event("start", map[string]any{"pid": p.PID()})); err != nil {
		return err
	}
	var late <-chan time.Time
	if deadline > 0 {
		t := time.NewTimer(deadline)
		defer t.Stop()
		late = t.C
	}
	every := keepalive(r)
	idle := time.NewTimer(every)
	defer idle.Stop()
	for {
		ready := log.Ready()
		s, data, done := log.TryNext()
		if done {
			if err := log.Err(); err != nil {
				return err
			}
			break
		}
		if len(data) > 0 {
			if err := sendOutput(out, s, data); err != nil {
				return err
			}
			idle.Reset(every)
			continue
		}
		select {
		case <-ready:
		case <-idle.C:
			if err := out.send(event("keepalive", map[string]any{})); err != nil {
				return err
			}
			idle.Reset(every)
		case <-late:
			return engi.Errorf(engi.Expired, "the deadline passed")
		case <-r.Context().Done():
			return engi.Errorf(engi.Expired, "the client left")
		}
	}
	select {
	case <-p.Ended():
	case <-r.Context().Done():
		return engi.Errorf(engi.Expired, "the client left")
	}
	if err := out.send(event("end", endEvent(p.Exit()))); err != nil {
		return err
	}
	if p.Exit().Cause == engi.CauseTimeout {
		return engi.Errorf(engi.Expired, "the process was killed at its deadline")
	}
	return nil
}

func sendOutput(out *streamWriter, s engi.Stream, data []byte) error {
	name, most := "stdout", maxPiece
	switch s {
	case engi.Stderr:
		name = "stderr"
	case engi.Terminal:
		name, most = "pty", maxTerminal
	}
	for len(data) > 0 {
		n := min(len(data), most)
		if err := out.send(event("data", map[string][]byte{name: data[:n]})); err != nil {
			return err
		}
		data = data[n:]
	}
	return nil
}

// endEvent describes an exit in the wording of os/exec, which clients show.
func endEvent(e engi.Exit) map[string]any {
	status := "exit status " + strconv.Itoa(e.Code)
	if e.Signal != "" {
		status = "signal: " + e.Signal
		if sig, err := child.ParseSignal(e.Signal); err == nil {
			status = "signal: " + sig.String()
		}
	}
	m := map[string]any{"exitCode": e.Code, "exited": e.Signal == "", "status": status}
	if e.Code != 0 {
		m["error"] = status
	}
	return m
}

func (h *Handler) list(r *http.Request, in *struct{}) (any, error) {
	type info struct {
		Config processConfig `json:"config"`
		PID    int           `json:"pid"`
		Tag    string        `json:"tag,omitempty"`
	}
	all := []info{}
	for _, c := range h.sandbox.Processes() {
		all = append(all, info{processConfig{c.Args[0], c.Args[1:], c.Envs, c.Dir}, c.PID, c.Tag})
	}
	return map[string]any{"processes": all}, nil
}

var empty = struct{}{}

func (h *Handler) sendInput(r *http.Request, in *struct {
	Process selector   `json:"process"`
	Input   inputBytes `json:"input"`
}) (any, error) {
	p, err := h.find(in.Process)
	if err != nil {
		return nil, err
	}
	return empty, write(r, p, in.Input)
}

func write(r *http.Request, p Process, in inputBytes) error {
	data := in.Stdin
	switch {
	case in.Pty != nil && !p.Terminal():
		return engi.Errorf(engi.Internal, "tty not assigned to process")
	case in.Stdin != nil && p.Terminal():
		return engi.Errorf(engi.Internal, "stdin of a process in a terminal: send it as pty input")
	case in.Pty != nil:
		data = in.Pty
	}
	if err := p.Write(r.Context(), data); err != nil {
		if engi.Is(err, engi.Conflict) {
			return engi.Errorf(engi.Internal, "error writing to stdin: %w", err)
		}
		return err
	}
	return nil
}

func (h *Handler) closeStdin(r *http.Request, in *processRequest) (any, error) {
	p, err := h.find(in.Process)
	if err != nil {
		return nil, err
	}
	if p.Terminal() {
		return nil, engi.Errorf(engi.Internal, "a terminal cannot be closed: send the character 4 as pty input")
	}
	p.CloseInput()
	return empty, nil
}

func (h *Handler) sendSignal(r *http.Request, in *struct {
	Process selector `json:"process"`
	Signal  string   `json:"signal"`
}) (any, error) {
	p, err := h.find(in.Process)
	if err != nil {
		return nil, err
	}
	switch in.Signal {
	case "SIGNAL_SIGKILL":
		err = p.Signal("KILL")
	case "SIGNAL_SIGTERM":
		err = p.Signal("TERM")
	default:
		err = engi.Errorf(engi.Unsupported, "invalid signal: %.40s", in.Signal)
	}
	return empty, err
}

func (h *Handler) update(r *http.Request, in *struct {
	Process selector `json:"process"`
	Pty     *pty     `json:"pty"`
}) (any, error) {
	p, err := h.find(in.Process)
	if err != nil {
		return nil, err
	}
	if in.Pty == nil {
		return empty, nil
	}
	if err := p.Resize(wire.Size{Cols: in.Pty.Size.Cols, Rows: in.Pty.Size.Rows}); err != nil {
		return nil, engi.Errorf(engi.Internal, "tty not assigned to process: %w", err)
	}
	return empty, nil
}

// streamInput reads input as a stream of messages.
func (h *Handler) streamInput(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/connect+json")
	out := &streamWriter{w: w, rc: http.NewResponseController(w)}
	err := h.inputs(r)
	end := map[string]any{}
	if err != nil {
		end["error"] = connectError{codes[engi.KindOf(err)].name, err.Error()}
	} else {
		out.frame(0, empty) // fails if the client has disconnected
	}
	out.frame(flagEnd, end)
}

func (h *Handler) inputs(r *http.Request) error {
	var p Process
	for {
		b, err := readMessage(r.Body)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		var m struct {
			Start *processRequest `json:"start"`
			Data  *struct {
				Input inputBytes `json:"input"`
			} `json:"data"`
		}
		if len(b) > 0 {
			if err := parse(b, &m); err != nil {
				return err
			}
		}
		switch {
		case m.Start != nil:
			if p, err = h.find(m.Start.Process); err != nil {
				return err
			}
		case m.Data != nil && p == nil:
			return engi.Errorf(engi.Invalid, "input came before start")
		case m.Data != nil:
			if err := write(r, p, m.Data.Input); err != nil {
				return err
			}
		}
	}
}
