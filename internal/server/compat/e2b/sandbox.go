package e2b

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/engi-dev/engi/internal/clock"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/idempotency"
	"github.com/engi-dev/engi/internal/sandbox/disk/registry"
	"github.com/engi-dev/engi/internal/server/httpio"
)

// Default time until the deadline of a sandbox.
const (
	timeoutV1 = 15 * time.Second
	timeoutV2 = 300 * time.Second
)

// settles is the maximum time that a request waits for a change of state.
const settles = 60 * time.Second

func (s *Server) serveSandboxes() {
	s.handle("POST /sandboxes", func(w http.ResponseWriter, r *http.Request, who caller) error { return s.create(w, r, who, 1) })
	s.handle("POST /v2/sandboxes", func(w http.ResponseWriter, r *http.Request, who caller) error { return s.create(w, r, who, 2) })
	s.handle("GET /sandboxes", s.listV1)
	s.handle("GET /v2/sandboxes", s.list)
	s.handle("GET /sandboxes/metrics", s.manyMetrics)
	s.handle("GET /teams", func(w http.ResponseWriter, r *http.Request, who caller) error {
		// E2B's CLI needs a name; secrets of keys are not stored.
		name := team(who.owner)
		return respond(w, http.StatusOK, []map[string]any{{"teamID": name, "name": name, "apiKey": "", "isDefault": true}})
	})
	s.one("GET /sandboxes/{id}", func(w http.ResponseWriter, r *http.Request, who caller, sandbox engi.Sandbox) error {
		return respond(w, http.StatusOK, s.detail(sandbox, who))
	})
	s.handle("DELETE /sandboxes/{id}", s.kill)
	for _, v := range []string{"", "/v2"} {
		s.one("POST "+v+"/sandboxes/{id}/connect", s.connect)
		s.one("GET "+v+"/sandboxes/{id}/logs", s.logs)
	}
	s.one("POST /sandboxes/{id}/resume", s.resume)
	s.one("POST /sandboxes/{id}/timeout", s.timeout)
	s.one("POST /sandboxes/{id}/refreshes", s.refresh)
	s.one("POST /sandboxes/{id}/pause", s.pause)
	s.one("POST /sandboxes/{id}/fork", s.fork)
	s.one("PUT /sandboxes/{id}/network", s.setNetwork)
	s.one("GET /sandboxes/{id}/metrics", s.metrics)
}

// one registers a handler of a pattern for one sandbox that is not stopped.
func (s *Server) one(pattern string, f func(w http.ResponseWriter, r *http.Request, who caller, sandbox engi.Sandbox) error) {
	s.handle(pattern, func(w http.ResponseWriter, r *http.Request, who caller) error {
		sandbox, err := s.find(r.Context(), who, r.PathValue("id"))
		if err != nil {
			return err
		}
		return f(w, r, who, sandbox)
	})
}

func errLost(label string) error {
	return engi.Errorf(engi.NotFound, "sandbox %.40q not found", label)
}

func (s *Server) find(ctx context.Context, who caller, label string) (engi.Sandbox, error) {
	first, _, _ := strings.Cut(label, "-") // clients before version 2 append their clientID
	id, err := engi.SandboxOfLabel(first)
	if err != nil {
		return engi.Sandbox{}, errLost(label)
	}
	sandbox, err := s.Sandboxes.Get(ctx, who.viewer, id)
	if err == nil && (sandbox.State == engi.Stopped || sandbox.State == engi.Stopping) || engi.Is(err, engi.NotFound) {
		return engi.Sandbox{}, errLost(label)
	}
	return sandbox, err
}

// settled waits until the sandbox is not between two states.
func (s *Server) settled(ctx context.Context, sandbox engi.Sandbox) (engi.Sandbox, error) {
	ctx, cancel := context.WithTimeout(ctx, settles)
	defer cancel()
	for gap := 10 * time.Millisecond; ; gap = min(2*gap, 250*time.Millisecond) {
		switch sandbox.State {
		case engi.Running, engi.Paused, engi.Hibernated:
			return sandbox, nil
		case engi.Stopping, engi.Stopped:
			return sandbox, errLost(sandbox.ID.Label())
		}
		if clock.Sleep(ctx, gap) != nil {
			return sandbox, engi.Errorf(engi.Unavailable, "the sandbox is %s", sandbox.State)
		}
		var err error
		if sandbox, err = s.Sandboxes.Get(ctx, engi.Everyone, sandbox.ID); err != nil {
			return sandbox, err
		}
	}
}

