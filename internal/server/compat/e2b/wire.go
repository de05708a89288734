package e2b

import (
	"encoding/json"
	"maps"
	"math"
	"net/url"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/disk/registry"
)

// Keys of [engi.Sandbox.Notes].
const (
	noteOpen     = "e2b.open"     // "1" means that envd needs no token
	noteAlias    = "e2b.alias"    // name in the request that created the sandbox
	noteInternet = "e2b.internet" // "true" or "false" if the client set it
	noteMCP      = "e2b.mcp"      // in JSON
	noteIAM      = "e2b.iam"      // in JSON
)

// secure reports whether envd needs a token. Sandboxes created by
// other APIs need one.
func secure(sandbox engi.Sandbox) bool { return sandbox.Notes[noteOpen] != "1" }

type newSandbox struct {
	TemplateID      string            `json:"templateID"`
	Timeout         *int64            `json:"timeout"` // seconds
	Metadata        map[string]string `json:"metadata"`
	EnvVars         map[string]string `json:"envVars"`
	Internet        *bool             `json:"allow_internet_access"`
	Network         *network          `json:"network"`
	AutoPause       bool              `json:"autoPause"`
	AutoPauseMemory *bool             `json:"autoPauseMemory"`
	AutoResume      *struct {
		Enabled bool `json:"enabled"`
	} `json:"autoResume"`
	Secure       *bool           `json:"secure"`
	VolumeMounts []volumeMount   `json:"volumeMounts"`
	MCP          json.RawMessage `json:"mcp"`
	IAM          json.RawMessage `json:"iam"`
}

type volumeMount struct {
	Name string `json:"name"`
	Path string `json:"path"`
}

type createdSandbox struct {
	SandboxID    string  `json:"sandboxID"`
	TemplateID   string  `json:"templateID"`
	ClientID     string  `json:"clientID"` // unused, but required by clients
	EnvdVersion  string  `json:"envdVersion"`
	Alias        string  `json:"alias,omitempty"`
	Domain       *string `json:"domain"`
	AccessToken  string  `json:"envdAccessToken,omitempty"`
	TrafficToken *string `json:"trafficAccessToken"`
}

type listedSandbox struct {
	SandboxID    string            `json:"sandboxID"`
	TemplateID   string            `json:"templateID"`
	ClientID     string            `json:"clientID"`
	EnvdVersion  string            `json:"envdVersion"`
	Alias        string            `json:"alias,omitempty"`
	StartedAt    time.Time         `json:"startedAt"`
	EndAt        time.Time         `json:"endAt"`
	State        string            `json:"state"`
	CPUCount     int               `json:"cpuCount"`
	MemoryMB     int64             `json:"memoryMB"`
	DiskSizeMB   int64             `json:"diskSizeMB"`
	Metadata     map[string]string `json:"metadata,omitempty"`
	VolumeMounts []volumeMount     `json:"volumeMounts,omitempty"`
}

type sandboxDetail struct {
	listedSandbox
	Domain      *string    `json:"domain"`
	AccessToken string     `json:"envdAccessToken,omitempty"`
	Internet    *bool      `json:"allowInternetAccess"`
	Network     *network   `json:"network,omitempty"`
	Lifecycle   *lifecycle `json:"lifecycle,omitempty"`
	PauseMode   string     `json:"pauseMode,omitempty"`
}

type lifecycle struct {
	OnTimeout  string `json:"onTimeout"`
	AutoResume bool   `json:"autoResume"`
}

type metric struct {
	Timestamp     time.Time `json:"timestamp"`
	TimestampUnix int64     `json:"timestampUnix"`
	CPUUsedPct    float64   `json:"cpuUsedPct"`
	CPUCount      int       `json:"cpuCount"`
	MemUsed       int64     `json:"memUsed"`
	MemTotal      int64     `json:"memTotal"`
	MemCache      int64     `json:"memCache"`
	DiskUsed      int64     `json:"diskUsed"`
	DiskTotal     int64     `json:"diskTotal"`
}

func (s *Server) domain() *string {
	if s.Domain == "" {
		return nil
	}
	return &s.Domain
}

// clientID is constant, because engi has no equivalent of E2B's clients.
const clientID = "engi"

func templateOf(sandbox engi.Sandbox) (id, alias string) {
	if id = sandbox.Notes[registry.NoteTemplate]; id == "" {
		id = sandbox.Template
		if sandbox.Snapshot != "" {
			id = string(sandbox.Snapshot)
		}
	}
	return id, sandbox.Notes[noteAlias]
}

