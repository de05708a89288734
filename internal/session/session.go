// Package session manages sessions: long-lived contexts that get a sandbox
// when they need one, lose it when they are idle, and keep their files in a
// volume until they have been unused for their time to live.
//
// The records in the store are authoritative, and every step is recorded before it
// is taken. So a kill at any moment loses nothing and leaks nothing: Run
// adopts sandboxes that are not in the record of their session yet, and removes the
// volumes of sessions that have ended.
//
// It does not start sandboxes (package fleet), store files (package
// internal/sandbox/disk/volume) or enforce network policies (package internal/network/egress).
package session

import (
	"cmp"
	"context"
	"log/slog"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/idempotency"
	"github.com/engi-dev/engi/internal/sandbox/holder"
	"github.com/engi-dev/engi/internal/sandbox/place"
	"github.com/engi-dev/engi/internal/session/backup"
)

// WorkDir is the mount point of a session's volume in its sandbox, and the directory
// in which code runs.
const WorkDir = "/workspace"

// A Record is the stored state of a session.
type Record struct {
	engi.Session // State is as of the last event about it; view returns the sandbox's current state
	Idempotency  string
	Fingerprint  string            // fingerprint of the request; set with Idempotency
	Boots        int               // number of sandboxes requested so far
	Ended        time.Time         // zero until it ends
	EndReason    string            // reason of the end, for humans
	Cleared      bool              // the session has ended, and its sandbox and volume are removed
	Filled       bool              // the volume was filled from the copy of the workspace, if there was one; for persistence workspace
	Changed      bool              // the volume may have changes that no copy has; for persistence workspace
	GivenUp      bool              // the session was terminated, so the copy of its workspace is removed
	Overlay      engi.SnapshotID   // snapshot of the last saved changes of its disk; for persistence overlay
	Stale        []engi.SnapshotID // snapshots no longer needed, or not needed yet; see saveOverlay
	Freed        time.Time         // time at which it last lost its sandbox; zero if it never had one
	Steps        []Step            // steps to State; appended to the event log when the record is saved, and not stored
	Note         *Note             // appended to the event log when the record is saved, and not stored
}

// A Note is an event about a session, other than a change of its state.
type Note struct {
	Type string
	Data map[string]any
}

// Requested implements [idempotency.Record].
func (r Record) Requested() (id, fingerprint string) { return "session " + string(r.ID), r.Fingerprint }

// A Store stores sessions durably. Look-ups return only the sessions that viewer sees.
type Store interface {
	// Put adds a session. It reports Conflict if the owner has another session with
	// the name that has not ended.
	Put(ctx context.Context, r Record) error
	// Save replaces the record of a session, or reports NotFound.
	Save(ctx context.Context, r Record) error
	// Find returns a session by ID, or a session that has not ended by name, or reports NotFound.
	// If several owners that viewer sees use the name, it reports Conflict.
	Find(ctx context.Context, viewer engi.Viewer, idOrName string) (Record, error)
	// All returns all sessions, newest first.
	All(ctx context.Context) ([]Record, error)
	// ByIdempotencyKey returns the session created with a key, or reports
	// NotFound.
	ByIdempotencyKey(ctx context.Context, owner engi.Owner, key string) (Record, error)
	// Forget deletes the record of a session, if there is one.
	Forget(ctx context.Context, id engi.SessionID) error
}

// Packages provides the packages that the code of sessions may import; see package
// internal/session/deps.
type Packages interface {
	// Template returns the template with the packages, and the path of its
	// deno.json, which is empty if there are no packages.
	Template(ctx context.Context) (name, config string, err error)
	// Status describes the installation.
	Status() engi.Dependencies
}

// Workspaces keeps copies of the files of sessions; see package internal/session/backup.
type Workspaces interface {
	// Save copies the files of a volume, with at most limit bytes of content.
	Save(ctx context.Context, k backup.Key, files engi.VolumeFiles, limit int64) (engi.WorkspaceCopy, error)
	// Restore fills a volume, or reports NotFound if there is no copy.
	Restore(ctx context.Context, k backup.Key, files engi.VolumeFiles) (engi.WorkspaceCopy, error)
	// Remove deletes a copy. It returns no error if there is none.
	Remove(ctx context.Context, k backup.Key) error
}

