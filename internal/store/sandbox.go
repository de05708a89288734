package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/disk/registry"
	"github.com/engi-dev/engi/internal/sandbox/fleet"
)

func (f fleetStore) PutSandbox(ctx context.Context, s fleet.SandboxRecord) (err error) {
	defer engi.Annotate(&err, "record sandbox %s", s.ID)
	return f.db.tx(ctx, func(t *tx) error { return f.putSandbox(ctx, t, &s) })
}

func (f fleetStore) putSandbox(ctx context.Context, t *tx, s *fleet.SandboxRecord) error {
	if s == nil {
		return nil
	}
	size, err := encodeSize(s.Size)
	if err != nil {
		return err
	}
	fixed, err := encodeSize(s.Fixed)
	if err != nil {
		return err
	}
	detail, err := f.db.encodeLife(s)
	if err != nil {
		return err
	}
	var state engi.State
	var before string
	if s.Made { // other sandboxes have no events
		row := t.row(ctx, sandboxState, string(s.ID))
		if err := row.Scan(&state, &before); err != nil && !errors.Is(err, sql.ErrNoRows) {
			return fault(ctx, err)
		}
	}
	_, err = t.exec(ctx, putSandbox, s.ID, s.Owner, s.Template, s.Digest, s.Pool, s.Tier, size, s.State, s.End,
		s.Execution, s.Token, s.Language, fixed, nanos(s.Created), nanos(s.Stopped), s.Made, nullable(s.Idempotency), detail)
	if err != nil {
		if engi.Is(err, engi.Conflict) {
			return engi.Errorf(engi.Conflict, "idempotency key was used for another sandbox")
		}
		return err
	}
	return f.appendEvent(ctx, t, s, state, before)
}

// sandboxEvent is the data of events about sandboxes.
type sandboxEvent struct {
	From     engi.State        `json:"from,omitempty"`
	Template string            `json:"template,omitempty"`
	Cause    engi.Cause        `json:"cause,omitempty"`
	Metadata map[string]string `json:"metadata,omitempty"`
	Deadline time.Time         `json:"deadline,omitzero"`
	Changed  []string          `json:"changed,omitempty"`
	Snapshot engi.SnapshotID   `json:"snapshot_id,omitempty"` // snapshot that was made of the sandbox

	Throttled bool `json:"throttled,omitempty"`

	// Only of sandboxes that owners created and that have run.
	Started time.Time         `json:"started,omitzero"`
	VCPUs   float64           `json:"vcpus,omitempty"`
	Memory  int64             `json:"memory,omitempty"` // bytes
	Notes   map[string]string `json:"notes,omitempty"`
}

func newSandboxEvent(s *fleet.SandboxRecord) sandboxEvent {
	d := sandboxEvent{Template: s.Template, Cause: s.End, Metadata: s.Metadata, Deadline: s.Deadline, Throttled: s.Throttled}
	if s.Made && !s.Started.IsZero() {
		d.Started, d.VCPUs, d.Memory, d.Notes = s.Started, s.Size.VCPUs, s.Size.Memory, registry.EventNotes(s.Notes)
	}
	return d
}

// appendEvent appends the event of s's new state, which was before, or of a change
// by its owner. Instances in pools and sandboxes of executions, whose executions have
// events, belong to no owner and have none.
func (f fleetStore) appendEvent(ctx context.Context, t *tx, s *fleet.SandboxRecord, before engi.State, detail string) error {
	if !s.Made {
		return nil
	}
	d := newSandboxEvent(s)
	d.From = before
	kind := engi.EventSandboxPrefix + string(s.State)
	if s.State == before {
		if detail == "" {
			return nil
		}
		old, err := f.db.openLife(string(s.ID), s.Owner, detail)
		if err != nil {
			return err
		}
		if d.Changed = changedFields(s, old); len(d.Changed) == 0 {
			return nil
		}
		d.From, kind = "", engi.EventSandboxUpdated
	}
	record := t.record
	if before == "" {
		record = t.recordFirst
	}
	return record(ctx, s.Owner, string(s.ID), kind, d)
}

