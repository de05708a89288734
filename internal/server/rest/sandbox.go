package rest

import (
	"cmp"
	"net/http"
	"strings"
	"time"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/idempotency"
)

const sandboxPath = "/v1/sandboxes"

type sandboxes struct {
	engi.Sandboxes
	lifecycle engi.Lifecycle
	snapshots engi.Snapshots
}

type aSandbox = byID[engi.SandboxID]

type listSandboxes struct {
	State    []string `query:"state" doc:"Only sandboxes in these states, separated by commas; absent means all states except stopped"`
	Metadata []string `query:"metadata,explode" doc:"Only sandboxes with this label, as KEY=VALUE; may be repeated"`
	Template string   `query:"template" maxLength:"200" doc:"Only sandboxes of this template, by name or digest"`
	Since    string   `query:"since" format:"date-time" doc:"Only sandboxes created at this time or later"`
	Owned    bool     `query:"owned" doc:"Only sandboxes that were created by request, without those of executions and pools"`
	Oldest   bool     `query:"oldest" doc:"Oldest first; by default the newest come first"`
	Limit    int      `query:"limit" minimum:"1" maximum:"1000" default:"100" doc:"Maximum number of items in a page"`
	Cursor   string   `query:"cursor" doc:"next_cursor of the previous page"`
}

type getMetrics struct {
	aSandbox
	From string `query:"from" format:"date-time" doc:"Start of the time span; absent means the oldest sample"`
	To   string `query:"to" format:"date-time" doc:"End of the time span; absent means now"`
}

