package fleet

import (
	"context"
	"maps"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/guest"
)

// A box is a sandbox that lives for its owner. It outlasts the machines it
// runs in: asleep it has none.
//
// Whoever moves a box from state to state holds its turn, from the first
// record to the last. The record in the store comes first, always: what a
// crash leaves is what the record says or one step behind, and recoverBox
// knows both.
type sandbox struct {
	id    engi.SandboxID
	owner engi.Owner
	turn  chan struct{} // holds a token while somebody moves the box
	over  chan struct{} // closed when it has stopped
	unpin func()        // lets go of its template

	booking *booking // while it is made, it is counted there; immutable

	writing sync.Mutex // held over I/O while the record is written; before mu

	mu      sync.Mutex
	rec     SandboxRecord // guarded by mu; changed by Manager.edit only
	body    *instance     // its machine; nil while it sleeps
	shut    bool          // nobody may enter: it is being moved
	holders int           // that have entered and not left
	active  time.Time     // when somebody entered or left
	stale   bool          // active is newer than the store knows
	doom    engi.Cause    // why it is to end as soon as may be; empty if it is not
	again   time.Time     // before that its end is not tried again
	tries   int           // ends that failed in a row
	leaving bool          // its end is being tried

	samples samples
}

func newBox(rec SandboxRecord, unpin func()) *sandbox {
	return &sandbox{
		id:     rec.ID,
		owner:  rec.Owner,
		turn:   make(chan struct{}, 1),
		over:   make(chan struct{}),
		unpin:  unpin,
		rec:    rec,
		active: rec.Active,
	}
}

// record returns the record as it is now.
func (x *sandbox) record() SandboxRecord {
	x.mu.Lock()
	defer x.mu.Unlock()
	rec := x.rec
	rec.Active = x.active
	return rec
}

// machine returns what the box runs in, nil while it sleeps.
func (x *sandbox) machine() *instance {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.body
}

// take waits for the turn. It reports NotFound when the box has stopped, and
// Expired.
func (x *sandbox) take(ctx context.Context) error {
	select {
	case x.turn <- struct{}{}:
	case <-ctx.Done():
		return engi.Errorf(engi.Expired, "wait for sandbox %s, which is %s: %v", x.id, x.record().State, context.Cause(ctx)).
			WithRemedy("try again in a moment")
	}
	select {
	case <-x.over:
		x.leave()
		return x.stopped()
	default:
		return nil
	}
}

func (x *sandbox) stopped() error {
	return engi.Errorf(engi.NotFound, "sandbox %s has stopped", x.id).WithRemedy("create another")
}

// leave gives the turn back.
func (x *sandbox) leave() { <-x.turn }

// abort gives back the turn of a box that came to nothing.
func (x *sandbox) abort() {
	close(x.over)
	x.leave()
}

// close keeps people from entering until open.
func (x *sandbox) close() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.shut = true
}

func (x *sandbox) open() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.shut = false
}

// enter returns the inside of a box that is awake. It reports false if it is
// not, or is being moved.
func (x *sandbox) enter() (_ *guest.Client, release func(), ok bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.rec.State != engi.Running || x.shut || x.body == nil {
		return nil, nil, false
	}
	g := x.body.way()
	if g == nil {
		return nil, nil, false
	}
	x.holders++
	x.active, x.stale = time.Now().UTC(), true
	return g, sync.OnceFunc(func() {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.holders--
		x.active, x.stale = time.Now().UTC(), true
	}), true
}

// edit changes a box's record: first the stored one, then the one in memory.
func (m *Manager) edit(ctx context.Context, x *sandbox, change func(*SandboxRecord) error) (SandboxRecord, error) {
	x.writing.Lock()
	defer x.writing.Unlock()
	next := x.record()
	if err := change(&next); err != nil {
		return next, err
	}
	if err := m.opt.Store.PutSandbox(ctx, next); err != nil {
		return next, err
	}
	x.mu.Lock()
	x.rec = next
	x.mu.Unlock()
	return next, nil
}

// step is edit for a change of state.
func (m *Manager) step(ctx context.Context, x *sandbox, to engi.State, change func(*SandboxRecord)) (SandboxRecord, error) {
	return m.edit(ctx, x, func(rec *SandboxRecord) (err error) {
		if rec.State, err = rec.State.To(to); err == nil && change != nil {
			change(rec)
		}
		return err
	})
}

// boxOf returns owner's box, nil if there is none.
func (m *Manager) boxOf(owner engi.Owner, id engi.SandboxID) *sandbox {
	m.mu.Lock()
	defer m.mu.Unlock()
	x := m.boxes[id]
	if x == nil || owner != "" && x.owner != owner {
		return nil
	}
	return x
}

// allBoxes returns all boxes there are.
func (m *Manager) allBoxes() (all []*sandbox) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, x := range m.boxes {
		all = append(all, x)
	}
	return all
}

