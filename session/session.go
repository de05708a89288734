// Package session keeps sessions: a caller's long-lived context, which gets a
// sandbox when it needs one, loses it when it is idle, and keeps its files in a
// volume until nobody used it for longer than its time to live.
//
// The registry in the store is the truth, and what is on its way is written
// down before it is done, so a kill at any moment loses nothing and leaves
// nothing: Run finds sandboxes of sessions that do not know them, and volumes of
// sessions that are over.
//
// It starts no sandboxes (package fleet), keeps no files (package disk/volume),
// and decides nothing about the network (package gate/egress).
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

// WorkDir is where a session's volume is inside, and where code works.
const WorkDir = "/workspace"

// A Record is what is remembered of a session.
type Record struct {
	engi.Session // State is idle or terminated; the rest follows from its sandbox
	Idempotency  string
	Fingerprint  string    // of the request, with Idempotency
	Boots        int       // sandboxes that were asked for
	Ended        time.Time // zero while it lives
	EndReason    string    // it ended, for people
	Cleared      bool      // it has ended, and nothing is left of it
}

// A Store remembers sessions. What a method has written survives a kill.
// Lookups see only what owner owns, or everything for the empty owner.
type Store interface {
	// Put records a new session; Conflict if its owner has a living one of
	// its name.
	Put(ctx context.Context, r Record) error
	// Save replaces the record of a session; NotFound.
	Save(ctx context.Context, r Record) error
	// Find returns a session by ID, or a living one by name; NotFound. A name
	// that several owners use is Conflict for the empty owner.
	Find(ctx context.Context, owner engi.Owner, idOrName string) (Record, error)
	// All returns every session, newest first.
	All(ctx context.Context) ([]Record, error)
	// Repeated returns the session that an idempotency key has made; NotFound.
	ByIdempotencyKey(ctx context.Context, owner engi.Owner, key string) (Record, error)
	// Forget deletes the record of a session; none is no error.
	Forget(ctx context.Context, id engi.SessionID) error
}

// Packages says what sessions begin with; see package session/deps.
type Packages interface {
	// Template returns the template of sandboxes and the path inside of what
	// Deno is told of their packages; empty if there are none.
	Template(ctx context.Context) (name, config string, err error)
	// Status says how the installation is.
	Status() engi.Dependencies
}

// A Meter counts. It is safe for concurrent use.
type Meter interface {
	Booted(took time.Duration)              // a session got a sandbox
	Ran(outcome string, took time.Duration) // ok, failed, or why it was ended
	Sessions(alive, sandboxes, waiting int) // now and then
}

// Defaults are what sessions get that do not say otherwise. All but Network
// and Grants are needed.
type Defaults struct {
	Mode     engi.SessionMode
	Size     engi.Size
	Capacity int64         // bytes of a volume
	TTL      time.Duration // of a volume without use
	Dormancy time.Duration // of a sandbox without use
	Timeout  time.Duration // of a piece of code; nobody gets more
	MaxAwake time.Duration // of a sandbox, at most
	Network  engi.NetworkPolicy
	Grants   []engi.Grant // added to every policy that lets anything out by name: secrets of packages
}

// Options are what sessions need. Lifecycle, Meter and Log may be nil.
type Options struct {
	Sandboxes     engi.Sandboxes
	Lifecycle     engi.Lifecycle // nil: persistence snapshot is Unsupported
	Volumes       engi.Volumes
	Store         Store
	Packages      Packages
	Defaults      Defaults
	Meter         Meter
	Log           *slog.Logger
	CheckInterval time.Duration // how often what is overdue is looked for; 0 means 5 s
	Retention     time.Duration // how long sessions that are over are remembered; 0 means a day
}

const (
	sessionNote = "session" // in Sandbox.Notes
	maxWaiting  = 32        // runs that wait for their turn in one session
	maxPerOwner = 10_000    // living sessions
	maxTTL      = 365 * 24 * time.Hour
	undoTimeout = 30 * time.Second
)