func seconds(n *int64, otherwise time.Duration) (time.Duration, error) {
	switch {
	case n == nil:
		return otherwise, nil
	case *n < 0 || *n > 1<<31:
		return 0, engi.Errorf(engi.Invalid, "timeout %d is out of range", *n)
	}
	return time.Duration(*n) * time.Second, nil
}

func (s *Server) create(w http.ResponseWriter, r *http.Request, who caller, version int) error {
	var q newSandbox
	if err := body(w, r, &q); err != nil {
		return err
	}
	otherwise := timeoutV1
	if version == 2 {
		otherwise = timeoutV2
	}
	timeout, err := seconds(q.Timeout, otherwise)
	if err != nil {
		return err
	}
	spec := engi.SandboxSpec{
		Owner: who.owner, Metadata: q.Metadata, Env: q.EnvVars, Notes: map[string]string{},
		Lifetime: engi.Lifetime{Timeout: timeout, OnTimeout: engi.EndKill, AutoResume: q.AutoResume != nil && q.AutoResume.Enabled},
	}
	if q.AutoPause {
		spec.Lifetime.OnTimeout = engi.EndHibernate
		spec.Lifetime.DiskOnly = q.AutoPauseMemory != nil && !*q.AutoPauseMemory
	}
	if spec.Lifetime.DiskOnly && spec.Lifetime.AutoResume {
		return engi.Errorf(engi.Invalid, "autoPauseMemory false and autoResume exclude each other: without memory, only an explicit connect starts the sandbox again")
	}
	if err := s.resolve(r.Context(), who, q.TemplateID, &spec); err != nil {
		return err
	}
	if q.Secure == nil && version == 1 || q.Secure != nil && !*q.Secure {
		spec.Notes[noteOpen] = "1"
	}
	if spec.Network, err = q.Network.policy(q.Internet, s.Internet, s.Rules, spec.Notes); err != nil {
		return err
	}
	if n := q.Network; n != nil {
		spec.Ports = engi.PortPolicy{Private: n.AllowPublicTraffic != nil && !*n.AllowPublicTraffic, Host: n.MaskRequestHost}
	}
	for _, m := range q.VolumeMounts {
		spec.Volumes = append(spec.Volumes, engi.VolumeMount{Volume: m.Name, Path: m.Path})
	}
	if len(q.MCP) > 0 && string(q.MCP) != "null" {
		spec.Notes[noteMCP] = string(q.MCP)
	}
	if len(q.IAM) > 0 && string(q.IAM) != "null" {
		spec.Notes[noteIAM] = string(q.IAM)
	}
	// The template and the rules of the node may change between two requests with one key, so the
	// fingerprint is the one of the body.
	of, err := s.request(r, who, q)
	if err != nil {
		return err
	}
	spec.Idempotency, spec.Fingerprint = of.Key, of.Fingerprint
	sandbox, err := s.Sandboxes.Create(r.Context(), spec)
	if err != nil {
		return err
	}
	return respond(w, http.StatusCreated, s.createdView(sandbox, who))
}

// filter parses the parameters that all lists share.
func filter(r *http.Request) (f engi.SandboxFilter, err error) {
	f = engi.SandboxFilter{Owned: true}
	f.Metadata, err = metadataOf(r.URL.Query().Get("metadata"))
	return f, err
}

var (
	awake  = []engi.State{engi.Pending, engi.Starting, engi.Running, engi.Resuming}
	asleep = []engi.State{engi.Paused, engi.Hibernating, engi.Hibernated}
)

func (s *Server) listV1(w http.ResponseWriter, r *http.Request, who caller) error {
	f, err := filter(r)
	if err != nil {
		return err
	}
	f.States, f.Limit = awake, -1
	sandboxes, err := s.Sandboxes.List(r.Context(), who.viewer, f)
	if err != nil {
		return err
	}
	return respond(w, http.StatusOK, listedAll(visible(sandboxes)))
}

// visible returns the sandboxes without those of builds.
func visible(sandboxes []engi.Sandbox) []engi.Sandbox {
	return slices.DeleteFunc(sandboxes, func(b engi.Sandbox) bool { return b.Notes[registry.NoteBuild] != "" })
}

func listedAll(sandboxes []engi.Sandbox) []listedSandbox {
	all := make([]listedSandbox, len(sandboxes))
	for i, b := range sandboxes {
		all[i] = listed(b)
	}
	return all
}

