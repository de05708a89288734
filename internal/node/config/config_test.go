package config

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/engi-dev/engi/internal/app"
	"github.com/engi-dev/engi/internal/engi"
	_ "github.com/engi-dev/engi/test/seed" // fixes the seed of rapid
)

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.toml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestEachSourceWinsOverThoseBefore(t *testing.T) {
	file := write(t, `
listen = "127.0.0.1:1001"
log = "json"
[limits]
memory = "1GiB"
timeout = "2m"
processes = 77
`)
	env := []string{"ENGI_LISTEN=127.0.0.1:1002", "ENGI_LIMITS_TIMEOUT=3m", "ENGI_MAX_TIMEOUT=1d", "HOME=/root"}
	flags := []Flag{{"--listen", "listen", "127.0.0.1:1003"}, {"--set", "max.memory", "3GiB"}}
	c, from, err := Load(From{File: file, Env: env, Flags: flags})
	if err != nil {
		t.Fatal(err)
	}
	if c.Listen != "127.0.0.1:1003" || c.Log != "json" || c.Limits.Memory != 1<<30 || c.Max.Memory != 3<<30 ||
		c.Limits.Timeout != Duration(3*time.Minute) || c.Max.Timeout != Duration(24*time.Hour) || c.Limits.Processes != 77 {
		t.Errorf("got %+v", c)
	}
	if want := Defaults().Limits.Disk; c.Limits.Disk != want {
		t.Errorf("disk %d, want the default %d", c.Limits.Disk, want)
	}
	want := Sources{
		"listen": "--listen", "log": file, "limits.memory": file, "limits.timeout": "ENGI_LIMITS_TIMEOUT",
		"limits.processes": file, "max.timeout": "ENGI_MAX_TIMEOUT", "max.memory": "--set",
	}
	if d := cmp.Diff(want, from); d != "" {
		t.Errorf("sources (-want +got):\n%s", d)
	}
}

func TestConfigFileOfTheDataDirectory(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "config.toml"), []byte("log_level = \"debug\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, from := range map[string]From{
		"environment": {Env: []string{"ENGI_DATA_DIR=" + dir}},
		"flag":        {Env: []string{"ENGI_DATA_DIR=/elsewhere"}, Flags: []Flag{{"--data-dir", "data_dir", dir}}},
	} {
		c, _, err := Load(from)
		if err != nil || c.LogLevel != "debug" || c.DataDir != dir {
			t.Errorf("by %s: level %q, directory %q, %v", name, c.LogLevel, c.DataDir, err)
		}
	}
}