// A Meter receives measurements. It is safe for concurrent use.
type Meter interface {
	Booted(took time.Duration)              // a session got a new sandbox
	Ran(outcome string, took time.Duration) // code ran: ok, failed, or the cause of its end
	Sessions(alive, sandboxes, waiting int) // current numbers, at every check
}

// Defaults holds the defaults of sessions. All fields except
// Longest, Network and Grants are required.
type Defaults struct {
	Mode     engi.SessionMode
	Size     engi.Size
	Capacity int64         // capacity of a volume, in bytes
	TTL      time.Duration // time to live: time without use after which a session ends
	Dormancy time.Duration // time without use after which a sandbox is released
	Longest  time.Duration // maximum duration of a session; 0 means no limit
	Timeout  time.Duration // time limit of a piece of code; also the maximum
	MaxAwake time.Duration // maximum age of a sandbox
	CPUQuota engi.CPUQuota // default quota, which sessions may lower; zero means no quota
	Network  engi.NetworkPolicy
	Grants   []engi.Grant // secrets for package registries, added to policies that allow egress
}

// Options configures a Manager. Lifecycle, Workspaces, Meter and Log may be nil.
type Options struct {
	Sandboxes     engi.Sandboxes
	Lifecycle     engi.Lifecycle // nil makes persistence snapshot Unsupported
	Snapshots     engi.Snapshots // nil makes persistence overlay Unsupported
	Volumes       engi.Volumes
	Workspaces    Workspaces       // nil makes persistence workspace Unsupported
	Shared        place.Workspaces // workspaces in which sessions may work; nil makes those Unsupported
	Store         Store
	Packages      Packages
	Defaults      Defaults
	Meter         Meter
	Log           *slog.Logger
	CheckNetwork  func(engi.NetworkPolicy) error // returns the reason why no sandbox may have a policy; nil allows all policies
	Quota         func(engi.Owner) engi.Quota    // returns the quota of an owner, of which the limits of sessions are enforced; nil means no limits
	Refused       func(engi.Owner, string)       // called with the name of the limit when Quota causes a refusal; may be nil; must be quick
	CheckInterval time.Duration                  // interval of the checks of all sessions; 0 means 5 s
	Retention     time.Duration                  // time for which ended sessions are kept; 0 means a day
}

const (
	noteKey     = "session" // key of the session ID in Sandbox.Notes
	maxWaiting  = 32        // maximum number of waiting runs of one session
	maxPerOwner = 10_000    // maximum number of sessions of one owner that have not ended
	maxTTL      = 365 * 24 * time.Hour
	undoTimeout = 30 * time.Second
)

// A Manager manages sessions. It implements [engi.Sessions] and
// [engi.SessionFiles] and is safe for
// concurrent use.
type Manager struct {
	opt       Options
	sandboxes holder.Holder

	ctx        context.Context // context of the background work; ends with Run
	cancel     context.CancelFunc
	background sync.WaitGroup // goroutines started by spawn

	creating *engi.KeyedSemaphore[engi.Owner]
	keys     *idempotency.Keys

	mu       sync.Mutex
	sessions map[engi.SessionID]*liveSession // guarded by mu
	order    []*liveSession                  // all sessions, in the order of older; guarded by mu
	owners   map[engi.Owner]*holding         // owners who have sessions, or had some on the last day; guarded by mu
	serving  bool                            // guarded by mu
}

var (
	_ engi.Sessions     = (*Manager)(nil)
	_ engi.SessionFiles = (*Manager)(nil)

	_ engi.SessionLifecycle = (*Manager)(nil)
)

// A liveSession is the state of a session in this process. When several of its locks are taken,
// codeLock comes first and mu last.
type liveSession struct {
	id          engi.SessionID
	created     time.Time
	codeLock    holder.Lock // is held while a piece of code runs
	sandboxLock holder.Lock // is held while the sandbox is replaced
	gitLock     holder.Lock // is held while the repository is pushed
	saveLock    holder.Lock // is held while the workspace is saved

	mu       sync.Mutex
	rec      Record          // guarded by mu
	uses     int             // guarded by mu; number of leases in use
	waiting  int             // guarded by mu; number of waiting runs
	booting  bool            // guarded by mu
	leaving  bool            // guarded by mu; the sandbox is being released in the background
	clients  []*connected    // guarded by mu; oldest first
	standby  *standbyProcess // guarded by mu; nil for none
	prepared engi.SandboxID  // guarded by mu; sandbox that this process has prepared for code
	cloned   engi.SandboxID  // guarded by mu; sandbox in which this process has seen the repository
	unsaved  int             // guarded by mu; number of failed saves of the workspace in a row
	retry    time.Time       // guarded by mu; earliest time of the next save
}

