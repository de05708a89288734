package guestd

import (
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

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/guest/guestd/child"
	"github.com/engi-dev/engi/guest/guestd/tree"
	"github.com/engi-dev/engi/guest/guestd/warm"
	"github.com/engi-dev/engi/guest/wire"
)

// run is one program with limits. fin is set when over is closed.
type run struct {
	wire.Run
	proc    *proc
	warm    bool
	began   time.Time // when the first input was written, by the file system's clock
	known   map[string]tree.Stamp
	scratch []string // removed at the end
	over    chan struct{}
	fin     wire.Finish // immutable after over
}

// run serves the hot path: one request that carries everything, one answer.
func (s *Server) run(w http.ResponseWriter, req *http.Request) error {
	r, err := s.begin(req.Body)
	if err != nil {
		return err
	}
	return s.followRun(w, req, r, 0)
}

func (s *Server) followRun(w http.ResponseWriter, req *http.Request, r *run, from int64) error {
	return s.follow(w, req.Context(), r.proc, from, r.warm, gathering, r.over, func() (wire.Kind, any) { return wire.Exited, r.fin })
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
	return s.followRun(w, req, r, from)
}

func (s *Server) findRun(id string) (*run, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.runs[id]; r != nil && r.proc != nil {
		return r, nil
	}
	return nil, engi.Errorf(engi.NotFound, "there is no run %.80q", id)
}

// begin reads a run, writes its files and starts its program.
func (s *Server) begin(body io.Reader) (_ *run, err error) {
	in := wire.NewReader(body)
	r := &run{over: make(chan struct{}), known: map[string]tree.Stamp{}}
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
	for n, def := range map[*int64]int64{&r.Output: wire.DefaultOutput, &r.ArtifactBytes: wire.DefaultArtifactBytes} {
		if *n == 0 {
			*n = def
		}
	}
	if r.ArtifactCount == 0 {
		r.ArtifactCount = wire.DefaultArtifactCount
	}
	a := s.account()
	switch {
	case r.OutputDir == "":
		r.OutputDir = a.OutputDir
	case s.o.Twin:
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
			for _, p := range r.scratch {
				os.RemoveAll(p)
			}
		}
	}()
	if err := s.writeInputs(r, &a, in); err != nil {
		return nil, err
	}
	if r.OutputDir != a.WorkDir {
		if err := tree.MakeDirAll(r.OutputDir, a.owner); err != nil {
			return nil, err
		}
	}
	return r, s.launch(r, &a, entry)
}

// reserve makes the run's ID known, so that none starts twice.
func (s *Server) reserve(r *run) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.runs[r.ID] != nil {
		return engi.Errorf(engi.Conflict, "run %s exists already", r.ID).WithRemedy("reattach to it, or choose a fresh ID")
	}
	s.runs[r.ID] = r
	return nil
}

// writeInputs stores the files and standard input that follow the head.
func (s *Server) writeInputs(r *run, a *account, in *wire.Reader) (err error) {
	dir, err := tree.OpenDir(a.WorkDir)
	if err != nil {
		return err
	}
	defer dir.Close()
	data := &payload{in: in}
	for _, f := range r.Files {
		mode := f.Mode
		if mode == 0 {
			mode = 0o644
		}
		st, err := dir.Create(f.Path, mode, a.owner, data, f.Size)
		if err != nil {
			return err
		}
		r.known[a.WorkDir+"/"+f.Path] = st
		if r.began.IsZero() || st.Changed().Before(r.began) {
			r.began = st.Changed()
		}
	}
	r.Stdin = make([]byte, r.StdinSize)
	if _, err := io.ReadFull(data, r.Stdin); err != nil {
		return engi.Errorf(engi.Invalid, "standard input: %v", err)
	}
	return data.end()
}

// payload reads the bytes of the Data frames up to End.
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
			return 0, engi.Errorf(engi.Invalid, "frame %q came among data", byte(k))
		}
	}
	n := copy(b, p.rest)
	p.rest = p.rest[n:]
	return n, nil
}