func (s *Server) list(w http.ResponseWriter, r *http.Request, who caller) error {
	q := r.URL.Query()
	f, err := filter(r)
	if err != nil {
		return err
	}
	for _, text := range q["state"] {
		for state := range strings.SplitSeq(text, ",") {
			switch state {
			case "running":
				f.States = append(f.States, awake...)
			case "paused":
				f.States = append(f.States, asleep...)
			default:
				return engi.Errorf(engi.Invalid, "state %.40q is neither running nor paused", state)
			}
		}
	}
	if f.States == nil {
		f.States = append(append(f.States, awake...), asleep...)
	}
	switch q.Get("order") {
	case "", "desc":
	case "asc":
		f.Oldest = true
	default:
		return engi.Errorf(engi.Invalid, "order %.40q is neither asc nor desc", q.Get("order"))
	}
	if since := q.Get("startedAfter"); since != "" {
		if f.Started, err = time.Parse(time.RFC3339, since); err != nil {
			return engi.Errorf(engi.Invalid, "startedAfter: %v", err)
		}
	}
	if after := q.Get("nextToken"); after != "" {
		if f.After, err = engi.SandboxOfLabel(after); err != nil {
			return engi.Errorf(engi.Invalid, "nextToken: %w", err)
		}
	}
	limit, err := pageLimit(r)
	if err != nil {
		return err
	}
	// One more sandbox shows that there is another page. Services do not have E2B's
	// templates, so the filter for them is applied here.
	template := q.Get("template")
	f.Limit = limit + 1 + s.MaxBuilds // sandboxes of builds are removed below
	if template != "" {
		f.Limit = -1
	}
	sandboxes, err := s.Sandboxes.List(r.Context(), who.viewer, f)
	if err != nil {
		return err
	}
	sandboxes = visible(sandboxes)
	if template != "" {
		sandboxes = slices.DeleteFunc(sandboxes, func(b engi.Sandbox) bool {
			id, alias := templateOf(b)
			return id != template && alias != template && b.Template != template
		})
	}
	if len(sandboxes) > limit {
		sandboxes = sandboxes[:limit]
		w.Header().Set("X-Next-Token", sandboxes[limit-1].ID.Label())
	}
	return respond(w, http.StatusOK, listedAll(sandboxes))
}

func (s *Server) kill(w http.ResponseWriter, r *http.Request, who caller) error {
	sandbox, err := s.find(r.Context(), who, r.PathValue("id"))
	if err != nil {
		return err
	}
	return done(w, s.Sandboxes.Stop(r.Context(), who.viewer, sandbox.ID))
}

type wake struct {
	Timeout *int64 `json:"timeout"`
	Memory  *bool  `json:"memory"`
}

// awaken resumes a sandbox, or extends its deadline if it is running.
func (s *Server) awaken(r *http.Request, who caller, sandbox engi.Sandbox, q wake, otherwise time.Duration) (_ engi.Sandbox, slept bool, err error) {
	timeout, err := seconds(q.Timeout, otherwise)
	if err != nil {
		return sandbox, false, err
	}
	ctx := r.Context()
	for {
		if sandbox, err = s.settled(ctx, sandbox); err != nil {
			return sandbox, slept, err
		}
		if sandbox.State == engi.Running {
			if timeout > 0 {
				sandbox, err = s.Sandboxes.Update(ctx, who.viewer, sandbox.ID, engi.SandboxUpdate{Extend: &timeout})
			}
		} else {
			if s.Lifecycle == nil {
				return sandbox, false, errNone("paused sandboxes")
			}
			slept = true
			sandbox, err = s.Lifecycle.Resume(ctx, who.viewer, sandbox.ID, timeout, q.Memory != nil && !*q.Memory)
		}
		if !engi.Is(err, engi.Conflict) || ctx.Err() != nil {
			return sandbox, slept, err
		}
		// The state has changed in the meantime: read it again.
		refused := err
		if sandbox, err = s.find(ctx, who, sandbox.ID.Label()); err != nil {
			return sandbox, slept, err
		}
		if sandbox.State == engi.Running || sandbox.State == engi.Paused || sandbox.State == engi.Hibernated {
			if clock.Sleep(ctx, 50*time.Millisecond) != nil {
				return sandbox, slept, refused
			}
		}
	}
}

func (s *Server) connect(w http.ResponseWriter, r *http.Request, who caller, sandbox engi.Sandbox) error {
	var q wake
	if err := body(w, r, &q); err != nil {
		return err
	}
	sandbox, slept, err := s.awaken(r, who, sandbox, q, timeoutV2)
	if err != nil {
		return err
	}
	status := http.StatusOK
	if slept {
		status = http.StatusCreated
	}
	return respond(w, status, s.createdView(sandbox, who))
}

