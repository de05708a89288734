package rest

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/api/httpio"
	v1 "github.com/engi-dev/engi/api/v1"
)

const sandboxes = "/v1/sandboxes"

type aSandbox struct {
	ID string `path:"id" doc:"of the sandbox"`
}

type postSandbox struct {
	Idempotency string `header:"Idempotency-Key" maxLength:"255" doc:"a repeated key returns the first sandbox instead of making another"`
}

type listSandboxes struct {
	State    []string `query:"state" doc:"only these states, with commas between; absent means all but stopped"`
	Metadata []string `query:"metadata,explode" doc:"only those with these KEY=VALUE; may be repeated"`
	Template string   `query:"template" maxLength:"200" doc:"only those of this template, by name or digest"`
	Since    string   `query:"since" format:"date-time" doc:"only those created then or later"`
	Owned    bool     `query:"owned" doc:"only those that were asked for, not those of executions and pools"`
	Oldest   bool     `query:"oldest" doc:"oldest first; else the newest come first"`
	Limit    int      `query:"limit" minimum:"1" maximum:"1000" default:"100" doc:"items of a page"`
	Cursor   string   `query:"cursor" doc:"next_cursor of the page before"`
}

type getMetrics struct {
	ID   string `path:"id" doc:"of the sandbox"`
	From string `query:"from" format:"date-time" doc:"absent means as far back as is remembered"`
	To   string `query:"to" format:"date-time" doc:"absent means now"`
}

type aPort struct {
	ID   string `path:"id" doc:"of the sandbox"`
	Port int    `path:"port" minimum:"1" maximum:"65535" doc:"TCP port inside"`
}

func (s *server) serveSandboxes() {
	handle(s, s.opCreateSandbox(), s.createSandbox)
	handle(s, s.opListSandboxes(), s.listSandboxes)
	handle(s, s.opGetSandbox(), s.getSandbox)
	handle(s, s.opUpdateSandbox(), s.updateSandbox)
	handle(s, s.opStopSandbox(), s.stopSandbox)
	handle(s, s.opMove("pause", "Freeze a sandbox in memory", "Nothing in it runs until it is resumed. Pausing it twice is no error."), s.pauseSandbox)
	handle(s, s.opHibernate(), s.hibernateSandbox)
	handle(s, s.opResume(), s.resumeSandbox)
	handle(s, s.opExtend(), s.extendSandbox)
	handle(s, s.opSnapshot(), s.snapshotSandbox)
	handle(s, s.opFork(), s.forkSandbox)
	handle(s, s.opMetrics(), s.getMetrics)
	handle(s, s.opListPorts(), s.listPorts)
	handle(s, s.opGetPort(), s.getPort)
	handle(s, s.opLinkPort(), s.linkPort)
}

// subject returns whose objects the caller sees, and the sandbox that the
// request is about.
func subject(r *http.Request, text string) (engi.Owner, engi.SandboxID, error) {
	id, err := engi.ParseSandboxID(text)
	return callOf(r.Context()).viewer(), id, err
}

// needed returns the error for a part of the node that is not there.
func needed(there bool, what string) error {
	if there {
		return nil
	}
	return engi.Errorf(engi.Unsupported, "this server has no %s", what)
}

func (s *server) createSandbox(w http.ResponseWriter, r *http.Request, in *postSandbox) error {
	q, err := decode[v1.SandboxRequest](s, w, r)
	if err != nil {
		return err
	}
	var c checker
	spec := sandboxSpec(&c, &q)
	if text := checkIdempotency(in.Idempotency); text != "" {
		c.addf("header.Idempotency-Key", "%s", text)
	}
	if err := httpio.Invalid(c.faults); err != nil {
		return err
	}
	spec.Owner, spec.Idempotency = callOf(r.Context()).key.Owner, in.Idempotency
	if spec.Snapshot, err = s.snapshotID(r, q.Snapshot); err != nil {
		return err
	}
	x, err := s.sandboxes.Create(r.Context(), spec)
	if err != nil {
		return err
	}
	w.Header().Set("Location", sandboxes+"/"+string(x.ID))
	return s.reply(w, http.StatusCreated, sandboxOf(x))
}

