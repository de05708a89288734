package config

import (
	"cmp"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/disk/blob"
	"github.com/engi-dev/engi/internal/sandbox/disk/recipe"
	"github.com/engi-dev/engi/internal/session/deps"
)

// Sessions configures sessions: sandboxes for a model's code, with installed
// packages and files that outlive the sandboxes. In files, the section is called sandbox.
// Without the section, or with enabled = false, no packages are installed, and agents have no tools
// for sessions and are not told of them; users and programs may use sessions.
type Sessions struct {
	Enabled          bool         `toml:"enabled" env:"ENABLED" help:"install packages, and let agents work in sessions; true if a file has the section; the API has sessions in any case"`
	Provider         string       `toml:"provider" env:"PROVIDER" help:"runtime of sessions' code: deno"`
	Mode             string       `toml:"mode" env:"MODE" help:"when a session gets its sandbox: lazy, with its first use, or warm, at once"`
	Region           string       `toml:"region" env:"REGION" help:"without effect; accepted because configuration files of hosted services have it"`
	Template         string       `toml:"template" env:"TEMPLATE" help:"template with Deno that packages are installed on top of"`
	VolumeTTL        Duration     `toml:"volume_ttl" env:"VOLUME_TTL" help:"how long an unused session and its volume are kept"`
	VolumeTTLMinutes int          `toml:"volume_ttl_minutes" env:"VOLUME_TTL_MINUTES" help:"the same in minutes; write one of the two"`
	VolumeCapacity   Bytes        `toml:"volume_capacity" env:"VOLUME_CAPACITY" help:"capacity of a session's volume, which is mounted at /workspace"`
	VolumeCapacityMB int          `toml:"volume_capacity_mb" env:"VOLUME_CAPACITY_MB" help:"the same in MiB; write one of the two"`
	Timeout          Duration     `toml:"timeout" env:"TIMEOUT" help:"longest run of a piece of code"`
	TimeoutSeconds   int          `toml:"timeout_seconds" env:"TIMEOUT_SECONDS" help:"the same in seconds; write one of the two"`
	Memory           Bytes        `toml:"memory" env:"MEMORY" help:"memory of a session's sandbox"`
	MemoryMB         int          `toml:"memory_mb" env:"MEMORY_MB" help:"the same in MiB; write one of the two"`
	Dormancy         Duration     `toml:"dormancy" env:"DORMANCY" help:"how long an unused sandbox is kept; its volume stays"`
	MaxDuration      Duration     `toml:"max_duration" env:"MAX_DURATION" help:"how long a session may last, in use or not; 0 is no limit"`
	CPUQuota         float64      `toml:"cpu_quota" env:"CPU_QUOTA" help:"processors' worth of time that a session gets in the long run, whatever its vcpus, and the most that it may ask for; 0 is no limit"`
	CPUWindow        Duration     `toml:"cpu_window" env:"CPU_WINDOW" help:"over which that is counted: so much unused time may be used at once"`
	Allow            []string     `toml:"allow" env:"ALLOW" help:"rules for what sessions may reach besides the hosts of packages, like *.example.com:443"`
	Workspaces       string       `toml:"workspaces" env:"WORKSPACES" help:"store of workspaces: a directory, or s3://HOST[:PORT]/BUCKET[/PREFIX] with credentials in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; empty means a directory in the data directory"`
	WorkspacesQuota  Bytes        `toml:"workspaces_quota" env:"WORKSPACES_QUOTA" help:"bytes of saved workspaces that one owner may have"`
	Dependencies     []Dependency `toml:"dependencies" env:"-" help:"packages that sessions' code may import"`
}

// A Dependency is a package that code in sessions may import.
type Dependency struct {
	Package   string   `toml:"package"`
	Version   string   `toml:"version"`
	Docs      []string `toml:"docs"`
	SecretEnv string   `toml:"secret_env"` // variable of the server; in sandboxes, it contains a placeholder
	Hosts     []string `toml:"hosts"`      // hosts that the package uses and that may receive the secret
}

