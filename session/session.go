// Package session manages sessions: long-lived contexts that get a sandbox
// when they need one, lose it when they are idle, and keep their files in a
// volume until they have not been used for their time to live.
//
// The records in the store are the truth, and every step is recorded before it
// is taken. A kill at any moment therefore loses nothing and leaks nothing: Run
// adopts sandboxes that their session does not know yet, and removes the
// volumes of sessions that have ended.
//
// It does not start sandboxes (package fleet), store files (package
// disk/volume) or enforce network policies (package gate/egress).
package session

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"log/slog"
	"maps"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/engi-dev/engi"
)

// WorkDir is where a session's volume is mounted in its sandbox. Code runs
// there.
const WorkDir = "/workspace"

// A Record is what the store keeps of a session.
type Record struct {
	engi.Session // State is idle or terminated; the others follow from the sandbox
	Idempotency  string
	Fingerprint  string    // of the request; set with Idempotency
	Boots        int       // sandboxes requested so far
	Ended        time.Time // zero until it ends
	EndReason    string    // why it ended, for humans
	Cleared      bool      // it ended and its sandbox and volume are gone
}

// A Store keeps sessions durably. Lookups see what owner owns, or everything
// if owner is empty.
type Store interface {
	// Put adds a session. It reports Conflict if the owner has another one of
	// that name that has not ended.
	Put(ctx context.Context, r Record) error
	// Save replaces the record of a session, or reports NotFound.
	Save(ctx context.Context, r Record) error
	// Find returns a session by ID, or one that has not ended by name, or
	// reports NotFound. For the empty owner, a name that several owners use is
	// a Conflict.
	Find(ctx context.Context, owner engi.Owner, idOrName string) (Record, error)
	// All returns all sessions, newest first.
	All(ctx context.Context) ([]Record, error)
	// ByIdempotencyKey returns the session created with a key, or reports
	// NotFound.
	ByIdempotencyKey(ctx context.Context, owner engi.Owner, key string) (Record, error)
	// Forget deletes the record of a session, if there is one.
	Forget(ctx context.Context, id engi.SessionID) error
}

// Packages provides the packages that sessions may import; see package
// session/deps.
type Packages interface {
	// Template returns the template that has them, and the path of its
	// deno.json, which is empty if there are no packages.
	Template(ctx context.Context) (name, config string, err error)
	// Status describes the installation.
	Status() engi.Dependencies
}

// A Meter receives measurements. It is safe for concurrent use.
type Meter interface {
	Booted(took time.Duration)              // a session got a new sandbox
	Ran(outcome string, took time.Duration) // code ran: ok, failed, or the cause of its end
	Sessions(alive, sandboxes, waiting int) // current numbers, at every check
}

// Defaults apply where a session's request leaves a field open. All but
// Network and Grants are required.
type Defaults struct {
	Mode     engi.SessionMode
	Size     engi.Size
	Capacity int64         // of a volume, in bytes
	TTL      time.Duration // after which an unused session ends
	Dormancy time.Duration // after which an unused sandbox is released
	Timeout  time.Duration // of a piece of code; also the maximum
	MaxAwake time.Duration // maximum age of a sandbox
	Network  engi.NetworkPolicy
	Grants   []engi.Grant // secrets of packages, added to policies that allow egress
}

// Options configure a Manager. Lifecycle, Meter and Log may be nil.
type Options struct {
	Sandboxes     engi.Sandboxes
	Lifecycle     engi.Lifecycle // nil makes persistence snapshot Unsupported
	Volumes       engi.Volumes
	Store         Store
	Packages      Packages
	Defaults      Defaults
	Meter         Meter
	Log           *slog.Logger
	CheckInterval time.Duration // between checks of all sessions; 0 means 5 s
	Retention     time.Duration // how long ended sessions are kept; 0 means a day
}

const (
	noteKey     = "session" // of the session ID in Sandbox.Notes
	maxWaiting  = 32        // runs queued in one session
	maxPerOwner = 10_000    // sessions that have not ended
	maxTTL      = 365 * 24 * time.Hour
	undoTimeout = 30 * time.Second
)

// A Manager manages sessions. It implements [engi.Sessions] and is safe for
// concurrent use.
type Manager struct {
	opt Options

	ctx        context.Context // of background; ends with Run
	cancel     context.CancelFunc
	background sync.WaitGroup // what spawn started

	mu       sync.Mutex
	sessions map[engi.SessionID]*liveSession // guarded by mu
	creating map[string]chan struct{}        // guarded by mu; locked idempotency keys
	serving  bool                            // guarded by mu
}

var _ engi.Sessions = (*Manager)(nil)