func (m *Manager) know(x *sandbox) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.boxes[x.id] = x
}

func (m *Manager) unknow(x *sandbox) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.boxes[x.id] == x {
		delete(m.boxes, x.id)
	}
}

// moveTime bounds one move of a box from state to state, however much memory
// it has.
const moveTime = 10 * time.Minute

// spawn runs f in a goroutine that Run waits for. It reports false when the
// node stops.
func (m *Manager) spawn(f func()) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.serving {
		return false
	}
	m.work.Go(f)
	return true
}

// perform moves a box with act, in its turn. Once begun a move goes to its
// end, whether or not ctx ends or the node stops: half a move is for crashes.
func (m *Manager) perform(ctx context.Context, x *sandbox, act func(ctx context.Context) error) error {
	if err := x.take(ctx); err != nil {
		return err
	}
	return m.performTaken(ctx, x, act)
}

// performTaken is perform for who has the turn, and gives it back.
func (m *Manager) performTaken(ctx context.Context, x *sandbox, act func(ctx context.Context) error) error {
	done := make(chan error, 1)
	began := m.spawn(func() {
		to, cancel := context.WithTimeout(context.WithoutCancel(ctx), moveTime)
		defer cancel()
		err := act(to)
		x.leave()
		done <- err
	})
	if !began {
		x.leave()
		return errNotServing
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return engi.Errorf(engi.Expired, "sandbox %s: %v", x.id, context.Cause(ctx)).
			WithRemedy("it goes on: look at the sandbox again in a moment")
	}
}

// embody gives a box its machine. After that the machine's end is the box's.
func (x *sandbox) embody(b *instance) {
	b.mu.Lock()
	b.box = x
	b.mu.Unlock()
	x.mu.Lock()
	x.body = b
	x.mu.Unlock()
}

// disembody destroys a box's machine, if it has one, and waits until nothing
// is left of it.
func (m *Manager) disembody(x *sandbox) {
	b := x.machine()
	if b == nil {
		return
	}
	m.dismiss(b)
	x.mu.Lock()
	x.body = nil
	x.mu.Unlock()
}

// dismiss destroys a member in use that lives no more.
func (m *Manager) dismiss(b *instance) {
	b.once.Do(func() {
		m.destroy(b)
		m.stock.RemoveUsed(b.key)
	})
}

// bodyDied ends the box whose machine ended under it. It waits until nobody
// moves the box: a move that ended the machine has then taken it away.
func (m *Manager) bodyDied(x *sandbox, b *instance) {
	if err := x.take(m.life); err != nil {
		return
	}
	defer x.leave()
	if x.machine() != b {
		return
	}
	cause := b.machine.End()
	m.log.Warn("sandbox died", "sandbox", x.id, "cause", cause)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(m.life), moveTime)
	defer cancel()
	if err := m.finishBox(ctx, x, cause); err != nil {
		x.condemn(cause)
		m.log.Error("record the end of a sandbox; trying again", "sandbox", x.id, "error", err)
	}
	m.stirTime()
}

// condemn makes the timekeeper end a box.
func (x *sandbox) condemn(cause engi.Cause) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.doom == "" {
		x.doom = cause
	}
}

// finishBox ends a box, whose turn the caller has: nothing is left but its
// record. After an error it may be called again.
func (m *Manager) finishBox(ctx context.Context, x *sandbox, cause engi.Cause) (err error) {
	defer engi.Annotate(&err, "stop sandbox %s", x.id)
	x.close()
	rec := x.record()
	if rec.State != engi.Stopping && rec.State != engi.Stopped {
		if rec, err = m.step(ctx, x, engi.Stopping, func(r *SandboxRecord) { r.End = cause }); err != nil {
			return err
		}
	}
	m.disembody(x)
	if err := m.clear(ctx, x.id, rec); err != nil {
		return err
	}
	if rec.State != engi.Stopped {
		if rec, err = m.step(ctx, x, engi.Stopped, ended); err != nil {
			return err
		}
	}
	m.unknow(x)
	close(x.over)
	x.unpin()
	m.metrics.ended.WithLabelValues(string(rec.End)).Inc()
	return nil
}

// ended is the last change of a record.
func ended(r *SandboxRecord) {
	r.Stopped = time.Now().UTC()
	r.Deadline = time.Time{}
	r.Token, r.Env = "", nil
	if p := r.Network.Proxy; p != nil && p.Password != "" {
		q := *p
		q.Password = ""
		r.Network.Proxy = &q
	}
}

// clear removes what belongs to a box beside its machine and its record.
func (m *Manager) clear(ctx context.Context, id engi.SandboxID, rec SandboxRecord) error {
	if len(rec.Volumes) > 0 && m.opt.Volumes != nil {
		if err := m.opt.Volumes.Unmount(ctx, id); err != nil {
			return err
		}
	}
	return m.files.dropBox(id)
}