// changedFields returns the names of the fields that were changed by the owner, or by
// the fleet while the sandbox was running.
func changedFields(s *fleet.SandboxRecord, old lifeDetail) (names []string) {
	var was fleet.SandboxRecord
	was.Made = true
	old.restore(&was)
	for name, same := range map[string]bool{
		"deadline": s.Deadline.Equal(was.Deadline),
		"lifetime": s.Lifetime == was.Lifetime,
		"metadata": maps.Equal(s.Metadata, was.Metadata),
		"network":  reflect.DeepEqual(s.Network, was.Network),
		"ports":    s.Ports == was.Ports,

		"throttled": s.Throttled == was.Throttled,
	} {
		if !same {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

const (
	sandboxState   = `SELECT state, detail FROM sandboxes WHERE id = ?`
	sandboxColumns = `id, owner, template, digest, pool, tier, size, state, cause, execution, token, language, fixed, created, stopped,
	made, COALESCE(idempotency, ''), detail`
)

var errNoSandbox = engi.Errorf(engi.NotFound, "no such sandbox")

func (f fleetStore) GetSandbox(ctx context.Context, viewer engi.Viewer, id engi.SandboxID) (_ fleet.SandboxRecord, err error) {
	defer engi.Annotate(&err, "get sandbox %s", id)
	return first(ctx, f.db.read, errNoSandbox, f.db.scanSandbox, `SELECT `+sandboxColumns+` FROM sandboxes WHERE id = ? AND (? = '*' OR owner = ?)`, id, viewer, viewer)
}

func (f fleetStore) ListSandboxes(ctx context.Context, viewer engi.Viewer) (_ []fleet.SandboxRecord, err error) {
	defer engi.Annotate(&err, "list sandboxes")
	return list(ctx, f.db.read, f.db.scanSandbox, `SELECT `+sandboxColumns+` FROM sandboxes WHERE state <> 'stopped' AND (? = '*' OR owner = ?) ORDER BY seq DESC`, viewer, viewer)
}

// LiveSandboxes returns the sandboxes that are not stopped.
func LiveSandboxes(ctx context.Context, db *DB) ([]engi.SandboxID, error) {
	return list(ctx, db.read, value[engi.SandboxID], `SELECT id FROM sandboxes WHERE state <> 'stopped'`)
}

func (f fleetStore) ForgetSandbox(ctx context.Context, id engi.SandboxID) (err error) {
	defer engi.Annotate(&err, "forget sandbox %s", id)
	return f.db.tx(ctx, func(t *tx) error {
		s, err := first(ctx, t, errNoSandbox, f.db.scanSandbox, `SELECT `+sandboxColumns+` FROM sandboxes WHERE id = ?`, id)
		if engi.Is(err, engi.NotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		if s.Made && s.State != engi.Stopped { // its creation failed after others could see it
			before := s.State
			s.State = engi.Stopped
			if err := f.appendEvent(ctx, t, &s, before, ""); err != nil {
				return err
			}
		}
		_, err = t.exec(ctx, `DELETE FROM sandboxes WHERE id = ?`, id)
		return err
	})
}

func (db *DB) scanSandbox(row scanner) (s fleet.SandboxRecord, err error) {
	var size, fixed, detail string
	if err := row.Scan(&s.ID, &s.Owner, &s.Template, &s.Digest, &s.Pool, &s.Tier, &size, &s.State, &s.End,
		&s.Execution, &s.Token, &s.Language, &fixed, (*stamp)(&s.Created), (*stamp)(&s.Stopped), &s.Made, &s.Idempotency, &detail); err != nil {
		return s, err
	}
	if s.Size, err = decodeSize(size); err != nil {
		return s, err
	}
	if s.Fixed, err = decodeSize(fixed); err != nil {
		return s, err
	}
	return s, db.decodeLife(detail, &s)
}

// encodeSize returns the JSON of a size; "" for the zero size.
func encodeSize(size engi.Size) (string, error) {
	if size == (engi.Size{}) {
		return "", nil
	}
	return encode("size", fleetSize(size))
}

func decodeSize(text string) (engi.Size, error) {
	var size fleetSize
	if text == "" {
		return engi.Size{}, nil
	}
	err := decode("size", text, &size)
	return engi.Size(size), err
}

// lifeDetail holds the fields of an owner's sandbox that no query selects by.
type lifeDetail struct {
	Fingerprint string            `json:"fingerprint,omitempty"`
	Timeout     int64             `json:"timeout_ns,omitempty"`
	Idle        int64             `json:"idle_ns,omitempty"`
	Max         int64             `json:"max_ns,omitempty"`
	OnTimeout   string            `json:"on_timeout,omitempty"`
	DiskOnly    bool              `json:"disk_only,omitempty"`
	AutoResume  bool              `json:"auto_resume,omitempty"`
	Deadline    int64             `json:"deadline,omitempty"`
	Started     int64             `json:"started,omitempty"`
	Active      int64             `json:"active,omitempty"`
	Snapshot    string            `json:"snapshot,omitempty"`
	Metadata    map[string]string `json:"metadata,omitempty"`
	Env         map[string]string `json:"env,omitempty"`
	Volumes     []lifeVolume      `json:"volumes,omitempty"`
	Network     lifeNetwork       `json:"network"`
	Private     bool              `json:"private,omitempty"`
	Host        string            `json:"host,omitempty"`
	Disk        bool              `json:"disk,omitempty"`
	Quota       float64           `json:"cpu_quota,omitempty"`
	Window      int64             `json:"cpu_window_ns,omitempty"`
	Credit      int64             `json:"cpu_credit_ns,omitempty"`
	Throttled   bool              `json:"throttled,omitempty"`
	Notes       map[string]string `json:"notes,omitempty"`
	Sealed      []byte            `json:"sealed,omitempty"` // replaces Env, Notes and Network if one of them may be secret
}

type lifeVolume struct {
	Volume string `json:"volume"`
	Path   string `json:"path"`
}

type lifeNetwork struct {
	Mode     string             `json:"mode,omitempty"`
	Allow    []string           `json:"allow,omitempty"`
	Deny     []string           `json:"deny,omitempty"`
	Grants   []lifeGrant        `json:"grants,omitempty"`
	Headers  []lifeHeaders      `json:"headers,omitempty"`
	Requests []lifeRequest      `json:"requests,omitempty"`
	Proxy    *lifeProxy         `json:"proxy,omitempty"`
	Group    string             `json:"group,omitempty"`
	Name     string             `json:"name,omitempty"`
	Limits   *lifeNetworkLimits `json:"limits,omitempty"`
	Detail   map[string]any     `json:"detail,omitempty"`
}

type lifeGrant struct {
	Secret   string        `json:"secret"`
	Hosts    []string      `json:"hosts"`
	As       string        `json:"as,omitempty"`
	Name     string        `json:"name,omitempty"`
	Format   string        `json:"format,omitempty"`
	Env      string        `json:"env,omitempty"`
	Strip    bool          `json:"strip,omitempty"`
	Requests []lifeRequest `json:"requests,omitempty"`
}

type lifeRequest struct {
	Host    string             `json:"host,omitempty"`
	Methods []string           `json:"methods,omitempty"`
	Path    string             `json:"path,omitempty"`
	Body    []string           `json:"body,omitempty"`
	MaxBody int64              `json:"max_body,omitempty"`
	Action  engi.RequestAction `json:"action,omitempty"`
	Reason  string             `json:"reason,omitempty"`
}

type lifeHeaders struct {
	Host    string            `json:"host"`
	Headers map[string]string `json:"headers"`
}

type lifeProxy struct {
	Address  string `json:"address"`
	User     string `json:"user,omitempty"`
	Password string `json:"password,omitempty"`
}

type lifeNetworkLimits struct {
	Up             int64 `json:"up,omitempty"`
	Down           int64 `json:"down,omitempty"`
	Connections    int   `json:"connections,omitempty"`
	NewConnections int   `json:"new_connections,omitempty"`
	Lookups        int   `json:"lookups,omitempty"`
	Total          int64 `json:"total,omitempty"`
}

func encodeRequests(rules []engi.RequestRule) []lifeRequest {
	return mapped(rules, func(r engi.RequestRule) lifeRequest { return lifeRequest(r) })
}

func decodeRequests(list []lifeRequest) []engi.RequestRule {
	return mapped(list, func(r lifeRequest) engi.RequestRule { return engi.RequestRule(r) })
}

func encodeNetwork(n engi.NetworkPolicy) lifeNetwork {
	d := lifeNetwork{Mode: string(n.Mode), Allow: n.Allow, Deny: n.Deny, Requests: encodeRequests(n.Requests), Proxy: (*lifeProxy)(n.Proxy), Group: n.Group, Name: n.Name, Detail: n.Detail}
	for _, g := range n.Grants {
		d.Grants = append(d.Grants, lifeGrant{Secret: g.Secret, Hosts: g.Hosts, As: string(g.As), Name: g.Name, Format: g.Format, Env: g.Env, Strip: g.Strip, Requests: encodeRequests(g.Requests)})
	}
	d.Headers = mapped(n.Headers, func(h engi.HeaderRule) lifeHeaders { return lifeHeaders(h) })
	if n.Limits != (engi.NetworkLimits{}) {
		d.Limits = new(lifeNetworkLimits(n.Limits))
	}
	return d
}

func decodeNetwork(d lifeNetwork) engi.NetworkPolicy {
	n := engi.NetworkPolicy{Mode: engi.Network(d.Mode), Allow: d.Allow, Deny: d.Deny, Requests: decodeRequests(d.Requests), Proxy: (*engi.UpstreamProxy)(d.Proxy), Group: d.Group, Name: d.Name, Detail: d.Detail}
	for _, g := range d.Grants {
		n.Grants = append(n.Grants, engi.Grant{Secret: g.Secret, Hosts: g.Hosts, As: engi.GrantUse(g.As), Name: g.Name, Format: g.Format, Env: g.Env, Strip: g.Strip,
			Requests: decodeRequests(g.Requests)})
	}
	n.Headers = mapped(d.Headers, func(h lifeHeaders) engi.HeaderRule { return engi.HeaderRule(h) })
	if d.Limits != nil {
		n.Limits = engi.NetworkLimits(*d.Limits)
	}
	return n
}

// encodeLife returns the detail of an owner's sandbox; "" for a sandbox of a pool or
// an execution.
func (db *DB) encodeLife(s *fleet.SandboxRecord) (string, error) {
	network := encodeNetwork(s.Network)
	if !s.Made { // the sandbox of an execution has at most a network
		if s.Network.Mode == "" {
			return "", nil
		}
		return db.closeDetail("sandboxes", string(s.ID), s.Owner, &lifeDetail{Network: network})
	}
	d := lifeDetail{
		Fingerprint: s.Fingerprint,
		Timeout:     int64(s.Lifetime.Timeout),
		Idle:        int64(s.Lifetime.Idle),
		Max:         int64(s.Lifetime.Max),
		OnTimeout:   string(s.Lifetime.OnTimeout),
		DiskOnly:    s.Lifetime.DiskOnly,
		AutoResume:  s.Lifetime.AutoResume,
		Deadline:    nanos(s.Deadline),
		Started:     nanos(s.Started),
		Active:      nanos(s.Active),
		Snapshot:    string(s.Snapshot),
		Metadata:    s.Metadata,
		Env:         s.Env,
		Network:     network,
		Private:     s.Ports.Private,
		Host:        s.Ports.Host,
		Disk:        s.Disk,
		Quota:       s.CPUQuota.VCPUs,
		Window:      int64(s.CPUQuota.Window),
		Credit:      int64(s.CPUQuota.Credit),
		Throttled:   s.Throttled,
		Notes:       s.Notes,
	}
	d.Volumes = mapped(s.Volumes, func(v engi.VolumeMount) lifeVolume { return lifeVolume(v) })
	return db.closeDetail("sandboxes", string(s.ID), s.Owner, &d)
}

func (db *DB) decodeLife(text string, s *fleet.SandboxRecord) error {
	if !s.Made && text == "" {
		return nil
	}
	d, err := db.openLife(string(s.ID), s.Owner, text)
	if err != nil {
		return err
	}
	d.restore(s)
	return nil
}

func (d *lifeDetail) secret() (sealedPart, bool, error) {
	if len(d.Env)+len(d.Notes) == 0 && !hasSecrets(decodeNetwork(d.Network)) {
		return sealedPart{}, false, nil
	}
	network, err := encode("network policy", d.Network)
	return sealedPart{Env: d.Env, Notes: d.Notes, Network: json.RawMessage(network)}, true, err
}
func (d *lifeDetail) hide(sealed []byte) {
	d.Env, d.Notes, d.Network, d.Sealed = nil, nil, lifeNetwork{}, sealed
}
func (d *lifeDetail) hidden() []byte { return d.Sealed }
func (d *lifeDetail) show(p sealedPart) error {
	d.Env, d.Notes, d.Sealed = p.Env, p.Notes, nil
	return decode("network policy", string(p.Network), &d.Network)
}

// openLife decodes the detail of a sandbox; the sandbox of a pool has none.
func (db *DB) openLife(id string, owner engi.Owner, text string) (d lifeDetail, err error) {
	if text == "" {
		return d, nil
	}
	lost, err := db.openDetail("sandboxes", id, owner, text, &d)
	if lost {
		d.Network = encodeNetwork(lostNetwork)
	}
	return d, err
}

// restore sets the fields of s from d.
func (d lifeDetail) restore(s *fleet.SandboxRecord) {
	if s.Network = decodeNetwork(d.Network); !s.Made {
		return
	}
	s.Fingerprint = d.Fingerprint
	s.Lifetime = engi.Lifetime{
		Timeout:    time.Duration(d.Timeout),
		Idle:       time.Duration(d.Idle),
		Max:        time.Duration(d.Max),
		OnTimeout:  engi.EndPolicy(d.OnTimeout),
		DiskOnly:   d.DiskOnly,
		AutoResume: d.AutoResume,
	}
	s.Deadline, s.Started, s.Active = moment(d.Deadline), moment(d.Started), moment(d.Active)
	s.Snapshot = engi.SnapshotID(d.Snapshot)
	s.CPUQuota, s.Throttled = engi.CPUQuota{VCPUs: d.Quota, Window: time.Duration(d.Window), Credit: time.Duration(d.Credit)}, d.Throttled
	s.Metadata, s.Env, s.Notes = d.Metadata, d.Env, d.Notes
	s.Volumes = mapped(d.Volumes, func(v lifeVolume) engi.VolumeMount { return engi.VolumeMount(v) })
	s.Ports = engi.PortPolicy{Private: d.Private, Host: d.Host}
	s.Disk = d.Disk
}

func (f fleetStore) SandboxByIdempotencyKey(ctx context.Context, owner engi.Owner, key string) (_ fleet.SandboxRecord, err error) {
	defer engi.Annotate(&err, "get sandbox by idempotency key")
	return first(ctx, f.db.read, errNoSandbox, f.db.scanSandbox, `SELECT `+sandboxColumns+` FROM sandboxes WHERE owner = ? AND idempotency = ?`, owner, key)
}

func (f fleetStore) EndedSandboxes(ctx context.Context, viewer engi.Viewer, after fleet.SandboxRecord, limit int) (_ []fleet.SandboxRecord, err error) {
	defer engi.Annotate(&err, "list stopped sandboxes")
	var w where
	w.and(true, `state = 'stopped'`)
	w.owned(viewer)
	w.and(after.ID != "", `created <= ? AND (created < ? OR id > ?)`, nanos(after.Created), nanos(after.Created), string(after.ID))
	return list(ctx, f.db.read, f.db.scanSandbox, `SELECT `+sandboxColumns+` FROM sandboxes`+w.String()+` ORDER BY created DESC, id LIMIT ?`, append(w.args, limit)...)
}

func (f fleetStore) CountSandboxes(ctx context.Context, owner engi.Owner, since time.Time) (_ int, err error) {
	defer engi.Annotate(&err, "count sandboxes")
	return first(ctx, f.db.read, nil, value[int], `SELECT COUNT(*) FROM sandboxes WHERE made = 1 AND owner = ? AND created >= ?`, owner, nanos(since))
}