func TestPools(t *testing.T) {
	want := []Pool{{Language: "python", Target: 3}, {Template: "base", Language: "bash", Target: 1, Max: 4}, {Template: "x", Target: 2}}
	short := "python=3,base/bash=1:4,x/=2"
	toTOML := `pools = ["python=3", "base/bash=1:4", "x/=2"]`
	tables := "[[pools]]\nlanguage='python'\ntarget=3\n[[pools]]\ntemplate='base'\nlanguage='bash'\ntarget=1\nmax=4\n[[pools]]\ntemplate='x'\ntarget=2\n"
	for name, from := range map[string]From{
		"environment": {Env: []string{"ENGI_POOLS=" + short}},
		"flag":        {Flags: []Flag{{"--pools", "pools", short}}},
		"list":        {File: write(t, toTOML)},
		"tables":      {File: write(t, tables)},
	} {
		c, _, err := Load(from)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if d := cmp.Diff(want, c.Pools); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
	for _, from := range []From{{Env: []string{"ENGI_POOLS=none"}}, {Flags: []Flag{{"--pools", "pools", "none"}}}, {File: write(t, "pools = []")}} {
		if c, _, err := Load(from); err != nil || len(c.Pools) != 0 {
			t.Errorf("%+v: pools %v, %v; want none", from, c.Pools, err)
		}
	}
}

func TestMistakes(t *testing.T) {
	for name, c := range map[string]struct {
		from       From
		text, hint string
	}{
		"key in a file":                    {From{File: write(t, "lisen = '127.0.0.1:1'")}, "unknown key lisen", "listen"},
		"key in a section":                 {From{File: write(t, "[limits]\nmemroy = '1GiB'")}, "unknown key limits.memroy", "limits.memory"},
		"key in a pool":                    {From{File: write(t, "[[pools]]\nlang = 'python'")}, "unknown key pools[0].lang", "pools[0].language"},
		"section":                          {From{File: write(t, "[limit]\nmemory = '1GiB'")}, "unknown key limit", "limits"},
		"syntax":                           {From{File: write(t, "listen = \n")}, "line 1", ""},
		"size":                             {From{File: write(t, "[limits]\nmemory = 'much'")}, "limits.memory: ", "512MiB"},
		"size of other kind":               {From{File: write(t, "[limits]\nmemory = true")}, "limits.memory: ", ""},
		"negative size":                    {From{File: write(t, "[limits]\nmemory = -5")}, "negative", "leave a limit out"},
		"missing file":                     {From{File: "/nowhere/engi.toml"}, "/nowhere/engi.toml", ""},
		"variable":                         {From{Env: []string{"ENGI_LISTN=127.0.0.1:1"}}, "unknown environment variable ENGI_LISTN", "ENGI_LISTEN"},
		"value of a variable":              {From{Env: []string{"ENGI_LIMITS_PROCESSES=many"}}, "many", ""},
		"flag":                             {From{Flags: []Flag{{"--set", "limits.memroy", "1"}}}, "unknown key limits.memroy", "limits.memory"},
		"value of a flag":                  {From{Flags: []Flag{{"--set", "limits.timeout", "soon"}}}, "soon", ""},
		"language":                         {From{Env: []string{"ENGI_POOLS=cobol=1"}}, "cobol", "python"},
		"pool":                             {From{Env: []string{"ENGI_POOLS=python"}}, "no '='", ""},
		"pool sizes":                       {From{Env: []string{"ENGI_POOLS=python=5:2"}}, "target 5", ""},
		"address":                          {From{Env: []string{"ENGI_LISTEN=7777"}}, "listen", "127.0.0.1:7777"},
		"public address":                   {From{Env: []string{"ENGI_LISTEN=0.0.0.0:7777"}}, "others can reach", "--allow-public-http"},
		"every address":                    {From{Env: []string{"ENGI_LISTEN=:7777"}}, "others can reach", "tls.cert"},
		"tls.listen without a certificate": {From{Env: []string{"ENGI_TLS_LISTEN=0.0.0.0:443"}}, "no certificate", "tls init"},
		"tls.listen":                       {From{Env: []string{"ENGI_TLS_LISTEN=443", "ENGI_TLS_CERT=c", "ENGI_TLS_KEY=k"}}, "tls.listen", "0.0.0.0:443"},
		"public http beside https":         {From{Env: []string{"ENGI_LISTEN=0.0.0.0:80", "ENGI_TLS_LISTEN=0.0.0.0:443", "ENGI_TLS_CERT=c", "ENGI_TLS_KEY=k"}}, "others can reach", ""},
		"wildcard by ACME":                 {From{Env: []string{"ENGI_TLS_ACME_NAMES=*.example.com"}}, "DNS challenge", "wildcard certificate"},
		"preview domain":                   {From{Env: []string{"ENGI_PREVIEW_DOMAIN=*.x.test"}}, "not a domain", "sbx.example.com"},
		"preview port":                     {From{Env: []string{"ENGI_PREVIEW_DOMAIN=x.test:http"}}, "not a port", ""},
		"preview scheme":                   {From{Env: []string{"ENGI_PREVIEW_SCHEME=ftp"}}, "preview.scheme", "https"},
		"every origin":                     {From{Env: []string{"ENGI_CORS_ORIGINS=*"}}, "cors.origins", "no wildcards"},
		"origins below a domain":           {From{Env: []string{"ENGI_CORS_ORIGINS=https://*.example.com"}}, "cors.origins", "no wildcards"},
		"origin with a path":               {From{Env: []string{"ENGI_CORS_ORIGINS=https://app.example/"}}, "cors.origins", "https://app.example"},
		"origin with its usual port":       {From{Env: []string{"ENGI_CORS_ORIGINS=https://app.example:443"}}, "cors.origins", "as browsers write it"},
		"origin without a scheme":          {From{Env: []string{"ENGI_CORS_ORIGINS=app.example"}}, "cors.origins", ""},
		"origin of files":                  {From{Env: []string{"ENGI_CORS_ORIGINS=null"}}, "cors.origins", ""},
		"half of TLS":                      {From{Env: []string{"ENGI_TLS_CERT=/x"}}, "come together", ""},
		"limits over max":                  {From{Env: []string{"ENGI_LIMITS_MEMORY=2GiB", "ENGI_MAX_MEMORY=1GiB"}}, "larger than", ""},
		"on empty":                         {From{Env: []string{"ENGI_ADMISSION_ON_EMPTY=cry"}}, "cry", "boot_sync"},
		"log level":                        {From{Env: []string{"ENGI_LOG_LEVEL=loud"}}, "loud", "debug"},
	} {
		_, _, err := Load(c.from)
		if !engi.Is(err, engi.Invalid) {
			t.Errorf("%s: %v, want kind invalid", name, err)
			continue
		}
		if !strings.Contains(err.Error(), c.text) || !strings.Contains(engi.RemedyOf(err)+err.Error(), c.hint) {
			t.Errorf("%s: %q (remedy %q), want %q and a remedy with %q", name, err, engi.RemedyOf(err), c.text, c.hint)
		}
	}
}

func TestForeignVariablesAreLeftAlone(t *testing.T) {
	env := []string{"ENGI_URL=http://x", "ENGI_KEY=k", "ENGI_TEST_REQUIRE=1", "ENGI_SOMETHING_ELSE_ENTIRELY=1"}
	if _, _, err := Load(From{Env: env}); err != nil {
		t.Error(err)
	}
}

func TestPublicAddressWithConsent(t *testing.T) {
	for _, env := range [][]string{
		{"ENGI_LISTEN=0.0.0.0:1", "ENGI_ALLOW_PUBLIC_HTTP=true"},
		{"ENGI_LISTEN=0.0.0.0:1", "ENGI_TLS_CERT=c", "ENGI_TLS_KEY=k"},
		{"ENGI_LISTEN=[::1]:1"}, {"ENGI_LISTEN=localhost:1"}, {"ENGI_LISTEN=127.8.8.8:1"},
	} {
		if _, _, err := Load(From{Env: env}); err != nil {
			t.Errorf("%v: %v", env, err)
		}
	}
}

func TestServedHosts(t *testing.T) {
	for _, c := range []struct {
		listen string
		hosts  []string
		want   string
	}{
		{"127.0.0.1:1", nil, "[]"}, {"[::1]:1", []string{"a.example"}, "[a.example]"}, {"0.0.0.0:1", nil, "[*]"},
		{"192.0.2.1:1", []string{"a.example"}, "[a.example]"}, {":1", nil, "[*]"},
	} {
		if got := fmt.Sprint(Config{Listen: c.listen, Hosts: c.hosts}.ServedHosts()); got != c.want {
			t.Errorf("%s with %v: %s, want %s", c.listen, c.hosts, got, c.want)
		}
	}
}

// TestEveryKeyHasItsVariable keeps the tags for files and for the environment
// together.
func TestEveryKeyHasItsVariable(t *testing.T) {
	c := Defaults()
	for _, k := range Keys(&c) {
		if k.Help == "" {
			t.Errorf("%s has no help", k.Name)
		}
		if k.Variable == "" {
			got := Defaults()
			if err := readEnv(&got, map[string]string{variable(k.Name): "x"}, Sources{}); err == nil || !strings.Contains(err.Error(), k.Name) {
				t.Errorf("%s in the environment, where it does nothing: %v", k.Name, err)
			}
			continue
		}
		value := map[string]string{"string": "x", "bool": "true", "slice": "python=7"}[k.Value.Kind().String()]
		if value == "" {
			value = "7"
		}
		switch k.Value.Interface().(type) {
		case Duration, app.Span:
			value = "7s"
		}
		got, from := Defaults(), Sources{}
		if err := readEnv(&got, map[string]string{k.Variable: value}, from); err != nil {
			t.Errorf("%s: %v", k.Variable, err)
			continue
		}
		if from[k.Name] != k.Variable {
			t.Errorf("%s does not set %s", k.Variable, k.Name)
		}
		want := Defaults()
		if err := set(&want, k.Name, value); err != nil {
			t.Errorf("set %s: %v", k.Name, err)
			continue
		}
		if d := cmp.Diff(want, got); d != "" || cmp.Equal(want, Defaults()) {
			t.Errorf("%s in the environment and as a flag differ or do nothing (-flag +environment):\n%s", k.Name, d)
		}
	}
}

func TestDefaultsAreValid(t *testing.T) {
	if err := Defaults().Validate(); err != nil {
		t.Error(err)
	}
}

// TestMistakesAreNamedTogether checks that nobody has to correct a file mistake by
// mistake, and that names of other servers' keys lead to ours.
func TestMistakesAreNamedTogether(t *testing.T) {
	file := write(t, `
listen = "nowhere"
log = "xml"
pol = 1
[limits]
memroy = "1GiB"
[pool]
max_vms = 50
[[pools]]
language = "cobol"
[[functions]]
name = "f"
event = "e"
agent = "codr"
`)
	_, _, err := Load(From{File: file, Env: []string{"ENGI_LIMITS_MEMROY=1"}})
	if !engi.Is(err, engi.Invalid) {
		t.Fatal(err)
	}
	for _, want := range []string{
		`listen "nowhere" is not an address`, `log is "xml"`, "unknown key pol", "unknown key limits.memroy (did you mean limits.memory?)",
		"unknown key pool (engi calls it [[pools]]", `language "cobol" is not supported`, `there is no agent "codr" (did you mean coder?)`, "ENGI_LIMITS_MEMROY", "8 mistakes:",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in:\n%v", want, err)
		}
	}
	_, _, err = Load(From{File: write(t, "[admission]\nmax_vms = 50\n")})
	if want := "engi calls it admission.max_sandboxes, and max of [[pools]]"; err == nil || engi.RemedyOf(err) != want {
		t.Errorf("%v, remedy %q, want %q", err, engi.RemedyOf(err), want)
	}
}

func TestBytesRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := Bytes(rapid.Int64Range(0, 1<<62).Draw(t, "n"))
		text, err := want.MarshalText()
		if err != nil {
			t.Fatal(err)
		}
		var got Bytes
		if err := got.UnmarshalText(text); err != nil || got != want {
			t.Fatalf("%s: %d, %v, want %d", text, got, err, want)
		}
	})
	for text, want := range map[string]Bytes{"0": 0, "1kB": 1000, "1.5GiB": 3 << 29, " 2 MiB ": 2 << 20, "7B": 7} {
		var got Bytes
		if err := got.UnmarshalText([]byte(text)); err != nil || got != want {
			t.Errorf("%q: %d, %v, want %d", text, got, err, want)
		}
	}
	for _, bad := range []string{"", "-1", "NaN", "1e300", "9999999999TiB", "1 2", "MiB", "Inf"} {
		var b Bytes
		if err := b.UnmarshalText([]byte(bad)); err == nil {
			t.Errorf("%q became %d", bad, b)
		}
	}
}

func TestDurationRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := Duration(rapid.Int64Range(0, int64(90*24*time.Hour)).Draw(t, "n"))
		text, err := want.MarshalText()
		if err != nil {
			t.Fatal(err)
		}
		var got Duration
		if err := got.UnmarshalText(text); err != nil || got != want {
			t.Fatalf("%s: %d, %v, want %d", text, got, err, want)
		}
	})
}