// snapshotID finds a snapshot by ID or name; empty is none.
func (s *server) snapshotID(r *http.Request, idOrName string) (engi.SnapshotID, error) {
	if idOrName == "" {
		return "", nil
	}
	if err := needed(s.snapshots != nil, "snapshots"); err != nil {
		return "", err
	}
	x, err := s.snapshots.Get(r.Context(), callOf(r.Context()).viewer(), idOrName)
	return x.ID, err
}

// sandboxSpec translates a request but for its owner and its snapshot.
func sandboxSpec(c *checker, q *v1.SandboxRequest) engi.SandboxSpec {
	if len(q.Template) > 200 {
		c.addf("template", "it is longer than 200 bytes")
	}
	c.text("template", q.Template)
	if q.Template != "" && q.Snapshot != "" {
		c.addf("snapshot", "there is a template already; send one of them")
	}
	c.oneOf("min_tier", q.MinTier, []string{string(engi.TierScript), string(engi.TierGVisor), string(engi.TierMicroVM)})
	c.natural("vcpus", q.VCPUs)
	c.natural("inodes", float64(q.Inodes))
	c.natural("processes", float64(q.Processes))
	c.natural("open_files", float64(q.OpenFiles))
	c.oneOf("on_timeout", q.OnTimeout, endPolicies)
	c.metadata(q.Metadata)
	c.env(q.Env)
	spec := engi.SandboxSpec{
		Template: q.Template,
		Size: engi.Size{
			VCPUs: q.VCPUs, Memory: int64(q.Memory), Disk: int64(q.Disk), Inodes: q.Inodes, Processes: q.Processes, OpenFiles: q.OpenFiles,
		},
		MinTier: engi.Tier(q.MinTier),
		Lifetime: engi.Lifetime{
			Timeout: q.Timeout.Std(), Idle: q.IdleTimeout.Std(), Max: q.MaxDuration.Std(),
			OnTimeout: engi.EndPolicy(q.OnTimeout), DiskOnly: q.DiskOnly, AutoResume: q.AutoResume,
		},
		Metadata: q.Metadata,
		Env:      q.Env,
	}
	for i, m := range q.Volumes {
		field := fmt.Sprintf("volumes[%d]", i)
		if m.Volume == "" {
			c.addf(field+".volume", "it is missing")
		}
		c.text(field+".volume", m.Volume)
		c.absolute(field+".path", m.Path)
		spec.Volumes = append(spec.Volumes, engi.VolumeMount{Volume: m.Volume, Path: m.Path})
	}
	if q.Network != nil {
		spec.Network = networkOf(c, "network", q.Network)
	}
	if q.Ports != nil {
		spec.Ports = engi.PortPolicy{Private: q.Ports.Private, Host: q.Ports.Host}
		c.host("ports.host", q.Ports.Host)
	}
	return spec
}

var endPolicies = []string{string(engi.EndKill), string(engi.EndHibernate)}

// absolute checks a path inside.
func (c *checker) absolute(field, p string) {
	switch {
	case p == "":
		c.addf(field, "it is missing")
	case p[0] != '/':
		c.addf(field, "%.80q is not absolute", p)
	case len(p) > 4095:
		c.addf(field, "it is longer than 4095 bytes")
	}
	c.text(field, p)
}

func (c *checker) host(field, h string) {
	if len(h) > 255 || strings.ContainsFunc(h, func(r rune) bool { return r <= ' ' || r >= 0x7f || r == '/' || r == '@' }) {
		c.addf(field, "%.80q cannot be a host", h)
	}
}