func defaultSessions() Sessions {
	return Sessions{
		Provider: "deno", Mode: string(engi.SessionLazy), Template: "base", Dormancy: Duration(5 * time.Minute), CPUWindow: Duration(5 * time.Minute), WorkspacesQuota: 10 << 30,
	}
}

// Defaults of sessions.
const (
	sessionTTL      = 30 * time.Minute
	sessionCapacity = 300 << 20
	sessionTimeout  = 300 * time.Second
	sessionMemory   = 1280 << 20
)

// Values returns the settings that have two notations.
func (s Sessions) Values() (ttl, timeout time.Duration, capacity, memory int64) {
	return cmp.Or(time.Duration(s.VolumeTTL), time.Duration(s.VolumeTTLMinutes)*time.Minute, sessionTTL),
		cmp.Or(time.Duration(s.Timeout), time.Duration(s.TimeoutSeconds)*time.Second, sessionTimeout),
		cmp.Or(int64(s.VolumeCapacity), int64(s.VolumeCapacityMB)<<20, sessionCapacity),
		cmp.Or(int64(s.Memory), int64(s.MemoryMB)<<20, sessionMemory)
}

// Packages returns the dependencies for package deps. Validate has checked them.
func (s Sessions) Packages() (all []engi.Dependency) {
	for _, d := range s.Dependencies {
		name, version, err := deps.Parse(d.Package)
		if err != nil {
			continue
		}
		all = append(all, engi.Dependency{Package: name, Version: cmp.Or(version, d.Version), Docs: d.Docs, Secret: d.SecretEnv, Hosts: d.Hosts})
	}
	return all
}

// Notes returns messages about settings without effect.
func (s Sessions) Notes() (notes []string) {
	if s.Enabled && s.Region != "" {
		notes = append(notes, fmt.Sprintf("sandbox.region %q does nothing: sessions run on this machine", s.Region))
	}
	return notes
}

// CheckEnvironment reports Invalid, with the name of the variable, if the secret of
// a dependency has no value.
func (s Sessions) CheckEnvironment(lookup func(string) (string, bool)) error {
	if !s.Enabled {
		return nil
	}
	for _, d := range s.Dependencies {
		if d.SecretEnv == "" {
			continue
		}
		if v, ok := lookup(d.SecretEnv); !ok || v == "" {
			return engi.Errorf(engi.Invalid, "sandbox.dependencies %s: the environment has no %s", d.Package, d.SecretEnv).
				WithRemedy("set %s for the server, or remove secret_env", d.SecretEnv)
		}
	}
	return nil
}

