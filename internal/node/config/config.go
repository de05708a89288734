// Package config holds the configuration of a node: one struct, read from defaults, a
// file, the environment and flags, in this order. Errors suggest the nearest valid
// key or value. Package node acts on the result.
package config

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caarlos0/env/v11"
	"github.com/pelletier/go-toml/v2"

	"github.com/engi-dev/engi/internal/access/ssh"
	"github.com/engi-dev/engi/internal/app"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/network/cert"
	"github.com/engi-dev/engi/internal/sandbox/disk/recipe"
	"github.com/engi-dev/engi/internal/sandbox/fleet"
	"github.com/engi-dev/engi/internal/sandbox/script"
	"github.com/engi-dev/engi/internal/server/httpio"
	"github.com/engi-dev/engi/internal/spelling"
)

// A Config is the configuration of a node. The tags are the names in config.toml
// and, with the prefix ENGI_, in the environment.
type Config struct {
	Listen          string   `toml:"listen" env:"LISTEN" help:"address and port to serve on"`
	DataDir         string   `toml:"data_dir" env:"DATA_DIR" help:"state of this node: database, keys, sandboxes; one server each"`
	CacheDir        string   `toml:"cache_dir" env:"CACHE_DIR" help:"what can be recreated and is shared by nodes: templates and unpacked programs"`
	AllowPublicHTTP bool     `toml:"allow_public_http" env:"ALLOW_PUBLIC_HTTP" help:"serve addresses others can reach without TLS"`
	Hosts           []string `toml:"hosts" env:"HOSTS" help:"host names that requests may use besides loopback ones; * accepts any, as does an empty list on an address that is not loopback"`
	Runsc           string   `toml:"runsc" env:"RUNSC" help:"path of runsc; empty finds the one that belongs to this engi"`
	Guest           string   `toml:"guest" env:"GUEST" help:"path of engi-guest; empty finds the one that belongs to this engi"`
	JS              string   `toml:"js" env:"JS" help:"path of engi-js; empty finds the one that belongs to this engi"`
	Log             string   `toml:"log" env:"LOG" help:"format of the log: text, json, or auto (text on a terminal)"`
	LogLevel        string   `toml:"log_level" env:"LOG_LEVEL" help:"debug, info, warn or error"`

	// Tables, which only a file can have. TOML requires them after plain keys.
	Providers map[string]Provider `toml:"providers" env:"-" help:"services that run language models: [providers.NAME] with api_key_env, and url and dialect unless NAME is openai, anthropic, gemini, ollama, mistral or groq"`
	Agents    []Agent             `toml:"agents" env:"-" help:"models with instructions and tools: name, description, model, system, tools, steps, budget, output, max_tokens, temperature, effort, confirm"`
	Functions []Function          `toml:"functions" env:"-" help:"durable functions: name, event or cron, retries, backoff, concurrency, per_owner, timeout, owner, and agent with input (and sandbox or session), or run = {language, code or file, template}"`

	TLS        TLS          `toml:"tls" envPrefix:"TLS_"`
	CORS       CORS         `toml:"cors" envPrefix:"CORS_"`
	Preview    Preview      `toml:"preview" envPrefix:"PREVIEW_"`
	Limits     Limits       `toml:"limits" envPrefix:"LIMITS_"`
	Max        Limits       `toml:"max" envPrefix:"MAX_"`
	Admission  Admission    `toml:"admission" envPrefix:"ADMISSION_"`
	Templates  Templates    `toml:"templates" envPrefix:"TEMPLATES_"`
	Builds     Builds       `toml:"builds" envPrefix:"BUILDS_"`
	Volumes    Volumes      `toml:"volumes" envPrefix:"VOLUMES_"`
	Sandboxes  Sandboxes    `toml:"sandboxes" envPrefix:"SANDBOXES_"`
	Keep       Keep         `toml:"keep" envPrefix:"KEEP_"`
	Quota      Quotas       `toml:"quota" envPrefix:"QUOTA_"`
	Network    Network      `toml:"network" envPrefix:"NETWORK_"`
	Secrets    Secrets      `toml:"secrets" envPrefix:"SECRETS_"`
	Registries Registries   `toml:"registries" envPrefix:"REGISTRIES_"`
	Mirror     Mirror       `toml:"mirror" envPrefix:"MIRROR_"`
	Script     Script       `toml:"script" envPrefix:"SCRIPT_"`
	Sessions   Sessions     `toml:"sandbox" envPrefix:"SANDBOX_"`
	Models     Models       `toml:"models" envPrefix:"MODELS_"`
	MCP        MCP          `toml:"mcp" envPrefix:"MCP_"`
	Docs       Docs         `toml:"docs" envPrefix:"DOCS_"`
	Events     Events       `toml:"events" envPrefix:"EVENTS_"`
	Webhooks   Webhooks     `toml:"webhooks" envPrefix:"WEBHOOKS_"`
	Approvals  Approvals    `toml:"approvals" envPrefix:"APPROVALS_"`
	SSH        ssh.Settings `toml:"ssh" envPrefix:"SSH_"`
	Apps       app.Settings `toml:"apps" envPrefix:"APPS_"`
	Workspaces Workspaces   `toml:"workspaces" envPrefix:"WORKSPACES_"`

	Pools []Pool `toml:"pools" env:"POOLS" help:"warm sandboxes; in the environment: LANGUAGE=TARGET or TEMPLATE/LANGUAGE=TARGET:MAX, with commas between; none switches them off"`
}

