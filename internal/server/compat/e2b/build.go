package e2b

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/engi-dev/engi/internal/clip"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/disk/registry"
)

// Limits of one build.
const (
	maxSteps    = 1000
	maxWaiting  = 256 // maximum number of running and waiting builds, shared by owners
	maxLogLines = 20_000
	maxLogLine  = 4 << 10
	readyTime   = 5 * time.Minute // maximum time until the ready command succeeds
	readyGap    = 500 * time.Millisecond
	settleTime  = 5 * time.Second // wait after a start command without a ready command
)

type buildRequest struct {
	FromImage    string `json:"fromImage"`
	FromTemplate string `json:"fromTemplate"`
	Registry     *struct {
		Type        string `json:"type"`
		Username    string `json:"username"`
		Password    string `json:"password"`
		ServiceJSON string `json:"serviceAccountJson"`
	} `json:"fromImageRegistry"`
	Force    bool        `json:"force"`
	StartCmd string      `json:"startCmd"`
	ReadyCmd string      `json:"readyCmd"`
	Steps    []buildStep `json:"steps"`
}

type buildStep struct {
	Type      string   `json:"type"`
	Args      []string `json:"args"`
	Force     bool     `json:"force"`
	FilesHash string   `json:"filesHash"`
}

// stepTypes holds the allowed number of arguments of each type of step.
var stepTypes = map[string]struct {
	kind        engi.StepType
	least, most int
}{
	"RUN":     {engi.StepRun, 1, 2},
	"COPY":    {engi.StepCopy, 2, 4},
	"ENV":     {engi.StepEnv, 0, 2000},
	"WORKDIR": {engi.StepWorkdir, 1, 1},
	"USER":    {engi.StepUser, 1, 1},
}

// spec converts a request; archive returns the path of an uploaded archive.
func (q *buildRequest) spec(archive func(hash string) string) (engi.BuildSpec, error) {
	spec := engi.BuildSpec{FromImage: q.FromImage, FromTemplate: q.FromTemplate, Force: q.Force}
	if q.FromImage != "" && q.FromTemplate != "" {
		return spec, engi.Errorf(engi.Invalid, "fromImage and fromTemplate exclude each other")
	}
	if l := q.Registry; l != nil {
		switch l.Type {
		case "registry":
			spec.Login = engi.RegistryLogin{User: l.Username, Password: l.Password}
		case "gcp":
			spec.Login = engi.RegistryLogin{User: "_json_key", Password: l.ServiceJSON}
		default:
			return spec, engi.Errorf(engi.Unsupported, "logins of type %.20q are not supported: use a user name and a password", l.Type)
		}
	}
	if len(q.Steps) > maxSteps {
		return spec, engi.Errorf(engi.Invalid, "%d steps exceed the limit of %d", len(q.Steps), maxSteps)
	}
	for i, st := range q.Steps {
		t, ok := stepTypes[strings.ToUpper(st.Type)]
		if !ok {
			return spec, engi.Errorf(engi.Invalid, "step %d has the unknown type %.20q", i+1, st.Type)
		}
		args := st.Args
		for len(args) > t.least && args[len(args)-1] == "" {
			args = args[:len(args)-1] // an empty last argument counts as omitted
		}
		if len(args) < t.least || len(args) > t.most || t.kind == engi.StepEnv && len(args)%2 != 0 {
			return spec, engi.Errorf(engi.Invalid, "step %d, %s, has %d arguments", i+1, st.Type, len(args))
		}
		out := engi.BuildStep{Type: t.kind, Args: args, Force: st.Force}
		if t.kind == engi.StepCopy {
			if !hashPattern.MatchString(st.FilesHash) {
				return spec, engi.Errorf(engi.Invalid, "step %d copies files but does not name an archive", i+1)
			}
			if out.Archive = archive(st.FilesHash); out.Archive == "" {
				return spec, engi.Errorf(engi.Invalid, "the archive of step %d was not uploaded", i+1)
			}
		}
		spec.Steps = append(spec.Steps, out)
	}
	return spec, nil
}

