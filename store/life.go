package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"time"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/fleet"
)

// lifeDetail is the part of a sandbox that lives for its owner which nobody
// selects by.
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
	Notes       map[string]string `json:"notes,omitempty"`
}

type lifeVolume struct {
	Volume string `json:"volume"`
	Path   string `json:"path"`
}

type lifeNetwork struct {
	Mode    string             `json:"mode,omitempty"`
	Allow   []string           `json:"allow,omitempty"`
	Deny    []string           `json:"deny,omitempty"`
	Grants  []lifeGrant        `json:"grants,omitempty"`
	Headers []lifeHeaders      `json:"headers,omitempty"`
	Proxy   *lifeProxy         `json:"proxy,omitempty"`
	Group   string             `json:"group,omitempty"`
	Name    string             `json:"name,omitempty"`
	Limits  *lifeNetworkLimits `json:"limits,omitempty"`
	Detail  map[string]any     `json:"detail,omitempty"`
}

type lifeGrant struct {
	Secret string   `json:"secret"`
	Hosts  []string `json:"hosts"`
	As     string   `json:"as,omitempty"`
	Name   string   `json:"name,omitempty"`
	Format string   `json:"format,omitempty"`
	Env    string   `json:"env,omitempty"`
	Strip  bool     `json:"strip,omitempty"`
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

func encodeNetwork(n engi.NetworkPolicy) lifeNetwork {
	d := lifeNetwork{Mode: string(n.Mode), Allow: n.Allow, Deny: n.Deny, Proxy: (*lifeProxy)(n.Proxy), Group: n.Group, Name: n.Name, Detail: n.Detail}
	for _, g := range n.Grants {
		d.Grants = append(d.Grants, lifeGrant{g.Secret, g.Hosts, string(g.As), g.Name, g.Format, g.Env, g.Strip})
	}
	for _, h := range n.Headers {
		d.Headers = append(d.Headers, lifeHeaders(h))
	}
	if n.Limits != (engi.NetworkLimits{}) {
		d.Limits = new(lifeNetworkLimits(n.Limits))
	}
	return d
}

func decodeNetwork(d lifeNetwork) engi.NetworkPolicy {
	n := engi.NetworkPolicy{Mode: engi.Network(d.Mode), Allow: d.Allow, Deny: d.Deny, Proxy: (*engi.UpstreamProxy)(d.Proxy), Group: d.Group, Name: d.Name, Detail: d.Detail}
	for _, g := range d.Grants {
		n.Grants = append(n.Grants, engi.Grant{Secret: g.Secret, Hosts: g.Hosts, As: engi.GrantUse(g.As), Name: g.Name, Format: g.Format, Env: g.Env, Strip: g.Strip})
	}
	for _, h := range d.Headers {
		n.Headers = append(n.Headers, engi.HeaderRule(h))
	}
	if d.Limits != nil {
		n.Limits = engi.NetworkLimits(*d.Limits)
	}
	return n
}

// encodeLife returns the detail of a sandbox, "" for one of a pool or an
// execution.
func encodeLife(s *fleet.SandboxRecord) (string, error) {
	network := encodeNetwork(s.Network)
	if !s.Made { // an execution's has at most a network
		if s.Network.Mode == "" {
			return "", nil
		}
		text, err := json.Marshal(lifeDetail{Network: network})
		if err != nil {
			return "", engi.Errorf(engi.Invalid, "encode: %v", err)
		}
		return string(text), nil
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
		Notes:       s.Notes,
	}
	for _, v := range s.Volumes {
		d.Volumes = append(d.Volumes, lifeVolume(v))
	}
	text, err := json.Marshal(d)
	if err != nil {
		return "", engi.Errorf(engi.Invalid, "encode: %v", err)
	}
	return string(text), nil
}

func decodeLife(text string, s *fleet.SandboxRecord) error {
	if !s.Made && text == "" {
		return nil
	}
	var d lifeDetail
	if err := json.Unmarshal([]byte(text), &d); err != nil {
		// The text of the error could show what is secret.
		return engi.Errorf(engi.Internal, "decode sandbox %s: its record is damaged", s.ID)
	}
	if s.Network = decodeNetwork(d.Network); !s.Made {
		return nil
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
	s.Metadata, s.Env, s.Notes = d.Metadata, d.Env, d.Notes
	for _, v := range d.Volumes {
		s.Volumes = append(s.Volumes, engi.VolumeMount(v))
	}
	s.Ports = engi.PortPolicy{Private: d.Private, Host: d.Host}
	s.Disk = d.Disk
	return nil
}

func (f fleetStore) RepeatedSandbox(ctx context.Context, owner engi.Owner, key string) (_ fleet.SandboxRecord, err error) {
	defer engi.Annotate(&err, "get sandbox by idempotency key")
	s, err := scanSandbox(ctx, f.db.read.QueryRowContext(ctx, `SELECT `+sandboxColumns+` FROM sandboxes
		WHERE owner = ? AND idempotency = ?`, string(owner), key))
	if errors.Is(err, sql.ErrNoRows) {
		return s, engi.Errorf(engi.NotFound, "no such sandbox")
	}
	return s, err
}

func (f fleetStore) EndedSandboxes(ctx context.Context, owner engi.Owner, limit int) (_ []fleet.SandboxRecord, err error) {
	defer engi.Annotate(&err, "list stopped sandboxes")
	return f.sandboxes(ctx, `SELECT `+sandboxColumns+` FROM sandboxes
		WHERE state = 'stopped' AND (? = '' OR owner = ?) ORDER BY created DESC, seq DESC LIMIT ?`, string(owner), string(owner), limit)
}

func (f fleetStore) CountSandboxes(ctx context.Context, owner engi.Owner, since time.Time) (n int, err error) {
	defer engi.Annotate(&err, "count sandboxes")
	err = f.db.read.QueryRowContext(ctx, `SELECT COUNT(*) FROM sandboxes WHERE made = 1 AND owner = ? AND created >= ?`,
		string(owner), nanos(since)).Scan(&n)
	if err != nil {
		return 0, fault(ctx, err)
	}
	return n, nil
}