// Workspaces configures the services of workspaces, and workflows in them.
type Workspaces struct {
	Mongod    string `toml:"mongod" env:"MONGOD" help:"template that contains mongod, which then serves new mongodb services instead of FerretDB; empty means FerretDB"`
	Workflows string `toml:"workflow_templates" env:"WORKFLOW_TEMPLATES" help:"YAML file with templates of workflows, beside engi's own; directories beside it that are called as templates have the content of their files"`
}

// TLS configures HTTPS.
type TLS struct {
	Cert          string   `toml:"cert" env:"CERT" help:"PEM file with the certificate chain"`
	Key           string   `toml:"key" env:"KEY" help:"PEM file with its private key"`
	Listen        string   `toml:"listen" env:"LISTEN" help:"address and port for https beside http on the other; empty means https there and no http"`
	ACMENames     []string `toml:"acme_names" env:"ACME_NAMES" help:"host names to get certificates for by ACME; no wildcards, and port 443 must lead here"`
	ACMEEmail     string   `toml:"acme_email" env:"ACME_EMAIL" help:"whom the certificate authority may write to"`
	ACMEDirectory string   `toml:"acme_directory" env:"ACME_DIRECTORY" help:"address of the authority's directory; empty means Let's Encrypt"`
}

// On reports whether HTTPS is served.
func (t TLS) On() bool { return t.Cert != "" || len(t.ACMENames) > 0 }

// CORS configures the pages that may use the API from browsers.
type CORS struct {
	Origins []string `toml:"origins" env:"ORIGINS" help:"origins of pages that may use /v1 from browsers, like https://app.example; cookies never count; none switches it off"`
}

func (c CORS) validate() error {
	for _, o := range c.Origins {
		if err := httpio.CheckAllowedOrigin(o); err != nil {
			return engi.Errorf(engi.Invalid, "cors.origins: %w", err)
		}
	}
	return nil
}

// Preview configures the addresses of sandboxes' ports.
type Preview struct {
	Domain  string   `toml:"domain" env:"DOMAIN" help:"names of ports are made below it, as PORT-SANDBOX.DOMAIN; with a port of its own if a proxy is in front, like sbx.example.com:8443"`
	Domains []string `toml:"domains" env:"DOMAINS" help:"further domains whose names are served"`
	Scheme  string   `toml:"scheme" env:"SCHEME" help:"http or https: what a proxy in front serves; empty if there is none"`
	Path    bool     `toml:"path" env:"PATH" help:"serve ports at /preview/SANDBOX/PORT/ too, where all pages share one origin with the API"`
	Private bool     `toml:"private" env:"PRIVATE" help:"admit nobody without a key or a signed link, whatever a sandbox says"`
	Rate    float64  `toml:"rate" env:"RATE" help:"requests per second to one sandbox, four times that at once"`
}