// startBuild starts a build with the steps of the request.
func (s *Server) startBuild(w http.ResponseWriter, r *http.Request, who caller) (err error) {
	var q buildRequest
	if err := body(w, r, &q); err != nil {
		return err
	}
	if s.Builder == nil {
		return errNone("builds of templates by steps")
	}
	if (q.StartCmd != "" || q.ReadyCmd != "") && s.Lifecycle == nil {
		return errNone("start commands of templates")
	}
	t, b, err := s.findBuild(r, who)
	if err != nil {
		return err
	}
	if b.State != registry.BuildWaiting {
		return engi.Errorf(engi.Conflict, "build %s is %s", b.ID, b.State)
	}
	base := q.FromTemplate
	if base != "" {
		if base, err = s.base(r.Context(), who, base); err != nil {
			return err
		}
	}
	// Hard links keep the archives until the build ends, even if sweep removes
	// them.
	dir := filepath.Join(s.Dir, "builds", b.ID)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return engi.Errorf(engi.Internal, "%v", err)
	}
	defer func() {
		if err != nil {
			os.RemoveAll(dir)
		}
	}()
	spec, err := q.spec(func(hash string) string {
		link := filepath.Join(dir, hash)
		if err := os.Link(s.archive(t.Owner, hash), link); err != nil && !os.IsExist(err) {
			return ""
		}
		return link
	})
	if err != nil {
		return err
	}
	spec.Name, spec.Owner, spec.Size, spec.FromTemplate = b.Template, t.Owner, b.Size, base

	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return engi.Errorf(engi.Unavailable, "the node is stopping")
	}
	if s.builds[b.ID] != nil {
		return engi.Errorf(engi.Conflict, "build %s is running", b.ID)
	}
	if !s.waiting.Take(t.Owner, 1) {
		return engi.Errorf(engi.Exhausted, "%d of your builds run or wait already: wait for one to end", s.waiting.Of(t.Owner)).
			WithRetry(engi.Retry{AfterMillis: 30_000})
	}
	ctx, cancel := context.WithCancel(s.life)
	s.builds[b.ID] = cancel
	s.work.Add(1)
	go func() {
		defer s.work.Done()
		defer os.RemoveAll(dir)
		s.build(ctx, t, *b, spec, q.StartCmd, q.ReadyCmd)
		s.mu.Lock()
		delete(s.builds, b.ID)
		s.mu.Unlock()
		s.waiting.Give(t.Owner, 1)
		cancel()
	}()
	return respond(w, http.StatusAccepted, nil)
}

// base returns the template of engi that a reference resolves to.
func (s *Server) base(ctx context.Context, who caller, ref string) (string, error) {
	name, tag := reference(ref)
	t, err := s.Store.Get(ctx, who.viewer, name)
	if err == nil {
		b := t.Tagged(tag)
		if b == nil && tag == defaultTag {
			b = t.Latest()
		}
		if b == nil || b.State != registry.BuildReady {
			return "", errTemplate(ref)
		}
		return b.Template, nil
	}
	if !missing(err) {
		return "", err
	}
	b, err := s.Templates.Get(ctx, name)
	if missing(err) || err == nil && (tag != defaultTag || b.Owner != "" && !who.viewer.Sees(b.Owner)) {
		return "", errTemplate(ref)
	}
	return name, err
}

// build runs a build and stores its result.
func (s *Server) build(ctx context.Context, t registry.Template, b registry.Build, spec engi.BuildSpec, start, ready string) {
	log := &buildLog{s: s, template: t.ID, build: b.ID}
	stop := log.keep()
	defer stop()
	state := func(st registry.BuildState) error {
		b.State, b.Updated = st, now()
		gone := []registry.Build(nil)
		_, err := s.change(context.WithoutCancel(ctx), engi.Everyone, t.ID, func(t *registry.Template) error {
			p := t.Build(b.ID)
			if p == nil {
				return engi.Errorf(engi.NotFound, "the template was removed")
			}
			*p = b
			if st == registry.BuildReady {
				t.Tag(b.Tags, b.ID, b.Updated)
				gone = t.Forget()
			}
			return nil
		})
		if err == nil {
			s.discard(context.WithoutCancel(ctx), t.Owner.Viewer(), gone)
		}
		return err
	}
	err := state(registry.BuildBuilding)
	if err == nil {
		err = s.inTurn(ctx, t.Owner, func(ctx context.Context) error { return s.make(ctx, &b, spec, start, ready, log) })
	}
	last := registry.BuildReady
	if err != nil {
		last, b.Reason, b.Step = registry.BuildFailed, reason(err, b.Template), log.step()
		s.discard(context.WithoutCancel(ctx), t.Owner.Viewer(), []registry.Build{b})
		b.Snapshot = ""
		log.add("error", b.Step, b.Reason)
	} else {
		log.add("info", "finalize", "the template is ready")
	}
	stop() // the log must be complete before the state changes
	if err := state(last); err != nil {
		s.Log.Warn("record a build", "build", b.ID, "error", err)
		s.discard(context.WithoutCancel(ctx), t.Owner.Viewer(), []registry.Build{b})
	}
}

// A line is the queue of one owner's builds, of which the first one runs.
type line struct {
	turn  chan struct{} // the running build holds a value; the others wait in their order
	count int           // number of builds; guarded by the server's mu
}