// A holding lists the sessions of one owner, so that creating and listing sessions need not
// read those of others.
type holding struct {
	order   []*liveSession // in the order of older
	alive   int            // number of sessions that have not ended
	created []time.Time    // times of creation in the last 24 hours, including removed sessions, oldest first
}

// addLocked adds a session. The caller holds m.mu.
func (m *Manager) addLocked(r Record) *liveSession {
	live := newLiveSession(r)
	m.sessions[r.ID] = live
	h := m.owners[r.Owner]
	if h == nil {
		h = &holding{}
		m.owners[r.Owner] = h
	}
	for _, order := range []*[]*liveSession{&m.order, &h.order} {
		at, _ := slices.BinarySearchFunc(*order, live, older)
		*order = slices.Insert(*order, at, live)
	}
	if r.Ended.IsZero() {
		h.alive++
	}
	at, _ := slices.BinarySearchFunc(h.created, r.Created, time.Time.Compare)
	h.created = slices.Insert(h.created, at, r.Created)
	return live
}

// older orders sessions as in lists, newest first.
func older(a, b *liveSession) int {
	return cmp.Or(a.created.Compare(b.created), -cmp.Compare(a.id, b.id))
}

// held returns the number of an owner's sessions that have not ended, and the number of those
// created on the last day.
func (m *Manager) held(owner engi.Owner) (alive, day int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	h := m.owners[owner]
	if h == nil {
		return 0, 0
	}
	old, _ := slices.BinarySearchFunc(h.created, time.Now().Add(-24*time.Hour), time.Time.Compare)
	h.created = h.created[old:]
	return h.alive, len(h.created)
}

// forget removes a session that has ended from memory.
func (m *Manager) forget(owner engi.Owner, id engi.SessionID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	live, h := m.sessions[id], m.owners[owner]
	delete(m.sessions, id)
	for _, order := range []*[]*liveSession{&m.order, &h.order} {
		if at, ok := slices.BinarySearchFunc(*order, live, older); ok {
			*order = slices.Delete(*order, at, at+1)
		}
	}
	if len(h.order) == 0 && (len(h.created) == 0 || time.Since(h.created[len(h.created)-1]) >= 24*time.Hour) {
		delete(m.owners, owner)
	}
}

func newLiveSession(r Record) *liveSession {
	return &liveSession{id: r.ID, created: r.Created, rec: r, codeLock: holder.NewLock(), sandboxLock: holder.NewLock(), gitLock: holder.NewLock(), saveLock: holder.NewLock()}
}

func (live *liveSession) record() Record {
	live.mu.Lock()
	defer live.mu.Unlock()
	return live.rec
}

func (live *liveSession) setBooting(booting bool) {
	live.mu.Lock()
	defer live.mu.Unlock()
	live.booting = booting
}

// Open returns a manager of the sessions in opt.Store. It does no background work
// before Run.
func Open(ctx context.Context, opt Options) (_ *Manager, err error) {
	defer engi.Annotate(&err, "open sessions")
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	if opt.Meter == nil {
		opt.Meter = noMeter{}
	}
	opt.CheckInterval = cmp.Or(opt.CheckInterval, 5*time.Second)
	opt.Retention = cmp.Or(opt.Retention, 24*time.Hour)
	held := holder.Holder{Sandboxes: opt.Sandboxes, Thing: func(sb engi.Sandbox) string { return sb.Notes[noteKey] }, Log: opt.Log}
	m := &Manager{opt: opt, sandboxes: held, sessions: map[engi.SessionID]*liveSession{}, owners: map[engi.Owner]*holding{}, creating: engi.NewKeyedSemaphore[engi.Owner](1), keys: idempotency.NewKeys(nil)}
	m.ctx, m.cancel = context.WithCancel(context.WithoutCancel(ctx))
	all, err := opt.Store.All(ctx)
	if err != nil {
		return nil, err
	}
	for _, r := range slices.Backward(all) { // oldest first
		m.addLocked(r)
	}
	return m, nil
}

type noMeter struct{}

func (noMeter) Booted(time.Duration)      {}
func (noMeter) Ran(string, time.Duration) {}
func (noMeter) Sessions(int, int, int)    {}