// A Manager keeps sessions. It implements [engi.Sessions] and is safe for
// concurrent use.
type Manager struct {
	opt Options
	now func() time.Time

	ctx        context.Context // ends with Run
	cancel     context.CancelFunc
	background sync.WaitGroup // of what goes on without a caller

	mu       sync.Mutex
	sessions map[engi.SessionID]*liveSession
	creating map[string]chan struct{} // idempotency keys under way
	serving  bool
}

var _ engi.Sessions = (*Manager)(nil)

// A life is a session in this process.
type liveSession struct {
	id          engi.SessionID
	codeLock    chan struct{} // holds a token while a piece of code runs
	sandboxLock chan struct{} // holds a token while the sandbox comes or goes

	mu       sync.Mutex
	rec      Record // guarded by mu, like all below
	uses     int    // of the sandbox, under way
	waiting  int    // runs
	booting  bool
	standby  *standbyProcess // nil for none
	prepared engi.SandboxID  // that this process has made ready for code
}

func newLiveSession(r Record) *liveSession {
	return &liveSession{id: r.ID, rec: r, codeLock: make(chan struct{}, 1), sandboxLock: make(chan struct{}, 1)}
}

func (live *liveSession) record() Record {
	live.mu.Lock()
	defer live.mu.Unlock()
	return live.rec
}

// Open returns the sessions in o.Store. Nothing happens to them before Run.
func Open(ctx context.Context, o Options) (_ *Manager, err error) {
	defer engi.Annotate(&err, "open sessions")
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Meter == nil {
		o.Meter = noMeter{}
	}
	o.CheckInterval = cmp.Or(o.CheckInterval, 5*time.Second)
	o.Retention = cmp.Or(o.Retention, 24*time.Hour)
	m := &Manager{opt: o, now: time.Now, sessions: map[engi.SessionID]*liveSession{}, creating: map[string]chan struct{}{}}
	m.ctx, m.cancel = context.WithCancel(context.WithoutCancel(ctx))
	all, err := o.Store.All(ctx)
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

var errNotServing = engi.Errorf(engi.Unavailable, "sessions are starting or stopping").WithRetry(engi.Retry{AfterMillis: 1000})

// spawn does something without a caller, while Run runs; false if it does not.
func (m *Manager) spawn(f func(ctx context.Context)) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.serving {
		return false
	}
	m.background.Go(func() { f(m.ctx) })
	return true
}

var namePattern = regexp.MustCompile(`^[A-Za-z0-9._-]{1,128}$`)

// check fills in what spec leaves open.
func (m *Manager) validate(spec engi.SessionSpec) (engi.Session, error) {
	d := m.opt.Defaults
	bad := func(format string, args ...any) (engi.Session, error) {
		return engi.Session{}, engi.Errorf(engi.Invalid, format, args...)
	}
	if spec.Name != "" {
		if _, err := engi.ParseSessionID(spec.Name); err == nil || !namePattern.MatchString(spec.Name) {
			return engi.Session{}, engi.Errorf(engi.Invalid, "%.140q is not the name of a session", spec.Name).
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
		return engi.Session{}, engi.Errorf(engi.Invalid, "unknown mode %.40q of a session", s.Mode).WithRemedy("use lazy or warm")
	}
	switch s.Persistence {
	case engi.PersistNone, engi.PersistSession:
	case engi.PersistSnapshot:
		if m.opt.Lifecycle == nil {
			return engi.Session{}, engi.Errorf(engi.Unsupported, "this node hibernates no sandboxes").WithRemedy("use persistence session")
		}
	default:
		return engi.Session{}, engi.Errorf(engi.Invalid, "unknown persistence %.40q of a session", s.Persistence).WithRemedy("use none, session or snapshot")
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
			return bad("a pair of the metadata has more than 256 bytes, or no name")
		}
	}
	s.Network = m.policy(spec.Network)
	return s, nil
}