// Name returns the domain and its port, which is empty if it has none.
func (p Preview) Name() (domain, port string) {
	if host, port, err := net.SplitHostPort(p.Domain); err == nil {
		return host, port
	}
	return p.Domain, ""
}

func (p Preview) validate() error {
	domain, port := p.Name()
	for _, d := range append([]string{domain}, p.Domains...) {
		if d == "" || strings.ContainsAny(d, ":/* ") || strings.HasPrefix(d, ".") || net.ParseIP(d) != nil {
			return engi.Errorf(engi.Invalid, "preview: %q is not a domain", d).WithRemedy("write it like sbx.example.com, or localhost")
		}
	}
	if n, err := strconv.Atoi(port); port != "" && (err != nil || n < 1 || n > 65535) {
		return engi.Errorf(engi.Invalid, "preview.domain: %q is not a port", port)
	}
	if p.Scheme != "" && p.Scheme != "http" && p.Scheme != "https" {
		return engi.Errorf(engi.Invalid, "preview.scheme is %q", p.Scheme).WithRemedy("use http or https, or leave it empty")
	}
	if p.Rate < 0 {
		return engi.Errorf(engi.Invalid, "preview.rate is negative")
	}
	return nil
}

// Limits are the limits of one execution.
type Limits struct {
	VCPUs         float64  `toml:"vcpus" env:"VCPUS" help:"processors' worth of time"`
	Memory        Bytes    `toml:"memory" env:"MEMORY" help:"memory of the whole sandbox"`
	Disk          Bytes    `toml:"disk" env:"DISK" help:"bytes it may write"`
	Inodes        int64    `toml:"inodes" env:"INODES" help:"files it may create"`
	Processes     int      `toml:"processes" env:"PROCESSES" help:"processes and threads at once"`
	OpenFiles     int      `toml:"open_files" env:"OPEN_FILES" help:"descriptors per process"`
	Timeout       Duration `toml:"timeout" env:"TIMEOUT" help:"wall clock of the program"`
	Output        Bytes    `toml:"output" env:"OUTPUT" help:"bytes printed that are kept"`
	ArtifactBytes Bytes    `toml:"artifact_bytes" env:"ARTIFACT_BYTES" help:"bytes of all files that come back"`
	ArtifactCount int      `toml:"artifact_count" env:"ARTIFACT_COUNT" help:"files that come back"`
}

// Admission limits the work of the node and configures its behaviour beyond the limits.
type Admission struct {
	MaxSandboxes int      `toml:"max_sandboxes" env:"MAX_SANDBOXES" help:"sandboxes alive at once, warm ones included"`
	MaxQueue     int      `toml:"max_queue" env:"MAX_QUEUE" help:"executions that may wait for a sandbox"`
	OnEmpty      string   `toml:"on_empty" env:"ON_EMPTY" help:"when a pool is empty: wait, boot_sync or reject"`
	ClaimTimeout Duration `toml:"claim_timeout" env:"CLAIM_TIMEOUT" help:"longest wait for a sandbox"`
	MaxWait      Duration `toml:"max_wait" env:"MAX_WAIT" help:"when more executions arrive than can be run, refuse at once what would wait longer, unless it names a claim_timeout; 0 refuses nothing"`
	Boots        int      `toml:"boots" env:"BOOTS" help:"sandboxes that boot at the same time"`
	MaxCode      Bytes    `toml:"max_code" env:"MAX_CODE" help:"one source file of a request"`
	MaxInput     Bytes    `toml:"max_input" env:"MAX_INPUT" help:"all files, input, arguments and environment of a request"`
}

// Templates configures templates.
type Templates struct {
	Default string   `toml:"default" env:"DEFAULT" help:"template of requests that name none; empty means base, or host until base is built"`
	Sources []string `toml:"sources" env:"SOURCES" help:"directories whose files definitions of templates may read; empty means templates/sources in the cache directory"`
	CA      []string `toml:"ca" env:"CA" help:"files of certificates that builds trust besides those of this machine"`
	Images  []string `toml:"images" env:"IMAGES" help:"images that templates stand for, like ubuntu:22.04=blank-ubuntu; e2bdev/base and e2bdev/code-interpreter are known"`
	Grace   Duration `toml:"grace" env:"GRACE" help:"how long a build that no name refers to and nothing uses is kept; negative keeps all"`
}