// timestamp returns the current time in the precision of records.
func timestamp() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }

var errNotServing = engi.Errorf(engi.Unavailable, "sessions are starting or stopping").WithRetry(engi.Retry{AfterMillis: 1000})

// spawn runs f in the background. It returns false if Run is not active. Run waits for f.
func (m *Manager) spawn(f func(ctx context.Context)) (ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.serving {
		return false
	}
	m.background.Go(func() { f(m.ctx) })
	return true
}

var namePattern = regexp.MustCompile(`^[A-Za-z0-9._-]{1,128}$`)

// validate validates spec and returns the session that it describes, with defaults set.
func (m *Manager) validate(spec engi.SessionSpec) (s engi.Session, err error) {
	d := m.opt.Defaults
	bad := func(format string, args ...any) (engi.Session, error) {
		return engi.Session{}, engi.Errorf(engi.Invalid, format, args...)
	}
	if spec.Name != "" {
		if _, err := engi.ParseSessionID(spec.Name); err == nil || !namePattern.MatchString(spec.Name) {
			return engi.Session{}, engi.Errorf(engi.Invalid, "%.140q is not a valid session name", spec.Name).
				WithRemedy("use letters, digits, '.', '_' and '-', at most 128")
		}
	}
	s = engi.Session{
		Owner: spec.Owner, Name: spec.Name, State: engi.SessionIdle, Template: spec.Template, Size: spec.Size.Or(d.Size),
		Mode: cmp.Or(spec.Mode, d.Mode), Persistence: cmp.Or(spec.Persistence, engi.PersistSession),
		Capacity: cmp.Or(spec.Capacity, d.Capacity), TTL: cmp.Or(spec.TTL, d.TTL), Dormancy: cmp.Or(spec.Dormancy, d.Dormancy), MaxDuration: cmp.Or(spec.MaxDuration, d.Longest),
		CPUQuota: cmp.Or(spec.CPUQuota, d.CPUQuota.VCPUs), Metadata: spec.Metadata, Env: spec.Env,
	}
	switch s.Mode {
	case engi.SessionLazy, engi.SessionWarm:
	default:
		return engi.Session{}, engi.Errorf(engi.Invalid, "unknown session mode %.40q", s.Mode).WithRemedy("use lazy or warm")
	}
	switch s.Persistence {
	case engi.PersistNone, engi.PersistSession:
	case engi.PersistSnapshot:
		if m.opt.Lifecycle == nil {
			return engi.Session{}, engi.Errorf(engi.Unsupported, "this node cannot hibernate sandboxes").WithRemedy("use persistence session")
		}
	case engi.PersistOverlay:
		if m.opt.Lifecycle == nil || m.opt.Snapshots == nil {
			return engi.Session{}, engi.Errorf(engi.Unsupported, "this node has no snapshots").WithRemedy("use persistence session")
		}
	case engi.PersistWorkspace:
		if m.opt.Workspaces == nil {
			return engi.Session{}, engi.Errorf(engi.Unsupported, "this node has no store of workspaces").WithRemedy("use persistence session")
		}
	default:
		return engi.Session{}, engi.Errorf(engi.Invalid, "unknown session persistence %.40q", s.Persistence).WithRemedy("use none, session, workspace, overlay or snapshot")
	}
	if s.TTL < time.Second || s.TTL > maxTTL {
		return bad("a time to live of %v is not between 1s and %v", s.TTL, maxTTL)
	}
	if s.Dormancy < time.Second || s.Dormancy > d.MaxAwake {
		return bad("a dormancy of %v is not between 1s and %v", s.Dormancy, d.MaxAwake)
	}
	if s.MaxDuration < 0 || s.MaxDuration > 0 && s.MaxDuration < time.Second || d.Longest > 0 && s.MaxDuration > d.Longest {
		return engi.Session{}, engi.Errorf(engi.Invalid, "a maximum duration of %v is not between 1s and the node's %v", s.MaxDuration, cmp.Or(d.Longest, maxTTL)).
			WithRemedy("ask for less, or for none to have the node's; the operator may raise sandbox.max_duration")
	}
	if q := d.CPUQuota.VCPUs; s.CPUQuota < 0 || q > 0 && s.CPUQuota > q {
		return engi.Session{}, engi.Errorf(engi.Invalid, "a quota of %v processors is not between 0 and the node's %v", s.CPUQuota, q).
			WithRemedy("ask for less, or for none to have the node's; the operator may raise sandbox.cpu_quota")
	}
	if s.Capacity < 0 {
		return bad("a capacity of %d bytes", s.Capacity)
	}
	if err := s.Size.Validate(); err != nil {
		return engi.Session{}, err
	}
	if len(spec.Metadata) > 64 {
		return bad("the metadata has %d pairs, 64 at most", len(spec.Metadata))
	}
	for k, v := range spec.Metadata {
		if k == "" || len(k) > 256 || len(v) > 256 {
			return bad("a metadata key is empty, or a key or value has more than 256 bytes")
		}
	}
	s.Network = m.policy(spec.Network)
	if spec.Git != nil {
		if s.Git, err = checkGit(*spec.Git); err != nil {
			return engi.Session{}, err
		}
		if s.Persistence == engi.PersistNone && s.Git.Push != nil && s.Git.Push.OnRelease {
			return engi.Session{}, engi.Errorf(engi.Invalid, "with persistence none, work that cannot be pushed on release would be lost").WithRemedy("use persistence session")
		}
		if isZero(spec.Network) && s.Network.Mode == engi.NetworkNone {
			s.Network.Mode = engi.NetworkRestricted
		}
		if s.Network, err = openGit(s.Network, *s.Git); err != nil {
			return engi.Session{}, err
		}
	}
	if m.opt.CheckNetwork != nil && !isZero(spec.Network) {
		return s, m.opt.CheckNetwork(s.Network)
	}
	return s, nil
}