// Sandboxes returns the routes of sandboxes. Without lifecycle they
// never hibernate and cannot be forked; snapshots may be nil.
func Sandboxes(service engi.Sandboxes, lifecycle engi.Lifecycle, snapshots engi.Snapshots) Resource {
	s := &sandboxes{service, lifecycle, snapshots}
	sleep := missing(lifecycle != nil, "sandboxes that sleep")
	change := writes(engi.ScopeSandboxes)
	return Resource{tag: "sandboxes", about: "isolated environments that run until they are stopped or a timeout ends them", routes: []Route{
		send(Route{
			Pattern: "POST " + sandboxPath, ID: "create-sandbox", Summary: "Create a sandbox", Access: change, Objects: Owned,
			Text:    "Answers when the sandbox is running. The sandbox runs until it is stopped, or until its timeout or idle timeout ends it.",
			Creates: "a repeated key returns the first sandbox instead of creating another",
			Status:  http.StatusCreated, Location: "path of the sandbox",
			Bodies: []example{
				{"plain", "for ten minutes", `{"template": "base", "timeout": "10m"}`},
				{"sleeper", "one that sleeps when nobody uses it", `{
			"template": "base", "memory": "1GiB", "idle_timeout": "5m", "on_timeout": "hibernate", "auto_resume": true,
			"metadata": {"task": "42"}, "env": {"LANG": "C.UTF-8"}}`},
				{"online", "one that may install packages and ask one service with a secret it never sees", `{
			"template": "base", "network": {"mode": "restricted", "allow": ["registry.example.com"], "grants": [{"secret": "github", "hosts": ["api.github.com"]}]}}`},
			},
		}, s.create),
		fetch(Route{
			Pattern: "GET " + sandboxPath, ID: "list-sandboxes", Summary: "List sandboxes", Access: reads(engi.ScopeSandboxes),
			Text: "The newest come first by default.",
		}, s.list),
		fetch(Route{
			Pattern: "GET " + sandboxPath + "/{id}", ID: "get-sandbox", Summary: "Get a sandbox", Access: reads(engi.ScopeSandboxes),
			Text: "Also returns stopped sandboxes for a while.",
		}, s.get),
		send(Route{
			Pattern: "PATCH " + sandboxPath + "/{id}", ID: "update-sandbox", Summary: "Change a sandbox", Access: change,
			Text: "Fields that the body does not have stay unchanged.",
		}, s.update),
		act(Route{
			Pattern: "DELETE " + sandboxPath + "/{id}", ID: "stop-sandbox", Summary: "Stop a sandbox", Access: change,
			Text: "Destroys the sandbox, and answers when it is destroyed. Stopping a sandbox twice is no error.",
		}, ending(service, engi.Sandboxes.Stop)),
		fetch(Route{
			Pattern: "POST " + sandboxPath + "/{id}/pause", ID: "pause-sandbox", Summary: "Pause a sandbox in memory", Access: change, missing: sleep,
			Text: "No program in the sandbox runs until the sandbox is resumed. Pausing a sandbox twice is no error.",
		}, func(c *call, in *aSandbox) (v1.Sandbox, error) {
			return s.after(c, in, lifecycle.Pause(c, c.viewer(), in.ID))
		}),
		send(Route{
			Pattern: "POST " + sandboxPath + "/{id}/hibernate", ID: "hibernate-sandbox", Summary: "Hibernate a sandbox to disk", Access: change, missing: sleep,
			Text:     "The sandbox's processes, memory and files are restored when it is resumed; until then it only uses disk space. The body is optional.",
			Optional: true,
		}, func(c *call, in *aSandbox, q v1.HibernateRequest) (v1.Sandbox, error) {
			return s.after(c, in, lifecycle.Hibernate(c, c.viewer(), in.ID, q.DiskOnly))
		}),
		send(Route{
			Pattern: "POST " + sandboxPath + "/{id}/resume", ID: "resume-sandbox", Summary: "Resume a sandbox", Access: change, missing: sleep,
			Text:     "Resumes a paused or hibernated sandbox. If the sandbox is running, only its deadline changes, if the new one is later. The body is optional.",
			Optional: true,
		}, func(c *call, in *aSandbox, q v1.ResumeRequest) (v1.Sandbox, error) {
			return to(sandboxOf)(lifecycle.Resume(c, c.viewer(), in.ID, q.Timeout.Std(), q.Cold))
		}),
		send(Route{
			Pattern: "POST " + sandboxPath + "/{id}/extend", ID: "extend-sandbox", Summary: "Extend the deadline of a sandbox", Access: change,
			Text: "The deadline never becomes earlier this way; use PATCH for that.",
		}, func(c *call, in *aSandbox, q v1.ExtendRequest) (v1.Sandbox, error) {
			if q.Timeout == 0 {
				return v1.Sandbox{}, invalid("timeout", "it is missing; say how far away the new deadline is")
			}
			return to(sandboxOf)(s.Update(c, c.viewer(), in.ID, engi.SandboxUpdate{Extend: new(q.Timeout.Std())}))
		}),
		send(Route{
			Pattern: "POST " + sandboxPath + "/{id}/fork", ID: "fork-sandbox", Summary: "Copy a running sandbox", Access: change, missing: sleep,
			Text:    "The original keeps running. The answer has a result for each copy. The body is optional.",
			Creates: "a repeated key returns the first copies instead of starting more",
			Status:  http.StatusCreated, Optional: true,
		}, s.fork),
		fetch(Route{
			Pattern: "GET " + sandboxPath + "/{id}/metrics", ID: "get-sandbox-metrics", Summary: "Get the resource usage of a sandbox", Access: reads(engi.ScopeSandboxes),
			Text: "The oldest sample comes first.",
		}, s.metrics),
	}}
}

// missing returns nil if there is true, else the error for a missing part of the node.
func missing(there bool, what string) error {
	return absentUnless(there, "this server has no "+what, "")
}

// absentUnless is missing with a remedy.
func absentUnless(there bool, text, remedy string) error {
	if there {
		return nil
	}
	return engi.Errorf(engi.Unsupported, "%s", text).WithRemedy("%s", remedy)
}

func (s *sandboxes) create(c *call, _ *none, q v1.SandboxRequest) (v1.Sandbox, error) {
	var check checker
	spec := sandboxSpec(&check, &q)
	if err := check.err(); err != nil {
		return v1.Sandbox{}, err
	}
	spec.Owner, spec.Idempotency = c.owner(), c.key
	if q.Snapshot != "" {
		if err := missing(s.snapshots != nil, "snapshots"); err != nil {
			return v1.Sandbox{}, err
		}
		x, err := s.snapshots.Get(c, c.viewer(), q.Snapshot)
		if err != nil {
			return v1.Sandbox{}, err
		}
		spec.Snapshot = x.ID
	}
	x, err := s.Create(c, spec)
	if err == nil {
		c.location(sandboxPath, string(x.ID))
	}
	return sandboxOf(x), err
}