// A liveSession is the state of a session in this process. Of its locks,
// codeLock is taken first and mu last.
type liveSession struct {
	id          engi.SessionID
	codeLock    chan struct{} // full while a piece of code runs
	sandboxLock chan struct{} // full while the sandbox is being replaced

	mu       sync.Mutex
	rec      Record          // guarded by mu
	uses     int             // guarded by mu; leases in use
	waiting  int             // guarded by mu; queued runs
	booting  bool            // guarded by mu
	standby  *standbyProcess // guarded by mu; nil for none
	prepared engi.SandboxID  // guarded by mu; that this process has prepared for code
}

func newLiveSession(r Record) *liveSession {
	return &liveSession{id: r.ID, rec: r, codeLock: make(chan struct{}, 1), sandboxLock: make(chan struct{}, 1)}
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

// Open returns a manager of the sessions in opt.Store. It does nothing with
// them before Run.
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
	m := &Manager{opt: opt, sessions: map[engi.SessionID]*liveSession{}, creating: map[string]chan struct{}{}}
	m.ctx, m.cancel = context.WithCancel(context.WithoutCancel(ctx))
	all, err := opt.Store.All(ctx)
	if err != nil {
		return nil, err
	}
	for _, r := range all {
		m.sessions[r.ID] = newLiveSession(r)
	}
	return m, nil
}

type noMeter struct{}

func (noMeter) Booted(time.Duration)      {}
func (noMeter) Ran(string, time.Duration) {}
func (noMeter) Sessions(int, int, int)    {}

// timestamp is the current time in the precision of records.
func timestamp() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }

var errNotServing = engi.Errorf(engi.Unavailable, "sessions are starting or stopping").WithRetry(engi.Retry{AfterMillis: 1000})

// spawn runs f in the background, unless Run is not running. Run waits for f.
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

// validate returns a session as spec wants it, with the defaults filled in.
func (m *Manager) validate(spec engi.SessionSpec) (engi.Session, error) {
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
	s := engi.Session{
		Owner: spec.Owner, Name: spec.Name, State: engi.SessionIdle, Template: spec.Template, Size: spec.Size.Or(d.Size),
		Mode: cmp.Or(spec.Mode, d.Mode), Persistence: cmp.Or(spec.Persistence, engi.PersistSession),
		Capacity: cmp.Or(spec.Capacity, d.Capacity), TTL: cmp.Or(spec.TTL, d.TTL), Dormancy: cmp.Or(spec.Dormancy, d.Dormancy),
		Metadata: spec.Metadata, Env: spec.Env,
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
	default:
		return engi.Session{}, engi.Errorf(engi.Invalid, "unknown session persistence %.40q", s.Persistence).WithRemedy("use none, session or snapshot")
	}
	if s.TTL < time.Second || s.TTL > maxTTL {
		return bad("a time to live of %v is not between 1s and %v", s.TTL, maxTTL)
	}
	if s.Dormancy < time.Second || s.Dormancy > d.MaxAwake {
		return bad("a dormancy of %v is not between 1s and %v", s.Dormancy, d.MaxAwake)
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
	return s, nil
}

// policy returns the network policy of a session that asks for p: the default
// for the zero policy, with the grants of packages if it allows any egress.
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

func fingerprint(spec engi.SessionSpec) string {
	h := sha256.New()
	_ = json.NewEncoder(h).Encode(spec) // fails only for a Detail that is not JSON, which the API does not let through
	return hex.EncodeToString(h.Sum(nil))
}

// Create implements [engi.Sessions].
func (m *Manager) Create(ctx context.Context, spec engi.SessionSpec) (_ engi.Session, err error) {
	defer engi.Annotate(&err, "create session")
	s, err := m.validate(spec)
	if err != nil {
		return engi.Session{}, err
	}
	if len(spec.Idempotency) > 256 {
		return engi.Session{}, engi.Errorf(engi.Invalid, "the idempotency key has %d bytes, 256 at most", len(spec.Idempotency))
	}
	r := Record{Session: s, Idempotency: spec.Idempotency}
	if spec.Idempotency != "" {
		unlock, err := m.lockKey(ctx, string(spec.Owner)+"\x00"+spec.Idempotency)
		if err != nil {
			return engi.Session{}, err
		}
		defer unlock()
		r.Fingerprint = fingerprint(spec)
		old, err := m.opt.Store.ByIdempotencyKey(ctx, spec.Owner, spec.Idempotency)
		switch {
		case err == nil && old.Fingerprint != r.Fingerprint:
			return engi.Session{}, engi.Errorf(engi.Conflict, "the idempotency key was used before for another request, session %s", old.ID).
				WithRemedy("use a new key for each request, and the same key only to repeat one")
		case err == nil:
			return m.Get(ctx, spec.Owner, string(old.ID))
		case engi.KindOf(err) != engi.NotFound:
			return engi.Session{}, err
		}
	}
	if !m.isServing() {
		return engi.Session{}, errNotServing
	}
	if n := m.count(spec.Owner); n >= maxPerOwner {
		return engi.Session{}, engi.Errorf(engi.Exhausted, "there are already %d sessions", n).WithRemedy("terminate some that are not needed")
	}
	now := timestamp()
	r.ID, r.Created, r.Used = engi.NewSessionID(), now, now
	if err := m.opt.Store.Put(ctx, r); err != nil {
		return engi.Session{}, err
	}
	live := newLiveSession(r)
	m.mu.Lock()
	m.sessions[r.ID] = live
	m.mu.Unlock()
	if r.Mode == engi.SessionWarm {
		live.setBooting(true)
		if !m.spawn(func(ctx context.Context) { m.warm(ctx, live) }) {
			live.setBooting(false)
		}
	}
	return m.view(ctx, live), nil
}

func (m *Manager) isServing() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.serving
}