// checkWorkspace returns the reason why no session that spec describes can work in a workspace.
func (m *Manager) checkWorkspace(spec engi.SessionSpec) error {
	if m.opt.Shared == nil {
		return engi.Errorf(engi.Unsupported, "sessions of this node do not work in workspaces").WithRemedy("leave the workspace out")
	}
	if spec.Template != "" || spec.Size != (engi.Size{}) || spec.Persistence != "" || spec.Capacity != 0 || spec.Dormancy != 0 || spec.CPUQuota != 0 || !isZero(spec.Network) || len(spec.Env) > 0 || spec.Git != nil {
		return engi.Errorf(engi.Invalid, "a session in a workspace has the template, size, files and network of the workspace").
			WithRemedy("leave out all but name, mode, ttl, max_duration and metadata")
	}
	return nil
}

// inWorkspace returns s as a session in a workspace of its owner. Collaborators have none there,
// because a session would outlive a change of their roles. Scripts of such a session have no network: the
// policy of the workspace is that of its sandbox alone.
func (m *Manager) inWorkspace(ctx context.Context, spec engi.SessionSpec, s engi.Session) (engi.Session, error) {
	w, err := m.opt.Shared.Get(ctx, spec.Owner.Viewer(), spec.Workspace)
	if err == nil && w.Owner != spec.Owner {
		err = engi.Errorf(engi.Denied, "workspace %s belongs to another owner", w.ID).WithRemedy("ask its owner for a session in it, or run programs in it with 'engi workspace exec'")
	}
	s.Workspace, s.Template, s.Persistence = w.ID, w.Template, engi.PersistNone
	s.Size, s.Capacity, s.CPUQuota, s.Network = engi.Size{}, 0, 0, engi.NetworkPolicy{Mode: engi.NetworkNone}
	return s, err
}

// policy returns the network policy for a session that requests p: the default
// if p is zero, with the secrets for package registries if it allows any egress.
func (m *Manager) policy(p engi.NetworkPolicy) engi.NetworkPolicy {
	if isZero(p) {
		p = m.opt.Defaults.Network
	}
	if p.Mode == engi.NetworkRestricted || p.Mode == engi.NetworkOpen {
		p.Grants = slices.Clone(p.Grants)
		for _, g := range m.opt.Defaults.Grants {
			same := func(h engi.Grant) bool { return h.Secret == g.Secret && slices.Equal(h.Hosts, g.Hosts) }
			if !slices.ContainsFunc(p.Grants, same) {
				p.Grants = append(p.Grants, g)
			}
		}
	}
	return p
}

func isZero(p engi.NetworkPolicy) bool {
	return p.Mode == "" && len(p.Allow)+len(p.Deny)+len(p.Grants)+len(p.Headers)+len(p.Requests)+len(p.Detail) == 0 && p.Proxy == nil && p.Group == "" && p.Limits == engi.NetworkLimits{}
}