func (c *checker) metadata(m map[string]string) {
	if len(m) > 64 {
		c.addf("metadata", "there are more than 64 pairs")
	}
	for _, k := range slices.Sorted(maps.Keys(m)) {
		if k == "" || len(k) > 256 || len(m[k]) > 256 {
			c.addf("metadata", "the pair %.40q has a name or a value that is empty or longer than 256 bytes", k)
		}
		c.text("metadata", k+m[k])
	}
}

func (s *server) listSandboxes(w http.ResponseWriter, r *http.Request, in *listSandboxes) error {
	var c checker
	f := engi.SandboxFilter{Template: in.Template, Owned: in.Owned, Oldest: in.Oldest, Limit: in.Limit}
	for _, text := range in.State {
		c.oneOf("query.state", text, stateNames())
		f.States = append(f.States, engi.State(text))
	}
	for _, pair := range in.Metadata {
		k, v, ok := strings.Cut(pair, "=")
		if !ok {
			c.addf("query.metadata", "%.40q has no '='", pair)
		}
		if f.Metadata == nil {
			f.Metadata = map[string]string{}
		}
		f.Metadata[k] = v
	}
	f.Since = c.time("query.since", in.Since)
	if in.Cursor != "" {
		after, err := engi.ParseSandboxID(in.Cursor)
		if err != nil {
			c.addf("query.cursor", "this is not a next_cursor of a page before")
		}
		f.After = after
	}
	if err := httpio.Invalid(c.faults); err != nil {
		return err
	}
	xs, err := s.sandboxes.List(r.Context(), callOf(r.Context()).viewer(), f)
	if err != nil {
		return err
	}
	list := listOf(xs, sandboxOf)
	if len(xs) == in.Limit {
		list.NextCursor = string(xs[len(xs)-1].ID)
	}
	return s.reply(w, http.StatusOK, list)
}

func stateNames() []string {
	var names []string
	for _, s := range engi.States() {
		names = append(names, string(s))
	}
	return names
}

// time reads a moment; an empty one is zero.
func (c *checker) time(field, text string) time.Time {
	if text == "" {
		return time.Time{}
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		c.addf(field, "%.40q is not a time such as 2026-11-20T20:00:00Z", text)
	}
	return t
}

func (s *server) getSandbox(w http.ResponseWriter, r *http.Request, in *aSandbox) error {
	viewer, id, err := subject(r, in.ID)
	if err != nil {
		return err
	}
	return s.replySandbox(w, r, viewer, id)
}

func (s *server) replySandbox(w http.ResponseWriter, r *http.Request, viewer engi.Owner, id engi.SandboxID) error {
	x, err := s.sandboxes.Get(r.Context(), viewer, id)
	if err != nil {
		return err
	}
	return s.reply(w, http.StatusOK, sandboxOf(x))
}

func (s *server) updateSandbox(w http.ResponseWriter, r *http.Request, in *aSandbox) error {
	viewer, id, err := subject(r, in.ID)
	if err != nil {
		return err
	}
	q, err := decode[v1.SandboxUpdate](s, w, r)
	if err != nil {
		return err
	}
	var c checker
	u := engi.SandboxUpdate{Metadata: q.Metadata}
	if q.Timeout != nil {
		u.Timeout = new(q.Timeout.Std())
	}
	if q.OnTimeout != nil {
		c.oneOf("on_timeout", *q.OnTimeout, endPolicies)
	}
	if q.Metadata != nil {
		c.metadata(*q.Metadata)
	}
	if q.Network != nil {
		u.Network = new(networkOf(&c, "network", q.Network))
	}
	if q.Ports != nil {
		c.host("ports.host", q.Ports.Host)
		u.Ports = &engi.PortPolicy{Private: q.Ports.Private, Host: q.Ports.Host}
	}
	if err := httpio.Invalid(c.faults); err != nil {
		return err
	}
	if q.IdleTimeout != nil || q.MaxDuration != nil || q.OnTimeout != nil || q.DiskOnly != nil || q.AutoResume != nil {
		x, err := s.sandboxes.Get(r.Context(), viewer, id)
		if err != nil {
			return err
		}
		l := x.Lifetime
		set(&l.Idle, q.IdleTimeout, v1.Duration.Std)
		set(&l.Max, q.MaxDuration, v1.Duration.Std)
		set(&l.OnTimeout, q.OnTimeout, func(s string) engi.EndPolicy { return engi.EndPolicy(s) })
		set(&l.DiskOnly, q.DiskOnly, func(b bool) bool { return b })
		set(&l.AutoResume, q.AutoResume, func(b bool) bool { return b })
		u.Lifetime = &l
	}
	if u.Network != nil {
		if err := s.keepPassword(r.Context(), viewer, id, u.Network); err != nil {
			return err
		}
	}
	x, err := s.sandboxes.Update(r.Context(), viewer, id, u)
	if err != nil {
		return err
	}
	return s.reply(w, http.StatusOK, sandboxOf(x))
}

