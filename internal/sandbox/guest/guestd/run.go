package guestd

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/guest/guestd/child"
	"github.com/engi-dev/engi/internal/sandbox/guest/guestd/tree"
	"github.com/engi-dev/engi/internal/sandbox/guest/guestd/warm"
	"github.com/engi-dev/engi/internal/sandbox/guest/wire"
)

// run is a program with limits.
type run struct {
	wire.Run
	proc      *proc
	warm      bool
	inputTime time.Time // time at which the first input was written, by the file system's clock
	inputs    map[string]tree.Stamp
	temp      []string // paths to remove at the end
	done      chan struct{}
	finish    wire.Finish // valid once done is closed
}

// run is the hot path: one request that carries everything, and one answer.
func (s *Server) run(w http.ResponseWriter, req *http.Request) error {
	r, err := s.startRun(req.Body)
	if err != nil {
		return err
	}
	return s.followRun(req.Context(), w, r, 0)
}

func (s *Server) followRun(ctx context.Context, w http.ResponseWriter, r *run, from int64) error {
	return s.follow(ctx, w, followed{proc: r.proc, warm: r.warm, linger: coalesceDelay, done: r.done, finish: func() wire.Finish { return r.finish }}, from)
}

func (s *Server) reattach(w http.ResponseWriter, req *http.Request) error {
	r, err := s.findRun(req.PathValue("id"))
	if err != nil {
		return err
	}
	from, err := offset(req)
	if err != nil {
		return err
	}
	return s.followRun(req.Context(), w, r, from)
}

func (s *Server) findRun(id string) (*run, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.runs[id]; r != nil && r.proc != nil {
		return r, nil
	}
	return nil, engi.Errorf(engi.NotFound, "run %.80q does not exist", id)
}

// startRun reads a run, writes its files and starts its program.
func (s *Server) startRun(body io.Reader) (_ *run, err error) {
	in := wire.NewReader(body)
	r := &run{done: make(chan struct{}), inputs: map[string]tree.Stamp{}}
	if err := in.JSON(wire.Head, &r.Run); err != nil {
		return nil, err
	}
	if err := r.Check(); err != nil {
		return nil, err
	}
	entry := r.Entry
	if entry == "" {
		entry = r.Files[0].Path
	}
	r.Output, r.ArtifactBytes = cmp.Or(r.Output, wire.DefaultOutput), cmp.Or(r.ArtifactBytes, wire.DefaultArtifactBytes)
	r.ArtifactCount = cmp.Or(r.ArtifactCount, wire.DefaultArtifactCount)
	cfg := s.settings()
	switch {
	case r.OutputDir == "":
		r.OutputDir = cfg.OutputDir
	case s.o.InProcess:
		r.OutputDir = s.path(r.OutputDir)
	}
	if err := s.reserve(r); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			s.mu.Lock()
			delete(s.runs, r.ID)
			s.mu.Unlock()
			for _, p := range r.temp {
				os.RemoveAll(p)
			}
		}
	}()
	if err := s.writeInputs(r, &cfg, in); err != nil {
		return nil, err
	}
	if r.OutputDir != cfg.WorkDir {
		if err := tree.MakeDirAll(r.OutputDir, cfg.owner); err != nil {
			return nil, err
		}
	}
	return r, s.launch(r, &cfg, entry)
}

// reserve registers the run's ID, so that a run cannot start twice.
func (s *Server) reserve(r *run) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.runs[r.ID] != nil {
		return engi.Errorf(engi.Conflict, "run %s exists already", r.ID).WithRemedy("reattach to it, or choose another ID")
	}
	s.runs[r.ID] = r
	return nil
}

// writeInputs stores the files and the standard input that follow the head.
func (s *Server) writeInputs(r *run, cfg *settings, in *wire.Reader) (err error) {
	dir, err := tree.OpenDir(cfg.WorkDir)
	if err != nil {
		return err
	}
	defer dir.Close()
	data := &payload{in: in}
	for _, f := range r.Files {
		st, err := dir.Create(f.Path, cmp.Or(f.Mode, 0o644), cfg.owner, data, f.Size)
		if err != nil {
			return err
		}
		r.inputs[cfg.WorkDir+"/"+f.Path] = st
		if r.inputTime.IsZero() || st.Changed().Before(r.inputTime) {
			r.inputTime = st.Changed()
		}
	}
	r.Stdin = make([]byte, r.StdinSize)
	if _, err := io.ReadFull(data, r.Stdin); err != nil {
		return engi.Errorf(engi.Invalid, "standard input: %v", err)
	}
	return data.checkEnd()
}

// payload reads the contents of Data frames up to the End frame.
type payload struct {
	in   *wire.Reader
	rest []byte
	done bool
}

func (p *payload) Read(b []byte) (int, error) {
	for len(p.rest) == 0 {
		if p.done {
			return 0, io.EOF
		}
		k, data, err := p.in.Next()
		switch {
		case err != nil:
			return 0, errors.Join(io.ErrUnexpectedEOF, err)
		case k == wire.End:
			p.done = true
		case k == wire.Data:
			p.rest = data
		default:
			return 0, engi.Errorf(engi.Invalid, "got frame %q, want data", byte(k))
		}
	}
	n := copy(b, p.rest)
	p.rest = p.rest[n:]
	return n, nil
}