// Create implements [engi.Sessions].
func (m *Manager) Create(ctx context.Context, spec engi.SessionSpec) (_ engi.Session, err error) {
	defer engi.Annotate(&err, "create session")
	s, err := m.validate(spec)
	if err != nil {
		return engi.Session{}, err
	}
	if spec.Workspace != "" {
		if err := m.checkWorkspace(spec); err != nil {
			return engi.Session{}, err
		}
	}
	r := Record{Session: s, Idempotency: spec.Idempotency}
	if r.Idempotency != "" {
		r.Fingerprint = idempotency.Fingerprint(spec)
	}
	request := idempotency.Request{Owner: spec.Owner, Key: spec.Idempotency, Fingerprint: r.Fingerprint}
	var live *liveSession
	old, repeated, err := idempotency.Once(ctx, m.keys, request, m.opt.Store.ByIdempotencyKey, func() (Record, error) {
		if spec.Workspace != "" {
			if r.Session, err = m.inWorkspace(ctx, spec, r.Session); err != nil {
				return r, err
			}
		}
		live, err = m.create(ctx, r)
		return r, err
	})
	if err != nil {
		return engi.Session{}, err
	}
	if repeated {
		return m.Get(ctx, spec.Owner.Viewer(), string(old.ID))
	}
	return m.view(ctx, live), nil
}

// create records a new session and begins to warm it up if its mode asks for that.
func (m *Manager) create(ctx context.Context, r Record) (*liveSession, error) {
	if !m.isServing() {
		return nil, errNotServing
	}
	unlock, err := m.creating.Acquire(ctx, r.Owner) // so that concurrent calls do not exceed the limits
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := m.checkQuota(r.Owner); err != nil {
		return nil, err
	}
	now := timestamp()
	r.ID, r.Created, r.Used = engi.NewSessionID(), now, now
	if err := m.opt.Store.Put(ctx, r); err != nil {
		return nil, err
	}
	m.mu.Lock()
	live := m.addLocked(r)
	m.mu.Unlock()
	if r.Mode == engi.SessionWarm {
		live.setBooting(true)
		if !m.spawn(func(ctx context.Context) { m.warm(ctx, live) }) {
			live.setBooting(false)
		}
	}
	return live, nil
}

func (m *Manager) isServing() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.serving
}

// checkQuota reports Exhausted if an owner must not create another session.
func (m *Manager) checkQuota(owner engi.Owner) error {
	alive, day := m.held(owner)
	q := engi.Quota{}
	if m.opt.Quota != nil && owner != "" {
		q = m.opt.Quota(owner)
	}
	refuse := func(name string, retry time.Duration, err *engi.Error) error {
		if m.opt.Refused != nil {
			m.opt.Refused(owner, name)
		}
		return err.WithRetry(engi.Retry{AfterMillis: retry.Milliseconds()})
	}
	switch {
	case alive >= maxPerOwner || q.Sessions > 0 && alive >= q.Sessions:
		return refuse("sessions", 30*time.Second, engi.Errorf(engi.Exhausted, "there are already %d sessions, which is the quota", alive).
			WithRemedy("terminate an unused one, or ask the node's administrator for a larger quota"))
	case q.SessionsPerDay > 0 && day >= q.SessionsPerDay:
		return refuse("sessions per day", time.Hour, engi.Errorf(engi.Exhausted, "%d sessions were created in the last 24 hours, %d are allowed", day, q.SessionsPerDay).
			WithRemedy("use the sessions you have for longer, wait, or ask the node's administrator for a larger quota"))
	}
	return nil
}

// all returns the sessions that viewer sees, in the order of older.
func (m *Manager) all(viewer engi.Viewer) []*liveSession {
	m.mu.Lock()
	defer m.mu.Unlock()
	if viewer == engi.Everyone {
		return slices.Clone(m.order)
	}
	if h := m.owners[viewer.Owner()]; h != nil {
		return slices.Clone(h.order)
	}
	return nil
}

// lookUp returns the session with an ID, or nil.
func (m *Manager) lookUp(id engi.SessionID) *liveSession {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.sessions[id]
}

// find returns a session that has not ended. For a session that has ended, it reports
// NotFound with the reason.
func (m *Manager) find(ctx context.Context, viewer engi.Viewer, idOrName string) (*liveSession, error) {
	r, err := m.opt.Store.Find(ctx, viewer, idOrName)
	if err != nil {
		return nil, err
	}
	live := m.lookUp(r.ID)
	if live == nil {
		return nil, engi.Errorf(engi.NotFound, "there is no such session")
	}
	return live, live.checkAlive()
}