// Volumes configures volumes.
type Volumes struct {
	Capacity Bytes `toml:"capacity" env:"CAPACITY" help:"of volumes that do not ask for one"`
	Plain    bool  `toml:"plain" env:"PLAIN" help:"use directories, whose capacity programs can exceed, even where images work"`
}

// Sandboxes configures the time for which sandboxes of owners stay awake.
type Sandboxes struct {
	Timeout Duration `toml:"timeout" env:"TIMEOUT" help:"time from creation or resumption to the deadline, for requests that do not say"`
	Max     Duration `toml:"max" env:"MAX" help:"longest such time, however often a deadline is extended"`
	Spare   int      `toml:"spare" env:"SPARE" help:"sandboxes kept ready of each template that one was created from in the last minutes"`
}

// Keep configures the time for which ended executions are kept.
type Keep struct {
	Count int      `toml:"count" env:"COUNT" help:"ended executions kept"`
	Age   Duration `toml:"age" env:"AGE" help:"how long they are kept"`
}

// Script configures scripts; see package script.
type Script struct {
	Off          bool        `toml:"off" env:"OFF" help:"serve no scripts"`
	Code         int         `toml:"code" env:"CODE" help:"characters of one script"`
	Timeout      Duration    `toml:"timeout" env:"TIMEOUT" help:"wall clock of a script that asks for none"`
	MinTimeout   Duration    `toml:"min_timeout" env:"MIN_TIMEOUT" help:"shorter timeouts of scripts are raised to this"`
	MaxTimeout   Duration    `toml:"max_timeout" env:"MAX_TIMEOUT" help:"longer timeouts of scripts are lowered to this"`
	Memory       Bytes       `toml:"memory" env:"MEMORY" help:"memory of one script"`
	Helpers      int         `toml:"helpers" env:"HELPERS" help:"processes that run scripts, at most"`
	FetchHosts   []string    `toml:"fetch_hosts" env:"FETCH_HOSTS" help:"hosts that api.fetch may connect to, like api.example.com, *.example.com or, on a port of its own, api.example.com:8443; none switches it off"`
	FetchPrivate []string    `toml:"fetch_private" env:"FETCH_PRIVATE" help:"addresses and networks those hosts may have although they are not public"`
	Weather      string      `toml:"weather" env:"WEATHER" help:"service that api.getWeather uses; open-meteo is the public one, empty switches it off"`
	APIs         []ScriptAPI `toml:"apis" env:"-" help:"functions that request a URL"`
}

// A ScriptAPI is a host function that requests a URL.
type ScriptAPI struct {
	Name        string            `toml:"name"`
	Description string            `toml:"description"`
	Signature   string            `toml:"signature"`
	Method      string            `toml:"method"`
	URL         string            `toml:"url"`
	HeadersEnv  map[string]string `toml:"headers_env"` // names of headers to variables with their values
}

// A Pool configures warm sandboxes.
type Pool struct {
	Template     string   `toml:"template"`
	Language     string   `toml:"language"`
	Target       int      `toml:"target"`
	Max          int      `toml:"max"`
	OnEmpty      string   `toml:"on_empty"`
	ClaimTimeout Duration `toml:"claim_timeout"`
}