var variableForm = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,127}$`)

func (s Sessions) validate() error {
	if s.Enabled && s.Provider != "deno" {
		return engi.Errorf(engi.Invalid, "sandbox.provider is %.40q", s.Provider).WithRemedy("use deno, which runs in this node's own sandboxes")
	}
	if s.Mode != string(engi.SessionLazy) && s.Mode != string(engi.SessionWarm) {
		return engi.Errorf(engi.Invalid, "sandbox.mode is %.40q", s.Mode).WithRemedy("use lazy or warm")
	}
	if !recipe.ValidName(s.Template) {
		return engi.Errorf(engi.Invalid, "sandbox.template %.80q is not the name of a template", s.Template).WithRemedy("use base, or a template made from it")
	}
	for _, twice := range []struct {
		a, b   string
		av, bv int64
	}{
		{"volume_ttl", "volume_ttl_minutes", int64(s.VolumeTTL), int64(s.VolumeTTLMinutes)},
		{"volume_capacity", "volume_capacity_mb", int64(s.VolumeCapacity), int64(s.VolumeCapacityMB)},
		{"timeout", "timeout_seconds", int64(s.Timeout), int64(s.TimeoutSeconds)},
		{"memory", "memory_mb", int64(s.Memory), int64(s.MemoryMB)},
	} {
		if twice.av != 0 && twice.bv != 0 {
			return engi.Errorf(engi.Invalid, "sandbox.%s and sandbox.%s mean the same", twice.a, twice.b).WithRemedy("write one of them")
		}
		if min(twice.av, twice.bv) < 0 || max(twice.av, twice.bv) > 1<<53 {
			return engi.Errorf(engi.Invalid, "sandbox.%s is negative or too large", twice.a)
		}
	}
	if ttl, timeout, capacity, memory := s.Values(); ttl < time.Second || timeout < time.Second || capacity < 16<<20 || memory < 128<<20 {
		return engi.Errorf(engi.Invalid, "[sandbox] has values that are too small to run code").
			WithRemedy("volume_ttl and timeout are at least 1s, volume_capacity 16MiB, memory 128MiB")
	}
	if time.Duration(s.Dormancy) < time.Second {
		return engi.Errorf(engi.Invalid, "sandbox.dormancy is %v", s.Dormancy).WithRemedy("use at least 1s, like 5m")
	}
	if d := time.Duration(s.MaxDuration); d < 0 || d > 0 && d < time.Second {
		return engi.Errorf(engi.Invalid, "sandbox.max_duration is %v", d).WithRemedy("use at least 1s, like 8h, or 0 for no limit")
	}
	if s.CPUQuota < 0 || time.Duration(s.CPUWindow) < time.Second {
		return engi.Errorf(engi.Invalid, "sandbox.cpu_quota is %v in %v", s.CPUQuota, time.Duration(s.CPUWindow)).WithRemedy("use processors, like 0.5, and a window of at least 1s, like 5m")
	}
	if err := blob.Check(s.Workspaces); err != nil {
		return err
	}
	if s.WorkspacesQuota <= 0 {
		return engi.Errorf(engi.Invalid, "sandbox.workspaces_quota is %d", s.WorkspacesQuota).WithRemedy("use a size, like 10GiB")
	}
	if !s.Enabled {
		return nil
	}
	seen := map[string]bool{}
	for i, d := range s.Dependencies {
		if err := d.validate(); err != nil {
			return fmt.Errorf("sandbox.dependencies[%d]: %w", i, err)
		}
		name, _, _ := deps.Parse(d.Package)
		if seen[name] {
			return engi.Errorf(engi.Invalid, "sandbox.dependencies[%d]: %s appears twice", i, name)
		}
		seen[name] = true
	}
	return nil
}

func (d Dependency) validate() error {
	_, version, err := deps.Parse(d.Package)
	if err != nil {
		return err
	}
	if d.Version != "" {
		if version != "" {
			return engi.Errorf(engi.Invalid, "%.80q has a version already", d.Package).WithRemedy("write it in one place")
		}
		if _, _, err := deps.Parse(d.Package + "@" + d.Version); err != nil {
			return err
		}
	}
	for _, doc := range d.Docs {
		if u, err := url.Parse(doc); err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" {
			return engi.Errorf(engi.Invalid, "docs of %s: %.100q is not a URL", d.Package, doc).WithRemedy("write it like https://example.com/sdk.md")
		}
	}
	if slices.ContainsFunc(d.Hosts, func(h string) bool { return h == "" || len(h) > 253 || strings.ContainsAny(h, " /,\x00") }) {
		return engi.Errorf(engi.Invalid, "hosts of %s: one entry is not a host name", d.Package).WithRemedy("write it like api.example.com or *.example.com")
	}
	switch {
	case d.SecretEnv == "":
	case !variableForm.MatchString(d.SecretEnv):
		// The error omits the text, because users put values here by mistake.
		return engi.Errorf(engi.Invalid, "secret_env of %s is not the name of a variable", d.Package).
			WithRemedy("write it like LINEAR_API_KEY; the value itself is never in the configuration")
	case len(d.Hosts) == 0:
		return engi.Errorf(engi.Invalid, "no host may receive the secret of %s", d.Package).WithRemedy("name the hosts that need it in hosts")
	}
	return nil
}