func (live *liveSession) checkAlive() error {
	if r := live.record(); !r.Ended.IsZero() {
		return engi.Errorf(engi.NotFound, "the session has ended: %s", r.EndReason).WithRemedy("create a new one; the files of this one are gone")
	}
	return nil
}

// Get implements [engi.Sessions].
func (m *Manager) Get(ctx context.Context, viewer engi.Viewer, idOrName string) (_ engi.Session, err error) {
	defer engi.Annotate(&err, "session %.140s", idOrName)
	r, err := m.opt.Store.Find(ctx, viewer, idOrName)
	if err != nil {
		return engi.Session{}, err
	}
	live := m.lookUp(r.ID)
	if live == nil {
		return r.Session, nil
	}
	return m.view(ctx, live), nil
}

// List implements [engi.Sessions].
func (m *Manager) List(ctx context.Context, viewer engi.Viewer, p engi.Paging) ([]engi.Session, error) {
	list, all := []engi.Session{}, m.all(viewer)
	if p.After != "" {
		last := m.lookUp(engi.SessionID(p.After))
		if last == nil || !viewer.Sees(last.record().Owner) {
			return nil, p.Lost()
		}
		at, _ := slices.BinarySearchFunc(all, last, older)
		all = all[:at]
	}
	for _, live := range slices.Backward(all) {
		if p.Limit > 0 && len(list) == p.Limit {
			break
		}
		if live.record().Ended.IsZero() {
			list = append(list, m.view(ctx, live))
		}
	}
	return list, nil
}

// sessionStates maps states of sandboxes to states of sessions.
var sessionStates = map[engi.State]engi.SessionState{
	engi.Pending: engi.SessionBooting, engi.Starting: engi.SessionBooting, engi.Ready: engi.SessionBooting,
	engi.Running: engi.SessionRunning, engi.Paused: engi.SessionSuspended, engi.Hibernating: engi.SessionHibernated,
	engi.Hibernated: engi.SessionHibernated, engi.Resuming: engi.SessionBooting, engi.Stopping: engi.SessionIdle, engi.Stopped: engi.SessionIdle,
}

// view returns a session in the form for clients.
func (m *Manager) view(ctx context.Context, live *liveSession) engi.Session {
	live.mu.Lock()
	s, ended, booting := live.rec.Session, live.rec.Ended, live.booting
	s.Attached = live.attached()
	if live.uses > 0 {
		s.Used = time.Now().UTC()
	}
	live.mu.Unlock()
	s.Expires = s.Used.Add(s.TTL)
	if last := s.Created.Add(s.MaxDuration); s.MaxDuration > 0 && last.Before(s.Expires) {
		s.Expires = last
	}
	switch {
	case !ended.IsZero():
		s.State, s.Expires = engi.SessionTerminated, ended
	case booting:
		s.State, s.Sandbox = engi.SessionBooting, "" // it cannot be used yet
	case s.Sandbox == "":
		s.State = engi.SessionIdle
	default:
		sandbox, err := m.opt.Sandboxes.Get(ctx, engi.Everyone, s.Sandbox)
		if s.State = sessionStates[sandbox.State]; err != nil || s.State == "" {
			s.State = engi.SessionIdle
		}
		if s.State == engi.SessionIdle {
			s.Sandbox = "" // the sandbox has just stopped
		}
	}
	if s.State != engi.SessionRunning {
		s.Attached = nil
	}
	return s
}

// update applies f to a session's record, and stores the record first. f runs with
// live.mu locked.
func (m *Manager) update(ctx context.Context, live *liveSession, f func(*Record)) error {
	live.mu.Lock()
	defer live.mu.Unlock()
	r := live.rec
	f(&r)
	if err := m.opt.Store.Save(ctx, r); err != nil {
		return err
	}
	r.Note, r.Steps = nil, nil
	if live.rec.Ended.IsZero() && !r.Ended.IsZero() {
		m.mu.Lock()
		m.owners[r.Owner].alive--
		m.mu.Unlock()
	}
	live.rec = r
	return nil
}

// Dependencies implements [engi.Sessions].
func (m *Manager) Dependencies(context.Context) (engi.Dependencies, error) {
	return m.opt.Packages.Status(), nil
}