func (s *Server) resume(w http.ResponseWriter, r *http.Request, who caller, sandbox engi.Sandbox) error {
	var q struct {
		wake
		AutoPause *bool `json:"autoPause"`
	}
	if err := body(w, r, &q); err != nil {
		return err
	}
	if stateOf(sandbox.State) == "running" {
		return engi.Errorf(engi.Conflict, "sandbox %s is running", sandbox.ID.Label())
	}
	sandbox, _, err := s.awaken(r, who, sandbox, q.wake, timeoutV1)
	if err != nil {
		return err
	}
	if q.AutoPause != nil {
		life := sandbox.Lifetime
		life.OnTimeout = engi.EndKill
		if *q.AutoPause {
			life.OnTimeout = engi.EndHibernate
		}
		if sandbox, err = s.Sandboxes.Update(r.Context(), who.viewer, sandbox.ID, engi.SandboxUpdate{Lifetime: &life}); err != nil {
			return err
		}
	}
	return respond(w, http.StatusCreated, s.createdView(sandbox, who))
}

func (s *Server) timeout(w http.ResponseWriter, r *http.Request, who caller, sandbox engi.Sandbox) error {
	var q struct {
		Timeout *int64 `json:"timeout"`
	}
	if err := body(w, r, &q); err != nil {
		return err
	}
	if q.Timeout == nil {
		return engi.Errorf(engi.Invalid, "the timeout is missing")
	}
	d, err := seconds(q.Timeout, 0)
	if err != nil {
		return err
	}
	if _, err := s.Sandboxes.Update(r.Context(), who.viewer, sandbox.ID, engi.SandboxUpdate{Timeout: &d}); err != nil {
		return err
	}
	return respond(w, http.StatusNoContent, nil)
}

func (s *Server) refresh(w http.ResponseWriter, r *http.Request, who caller, sandbox engi.Sandbox) error {
	var q struct {
		Duration *int64 `json:"duration"`
	}
	if err := body(w, r, &q); err != nil {
		return err
	}
	d, err := seconds(q.Duration, timeoutV1)
	if err != nil {
		return err
	}
	if _, err := s.Sandboxes.Update(r.Context(), who.viewer, sandbox.ID, engi.SandboxUpdate{Extend: &d}); err != nil {
		return err
	}
	return respond(w, http.StatusNoContent, nil)
}

func (s *Server) pause(w http.ResponseWriter, r *http.Request, who caller, sandbox engi.Sandbox) error {
	var q wake
	if err := body(w, r, &q); err != nil {
		return err
	}
	if s.Lifecycle == nil {
		return errNone("paused sandboxes")
	}
	if stateOf(sandbox.State) == "paused" {
		return engi.Errorf(engi.Conflict, "sandbox %s is already paused", sandbox.ID.Label())
	}
	return done(w, s.Lifecycle.Hibernate(r.Context(), who.viewer, sandbox.ID, q.Memory != nil && !*q.Memory))
}

func (s *Server) fork(w http.ResponseWriter, r *http.Request, who caller, sandbox engi.Sandbox) error {
	var q struct {
		Timeout *int64 `json:"timeout"`
		Count   *int   `json:"count"`
	}
	if err := body(w, r, &q); err != nil {
		return err
	}
	if s.Lifecycle == nil {
		return errNone("copies of sandboxes")
	}
	timeout, err := seconds(q.Timeout, timeoutV1)
	if err != nil {
		return err
	}
	n := 1
	if q.Count != nil {
		n = *q.Count
	}
	if n < 1 || n > engi.MaxForks {
		return engi.Errorf(engi.Invalid, "count %d is not between 1 and %d", n, engi.MaxForks)
	}
	get := func(id engi.SandboxID) (engi.Sandbox, error) { return s.Sandboxes.Get(r.Context(), who.viewer, id) }
	copies, err := once(s, r, who, q, idempotency.Forks(n, get, func(ids []engi.SandboxID) ([]engi.Forked, error) {
		return s.Lifecycle.Fork(r.Context(), who.viewer, sandbox.ID, engi.ForkSpec{Count: cmp.Or(len(ids), n), IDs: ids, Timeout: timeout})
	}))
	if err != nil {
		return err
	}
	type refusal struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	}
	type outcome struct {
		Sandbox *createdSandbox `json:"sandbox,omitempty"`
		Error   *refusal        `json:"error,omitempty"`
	}
	all := make([]outcome, len(copies))
	for i, c := range copies {
		if c.Err != nil {
			all[i].Error = &refusal{httpio.StatusOf(c.Err), c.Err.Error()}
			continue
		}
		v := s.createdView(c.Sandbox, who)
		all[i].Sandbox = &v
	}
	return respond(w, http.StatusCreated, all)
}