// set translates from to to unless it is absent.
func set[T, F any](to *T, from *F, f func(F) T) {
	if from != nil {
		*to = f(*from)
	}
}

func (s *server) extendSandbox(w http.ResponseWriter, r *http.Request, in *aSandbox) error {
	viewer, id, err := subject(r, in.ID)
	if err != nil {
		return err
	}
	q, err := decode[v1.ExtendRequest](s, w, r)
	if err != nil {
		return err
	}
	if q.Timeout == 0 {
		return httpio.Invalid([]v1.Fault{{Field: "timeout", Detail: "it is missing; say how far away the new deadline is"}})
	}
	x, err := s.sandboxes.Update(r.Context(), viewer, id, engi.SandboxUpdate{Extend: new(q.Timeout.Std())})
	if err != nil {
		return err
	}
	return s.reply(w, http.StatusOK, sandboxOf(x))
}

func (s *server) stopSandbox(w http.ResponseWriter, r *http.Request, in *aSandbox) error {
	viewer, id, err := subject(r, in.ID)
	if err != nil {
		return err
	}
	if err := s.sandboxes.Stop(r.Context(), viewer, id); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *server) pauseSandbox(w http.ResponseWriter, r *http.Request, in *aSandbox) error {
	viewer, id, err := s.movable(r, in.ID)
	if err != nil {
		return err
	}
	if err := s.lifecycle.Pause(r.Context(), viewer, id); err != nil {
		return err
	}
	return s.replySandbox(w, r, viewer, id)
}

func (s *server) movable(r *http.Request, text string) (engi.Owner, engi.SandboxID, error) {
	viewer, id, err := subject(r, text)
	if err == nil {
		err = needed(s.lifecycle != nil, "sandboxes that sleep")
	}
	return viewer, id, err
}

func (s *server) hibernateSandbox(w http.ResponseWriter, r *http.Request, in *aSandbox) error {
	viewer, id, err := s.movable(r, in.ID)
	if err != nil {
		return err
	}
	q, err := decodeIfAny[v1.HibernateRequest](s, w, r)
	if err != nil {
		return err
	}
	if err := s.lifecycle.Hibernate(r.Context(), viewer, id, q.DiskOnly); err != nil {
		return err
	}
	return s.replySandbox(w, r, viewer, id)
}

func (s *server) resumeSandbox(w http.ResponseWriter, r *http.Request, in *aSandbox) error {
	viewer, id, err := s.movable(r, in.ID)
	if err != nil {
		return err
	}
	q, err := decodeIfAny[v1.ResumeRequest](s, w, r)
	if err != nil {
		return err
	}
	x, err := s.lifecycle.Resume(r.Context(), viewer, id, q.Timeout.Std(), q.Cold)
	if err != nil {
		return err
	}
	return s.reply(w, http.StatusOK, sandboxOf(x))
}