// UnmarshalText parses the short form TEMPLATE/LANGUAGE=TARGET:MAX, in which
// TEMPLATE/ and :MAX are optional, and LANGUAGE may be empty for bare
// sandboxes.
func (p *Pool) UnmarshalText(text []byte) error {
	name, size, ok := strings.Cut(strings.TrimSpace(string(text)), "=")
	if !ok {
		return engi.Errorf(engi.Invalid, "pool %q has no '='", text).WithRemedy("write it like python=2 or base/python=2:8")
	}
	tmpl, lang, ok := strings.Cut(name, "/")
	if !ok {
		tmpl, lang = "", name
	}
	target, most, _ := strings.Cut(size, ":")
	*p = Pool{Template: tmpl, Language: lang}
	if _, err := fmt.Sscanf(target, "%d", &p.Target); err != nil {
		return engi.Errorf(engi.Invalid, "pool %q: %q is not a number", text, target)
	}
	if most != "" {
		if _, err := fmt.Sscanf(most, "%d", &p.Max); err != nil {
			return engi.Errorf(engi.Invalid, "pool %q: %q is not a number", text, most)
		}
	}
	return nil
}

// Defaults returns the default configuration for this machine and user.
func Defaults() Config {
	l, sl := fleet.DefaultLimits(), script.DefaultLimits()
	c := Config{
		Listen:   "127.0.0.1:7777",
		DataDir:  dataDir(),
		CacheDir: cacheDir(),
		Log:      "auto",
		LogLevel: "info",
		Limits:   limitsOf(l),
		Max:      limitsOf(fleet.MaxLimits()),
		Admission: Admission{
			MaxSandboxes: 256, MaxQueue: 1024, OnEmpty: string(engi.PoolBootSync), ClaimTimeout: Duration(30 * time.Second), MaxWait: Duration(600 * time.Millisecond),
			Boots: cpus(), MaxCode: engi.DefaultFile, MaxInput: engi.DefaultInput,
		},
		Preview:   Preview{Domain: "localhost", Rate: 500},
		Templates: Templates{Grace: Duration(24 * time.Hour)},
		Volumes:   Volumes{Capacity: 1 << 30},
		Sandboxes: Sandboxes{Timeout: Duration(5 * time.Minute), Max: Duration(24 * time.Hour), Spare: 1},
		Keep:      Keep{Count: 10_000, Age: Duration(7 * 24 * time.Hour)},
		Network: Network{
			Mode: string(engi.NetworkNone), Max: string(engi.NetworkOpen), Spare: 2,
			Limits: NetworkLimits{Connections: 512, NewConnections: 100, Lookups: 50},
			Events: 10_000, KeepAge: Duration(7 * 24 * time.Hour),
		},
		Builds:    Builds{Allow: fleet.DefaultBuildHosts(), Timeout: Duration(2 * time.Hour)},
		Mirror:    Mirror{Size: 20 << 30, Fresh: Duration(5 * time.Minute)},
		Sessions:  defaultSessions(),
		Docs:      defaultDocs(),
		Approvals: defaultApprovals(),
		Events:    defaultEvents(),
		SSH:       ssh.DefaultSettings(),
		Apps:      app.DefaultSettings(),
		Script: Script{
			Code: sl.Code, Timeout: Duration(sl.Timeout), MinTimeout: Duration(sl.MinTimeout), MaxTimeout: Duration(sl.MaxTimeout),
			Memory: Bytes(sl.Memory), Helpers: max(8, 4*cpus()),
		},
		// A warm interpreter takes about 28 MiB. Two interpreters of the most used language
		// and one of each other language are ready within seconds on two processors.
		// Sandboxes of owners start without an interpreter.
		Pools: []Pool{
			{Target: 1},
			{Language: string(engi.Python), Target: max(2, cpus())},
			{Language: string(engi.JavaScript), Target: 1},
			{Language: string(engi.TypeScript), Target: 1},
			{Language: string(engi.Go), Target: 1},
			{Language: string(engi.Bash), Target: 1},
		},
	}
	return c
}

func limitsOf(l engi.Limits) Limits {
	return Limits{
		VCPUs: l.Size.VCPUs, Memory: Bytes(l.Size.Memory), Disk: Bytes(l.Size.Disk), Inodes: l.Size.Inodes,
		Processes: l.Size.Processes, OpenFiles: l.Size.OpenFiles, Timeout: Duration(l.Timeout), Output: Bytes(l.Output),
		ArtifactBytes: Bytes(l.ArtifactBytes), ArtifactCount: l.ArtifactCount,
	}
}