func (s *Server) setNetwork(w http.ResponseWriter, r *http.Request, who caller, sandbox engi.Sandbox) error {
	var q network
	if err := body(w, r, &q); err != nil {
		return err
	}
	notes := notesOf(sandbox)
	if _, said := notes[noteInternet]; said && q.Internet == nil {
		yes := true // E2B's default
		q.Internet = &yes
	}
	p, err := q.policy(q.Internet, s.Internet, s.Rules, notes)
	if err != nil {
		return err
	}
	if _, err := s.Sandboxes.Update(r.Context(), who.viewer, sandbox.ID, engi.SandboxUpdate{Network: &p, Notes: &notes}); err != nil {
		return err
	}
	return respond(w, http.StatusNoContent, nil)
}

func unix(text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return time.Time{}, engi.Errorf(engi.Invalid, "%.40q is not a time in seconds", text)
	}
	return time.Unix(n, 0), nil
}

func (s *Server) metrics(w http.ResponseWriter, r *http.Request, who caller, sandbox engi.Sandbox) error {
	from, err := unix(r.URL.Query().Get("start"))
	if err != nil {
		return err
	}
	to, err := unix(r.URL.Query().Get("end"))
	if err != nil {
		return err
	}
	samples, err := s.Sandboxes.Samples(r.Context(), who.viewer, sandbox.ID, from, to)
	if err != nil {
		return err
	}
	all := []metric{}
	for _, m := range samples {
		if !m.Time.Before(from) && (to.IsZero() || !m.Time.After(to.Add(time.Second))) {
			all = append(all, metricOf(m))
		}
	}
	return respond(w, http.StatusOK, all)
}

func (s *Server) manyMetrics(w http.ResponseWriter, r *http.Request, who caller) error {
	all := map[string]metric{}
	for _, text := range r.URL.Query()["sandbox_ids"] {
		for label := range strings.SplitSeq(text, ",") {
			if len(all) >= 100 {
				return engi.Errorf(engi.Invalid, "more than 100 sandboxes at once")
			}
			sandbox, err := s.find(r.Context(), who, label)
			if err != nil {
				continue // the sandbox no longer exists
			}
			samples, err := s.Sandboxes.Samples(r.Context(), who.viewer, sandbox.ID, time.Time{}, time.Time{})
			if err != nil {
				return err
			}
			if len(samples) > 0 {
				all[label] = metricOf(samples[len(samples)-1])
			}
		}
	}
	return respond(w, http.StatusOK, map[string]any{"sandboxes": all})
}

// logs returns a sandbox's changes of state since the time start, in milliseconds. engi logs
// nothing else of a sandbox. E2B's CLI parses each line.
func (s *Server) logs(w http.ResponseWriter, r *http.Request, who caller, sandbox engi.Sandbox) error {
	type line struct {
		Timestamp time.Time `json:"timestamp"`
		Line      string    `json:"line"`
	}
	type entry struct {
		Timestamp time.Time         `json:"timestamp"`
		Message   string            `json:"message"`
		Level     string            `json:"level"`
		Fields    map[string]string `json:"fields"`
	}
	var start int64
	if text := r.URL.Query().Get("start"); text != "" {
		var err error
		if start, err = strconv.ParseInt(text, 10, 64); err != nil {
			return engi.Errorf(engi.Invalid, "start %.40q is not a time in milliseconds", text)
		}
	}
	lines, entries := []line{}, []entry{}
	add := func(at time.Time, text string) {
		if at.IsZero() || at.UnixMilli() < start {
			return
		}
		const level, logger = "info", "engi"
		lines = append(lines, line{at, encode(map[string]string{"level": level, "logger": logger, "message": text})})
		entries = append(entries, entry{at, text, level, map[string]string{"logger": logger, "sandboxID": sandbox.ID.Label()}})
	}
	id, _ := templateOf(sandbox)
	add(sandbox.Created, "created from "+id)
	if sandbox.Started.After(sandbox.Created) {
		add(sandbox.Started, "started")
	}
	if stateOf(sandbox.State) == "paused" {
		add(sandbox.Active, "paused")
	}
	if strings.HasPrefix(r.URL.Path, "/v2/") {
		return respond(w, http.StatusOK, map[string]any{"logs": entries})
	}
	return respond(w, http.StatusOK, map[string]any{"logs": lines, "logEntries": entries})
}
