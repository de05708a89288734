package e2b

import (
	"encoding/json"
	"maps"
	"math"
	"net/url"
	"time"

	"github.com/engi-dev/engi"
)

// What this surface keeps with a sandbox, see [engi.Sandbox.Notes].
const (
	noteOpen     = "e2b.open"     // "1": no token for the inside
	noteTemplate = "e2b.template" // ID
	noteAlias    = "e2b.alias"    // name it was asked for by
	noteInternet = "e2b.internet" // "true" or "false" if that was said
	noteMCP      = "e2b.mcp"      // as JSON
	noteIAM      = "e2b.iam"      // as JSON
	noteBuild    = "e2b.build"    // it belongs to this build; owners do not see it
	noteFrom     = "e2b.from"     // ID of the build of the template that it began from
)

// EventNotes returns those of a sandbox's notes that its events carry, so that
// they can be told in E2B's words when the sandbox is gone.
func EventNotes(notes map[string]string) map[string]string {
	var some map[string]string
	for _, name := range []string{noteTemplate, noteBuild, noteFrom} {
		if v := notes[name]; v != "" {
			if some == nil {
				some = map[string]string{}
			}
			some[name] = v
		}
	}
	return some
}

// secure reports whether the inside of box needs a token. What other surfaces
// made is secure.
func secure(box engi.Sandbox) bool { return box.Notes[noteOpen] != "1" }

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

type sandbox struct {
	SandboxID    string  `json:"sandboxID"`
	TemplateID   string  `json:"templateID"`
	ClientID     string  `json:"clientID"` // nobody uses it, but it must be there
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

// clientID is constant: there are no clients in E2B's sense here.
const clientID = "engi"

func templateOf(box engi.Sandbox) (id, alias string) {
	if id = box.Notes[noteTemplate]; id == "" {
		id = box.Template
		if box.Snapshot != "" {
			id = string(box.Snapshot)
		}
	}
	return id, box.Notes[noteAlias]
}

func (s *Server) sandbox(box engi.Sandbox) sandbox {
	v := sandbox{SandboxID: box.ID.Label(), ClientID: clientID, EnvdVersion: AgentVersion, Domain: s.domain()}
	v.TemplateID, v.Alias = templateOf(box)
	if secure(box) {
		v.AccessToken = s.AccessToken(box.ID)
	}
	if box.Ports.Private {
		t := s.TrafficToken(box.ID)
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

func listed(box engi.Sandbox) listedSandbox {
	v := listedSandbox{
		SandboxID: box.ID.Label(), ClientID: clientID, EnvdVersion: AgentVersion, StartedAt: box.Started, EndAt: box.Deadline,
		State: stateOf(box.State), CPUCount: cpus(box.Size.VCPUs), MemoryMB: box.Size.Memory >> 20, DiskSizeMB: box.Size.Disk >> 20,
		Metadata: box.Metadata,
	}
	v.TemplateID, v.Alias = templateOf(box)
	if v.StartedAt.IsZero() {
		v.StartedAt = box.Created
	}
	if v.EndAt.IsZero() { // it sleeps: nothing ends it
		v.EndAt = v.StartedAt.Add(box.Lifetime.Timeout)
	}
	for _, m := range box.Volumes {
		v.VolumeMounts = append(v.VolumeMounts, volumeMount{m.Volume, m.Path})
	}
	return v
}

func (s *Server) detail(box engi.Sandbox, who caller) sandboxDetail {
	v := sandboxDetail{listedSandbox: listed(box), Domain: s.domain(), Network: shown(box),
		Lifecycle: &lifecycle{OnTimeout: "kill", AutoResume: box.Lifetime.AutoResume}}
	if secure(box) && who.writes {
		v.AccessToken = s.AccessToken(box.ID)
	}
	if said, ok := box.Notes[noteInternet]; ok {
		yes := said == "true"
		v.Internet = &yes
	}
	if box.Lifetime.OnTimeout == engi.EndHibernate {
		v.Lifecycle.OnTimeout = "pause"
	}
	if v.State == "paused" && box.State != engi.Hibernating {
		v.PauseMode = "full"
		if box.Disk {
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

// metadataOf reads the filter of a list. Clients encode it three times: the
// pairs, each key and value in them, and the whole as a query's value, which
// is decoded already.
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

// plain decodes once more; text that was not encoded stays as it is.
func plain(s string) string {
	if p, err := url.QueryUnescape(s); err == nil {
		return p
	}
	return s
}

func notesOf(box engi.Sandbox) map[string]string {
	if n := maps.Clone(box.Notes); n != nil {
		return n
	}
	return map[string]string{}
}