// sandboxSpec converts a request, except for its owner and its snapshot.
func sandboxSpec(c *checker, q *v1.SandboxRequest) engi.SandboxSpec {
	if q.Template != "" && q.Snapshot != "" {
		c.addf("snapshot", "there is a template already; send one of them")
	}
	c.oneOf("min_tier", q.MinTier, tiers)
	c.oneOf("on_timeout", q.OnTimeout, endPolicies)
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
	for _, m := range q.Volumes {
		spec.Volumes = append(spec.Volumes, engi.VolumeMount{Volume: m.Volume, Path: m.Path})
	}
	if q.Network != nil {
		spec.Network = networkOf(c, "network", q.Network)
	}
	if q.Ports != nil {
		spec.Ports = engi.PortPolicy{Private: q.Ports.Private, Host: q.Ports.Host}
	}
	if len(c.Faults) > 0 {
		c.also(spec.Faults(engi.Bounds{}))
	}
	return spec
}

var endPolicies = words(engi.EndKill, engi.EndHibernate)

func (s *sandboxes) list(c *call, in *listSandboxes) (v1.List[v1.Sandbox], error) {
	var check checker
	f := engi.SandboxFilter{Template: in.Template, Owned: in.Owned, Oldest: in.Oldest, Limit: in.Limit}
	for _, text := range in.State {
		check.oneOf("query.state", text, words(engi.States()...))
		f.States = append(f.States, engi.State(text))
	}
	for _, pair := range in.Metadata {
		k, v, ok := strings.Cut(pair, "=")
		if !ok {
			check.addf("query.metadata", "%.40q has no '='", pair)
		}
		if f.Metadata == nil {
			f.Metadata = map[string]string{}
		}
		f.Metadata[k] = v
	}
	f.Since = check.time("query.since", in.Since)
	if in.Cursor != "" {
		after, err := engi.ParseSandboxID(in.Cursor)
		if err != nil {
			return v1.List[v1.Sandbox]{}, errCursor
		}
		f.After = after
	}
	if err := check.err(); err != nil {
		return v1.List[v1.Sandbox]{}, err
	}
	xs, err := s.List(c, c.viewer(), f)
	page := listOf(xs, sandboxOf)
	if len(xs) == in.Limit {
		page.NextCursor = string(xs[len(xs)-1].ID)
	}
	return page, err
}

func (s *sandboxes) get(c *call, in *aSandbox) (v1.Sandbox, error) {
	return to(sandboxOf)(s.Get(c, c.viewer(), in.ID))
}

// after returns a sandbox after an operation on it.
func (s *sandboxes) after(c *call, in *aSandbox, err error) (v1.Sandbox, error) {
	if err != nil {
		return v1.Sandbox{}, err
	}
	return s.get(c, in)
}