// Limits returns l as [engi.Limits].
func (l Limits) Limits() engi.Limits {
	return engi.Limits{
		Size: engi.Size{
			VCPUs: l.VCPUs, Memory: int64(l.Memory), Disk: int64(l.Disk), Inodes: l.Inodes,
			Processes: l.Processes, OpenFiles: l.OpenFiles,
		},
		Timeout: time.Duration(l.Timeout), Output: int64(l.Output),
		ArtifactBytes: int64(l.ArtifactBytes), ArtifactCount: l.ArtifactCount,
	}
}

// Sources maps keys like "limits.memory" to the source of their value: a
// file's path, an environment variable or a flag. Keys with default values are
// absent.
type Sources map[string]string

// From holds the sources of a configuration.
type From struct {
	File  string   // configuration file; empty means the usual places
	Env   []string // NAME=VALUE; nil means none
	Flags []Flag   // flags, in their order
}

// A Flag is one key set on a command line.
type Flag struct{ Name, Key, Value string } // Name is the flag for messages: "--listen"

// Load returns the configuration: defaults, then the file, then the
// environment, then flags; each overrides the sources before. It reports Invalid
// for unknown keys and invalid values, with a suggestion.
func Load(o From) (c Config, from Sources, err error) {
	c, from = Defaults(), Sources{}
	vars := env.ToMap(o.Env)
	maps.DeleteFunc(vars, func(_, v string) bool { return v == "" }) // an empty variable counts as not set

	// The data directory may contain the configuration file, so it must be known first.
	dir := c.DataDir
	if v := vars["ENGI_DATA_DIR"]; v != "" {
		dir = v
	}
	for _, f := range o.Flags {
		if f.Key == "data_dir" {
			dir = f.Value
		}
	}
	var faults []error
	places := []string{filepath.Join(dir, "config.toml"), "/etc/engi/config.toml"}
	if o.File != "" {
		places = []string{o.File}
	}
	for _, path := range places {
		data, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) && o.File == "" {
			continue
		}
		if err != nil {
			return c, nil, engi.Errorf(engi.Invalid, "read configuration: %v", err)
		}
		if faults, err = readFile(&c, data, path, from); err != nil {
			return c, nil, mistakes(append(faults, err))
		}
		break
	}
	faults = append(faults, readEnv(&c, vars, from))
	for _, f := range o.Flags {
		if err := set(&c, f.Key, f.Value); err != nil {
			faults = append(faults, fmt.Errorf("flag %s: %w", f.Name, err))
		}
		from[f.Key] = f.Name
	}
	for _, p := range []*string{&c.DataDir, &c.CacheDir} {
		if *p, err = filepath.Abs(*p); err != nil {
			return c, nil, engi.Errorf(engi.Invalid, "%v", err)
		}
	}
	if err := mistakes(append(faults, c.faults()...)); err != nil {
		return c, nil, err
	}
	return c, from, nil
}

// readFile reads the known keys of a file, and returns the faults of
// the others.
func readFile(c *Config, data []byte, path string, from Sources) (faults []error, err error) {
	keys := map[string]any{}
	if err := toml.Unmarshal(data, &keys); err != nil {
		return nil, engi.Errorf(engi.Invalid, "%s: %s", path, explain(err))
	}
	if _, ok := keys["pools"]; ok {
		c.Pools = nil // the file's pools replace the defaults
	}
	if _, ok := keys["sandbox"]; ok {
		c.Sessions.Enabled = true // unless the file says otherwise
	}
	for _, fault := range check(keys, reflect.TypeFor[Config](), "") {
		faults = append(faults, fmt.Errorf("%s: %w", path, fault))
	}
	if err := toml.Unmarshal(data, c); err != nil {
		return faults, engi.Errorf(engi.Invalid, "%s: %s%s", path, culprit(keys), explain(err))
	}
	for _, k := range flatten(keys) {
		from[k] = path
	}
	return faults, nil
}

