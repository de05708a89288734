package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/engi-dev/engi/internal/engi"
)

func load(t *testing.T, text string, env ...string) (Config, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "config.toml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, _, err := Load(From{File: file, Env: env})
	return c, err
}

const sessionsSection = `
[sandbox]
enabled = true               # explicit toggle
provider = "deno"
mode = "lazy"
region = "ord"
volume_ttl_minutes = 30
volume_capacity_mb = 300
timeout_seconds = 300
memory_mb = 1280

[[sandbox.dependencies]]
package = "@linear/sdk"
docs = ["https://linear.app/developers/sdk.md"]
secret_env = "LINEAR_API_KEY"
hosts = ["api.linear.app"]
`

// TestSandboxSection reads a full [sandbox] section.
func TestSandboxSection(t *testing.T) {
	c, err := load(t, sessionsSection)
	if err != nil {
		t.Fatal(err)
	}
	s := c.Sessions
	ttl, timeout, capacity, memory := s.Values()
	if !s.Enabled || s.Mode != "lazy" || ttl != 30*time.Minute || timeout != 300*time.Second || capacity != 300<<20 || memory != 1280<<20 {
		t.Errorf("%+v", s)
	}
	want := []engi.Dependency{{
		Package: "@linear/sdk", Docs: []string{"https://linear.app/developers/sdk.md"}, Secret: "LINEAR_API_KEY", Hosts: []string{"api.linear.app"},
	}}
	if d := cmp.Diff(want, s.Packages()); d != "" {
		t.Error(d)
	}
	if notes := s.Notes(); len(notes) != 1 || !strings.Contains(notes[0], "region") {
		t.Errorf("notes %q", notes)
	}

	// Our own words for the same.
	c, err = load(t, "[sandbox]\nvolume_ttl = \"1h\"\nvolume_capacity = \"1GiB\"\ntimeout = \"30s\"\nmemory = \"2GiB\"\n")
	ttl, timeout, capacity, memory = c.Sessions.Values()
	if err != nil || !c.Sessions.Enabled || ttl != time.Hour || timeout != 30*time.Second || capacity != 1<<30 || memory != 2<<30 {
		t.Errorf("%+v, %v", c.Sessions, err)
	}
}

// TestAbsentAndDisabledAreTheSame checks that nothing is served, and that
// nothing in a section that is off stops a node.
func TestAbsentAndDisabledAreTheSame(t *testing.T) {
	off := strings.Replace(sessionsSection, "enabled = true ", "enabled = false", 1)
	for name, text := range map[string]string{"absent": "", "disabled": off} {
		c, err := load(t, text)
		if err != nil || c.Sessions.Enabled {
			t.Errorf("%s: enabled %t, %v", name, c.Sessions.Enabled, err)
		}
		if err := c.Sessions.CheckEnvironment(func(string) (string, bool) { return "", false }); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	// The environment switches a section off.
	if c, err := load(t, sessionsSection, "ENGI_SANDBOX_ENABLED=false"); err != nil || c.Sessions.Enabled {
		t.Errorf("enabled %t, %v", c.Sessions.Enabled, err)
	}
}

func TestMissingSecretNamesItsVariable(t *testing.T) {
	c, err := load(t, sessionsSection)
	if err != nil {
		t.Fatal(err)
	}
	for _, value := range []func(string) (string, bool){
		func(string) (string, bool) { return "", false },
		func(string) (string, bool) { return "", true },
	} {
		err := c.Sessions.CheckEnvironment(value)
		if !engi.Is(err, engi.Invalid) || !strings.Contains(err.Error(), "LINEAR_API_KEY") || !strings.Contains(engi.RemedyOf(err), "LINEAR_API_KEY") {
			t.Errorf("%v; %s", err, engi.RemedyOf(err))
		}
	}
	if err := c.Sessions.CheckEnvironment(func(name string) (string, bool) { return "x", name == "LINEAR_API_KEY" }); err != nil {
		t.Error(err)
	}
}

// TestMistakesInTheSection checks that each is refused with a message about what is
// wrong, and that no text that may be a secret is repeated.
func TestMistakesInTheSection(t *testing.T) {
	dependency := func(lines string) string { return "[sandbox]\n[[sandbox.dependencies]]\n" + lines }
	for name, c := range map[string]struct{ text, want string }{
		"key":         {"[sandbox]\nvolume_ttl_minuts = 3", "volume_ttl_minutes"},
		"inner key":   {dependency("pakage = 'a'"), "package"},
		"provider":    {"[sandbox]\nprovider = 'e2b'", "provider"},
		"mode":        {"[sandbox]\nmode = 'hot'", "lazy or warm"},
		"twice":       {"[sandbox]\nmemory = '1GiB'\nmemory_mb = 1024", "mean the same"},
		"negative":    {"[sandbox]\nvolume_ttl_minutes = -3", "negative"},
		"quota":       {"[sandbox]\ncpu_quota = -1", "like 0.5"},
		"tiny":        {"[sandbox]\nmemory_mb = 1", "128MiB"},
		"package":     {dependency("package = '; rm -rf /'"), "not a package"},
		"version":     {dependency("package = 'a'\nversion = '$(x)'"), "not a version"},
		"two":         {dependency("package = 'a@1'\nversion = '2'"), "one place"},
		"same":        {dependency("package = 'a@1'\n[[sandbox.dependencies]]\npackage = 'a@2'"), "appears twice"},
		"docs":        {dependency("package = 'a'\ndocs = ['file:///etc/passwd']"), "not a URL"},
		"value":       {dependency("package = 'a'\nsecret_env = 'lin_api_s3cret-value'\nhosts = ['h.example']"), "name of a variable"},
		"no hosts":    {dependency("package = 'a'\nsecret_env = 'KEY'"), "no host"},
		"odd host":    {dependency("package = 'a'\nhosts = ['https://a.example/']"), "not a host name"},
		"type of ttl": {"[sandbox]\nvolume_ttl_minutes = 'x'", "volume_ttl_minutes"},
	} {
		_, err := load(t, c.text)
		if !engi.Is(err, engi.Invalid) || !strings.Contains(err.Error()+" "+engi.RemedyOf(err), c.want) {
			t.Errorf("%s: %v (%s), want %q", name, err, engi.RemedyOf(err), c.want)
		}
		if err != nil && strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: the error shows what may be a secret: %v", name, err)
		}
	}
}