func (s *sandboxes) update(c *call, in *aSandbox, q v1.SandboxUpdate) (v1.Sandbox, error) {
	var check checker
	u := engi.SandboxUpdate{Metadata: q.Metadata}
	if q.Timeout != nil {
		u.Timeout = new(q.Timeout.Std())
	}
	if q.OnTimeout != nil {
		check.oneOf("on_timeout", *q.OnTimeout, endPolicies)
	}
	if q.Network != nil {
		u.Network = new(networkOf(&check, "network", q.Network))
	}
	if q.Ports != nil {
		u.Ports = &engi.PortPolicy{Private: q.Ports.Private, Host: q.Ports.Host}
	}
	if err := check.err(); err != nil {
		return v1.Sandbox{}, err
	}
	if q.IdleTimeout != nil || q.MaxDuration != nil || q.OnTimeout != nil || q.DiskOnly != nil || q.AutoResume != nil {
		x, err := s.Get(c, c.viewer(), in.ID)
		if err != nil {
			return v1.Sandbox{}, err
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
		if err := keepPassword(c, s, in.ID, u.Network); err != nil {
			return v1.Sandbox{}, err
		}
	}
	return to(sandboxOf)(s.Update(c, c.viewer(), in.ID, u))
}

// set converts from and stores the result in to, unless from is nil.
func set[T, F any](to *T, from *F, f func(F) T) {
	if from != nil {
		*to = f(*from)
	}
}

func (s *sandboxes) fork(c *call, in *aSandbox, q v1.ForkRequest) (v1.List[v1.Fork], error) {
	if q.Count < 0 || q.Count > engi.MaxForks {
		return v1.List[v1.Fork]{}, invalid("count", "it is not a number from 1 to %d", engi.MaxForks)
	}
	q.Count = max(1, q.Count)
	forks, err := once(c, q, idempotency.Forks(q.Count, func(id engi.SandboxID) (engi.Sandbox, error) { return s.Get(c, c.viewer(), id) }, func(ids []engi.SandboxID) ([]engi.Forked, error) {
		return s.lifecycle.Fork(c, c.viewer(), in.ID, engi.ForkSpec{Count: cmp.Or(len(ids), q.Count), IDs: ids, Timeout: q.Timeout.Std()})
	}))
	return listOf(forks, func(x engi.Forked) v1.Fork {
		if x.Err != nil {
			return v1.Fork{Error: new(c.describe(x.Err))}
		}
		return v1.Fork{Sandbox: new(sandboxOf(x.Sandbox))}
	}), err
}

func (s *sandboxes) metrics(c *call, in *getMetrics) (v1.List[v1.Sample], error) {
	var check checker
	from, until := check.time("query.from", in.From), check.time("query.to", in.To)
	if err := check.err(); err != nil {
		return v1.List[v1.Sample]{}, err
	}
	if until.IsZero() {
		until = time.Now()
	}
	xs, err := s.Samples(c, c.viewer(), in.ID, from, until)
	return listOf(xs, sampleOf), err
}

func sandboxOf(x engi.Sandbox) v1.Sandbox {
	b := v1.Sandbox{
		ID:          string(x.ID),
		Owner:       string(x.Owner),
		State:       string(x.State),
		Template:    x.Template,
		Digest:      x.Digest,
		SnapshotID:  string(x.Snapshot),
		Pool:        x.Pool,
		Tier:        string(x.Tier),
		Size:        sizeOf(x.Size),
		Throttled:   x.Throttled,
		ExecutionID: string(x.Execution),
		Cause:       string(x.End),
		CreatedAt:   x.Created.UTC(),
		StartedAt:   moment(x.Started),
		ActiveAt:    moment(x.Active),
		DeadlineAt:  moment(x.Deadline),
		StoppedAt:   moment(x.Stopped),
		Metadata:    x.Metadata,
		DiskOnly:    x.Disk,
	}
	if l := x.Lifetime; l != (engi.Lifetime{}) {
		b.Lifetime = &v1.Lifetime{
			Timeout: length(l.Timeout), IdleTimeout: length(l.Idle), MaxDuration: length(l.Max),
			OnTimeout: string(l.OnTimeout), DiskOnly: l.DiskOnly, AutoResume: l.AutoResume,
		}
	}
	for _, m := range x.Volumes {
		b.Volumes = append(b.Volumes, v1.VolumeMount{Volume: m.Volume, Path: m.Path})
	}
	if !emptyNetwork(x.Network) {
		b.Network = new(policyOf(x.Network))
	}
	if x.Ports != (engi.PortPolicy{}) {
		b.Ports = &v1.PortPolicy{Private: x.Ports.Private, Host: x.Ports.Host}
	}
	return b
}

func sampleOf(x engi.Sample) v1.Sample {
	size := func(n int64) v1.Bytes { return v1.Bytes(max(0, n)) }
	return v1.Sample{
		Time: x.Time.UTC(), VCPUs: x.VCPUs, CPUPercent: x.CPUPercent, Memory: size(x.Memory), MemoryLimit: size(x.MemoryLimit), MemoryCache: size(x.MemoryCache),
		DiskUsed: size(x.DiskUsed), DiskCapacity: size(x.DiskCapacity), Processes: x.Processes,
	}
}