// inTurn calls f after all earlier builds of the owner have ended and when one of the
// node's slots is free. So an owner waits for at most one slot at a time, behind at most one
// build of each other owner. Builds of the node itself wait for slots only. The
// context of f ends after the maximum time of one build.
func (s *Server) inTurn(ctx context.Context, owner engi.Owner, f func(context.Context) error) error {
	if owner != "" {
		s.mu.Lock()
		l := s.lines[owner]
		if l == nil {
			l = &line{turn: make(chan struct{}, 1)}
			s.lines[owner] = l
		}
		l.count++
		s.mu.Unlock()
		defer func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			if l.count--; l.count == 0 {
				delete(s.lines, owner)
			}
		}()
		select {
		case l.turn <- struct{}{}:
			defer func() { <-l.turn }()
		case <-ctx.Done():
			return errCancelled
		}
	}
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	case <-ctx.Done():
		return errCancelled
	}
	work, cancel := context.WithTimeout(ctx, s.BuildTime)
	defer cancel()
	err := f(work)
	if err != nil && work.Err() != nil && ctx.Err() == nil {
		return engi.Errorf(engi.Expired, "the build took longer than %s: build on a template of yours that has the slow steps, or have the operator raise builds.timeout", s.BuildTime)
	}
	return err
}

var errCancelled = engi.Errorf(engi.Expired, "the build was cancelled")

// reason returns the error of a build for users, with the template's name as they know it.
func reason(err error, template string) string {
	return strings.TrimPrefix(err.Error(), "build template "+template+": ")
}

// make builds the template. If it has a start command, make also takes a snapshot of a sandbox
// in which the command runs.
func (s *Server) make(ctx context.Context, b *registry.Build, spec engi.BuildSpec, start, ready string, log *buildLog) error {
	if _, err := s.Builder.BuildSteps(ctx, spec, log.progress); err != nil {
		return err
	}
	if start == "" && ready == "" {
		return nil
	}
	log.at("finalize")
	sandbox, err := s.Sandboxes.Create(ctx, engi.SandboxSpec{
		Owner: spec.Owner, Template: spec.Name, Size: spec.Size, Notes: map[string]string{registry.NoteBuild: b.ID},
		Lifetime: engi.Lifetime{Timeout: readyTime + 5*time.Minute, OnTimeout: engi.EndKill},
	})
	if err != nil {
		return err
	}
	defer func() {
		patience, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		if err := s.Sandboxes.Stop(patience, spec.Owner.Viewer(), sandbox.ID); err != nil && !missing(err) {
			s.Log.Warn("stop the sandbox of a build", "sandbox", sandbox.ID, "error", err)
		}
	}()
	if err := s.comeUp(ctx, sandbox, start, ready, log); err != nil {
		return err
	}
	if start == "" {
		return nil
	}
	p, err := s.Lifecycle.Snapshot(ctx, spec.Owner.Viewer(), sandbox.ID, engi.SnapshotSpec{Name: buildSnapshots + b.ID})
	if err != nil {
		return err
	}
	b.Snapshot = p.ID
	return nil
}

// waitForPort matches the command that the clients' helper waitForPort generates. It needs ss,
// which many images lack, so the node tries a connection instead.
var waitForPort = regexp.MustCompile(`^\[ -n "\$\(ss -Htuln sport = :(\d{1,5})\)" \]$`)

// comeUp runs the start command and waits for the ready command to succeed.
func (s *Server) comeUp(ctx context.Context, sandbox engi.Sandbox, start, ready string, log *buildLog) error {
	g, release, err := s.Sandboxes.Enter(ctx, sandbox.Owner.Viewer(), sandbox.ID)
	if err != nil {
		return err
	}
	defer release()
	ctx, cancel := context.WithTimeout(ctx, readyTime)
	defer cancel()
	var ended chan engi.Exit
	if start != "" {
		log.add("info", "finalize", "start command: "+start)
		p, err := g.Start(ctx, engi.Command{Args: []string{"/bin/bash", "-l", "-c", start}, Tag: "start"})
		if err != nil {
			return err
		}
		ended = make(chan engi.Exit, 1)
		var watching sync.WaitGroup
		watch, leave := context.WithCancel(ctx)
		defer watching.Wait()
		defer leave()
		watching.Go(func() { log.follow(watch, p) })
		watching.Go(func() {
			if e, err := p.Wait(watch); err == nil {
				ended <- e
			}
		})
	}
	if ready == "" {
		select {
		case <-time.After(settleTime):
			return nil
		case e := <-ended:
			return failed("start command", e, 0)
		case <-ctx.Done():
			return engi.Errorf(engi.Expired, "start command: %v", context.Cause(ctx))
		}
	}
	log.add("info", "finalize", "ready command: "+ready)
	listens := 0
	if m := waitForPort.FindStringSubmatch(ready); m != nil {
		listens, _ = strconv.Atoi(m[1]) // cannot fail: the text has a few digits
	}
	for {
		if listens > 0 {
			if c, err := g.Dial(ctx, listens); err == nil {
				c.Close() // no data was sent
				return nil
			}
		}
		p, err := g.Start(ctx, engi.Command{Args: []string{"/bin/bash", "-l", "-c", ready}, Timeout: time.Minute})
		if err != nil {
			return err
		}
		e, err := p.Wait(ctx)
		if ctx.Err() != nil {
			return engi.Errorf(engi.Invalid, "the ready command has not succeeded in %s", readyTime)
		}
		if err != nil {
			return err
		}
		if e.Code == 0 {
			return nil
		}
		select {
		case <-time.After(readyGap):
		case e := <-ended:
			// A command that ends with status 0 may run on in the background.
			if err := failed("start command", e, 0); err != nil {
				return err
			}
			ended = nil
		case <-ctx.Done():
		}
	}
}