// checkEnd reports Invalid unless all data and the End frame have been read.
func (p *payload) checkEnd() error {
	if len(p.rest) == 0 && !p.done {
		var b [1]byte
		if n, err := p.Read(b[:]); n == 0 && err == io.EOF {
			return nil
		}
	}
	if p.done && len(p.rest) == 0 {
		return nil
	}
	return engi.Errorf(engi.Invalid, "the data does not match the sizes in the head")
}

// launch starts the program, in a waiting interpreter if one is suitable.
func (s *Server) launch(r *run, cfg *settings, entry string) error {
	p := &proc{id: r.ID, dir: s.inside(cfg.WorkDir), log: child.NewLog(r.Output, r.Output)}
	env := map[string]string{}
	maps.Copy(env, r.Env)
	if r.OutputDir != cfg.OutputDir {
		env["ENGI_OUTPUT_DIR"] = r.OutputDir
	}
	if s.o.InProcess || len(s.otherSessions(r.ID)) > 0 {
		env["ENGI_RUN"] = r.ID // marks the run's processes, to find them when the run ends
	}
	var st *streams
	// A waiting interpreter has the rest of its environment already.
	vars := map[string]string{}
	maps.Copy(vars, cfg.networkEnv)
	maps.Copy(vars, r.Env)
	if wt := s.claimWarm(&r.Run, entry, vars); wt != nil {
		maps.Copy(vars, env)
		p.started = time.Now()
		if err := wt.preload.Release(r.Args, vars); err == nil {
			p.child, st, r.warm = wt.child, wt.streams, true
			r.temp = append(r.temp, wt.preload.Dir)
		} else {
			s.discard(wt)
		}
	}
	if p.child == nil {
		full := maps.Clone(cfg.env)
		maps.Copy(full, env)
		start, err := s.cold(r, cfg, entry, full)
		if err != nil {
			return err
		}
		if st, err = pipes(true); err != nil {
			return err
		}
		p.started = time.Now()
		p.child, err = s.table.Start(child.Spec{Path: start.Args[0], Args: start.Args, Env: environ(start.Env), Dir: cfg.WorkDir,
			User: cfg.user, Limits: cfg.limits(cfg.user), Files: st.childFDs})
		if err != nil {
			st.close()
			return err
		}
		st.closeChildEnds()
	}
	s.startPumps(p, st)
	s.mu.Lock()
	r.proc = p
	s.mu.Unlock()
	s.work.Add(2)
	go func() {
		defer s.work.Done()
		s.supervise(r)
	}()
	go func() {
		defer s.work.Done()
		for data := r.Stdin; len(data) > 0; { // a program may not read all of its input
			n := min(len(data), 64<<10)
			if p.feed(data[:n]) != nil {
				break
			}
			data = data[n:]
		}
		p.closeInput()
	}()
	return nil
}

// feed writes to standard input without a deadline: it returns when the pipe is
// closed or the program ends.
func (p *proc) feed(data []byte) error {
	p.inputMu.Lock()
	input := p.input
	p.inputMu.Unlock()
	if input == nil {
		return os.ErrClosed
	}
	_, err := input.Write(data)
	return err
}

// cold returns the command that starts the program in a fresh interpreter.
func (s *Server) cold(r *run, cfg *settings, entry string, env map[string]string) (warm.Command, error) {
	if r.Language == engi.Go {
		return s.goStart(r, cfg, entry, env)
	}
	preload := s.coldPreload(r.Language, cfg)
	if preload != "" {
		r.temp = append(r.temp, preload)
	}
	return warm.ColdCommand(r.Language, r.Interpreter, entry, r.Args, env, preload), nil
}

// supervise waits for the end of a run or enforces it, and collects the
// artifacts.
func (s *Server) supervise(r *run) {
	p := r.proc
	var timeout <-chan time.Time
	if r.Timeout > 0 {
		t := time.NewTimer(r.Timeout)
		defer t.Stop()
		timeout = t.C
	}
	m := s.newMonitor(r)
	defer m.stop()
	processes := child.ProcessTree{Child: p.child, Marker: "ENGI_RUN=" + r.ID, Exclude: func() map[int]bool { return s.otherSessions(r.ID) }}
	cause := engi.CauseExited
	for cause == engi.CauseExited {
		select {
		case <-p.child.Done():
		case <-timeout:
			cause = engi.CauseTimeout
		case <-p.log.LimitReached():
			cause = engi.CauseOutput
		case <-m.tick():
			m.check()
			continue
		}
		break
	}
	ended := time.Now()
	m.check()
	if cause == engi.CauseExited {
		// Output may still be in the pipes, and other processes may hold them.
		// Wait a moment for the rest, then end the run.
		p.waitDrained(outputGrace)
	}
	if cause != engi.CauseExited || !s.table.Gone(processes) {
		s.table.Kill(processes, killTimeout)
	}
	select {
	case <-p.child.Done():
	case <-time.After(killTimeout): // only if the kernel fails to kill it
	}
	p.waitDrained(outputGrace)
	select {
	case <-p.log.LimitReached(): // output read after the end reached the limit
		if cause == engi.CauseExited {
			cause = engi.CauseOutput
		}
	default:
	}
	r.finish = s.result(r, m, cause)
	r.finish.Duration = ended.Sub(p.started)
	s.collect(r)
	for _, path := range r.temp {
		os.RemoveAll(path)
	}
	p.finish(r.finish.Exit)
	close(r.done)
	s.evictRuns(r)
}