func (m *Manager) count(owner engi.Owner) (n int) {
	for _, live := range m.all() {
		if r := live.record(); r.Owner == owner && r.Ended.IsZero() {
			n++
		}
	}
	return n
}

// lockKey waits until no other call creates a session with the same key.
func (m *Manager) lockKey(ctx context.Context, key string) (unlock func(), err error) {
	for {
		m.mu.Lock()
		busy := m.creating[key]
		if busy == nil {
			mine := make(chan struct{})
			m.creating[key] = mine
			m.mu.Unlock()
			return func() {
				m.mu.Lock()
				delete(m.creating, key)
				m.mu.Unlock()
				close(mine)
			}, nil
		}
		m.mu.Unlock()
		select {
		case <-busy:
		case <-ctx.Done():
			return nil, engi.Errorf(engi.Expired, "%v", context.Cause(ctx))
		}
	}
}

func (m *Manager) all() []*liveSession {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Values(m.sessions))
}

// lookUp returns a session by ID; nil if there is none.
func (m *Manager) lookUp(id engi.SessionID) *liveSession {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.sessions[id]
}

// find returns a session that has not ended. For one that has, it reports
// NotFound with the reason.
func (m *Manager) find(ctx context.Context, owner engi.Owner, idOrName string) (*liveSession, error) {
	r, err := m.opt.Store.Find(ctx, owner, idOrName)
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
func (m *Manager) Get(ctx context.Context, owner engi.Owner, idOrName string) (_ engi.Session, err error) {
	defer engi.Annotate(&err, "session %.140s", idOrName)
	r, err := m.opt.Store.Find(ctx, owner, idOrName)
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
func (m *Manager) List(ctx context.Context, owner engi.Owner) ([]engi.Session, error) {
	list := []engi.Session{}
	for _, live := range m.all() {
		if r := live.record(); r.Ended.IsZero() && (owner == "" || r.Owner == owner) {
			list = append(list, m.view(ctx, live))
		}
	}
	slices.SortFunc(list, func(a, b engi.Session) int {
		return cmp.Or(b.Created.Compare(a.Created), cmp.Compare(a.ID, b.ID))
	})
	return list, nil
}

// sessionStates are the states of sessions by those of their sandboxes.
var sessionStates = map[engi.State]engi.SessionState{
	engi.Pending: engi.SessionBooting, engi.Starting: engi.SessionBooting, engi.Ready: engi.SessionBooting,
	engi.Running: engi.SessionRunning, engi.Paused: engi.SessionSuspended, engi.Hibernating: engi.SessionHibernated,
	engi.Hibernated: engi.SessionHibernated, engi.Resuming: engi.SessionBooting, engi.Stopping: engi.SessionIdle, engi.Stopped: engi.SessionIdle,
}

// view returns a session as clients see it.
func (m *Manager) view(ctx context.Context, live *liveSession) engi.Session {
	live.mu.Lock()
	s, ended, booting := live.rec.Session, live.rec.Ended, live.booting
	if live.uses > 0 {
		s.Used = time.Now().UTC()
	}
	live.mu.Unlock()
	s.Expires = s.Used.Add(s.TTL)
	switch {
	case !ended.IsZero():
		s.State, s.Expires = engi.SessionTerminated, ended
	case booting:
		s.State = engi.SessionBooting
	case s.Sandbox == "":
		s.State = engi.SessionIdle
	default:
		sandbox, err := m.opt.Sandboxes.Get(ctx, "", s.Sandbox)
		if s.State = sessionStates[sandbox.State]; err != nil || s.State == "" {
			s.State = engi.SessionIdle
		}
		if s.State == engi.SessionIdle {
			s.Sandbox = "" // it has just stopped
		}
	}
	return s
}

// update applies f to a session's record, in the store first. f runs with
// live.mu locked.
func (m *Manager) update(ctx context.Context, live *liveSession, f func(*Record)) error {
	live.mu.Lock()
	defer live.mu.Unlock()
	r := live.rec
	f(&r)
	if err := m.opt.Store.Save(ctx, r); err != nil {
		return err
	}
	live.rec = r
	return nil
}

// Dependencies implements [engi.Sessions].
func (m *Manager) Dependencies(context.Context) (engi.Dependencies, error) {
	return m.opt.Packages.Status(), nil
}