// end reports Invalid unless all data was used and End came.
func (p *payload) end() error {
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

// launch starts the program, in a waiting interpreter if one fits.
func (s *Server) launch(r *run, a *account, entry string) error {
	p := &proc{id: r.ID, dir: s.inside(a.WorkDir), log: child.NewLog(r.Output, r.Output)}
	env := map[string]string{}
	maps.Copy(env, r.Env)
	if r.OutputDir != a.OutputDir {
		env["ENGI_OUTPUT_DIR"] = r.OutputDir
	}
	if s.o.Twin || len(s.sessions(r.ID)) > 0 {
		env["ENGI_RUN"] = r.ID // how its processes are told from others when it ends
	}
	var st *streams
	// The rest of its environment a waiting interpreter has.
	told := map[string]string{}
	maps.Copy(told, a.wired)
	maps.Copy(told, r.Env)
	if wt := s.claim(&r.Run, entry, told); wt != nil {
		maps.Copy(told, env)
		p.started = time.Now()
		if err := wt.hook.Go(r.Args, told); err == nil {
			p.child, st, r.warm = wt.child, wt.streams, true
			r.scratch = append(r.scratch, wt.hook.Dir)
		} else {
			s.giveUp(wt)
		}
	}
	if p.child == nil {
		full := maps.Clone(a.env)
		maps.Copy(full, env)
		start, err := s.cold(r, a, entry, full)
		if err != nil {
			return err
		}
		if st, err = pipes(true); err != nil {
			return err
		}
		p.started = time.Now()
		p.child, err = s.table.Start(child.Spec{Path: start.Args[0], Args: start.Args, Env: list(start.Env), Dir: a.WorkDir,
			User: a.user, Limits: a.limits(a.user), Files: st.theirs})
		if err != nil {
			st.close()
			return err
		}
		st.handed()
	}
	s.adopt(p, st)
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
		for data := r.Stdin; len(data) > 0; { // a program need not read it all
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

// feed writes standard input without a deadline: closing the pipe or the end
// of the program unblocks it.
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

// cold returns how to start the program the ordinary way.
func (s *Server) cold(r *run, a *account, entry string, env map[string]string) (warm.Start, error) {
	if r.Language == engi.Go {
		return s.goStart(r, a, entry, env)
	}
	hook := s.coldHook(r.Language, a)
	if hook != "" {
		r.scratch = append(r.scratch, hook)
	}
	return warm.Cold(r.Language, r.Interpreter, entry, r.Args, env, hook), nil
}

// supervise ends a run, whatever it does, and collects what it leaves.
func (s *Server) supervise(r *run) {
	p := r.proc
	var late <-chan time.Time
	if r.Timeout > 0 {
		t := time.NewTimer(r.Timeout)
		defer t.Stop()
		late = t.C
	}
	m := s.newMonitor(r)
	defer m.stop()
	herd := child.ProcessTree{Child: p.child, Marker: "ENGI_RUN=" + r.ID, Spare: func() map[int]bool { return s.sessions(r.ID) }}
	cause := engi.CauseExited
	for cause == engi.CauseExited {
		select {
		case <-p.child.Done():
		case <-late:
			cause = engi.CauseTimeout
		case <-p.log.Over():
			cause = engi.CauseOutput
		case <-m.tick():
			m.look()
			continue
		}
		break
	}
	ended := time.Now()
	m.look()
	if cause == engi.CauseExited {
		// What was printed is still on its way, perhaps from others that hold
		// the streams. They get a moment, then the run is over.
		p.settle(grace)
	}
	if cause != engi.CauseExited || !s.table.Alone(herd) {
		s.table.Kill(herd, killing)
	}
	select {
	case <-p.child.Done():
	case <-time.After(killing): // only if the kernel does not obey
	}
	p.settle(grace)
	select {
	case <-p.log.Over(): // the last words of a program that has ended are output too
		if cause == engi.CauseExited {
			cause = engi.CauseOutput
		}
	default:
	}
	r.fin = s.result(r, m, cause)
	r.fin.Duration = ended.Sub(p.started)
	s.collect(r)
	for _, path := range r.scratch {
		os.RemoveAll(path)
	}
	p.finish(r.fin.Exit)
	close(r.over)
	s.forget(r)
}

// result says how the run ended and why.
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
		cause = engi.CauseProcesses // it hung because it could not start any more
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
	fin.StdoutBytes, fin.StdoutTruncated = r.proc.log.Kept(engi.Stdout)
	fin.StderrBytes, fin.StderrTruncated = r.proc.log.Kept(engi.Stderr)
	return fin
}

// collect makes the manifest. A directory that cannot be read is said in the
// error text, not hidden.
func (s *Server) collect(r *run) {
	known := map[string]tree.Stamp{}
	for p, st := range r.known {
		if rel, ok := below(r.OutputDir, p); ok {
			known[rel] = st
		}
	}
	found, left, err := tree.Collect(r.OutputDir, tree.Search{Since: r.began, Known: known, Bytes: r.ArtifactBytes, Count: r.ArtifactCount})
	if err != nil {
		r.fin.ArtifactsLeft++
		if r.fin.Error == "" {
			r.fin.Error = "collect artifacts: " + err.Error()
		}
		return
	}
	r.fin.Artifacts, r.fin.ArtifactsLeft = found, left
}

// below returns p relative to dir, if it is below it.
func below(dir, p string) (string, bool) {
	dir = path.Clean(dir)
	if dir == "/" {
		return p[1:], true
	}
	if len(p) > len(dir) && p[:len(dir)] == dir && p[len(dir)] == '/' {
		return p[len(dir)+1:], true
	}
	return "", false
}

// forget drops the oldest finished runs once there are many or they are large.
func (s *Server) forget(r *run) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = append(s.ended, r.ID)
	var size int64
	for i := len(s.ended) - 1; i >= 0; i-- {
		if old := s.runs[s.ended[i]]; old != nil {
			size += old.proc.log.End()
		}
		if i < len(s.ended)-1 && (len(s.ended)-i > remembered || size > wire.MaxOutput) {
			for _, id := range s.ended[:i+1] {
				delete(s.runs, id)
			}
			s.ended = append([]string(nil), s.ended[i+1:]...)
			return
		}
	}
}

// artifacts sends the files of the manifest one after the other, nothing
// between them. The host knows the sizes and digests; a file that changed
// meanwhile breaks the stream.
func (s *Server) artifacts(w http.ResponseWriter, req *http.Request) error {
	r, err := s.findRun(req.PathValue("id"))
	if err != nil {
		return err
	}
	select {
	case <-r.over:
	default:
		return engi.Errorf(engi.Conflict, "run %s has not ended", r.ID)
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	if err := http.NewResponseController(w).Flush(); err != nil {
		return nil
	}
	for _, a := range r.fin.Artifacts {
		if err := sendArtifact(w, r.OutputDir, a); err != nil {
			panic(http.ErrAbortHandler) // the answer has begun: break it
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