func (s *Server) createdView(sandbox engi.Sandbox, who caller) createdSandbox {
	v := createdSandbox{SandboxID: sandbox.ID.Label(), ClientID: clientID, EnvdVersion: EnvdVersion, Domain: s.domain()}
	v.TemplateID, v.Alias = templateOf(sandbox)
	if secure(sandbox) {
		v.AccessToken = s.token(toEnvd, string(sandbox.ID), who.key)
	}
	if secure(sandbox) || sandbox.Ports.Private {
		t := s.token(toPorts, string(sandbox.ID), who.key)
		v.TrafficToken = &t
	}
	return v
}

func stateOf(s engi.State) string {
	switch s {
	case engi.Paused, engi.Hibernating, engi.Hibernated:
		return "paused"
	}
	return "running"
}

func cpus(n float64) int { return max(1, int(math.Ceil(n))) }

func listed(sandbox engi.Sandbox) listedSandbox {
	v := listedSandbox{
		SandboxID: sandbox.ID.Label(), ClientID: clientID, EnvdVersion: EnvdVersion, StartedAt: sandbox.Started, EndAt: sandbox.Deadline,
		State: stateOf(sandbox.State), CPUCount: cpus(sandbox.Size.VCPUs), MemoryMB: sandbox.Size.Memory >> 20, DiskSizeMB: sandbox.Size.Disk >> 20,
		Metadata: sandbox.Metadata,
	}
	v.TemplateID, v.Alias = templateOf(sandbox)
	if v.StartedAt.IsZero() {
		v.StartedAt = sandbox.Created
	}
	if v.EndAt.IsZero() { // a hibernated sandbox has no deadline
		v.EndAt = v.StartedAt.Add(sandbox.Lifetime.Timeout)
	}
	for _, m := range sandbox.Volumes {
		v.VolumeMounts = append(v.VolumeMounts, volumeMount{m.Volume, m.Path})
	}
	return v
}

func (s *Server) detail(sandbox engi.Sandbox, who caller) sandboxDetail {
	v := sandboxDetail{listedSandbox: listed(sandbox), Domain: s.domain(), Network: shown(sandbox),
		Lifecycle: &lifecycle{OnTimeout: "kill", AutoResume: sandbox.Lifetime.AutoResume}}
	if secure(sandbox) && who.writes {
		v.AccessToken = s.token(toEnvd, string(sandbox.ID), who.key)
	}
	if said, ok := sandbox.Notes[noteInternet]; ok {
		yes := said == "true"
		v.Internet = &yes
	}
	if sandbox.Lifetime.OnTimeout == engi.EndHibernate {
		v.Lifecycle.OnTimeout = "pause"
	}
	if v.State == "paused" && sandbox.State != engi.Hibernating {
		v.PauseMode = "full"
		if sandbox.Disk {
			v.PauseMode = "filesystem"
		}
	}
	return v
}

func metricOf(m engi.Sample) metric {
	return metric{
		Timestamp: m.Time, TimestampUnix: m.Time.Unix(), CPUUsedPct: m.CPUPercent, CPUCount: cpus(m.VCPUs),
		MemUsed: m.Memory, MemTotal: m.MemoryLimit, MemCache: m.MemoryCache, DiskUsed: m.DiskUsed, DiskTotal: m.DiskCapacity,
	}
}

// metadataOf parses the metadata filter of a list. Clients escape it three times:
// each key and value, the pairs, and the whole as a query value, which is already
// unescaped here.
func metadataOf(text string) (map[string]string, error) {
	if text == "" {
		return nil, nil
	}
	pairs, err := url.ParseQuery(text)
	if err != nil {
		return nil, engi.Errorf(engi.Invalid, "metadata: %v", err)
	}
	all := map[string]string{}
	for k, v := range pairs {
		if len(v) > 0 {
			all[plain(k)] = plain(v[0])
		}
	}
	return all, nil
}

// plain unescapes s once more, or returns s if it is not escaped.
func plain(s string) string {
	if p, err := url.QueryUnescape(s); err == nil {
		return p
	}
	return s
}

func notesOf(sandbox engi.Sandbox) map[string]string {
	if n := maps.Clone(sandbox.Notes); n != nil {
		return n
	}
	return map[string]string{}
}