func failed(what string, e engi.Exit, want int) error {
	if e.Code == want {
		return nil
	}
	text := "exit status " + strconv.Itoa(e.Code)
	if e.Signal != "" {
		text = "signal " + e.Signal
	}
	return engi.Errorf(engi.Invalid, "%s failed: %s", what, text)
}

// recover marks builds that a crash interrupted as failed, and deletes their
// remains.
func (s *Server) recover(ctx context.Context) error {
	if err := os.RemoveAll(filepath.Join(s.Dir, "builds")); err != nil {
		return engi.Errorf(engi.Internal, "%v", err)
	}
	if err := os.MkdirAll(s.Dir, 0o700); err != nil {
		return engi.Errorf(engi.Internal, "%v", err)
	}
	all, err := s.Store.List(ctx, engi.Everyone)
	if err != nil {
		return err
	}
	for _, t := range all {
		changed := false
		for i := range t.Builds {
			if b := &t.Builds[i]; b.State == registry.BuildBuilding {
				b.State, b.Reason, b.Updated, changed = registry.BuildFailed, "the node was restarted during the build", now(), true
			}
		}
		if changed {
			if err := s.Store.Put(ctx, t); err != nil {
				return err
			}
		}
	}
	return nil
}

// A buildLog collects lines and stores them in batches. It is safe for
// concurrent use.
type buildLog struct {
	s               *Server
	template, build string

	mu      sync.Mutex
	lines   []registry.LogLine
	count   int
	current string // current step
}

// keep stores lines in the background until the returned function is called. That function
// stores the rest, and does nothing when called again.
func (l *buildLog) keep() (stop func()) {
	end, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				l.flush()
			case <-end:
				l.flush()
				return
			}
		}
	}()
	return sync.OnceFunc(func() {
		close(end)
		<-done
	})
}

func (l *buildLog) flush() {
	l.mu.Lock()
	lines := l.lines
	l.lines = nil
	l.mu.Unlock()
	if len(lines) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := l.s.Store.AddLines(ctx, l.template, l.build, lines); err != nil {
		l.s.Log.Warn("write the log of a build", "build", l.build, "error", err)
	}
}

func (l *buildLog) add(level, step, text string) {
	text = clip.Text(text, maxLogLine)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.count++; l.count > maxLogLines && level != "error" {
		return
	}
	l.lines = append(l.lines, registry.LogLine{Time: now(), Level: level, Step: step, Text: text})
}

func (l *buildLog) at(step string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.current = step
}

func (l *buildLog) step() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.current
}

func (l *buildLog) progress(e engi.Progress) {
	// Clients call the preparation of the root file system base and the
	// completion of the template finalize.
	step := "base"
	switch {
	case e.Steps > 0 && e.Step >= e.Steps:
		step = "finalize"
	case e.Step > 1:
		step = strconv.Itoa(e.Step - 1)
	}
	l.at(step)
	switch {
	case e.Log != "":
		l.add("info", step, e.Log)
	case e.Name != "" && e.Done == 0:
		text := "[" + strconv.Itoa(e.Step)
		if e.Steps > 0 {
			text += "/" + strconv.Itoa(e.Steps)
		}
		l.add("info", step, text+"] "+e.Name)
	}
}

// follow copies a process's output to the log.
func (l *buildLog) follow(ctx context.Context, p engi.Process) {
	rest := ""
	for c, err := range p.Output(ctx, 0) {
		if err != nil {
			if !errors.Is(err, io.EOF) && ctx.Err() == nil {
				l.s.Log.Debug("follow a start command", "error", err)
			}
			break
		}
		lines := strings.Split(rest+string(c.Data), "\n")
		rest = lines[len(lines)-1]
		if len(rest) > maxLogLine {
			lines, rest = append(lines[:len(lines)-1], rest, ""), ""
		}
		for _, t := range lines[:len(lines)-1] {
			l.add("info", "finalize", t)
		}
	}
	if rest != "" {
		l.add("info", "finalize", rest)
	}
}