// result returns the outcome of the run with its cause.
func (s *Server) result(r *run, m *monitor, cause engi.Cause) wire.Finish {
	fin := wire.Finish{Warm: r.warm}
	select {
	case <-r.proc.child.Done():
		fin.Exit = r.proc.child.Exit()
	default:
		fin.Exit = engi.Exit{Code: -1, Signal: "KILL"}
	}
	failed := fin.Exit.Code != 0
	switch {
	case cause == engi.CauseTimeout && m.processesNow:
		cause = engi.CauseProcesses // the program hung because it could not start another process
	case cause == engi.CauseExited && killedForMemory(r.proc.child.PID, fin.Exit):
		cause = engi.CauseMemory
	case cause == engi.CauseExited && failed && m.processes:
		cause = engi.CauseProcesses
	case cause == engi.CauseExited && failed && m.disk:
		cause = engi.CauseDisk
	}
	fin.Exit.Cause = cause
	switch cause {
	case engi.CauseTimeout:
		fin.Error = fmt.Sprintf("the program was ended after %v", r.Timeout)
	case engi.CauseOutput:
		fin.Error = fmt.Sprintf("the program printed more than %d bytes", r.Output)
	case engi.CauseProcesses:
		fin.Error = "the program reached the limit of processes and threads"
	case engi.CauseDisk:
		fin.Error = "the program filled the disk"
	}
	fin.StdoutBytes, fin.StdoutTruncated = r.proc.log.Accepted(engi.Stdout)
	fin.StderrBytes, fin.StderrTruncated = r.proc.log.Accepted(engi.Stderr)
	return fin
}

// collect creates the manifest. The error text mentions an output directory that
// cannot be read.
func (s *Server) collect(r *run) {
	known := map[string]tree.Stamp{}
	for p, st := range r.inputs {
		if rel, ok := relativeTo(r.OutputDir, p); ok {
			known[rel] = st
		}
	}
	found, left, err := tree.Collect(r.OutputDir, tree.Search{Since: r.inputTime, Known: known, Bytes: r.ArtifactBytes, Count: r.ArtifactCount})
	if err != nil {
		r.finish.ArtifactsLeft++
		if r.finish.Error == "" {
			r.finish.Error = "collect artifacts: " + err.Error()
		}
		return
	}
	r.finish.Artifacts, r.finish.ArtifactsLeft = found, left
}

// relativeTo returns p relative to dir, if it is below dir.
func relativeTo(dir, p string) (string, bool) {
	dir = path.Clean(dir)
	if dir == "/" {
		return p[1:], true
	}
	if len(p) > len(dir) && p[:len(dir)] == dir && p[len(dir)] == '/' {
		return p[len(dir)+1:], true
	}
	return "", false
}

// evictRuns records that r has finished, and drops the oldest finished runs if
// there are too many or their total size is too large.
func (s *Server) evictRuns(r *run) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = append(s.ended, r.ID)
	var size int64
	for i := len(s.ended) - 1; i >= 0; i-- {
		if old := s.runs[s.ended[i]]; old != nil {
			size += old.proc.log.End()
		}
		if i < len(s.ended)-1 && (len(s.ended)-i > maxEnded || size > wire.MaxOutput) {
			for _, id := range s.ended[:i+1] {
				delete(s.runs, id)
			}
			s.ended = append([]string(nil), s.ended[i+1:]...)
			return
		}
	}
}

// artifacts sends the contents of the manifest's files, concatenated: the host
// knows their sizes and digests. If a file has changed, the answer is aborted.
func (s *Server) artifacts(w http.ResponseWriter, req *http.Request) error {
	r, err := s.findRun(req.PathValue("id"))
	if err != nil {
		return err
	}
	select {
	case <-r.done:
	default:
		return engi.Errorf(engi.Conflict, "run %s has not ended", r.ID)
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	if err := http.NewResponseController(w).Flush(); err != nil {
		return nil
	}
	for _, a := range r.finish.Artifacts {
		if err := sendArtifact(w, r.OutputDir, a); err != nil {
			panic(http.ErrAbortHandler) // the answer has begun: abort it
		}
	}
	return nil
}

func sendArtifact(w io.Writer, dir string, a wire.Artifact) error {
	f, err := tree.OpenBelow(dir, a.Path)
	if err != nil {
		return err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.CopyN(io.MultiWriter(w, h), f, a.Size); err != nil {
		return err
	}
	if hex.EncodeToString(h.Sum(nil)) != a.SHA256 {
		return engi.Errorf(engi.Conflict, "artifact %s changed", a.Path)
	}
	return nil
}