func (s *server) snapshotSandbox(w http.ResponseWriter, r *http.Request, in *aSandbox) error {
	viewer, id, err := s.movable(r, in.ID)
	if err != nil {
		return err
	}
	q, err := decodeIfAny[v1.SnapshotRequest](s, w, r)
	if err != nil {
		return err
	}
	x, err := s.lifecycle.Snapshot(r.Context(), viewer, id, engi.SnapshotSpec{Name: q.Name, DiskOnly: q.DiskOnly, TTL: q.TTL.Std()})
	if err != nil {
		return err
	}
	w.Header().Set("Location", "/v1/snapshots/"+string(x.ID))
	return s.reply(w, http.StatusCreated, snapshotOf(x))
}

func (s *server) forkSandbox(w http.ResponseWriter, r *http.Request, in *aSandbox) error {
	viewer, id, err := s.movable(r, in.ID)
	if err != nil {
		return err
	}
	q, err := decodeIfAny[v1.ForkRequest](s, w, r)
	if err != nil {
		return err
	}
	if q.Count < 0 || q.Count > 100 {
		return httpio.Invalid([]v1.Fault{{Field: "count", Detail: "it is not a number from 1 to 100"}})
	}
	forks, err := s.lifecycle.Fork(r.Context(), viewer, id, max(1, q.Count), q.Timeout.Std())
	if err != nil {
		return err
	}
	return s.reply(w, http.StatusCreated, listOf(forks, func(x engi.Forked) v1.Fork {
		if x.Err != nil {
			s.logInternal(r, x.Err)
			return v1.Fork{Error: new(httpio.Describe(x.Err, callOf(r.Context()).id))}
		}
		return v1.Fork{Sandbox: new(sandboxOf(x.Sandbox))}
	}))
}

func (s *server) getMetrics(w http.ResponseWriter, r *http.Request, in *getMetrics) error {
	viewer, id, err := subject(r, in.ID)
	if err != nil {
		return err
	}
	var c checker
	from, to := c.time("query.from", in.From), c.time("query.to", in.To)
	if err := httpio.Invalid(c.faults); err != nil {
		return err
	}
	if to.IsZero() {
		to = time.Now()
	}
	xs, err := s.sandboxes.Samples(r.Context(), viewer, id, from, to)
	if err != nil {
		return err
	}
	return s.reply(w, http.StatusOK, listOf(xs, sampleOf))
}

func (s *server) listPorts(w http.ResponseWriter, r *http.Request, in *aSandbox) error {
	viewer, id, err := subject(r, in.ID)
	if err != nil {
		return err
	}
	if err := needed(s.ports != nil, "previews of ports"); err != nil {
		return err
	}
	xs, err := s.ports.Listening(r.Context(), viewer, id)
	if err != nil {
		return err
	}
	list := v1.List[v1.Port]{Items: []v1.Port{}}
	for _, x := range xs {
		list.Items = append(list.Items, v1.Port{Port: x.Port, Listening: true, Process: strings.ToValidUTF8(x.Process, "\uFFFD"), URL: x.URL})
	}
	return s.reply(w, http.StatusOK, list)
}

// getPort asks the port itself, which is cheaper than asking what listens.
func (s *server) getPort(w http.ResponseWriter, r *http.Request, in *aPort) error {
	g, _, release, err := s.enter(r, in.ID)
	if err != nil {
		return err
	}
	defer release()
	p := v1.Port{Port: in.Port}
	conn, err := g.Dial(r.Context(), in.Port)
	switch {
	case err == nil:
		conn.Close()
		p.Listening = true
	case engi.KindOf(err) != engi.Unavailable:
		return err
	}
	if s.ports != nil {
		p.URL = s.ports.URL(engi.SandboxID(in.ID), in.Port)
	}
	return s.reply(w, http.StatusOK, p)
}