// policy is a session's network: the node's if it asks for none, and what the
// packages need in any that lets something out.
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
	return p.Mode == "" && len(p.Allow)+len(p.Deny)+len(p.Grants)+len(p.Headers)+len(p.Detail) == 0 && p.Proxy == nil && p.Group == "" && p.Limits == engi.NetworkLimits{}
}

func fingerprint(spec engi.SessionSpec) string {
	h := sha256.New()
	_ = json.NewEncoder(h).Encode(spec) // to a hash: it cannot fail but for a Detail that is no JSON, which nobody sends twice
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
		over, err := m.lockKey(ctx, string(spec.Owner)+"\x00"+spec.Idempotency)
		if err != nil {
			return engi.Session{}, err
		}
		defer over()
		r.Fingerprint = fingerprint(spec)
		old, err := m.opt.Store.ByIdempotencyKey(ctx, spec.Owner, spec.Idempotency)
		switch {
		case err == nil && old.Fingerprint != r.Fingerprint:
			return engi.Session{}, engi.Errorf(engi.Conflict, "the idempotency key was used before for another request, session %s", old.ID).
				WithRemedy("use a fresh key for each request, and the same key only to repeat one")
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
		return engi.Session{}, engi.Errorf(engi.Exhausted, "there are %d sessions already", n).WithRemedy("terminate some that are not needed")
	}
	now := m.now().UTC().Truncate(time.Millisecond)
	r.ID, r.Created, r.Used = engi.NewSessionID(), now, now
	if err := m.opt.Store.Put(ctx, r); err != nil {
		return engi.Session{}, err
	}
	live := newLiveSession(r)
	m.mu.Lock()
	m.sessions[r.ID] = live
	m.mu.Unlock()
	if r.Mode == engi.SessionWarm {
		live.mu.Lock()
		live.booting = true
		live.mu.Unlock()
		if !m.spawn(func(ctx context.Context) { m.warm(ctx, live) }) {
			live.mu.Lock()
			live.booting = false
			live.mu.Unlock()
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

// alone waits until nobody else makes something with the same key.
func (m *Manager) lockKey(ctx context.Context, key string) (over func(), err error) {
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

// find returns a session that lives; NotFound, saying why, for one that is over.
func (m *Manager) find(ctx context.Context, owner engi.Owner, idOrName string) (*liveSession, error) {
	r, err := m.opt.Store.Find(ctx, owner, idOrName)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	live := m.sessions[r.ID]
	m.mu.Unlock()
	if live == nil {
		return nil, engi.Errorf(engi.NotFound, "there is no such session")
	}
	return live, live.checkAlive()
}

func (live *liveSession) checkAlive() error {
	if r := live.record(); !r.Ended.IsZero() {
		return engi.Errorf(engi.NotFound, "the session is over: %s", r.EndReason).WithRemedy("create a new one; what was in its volume is gone")
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
	m.mu.Lock()
	live := m.sessions[r.ID]
	m.mu.Unlock()
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

// states of a session follow from those of its sandbox.
var sessionStates = map[engi.State]engi.SessionState{
	engi.Pending: engi.SessionBooting, engi.Starting: engi.SessionBooting, engi.Ready: engi.SessionBooting,
	engi.Running: engi.SessionRunning, engi.Paused: engi.SessionSuspended, engi.Hibernating: engi.SessionHibernated,
	engi.Hibernated: engi.SessionHibernated, engi.Resuming: engi.SessionBooting, engi.Stopping: engi.SessionIdle, engi.Stopped: engi.SessionIdle,
}

// shown is a session as others see it.
func (m *Manager) view(ctx context.Context, live *liveSession) engi.Session {
	live.mu.Lock()
	s, ended, booting := live.rec.Session, live.rec.Ended, live.booting
	if live.uses > 0 {
		s.Used = m.now().UTC()
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
			s.Sandbox = "" // it went to sleep or died a moment ago
		}
	}
	return s
}

// edit changes a session's record, in the store first.
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