// culprit returns the key with the invalid value as the prefix of a message; "" if
// there is none.
func culprit(keys map[string]any) string {
	for _, name := range slices.Sorted(slices.Values(flatten(keys))) {
		var v any = keys
		parts := strings.Split(name, ".")
		for _, p := range parts {
			v = v.(map[string]any)[p]
		}
		for _, p := range slices.Backward(parts) {
			v = map[string]any{p: v}
		}
		text, err := toml.Marshal(v)
		if scratch := Defaults(); err == nil && toml.Unmarshal(text, &scratch) != nil {
			return name + ": "
		}
	}
	return ""
}

// otherVariables start with ENGI_ but are not keys of Config.
var otherVariables = []string{"ENGI_URL", "ENGI_KEY", "ENGI_CONFIG", "ENGI_BIN", "ENGI_TEST_", "ENGI_CHAOS_", "ENGI_OUTPUT_DIR", "ENGI_SANDBOX_ID", "ENGI_NO_INSTALL", "ENGI_IN_NAMESPACES", "ENGI_DEBUG_"}

func readEnv(c *Config, vars map[string]string, from Sources) error {
	known := map[string]string{} // keys by their variables
	for _, k := range Keys(c) {
		if k.Variable != "" {
			known[k.Variable] = k.Name
		} else if name := variable(k.Name); vars[name] != "" {
			return engi.Errorf(engi.Invalid, "environment variable %s: %s is a table and cannot be set by a variable", name, k.Name).
				WithRemedy("write it into a file (see 'engi config show'), or use --set %s=VALUE", k.Name)
		}
	}
	for name := range vars {
		if !strings.HasPrefix(name, "ENGI_") || known[name] != "" ||
			slices.ContainsFunc(otherVariables, func(o string) bool { return strings.HasPrefix(name, o) }) {
			continue
		}
		// Other programs may also use the prefix, so only a name that looks like a typo
		// is an error.
		if near := spelling.Nearest(name, slices.Sorted(maps.Keys(known))); near != "" {
			return engi.Errorf(engi.Invalid, "unknown environment variable %s", name).WithRemedy("did you mean %s?", near)
		}
	}
	if v, ok := vars["ENGI_POOLS"]; ok {
		c.Pools, from["pools"] = nil, "ENGI_POOLS"
		if v == "none" {
			delete(vars, "ENGI_POOLS")
		}
	}
	for name, key := range known {
		if _, ok := vars[name]; ok {
			from[key] = name
		}
	}
	err := env.ParseWithOptions(c, env.Options{Prefix: "ENGI_", Environment: vars})
	if err != nil {
		return engi.Errorf(engi.Invalid, "environment: %v", err)
	}
	return nil
}

// Validate reports Invalid for a configuration that a node cannot run with, and names
// each of its mistakes.
func (c Config) Validate() error { return mistakes(c.faults()) }