func (s *server) linkPort(w http.ResponseWriter, r *http.Request, in *aPort) error {
	viewer, id, err := subject(r, in.ID)
	if err != nil {
		return err
	}
	q, err := decodeIfAny[v1.LinkRequest](s, w, r)
	if err != nil {
		return err
	}
	if err := needed(s.ports != nil, "previews of ports"); err != nil {
		return err
	}
	if _, err := s.sandboxes.Get(r.Context(), viewer, id); err != nil {
		return err
	}
	good := q.TTL.Std()
	if good == 0 {
		good = time.Hour
	}
	address, expires, err := s.ports.Sign(id, in.Port, good)
	if err != nil {
		return err
	}
	return s.reply(w, http.StatusCreated, v1.Link{URL: address, ExpiresAt: expires.UTC()})
}

// enter returns the inside of the sandbox that the request is about.
func (s *server) enter(r *http.Request, text string) (engi.Guest, engi.SandboxID, func(), error) {
	viewer, id, err := subject(r, text)
	if err != nil {
		return nil, id, nil, err
	}
	g, release, err := s.sandboxes.Enter(r.Context(), viewer, id)
	return g, id, release, err
}

func (s *server) opCreateSandbox() huma.Operation {
	op := s.operation(http.MethodPost, sandboxes, "create-sandbox", "sandboxes", "Create a sandbox",
		"Answers when it runs. It lives until it is stopped, or its timeout or idleness ends it.", http.StatusCreated)
	accepts[v1.SandboxRequest](s, &op, map[string]*huma.Example{
		"plain": {Summary: "for ten minutes", Value: json.RawMessage(`{"template": "base", "timeout": "10m"}`)},
		"sleeper": {Summary: "one that sleeps when nobody uses it", Value: json.RawMessage(`{
			"template": "base", "memory": "1GiB", "idle_timeout": "5m", "on_timeout": "hibernate", "auto_resume": true,
			"metadata": {"task": "42"}, "env": {"LANG": "C.UTF-8"}}`)},
		"online": {Summary: "one that may install packages and ask one service with a secret it never sees", Value: json.RawMessage(`{
			"template": "base", "network": {"mode": "restricted", "allow": ["registry.example.com"], "grants": [{"secret": "github", "hosts": ["api.github.com"]}]}}`)},
	})
	answers[v1.Sandbox](s, &op, http.StatusCreated, string(httpio.JSON), nil)
	header(&op, http.StatusCreated, "Location", "path of the sandbox")
	return op
}

func (s *server) opListSandboxes() huma.Operation {
	op := s.operation(http.MethodGet, sandboxes, "list-sandboxes", "sandboxes", "List sandboxes", "The newest come first, unless asked otherwise.", http.StatusOK)
	answers[v1.List[v1.Sandbox]](s, &op, http.StatusOK, string(httpio.JSON), nil)
	return op
}

func (s *server) opGetSandbox() huma.Operation {
	op := s.operation(http.MethodGet, sandboxes+"/{id}", "get-sandbox", "sandboxes", "Get a sandbox", "Stopped ones too, for as long as they are remembered.", http.StatusOK)
	answers[v1.Sandbox](s, &op, http.StatusOK, string(httpio.JSON), nil)
	return op
}

func (s *server) opUpdateSandbox() huma.Operation {
	op := s.operation(http.MethodPatch, sandboxes+"/{id}", "update-sandbox", "sandboxes", "Change a sandbox",
		"What is absent stays as it is.", http.StatusOK)
	accepts[v1.SandboxUpdate](s, &op, nil)
	answers[v1.Sandbox](s, &op, http.StatusOK, string(httpio.JSON), nil)
	return op
}

func (s *server) opStopSandbox() huma.Operation {
	return s.operation(http.MethodDelete, sandboxes+"/{id}", "stop-sandbox", "sandboxes", "Stop a sandbox",
		"Destroys it and answers when it is gone. Stopping it twice is no error.", http.StatusNoContent)
}