// Bounds of what a spec carries along.
const (
	maxPairs = 64      // of metadata
	maxKeyed = 256     // bytes of a key of metadata
	maxValue = 4 << 10 // bytes of a value of metadata
	maxNotes = 1 << 20 // bytes of all notes
	maxRules = 1024    // of a network policy
	maxMount = 16      // volumes
)

func checkMetadata(md map[string]string) error {
	if len(md) > maxPairs {
		return engi.Errorf(engi.Invalid, "metadata has %d pairs, %d at most", len(md), maxPairs)
	}
	for k, v := range md {
		if k == "" || len(k) > maxKeyed || len(v) > maxValue {
			return engi.Errorf(engi.Invalid, "metadata %.80q: keys have 1 to %d bytes, values %d at most", k, maxKeyed, maxValue)
		}
		if !validText(k) || !validText(v) {
			return engi.Errorf(engi.Invalid, "metadata %.80q is not UTF-8 text without NUL", k)
		}
	}
	return nil
}

func checkNotes(notes map[string]string) error {
	total := 0
	for k, v := range notes {
		total += len(k) + len(v)
	}
	if total > maxNotes {
		return engi.Errorf(engi.Invalid, "notes have %d bytes, %d at most", total, maxNotes)
	}
	return nil
}

func checkPorts(p engi.PortPolicy) error {
	if len(p.Host) > maxKeyed || strings.ContainsAny(p.Host, " \t\r\n\x00/") {
		return engi.Errorf(engi.Invalid, "%.80q is no host name", p.Host).WithRemedy("use a name, with ${PORT} where the port belongs")
	}
	return nil
}

// checkVolumes accepts places inside that hide nothing a sandbox needs.
func checkVolumes(all []engi.VolumeMount) error {
	if len(all) > maxMount {
		return engi.Errorf(engi.Invalid, "%d volumes, %d at most", len(all), maxMount)
	}
	var seen []string
	for _, v := range all {
		if v.Volume == "" {
			return engi.Errorf(engi.Invalid, "a volume has no name")
		}
		p := v.Path
		if !path.IsAbs(p) || path.Clean(p) != p || p == "/" || len(p) > maxPath || !validText(p) {
			return engi.Errorf(engi.Invalid, "path %.200q of volume %.80q is not a clean absolute path below /", p, v.Volume)
		}
		for _, system := range []string{"/proc", "/sys", "/dev", "/.engi"} {
			if p == system || strings.HasPrefix(p, system+"/") {
				return engi.Errorf(engi.Invalid, "a volume cannot be at %.200q", p).WithRemedy("choose a path outside %s", system)
			}
		}
		for _, q := range seen {
			if p == q || strings.HasPrefix(p, q+"/") || strings.HasPrefix(q, p+"/") {
				return engi.Errorf(engi.Invalid, "two volumes cannot be at %.200q and %.200q", q, p)
			}
		}
		seen = append(seen, p)
	}
	return nil
}

// checkLifetime fills in what l leaves open, and reports Invalid.
func (m *Manager) checkLifetime(l engi.Lifetime) (engi.Lifetime, error) {
	if l.Timeout < 0 || l.Idle < 0 || l.Max < 0 {
		return l, engi.Errorf(engi.Invalid, "a negative time of a lifetime")
	}
	most := m.opt.Lifetime.Max
	if l.Max == 0 {
		l.Max = most
	}
	if l.Timeout == 0 {
		l.Timeout = min(m.opt.Lifetime.Timeout, l.Max)
	}
	if l.Timeout > most || l.Max > most {
		return l, engi.Errorf(engi.Invalid, "a lifetime of %v, this node allows %v", max(l.Timeout, l.Max), most).
			WithRemedy("ask for %v or less", most)
	}
	if l.Timeout > l.Max {
		return l, engi.Errorf(engi.Invalid, "the timeout %v is beyond the sandbox's own maximum %v", l.Timeout, l.Max)
	}
	switch l.OnTimeout {
	case "":
		l.OnTimeout = engi.EndKill
	case engi.EndKill, engi.EndHibernate:
	default:
		return l, engi.Errorf(engi.Invalid, "unknown policy %.40q at the end of a lifetime", l.OnTimeout).WithRemedy("use kill or hibernate")
	}
	return l, nil
}

// wake sets a record's times as of now: it was created or has been resumed.
func wake(r *SandboxRecord, now time.Time, timeout time.Duration) {
	if timeout <= 0 {
		timeout = r.Lifetime.Timeout
	}
	r.Started = now
	r.Deadline = now.Add(min(timeout, r.Lifetime.Max))
}

// merge returns the union of two environments; b wins.
func merge(a, b map[string]string) map[string]string {
	all := maps.Clone(a)
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, b)
	return all
}