// faults returns the faults, some of which are nil: the first fault of each section, and
// the faults of all pools and functions.
func (c Config) faults() (all []error) {
	add := func(err error) { all = append(all, err) }
	invalid := func(remedy, format string, args ...any) {
		add(engi.Errorf(engi.Invalid, format, args...).WithRemedy("%s", remedy))
	}
	host, port, err := net.SplitHostPort(c.Listen)
	if err != nil || port == "" {
		invalid("write it like 127.0.0.1:7777", "listen %q is not an address and a port", c.Listen)
	} else if !loopback(host) && !(c.TLS.On() && c.TLS.Listen == "") && !c.AllowPublicHTTP {
		invalid("set tls.cert and tls.key, put a TLS proxy in front of 127.0.0.1, or use --allow-public-http if you trust the network",
			"listen %s: others can reach this address and could read keys and programs in transit", c.Listen)
	}
	if (c.TLS.Cert == "") != (c.TLS.Key == "") {
		invalid("", "tls.cert and tls.key come together or not at all")
	}
	if c.TLS.Listen != "" {
		if _, port, err := net.SplitHostPort(c.TLS.Listen); err != nil || port == "" {
			invalid("write it like 0.0.0.0:443", "tls.listen %q is not an address and a port", c.TLS.Listen)
		}
		if !c.TLS.On() {
			invalid("set tls.cert and tls.key; 'engi tls init' makes them", "tls.listen is set, but there is no certificate")
		}
	}
	if !slices.Contains([]string{"text", "json", "auto"}, c.Log) {
		invalid("use text, json or auto", "log is %q", c.Log)
	}
	_, err = c.Level()
	add(err)
	add(cert.CheckNames(c.TLS.ACMENames))
	for _, name := range []string{"limits", "max"} {
		l := map[string]Limits{"limits": c.Limits, "max": c.Max}[name]
		if err := l.Limits().Size.Validate(); err != nil {
			add(fmt.Errorf("%s: %w", name, err))
		} else if l.Timeout < 0 || l.Output < 0 || l.ArtifactBytes < 0 || l.ArtifactCount < 0 {
			invalid("", "%s has a negative value", name)
		}
	}
	if d := c.Limits.Limits(); !d.Size.Fits(c.Max.Limits().Size) {
		invalid("", "[limits] are larger than [max] allows")
	}
	add(emptyPool("admission.on_empty", c.Admission.OnEmpty))
	a := c.Admission
	if a.MaxSandboxes < 1 || a.MaxQueue < 0 || a.Boots < 1 || a.ClaimTimeout < 0 || a.MaxWait < 0 || a.MaxCode < 1 || a.MaxInput < a.MaxCode {
		invalid("max_sandboxes, boots and max_code are at least 1, max_input at least max_code", "[admission] has values that let no execution run")
	}
	for _, a := range c.Templates.Images {
		if image, name, ok := strings.Cut(a, "="); !ok || strings.TrimSpace(image) == "" || !recipe.ValidName(strings.TrimSpace(name)) {
			invalid("write it like ubuntu:22.04=blank-ubuntu", "templates.images: %q is not an image and a template", a)
		}
	}
	if c.Volumes.Capacity < 0 {
		invalid("", "volumes.capacity is negative")
	}
	for _, check := range []func() error{c.Models.validate, c.CORS.validate, c.Preview.validate, c.Quota.validate, c.Builds.validate, c.Network.validate, c.Secrets.validate, c.Registries.validate, c.Mirror.validate, c.Sessions.validate, c.MCP.validate, c.Docs.validate, c.Events.validate, c.Webhooks.validate, c.Approvals.validate, c.SSH.Validate, c.Apps.Validate} {
		add(check())
	}
	for i, p := range c.Pools {
		what := fmt.Sprintf("pools[%d]", i)
		if p.Language != "" && !slices.Contains(engi.Languages(), engi.Language(p.Language)) {
			invalid(fmt.Sprintf("use one of %v, or leave it out for bare sandboxes", engi.Languages()), "%s: language %q is not supported", what, p.Language)
		}
		if p.Target < 0 || p.Max < 0 || p.Max > 0 && p.Max < p.Target || p.ClaimTimeout < 0 {
			invalid("", "%s: target %d and max %d contradict each other", what, p.Target, p.Max)
		}
		add(emptyPool(what+".on_empty", p.OnEmpty))
	}
	return append(all, c.functionFaults()...)
}

func emptyPool(key, v string) error {
	switch engi.EmptyPool(v) {
	case "", engi.PoolWait, engi.PoolBootSync, engi.PoolReject:
		return nil
	}
	return engi.Errorf(engi.Invalid, "%s is %q", key, v).WithRemedy("use wait, boot_sync or reject")
}

// Level returns the lowest logged level.
func (c Config) Level() (l slog.Level, err error) {
	if err := l.UnmarshalText([]byte(c.LogLevel)); err != nil {
		return 0, engi.Errorf(engi.Invalid, "log_level is %q", c.LogLevel).WithRemedy("use debug, info, warn or error")
	}
	return l, nil
}

// ServedHosts returns the host names that requests may use besides loopback names.
// The check protects servers on loopback from DNS rebinding by web pages. A server
// on another address without configured hosts accepts any name.
func (c Config) ServedHosts() []string {
	host, _, err := net.SplitHostPort(c.Listen)
	if len(c.Hosts) == 0 && err == nil && !loopback(host) {
		return []string{"*"}
	}
	return c.Hosts
}

func cpus() int { return runtime.GOMAXPROCS(0) }

func loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}