// opMove describes an act that needs no body and answers with the sandbox.
func (s *server) opMove(act, summary, description string) huma.Operation {
	op := s.operation(http.MethodPost, sandboxes+"/{id}/"+act, act+"-sandbox", "sandboxes", summary, description, http.StatusOK)
	answers[v1.Sandbox](s, &op, http.StatusOK, string(httpio.JSON), nil)
	return op
}

func (s *server) opHibernate() huma.Operation {
	op := s.opMove("hibernate", "Write a sandbox to disk", "Its processes, memory and files are there again when it is resumed; meanwhile it needs nothing but disk. The body may be left out.")
	mayAccept[v1.HibernateRequest](s, &op)
	return op
}

func (s *server) opResume() huma.Operation {
	op := s.opMove("resume", "Wake a sandbox", "Whether it is frozen or on disk. One that runs gets the deadline, if that is farther than its own. The body may be left out.")
	mayAccept[v1.ResumeRequest](s, &op)
	return op
}

func (s *server) opExtend() huma.Operation {
	op := s.opMove("extend", "Move a sandbox's deadline away", "It never comes nearer by this; PATCH can do that.")
	accepts[v1.ExtendRequest](s, &op, nil)
	return op
}

func (s *server) opSnapshot() huma.Operation {
	op := s.operation(http.MethodPost, sandboxes+"/{id}/snapshot", "snapshot-sandbox", "sandboxes", "Keep a copy of a sandbox",
		"The sandbox goes on. Start others with it as the snapshot of POST /v1/sandboxes. The body may be left out.", http.StatusCreated)
	mayAccept[v1.SnapshotRequest](s, &op)
	answers[v1.Snapshot](s, &op, http.StatusCreated, string(httpio.JSON), nil)
	header(&op, http.StatusCreated, "Location", "path of the snapshot")
	return op
}

func (s *server) opFork() huma.Operation {
	op := s.operation(http.MethodPost, sandboxes+"/{id}/fork", "fork-sandbox", "sandboxes", "Start copies of a sandbox",
		"The sandbox goes on. Each copy has its own outcome. The body may be left out.", http.StatusCreated)
	mayAccept[v1.ForkRequest](s, &op)
	answers[v1.List[v1.Fork]](s, &op, http.StatusCreated, string(httpio.JSON), nil)
	return op
}

func (s *server) opMetrics() huma.Operation {
	op := s.operation(http.MethodGet, sandboxes+"/{id}/metrics", "get-sandbox-metrics", "sandboxes", "What a sandbox used", "The oldest sample comes first.", http.StatusOK)
	answers[v1.List[v1.Sample]](s, &op, http.StatusOK, string(httpio.JSON), nil)
	return op
}

func (s *server) opListPorts() huma.Operation {
	op := s.operation(http.MethodGet, sandboxes+"/{id}/ports", "list-ports", "sandboxes", "List ports that something listens on",
		"With where they are reached from outside. Wakes nothing: a sandbox that sleeps is a conflict.", http.StatusOK)
	answers[v1.List[v1.Port]](s, &op, http.StatusOK, string(httpio.JSON), nil)
	return op
}

func (s *server) opGetPort() huma.Operation {
	op := s.operation(http.MethodGet, sandboxes+"/{id}/ports/{port}", "get-port", "sandboxes", "Does something listen on a port?", "", http.StatusOK)
	answers[v1.Port](s, &op, http.StatusOK, string(httpio.JSON), nil)
	return op
}

func (s *server) opLinkPort() huma.Operation {
	op := s.operation(http.MethodPost, sandboxes+"/{id}/ports/{port}/link", "link-port", "sandboxes", "Make a link to a private port",
		"Whoever has it can visit the port until it expires. The body may be left out.", http.StatusCreated)
	mayAccept[v1.LinkRequest](s, &op)
	answers[v1.Link](s, &op, http.StatusCreated, string(httpio.JSON), nil)
	return op
}
