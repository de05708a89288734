package engi_test

import (
	"fmt"
	"math"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

var bounds = engi.Bounds{
	File: 1000, Input: 1500, ClaimTimeout: time.Minute, Lifetime: time.Hour,
	Limits: engi.Limits{Size: engi.Size{Memory: 1 << 30}, Timeout: time.Minute, ArtifactCount: 7},
}

func program() engi.ExecutionSpec {
	return engi.ExecutionSpec{Program: engi.Program{Language: engi.Bash, Files: []engi.SourceFile{{Path: "main.sh", Data: []byte("true")}}}}
}

func TestExecutionSpecFaults(t *testing.T) {
	if f := program().Faults(bounds); f != nil {
		t.Errorf("a good spec has %v", f)
	}
	files := func(names ...string) (all []engi.SourceFile) {
		for _, name := range names {
			all = append(all, engi.SourceFile{Path: name})
		}
		return all
	}
	for name, c := range map[string]struct {
		edit  func(*engi.ExecutionSpec)
		field string
		text  string
	}{
		"no language":      {func(s *engi.ExecutionSpec) { s.Program.Language = "" }, "language", "missing"},
		"unknown language": {func(s *engi.ExecutionSpec) { s.Program.Language = "cobol" }, "language", "not one of python"},
		"no files":         {func(s *engi.ExecutionSpec) { s.Program.Files = nil }, "code", "no program"},
		"too many files":   {func(s *engi.ExecutionSpec) { s.Program.Files = make([]engi.SourceFile, 5000) }, "files", "5000"},
		"upwards":          {func(s *engi.ExecutionSpec) { s.Program.Files = files("../x") }, "files[0].path", "leads out"},
		"upwards inside":   {func(s *engi.ExecutionSpec) { s.Program.Files = files("a/../../x") }, "files[0].path", "leads out"},
		"dots at the end":  {func(s *engi.ExecutionSpec) { s.Program.Files = files("a/..") }, "files[0].path", "directory"},
		"dot":              {func(s *engi.ExecutionSpec) { s.Program.Files = files(".") }, "files[0].path", "directory"},
		"absolute":         {func(s *engi.ExecutionSpec) { s.Program.Files = files("/etc/passwd") }, "files[0].path", "absolute"},
		"NUL":              {func(s *engi.ExecutionSpec) { s.Program.Files = files("a\x00b") }, "files[0].path", "NUL"},
		"not clean":        {func(s *engi.ExecutionSpec) { s.Program.Files = files("a//b") }, "files[0].path", `would be "a/b"`},
		"empty name":       {func(s *engi.ExecutionSpec) { s.Program.Files = files("") }, "files[0].path", "empty"},
		"not UTF-8":        {func(s *engi.ExecutionSpec) { s.Program.Files = files("\xff") }, "files[0].path", "UTF-8"},
		"long name":        {func(s *engi.ExecutionSpec) { s.Program.Files = files(strings.Repeat("a", 256)) }, "files[0].path", "255"},
		"long path":        {func(s *engi.ExecutionSpec) { s.Program.Files = files(strings.Repeat("a/", 3000) + "a") }, "files[0].path", "4095"},
		"set-uid":          {func(s *engi.ExecutionSpec) { s.Program.Files[0].Mode = 0o4755 }, "files[0].mode", "04755"},
		"twice":            {func(s *engi.ExecutionSpec) { s.Program.Files = files("main.sh", "main.sh") }, "files[1].path", "twice"},
		"file and dir":     {func(s *engi.ExecutionSpec) { s.Program.Files = files("main.sh", "a", "a/b/c") }, "files[2].path", "both"},
		"which entry":      {func(s *engi.ExecutionSpec) { s.Program.Files = files("a", "b") }, "entry", "call it main.sh"},
		"no such entry":    {func(s *engi.ExecutionSpec) { s.Program.Entry = "x" }, "entry", "not one of the files"},
		"code too big":     {func(s *engi.ExecutionSpec) { s.Program.Files[0].Data = make([]byte, 1001) }, "files[0]", "1001"},
		"input too big":    {func(s *engi.ExecutionSpec) { s.Program.Stdin = make([]byte, 1501) }, "", "1500"},
		"NUL in argument":  {func(s *engi.ExecutionSpec) { s.Program.Args = []string{"", "a\x00"} }, "args[1]", "NUL"},
		"huge argument":    {func(s *engi.ExecutionSpec) { s.Program.Args = []string{strings.Repeat("a", 1<<17)} }, "args[0]", "131072"},
		"NUL in env":       {func(s *engi.ExecutionSpec) { s.Program.Env = map[string]string{"A": "\x00"} }, "env.A", "NUL"},
		"bad env name":     {func(s *engi.ExecutionSpec) { s.Program.Env = map[string]string{"A=B": "c"} }, "env.A=B", "A=B"},
		"no env name":      {func(s *engi.ExecutionSpec) { s.Program.Env = map[string]string{"": "c"} }, "env.", "name"},
		"huge env":         {func(s *engi.ExecutionSpec) { s.Program.Env = map[string]string{"A": strings.Repeat("a", 2<<20)} }, "env", "2097155"},
		"negative limit":   {func(s *engi.ExecutionSpec) { s.Limits.Size.Disk = -1 }, "disk", "negative"},
		"negative timeout": {func(s *engi.ExecutionSpec) { s.Limits.Timeout = -1 }, "timeout", "negative"},
		"short timeout":    {func(s *engi.ExecutionSpec) { s.Limits.Timeout = 1 }, "timeout", "1ms at least"},
		"long timeout":     {func(s *engi.ExecutionSpec) { s.Limits.Timeout = time.Hour }, "timeout", "1h0m0s is more than this node allows, which is 1m0s"},
		"artifacts":        {func(s *engi.ExecutionSpec) { s.Limits.ArtifactCount = 8 }, "artifacts.max_count", "7"},
		"much memory":      {func(s *engi.ExecutionSpec) { s.Limits.Size.Memory = 3 << 29 }, "memory", "1.5GiB is more than this node allows, which is 1GiB"},
		"little memory":    {func(s *engi.ExecutionSpec) { s.Limits.Size.Memory = 1 }, "memory", "16MiB at least"},
		"not a number":     {func(s *engi.ExecutionSpec) { s.Limits.Size.VCPUs = math.NaN() }, "vcpus", "NaN"},
		"infinite":         {func(s *engi.ExecutionSpec) { s.Limits.Size.VCPUs = math.Inf(1) }, "vcpus", "Inf"},
		"unknown network":  {func(s *engi.ExecutionSpec) { s.Network.Mode = "all" }, "network.mode", "all"},
		"empty rule":       {func(s *engi.ExecutionSpec) { s.Network.Deny = []string{"a", ""} }, "network.deny[1]", "not a name"},
		"unknown tier":     {func(s *engi.ExecutionSpec) { s.MinTier = "steel" }, "min_tier", "steel"},
		"tier of tests":    {func(s *engi.ExecutionSpec) { s.MinTier = engi.TierMemory }, "min_tier", "memory"},
		"unknown policy":   {func(s *engi.ExecutionSpec) { s.OnEmpty = "hope" }, "on_empty", "hope"},
		"no patience":      {func(s *engi.ExecutionSpec) { s.ClaimTimeout = -1 }, "claim_timeout", "negative"},
		"endless patience": {func(s *engi.ExecutionSpec) { s.ClaimTimeout = 100 * time.Hour }, "claim_timeout", "1m0s"},
		"output upwards":   {func(s *engi.ExecutionSpec) { s.OutputDir = "/a/../../b" }, "output_dir", "plain absolute path"},
		"output at root":   {func(s *engi.ExecutionSpec) { s.OutputDir = "/" }, "output_dir", "below /"},
		"relative output":  {func(s *engi.ExecutionSpec) { s.OutputDir = "out" }, "output_dir", "absolute"},
		"long key":         {func(s *engi.ExecutionSpec) { s.Idempotency = strings.Repeat("k", 256) }, "header.Idempotency-Key", "255"},
		"long template":    {func(s *engi.ExecutionSpec) { s.Template = strings.Repeat("t", 201) }, "template", "200"},
	} {
		t.Run(name, func(t *testing.T) {
			spec := program()
			c.edit(&spec)
			wantFault(t, spec.Faults(bounds), c.field, c.text)
		})
	}
}

func TestSandboxSpecFaults(t *testing.T) {
	if f := (engi.SandboxSpec{}).Faults(engi.Bounds{}); f != nil {
		t.Errorf("the zero spec has %v", f)
	}
	many := map[string]string{}
	for i := range 65 {
		many[fmt.Sprint(i)] = ""
	}
	volume := func(paths ...string) (all []engi.VolumeMount) {
		for _, p := range paths {
			all = append(all, engi.VolumeMount{Volume: "v", Path: p})
		}
		return all
	}
	for name, c := range map[string]struct {
		spec        engi.SandboxSpec
		field, text string
	}{
		"two origins":     {engi.SandboxSpec{Template: "a", Snapshot: "b"}, "snapshot", "template"},
		"onto nothing":    {engi.SandboxSpec{Onto: "a"}, "onto", "snapshot"},
		"quota":           {engi.SandboxSpec{CPUQuota: engi.CPUQuota{VCPUs: 1}}, "cpu_quota", "processors"},
		"pairs":           {engi.SandboxSpec{Metadata: many}, "metadata", "65"},
		"pair's key":      {engi.SandboxSpec{Metadata: map[string]string{strings.Repeat("x", 300): ""}}, "metadata", "256"},
		"pair's text":     {engi.SandboxSpec{Metadata: map[string]string{"a": "\xff"}}, "metadata", "UTF-8"},
		"notes":           {engi.SandboxSpec{Notes: map[string]string{"a": strings.Repeat("x", 1<<20)}}, "notes", "1048577"},
		"volume at /proc": {engi.SandboxSpec{Volumes: volume("/proc/x")}, "volumes[0].path", "outside /proc"},
		"volume at root":  {engi.SandboxSpec{Volumes: volume("/")}, "volumes[0].path", "below /"},
		"nested volumes":  {engi.SandboxSpec{Volumes: volume("/v", "/v/w")}, "volumes[1].path", "another volume"},
		"many volumes":    {engi.SandboxSpec{Volumes: make([]engi.VolumeMount, 17)}, "volumes", "17"},
		"negative":        {engi.SandboxSpec{Lifetime: engi.Lifetime{Idle: -1}}, "idle_timeout", "negative"},
		"too long":        {engi.SandboxSpec{Lifetime: engi.Lifetime{Timeout: 2 * time.Hour}}, "timeout", "1h0m0s"},
		"beyond its own":  {engi.SandboxSpec{Lifetime: engi.Lifetime{Timeout: 2, Max: 1}}, "timeout", "own maximum"},
		"policy":          {engi.SandboxSpec{Lifetime: engi.Lifetime{OnTimeout: "explode"}}, "on_timeout", "explode"},
		"host":            {engi.SandboxSpec{Ports: engi.PortPolicy{Host: "a b"}}, "ports.host", "a b"},
	} {
		t.Run(name, func(t *testing.T) { wantFault(t, c.spec.Faults(bounds), c.field, c.text) })
	}
	long := 2 * time.Hour
	wantFault(t, engi.SandboxUpdate{Extend: &long}.Faults(bounds), "timeout", "1h0m0s")
}

func wantFault(t *testing.T, got engi.Faults, field, text string) {
	t.Helper()
	if !slices.ContainsFunc(got, func(f engi.Fault) bool { return f.Field == field && strings.Contains(f.Detail, text) }) {
		t.Errorf("faults %+v, want one of %q with %q", got, field, text)
	}
}

func TestEveryFaultIsReported(t *testing.T) {
	spec := program()
	spec.Program.Files[0].Path = "/a"
	spec.Program.Env = map[string]string{"B": "\x00", "A": "\x00"}
	spec.OnEmpty = "hope"
	err := spec.Faults(bounds).Err()
	if !engi.Is(err, engi.Invalid) || err.Error() != `files[0].path: "/a" is absolute; paths are relative to the working directory (and 3 more)` {
		t.Errorf("%v", err)
	}
	var fields []string
	for _, f := range engi.FaultsOf(fmt.Errorf("wrapped: %w", err)) {
		fields = append(fields, f.Field)
	}
	if want := []string{"files[0].path", "env.A", "env.B", "on_empty"}; !slices.Equal(fields, want) {
		t.Errorf("faults of %q, want %q", fields, want)
	}
	var f engi.Faults
	for i := range 100 {
		f.Addf(fmt.Sprint(i), "bad")
		f.Addf(fmt.Sprint(i), "worse")
	}
	if len(f) != 20 || f[1] != (engi.Fault{Field: "1", Detail: "bad"}) {
		t.Errorf("%d faults, the second is %+v", len(f), f[1])
	}
	if engi.Faults(nil).Err() != nil {
		t.Error("no faults are an error")
	}
}

func TestMainFile(t *testing.T) {
	spec := program()
	spec.Program.Files = []engi.SourceFile{{Path: "lib.sh"}, {Path: "main.sh"}}
	if got := spec.Program.Main(); got != "main.sh" {
		t.Errorf("%q runs, want main.sh", got)
	}
	spec.Program.Entry = "lib.sh"
	if got := spec.Program.Main(); got != "lib.sh" {
		t.Errorf("%q runs, want lib.sh", got)
	}
}

// FuzzPath makes sure that no accepted path leads out of its directory.
func FuzzPath(f *testing.F) {
	for _, p := range []string{"a", "a/b", "../a", "a/../..", "/a", ".", "", "a\x00", "a//b", "...", "..a/b..", "a/./b", "\xff"} {
		f.Add(p)
	}
	f.Fuzz(func(t *testing.T, p string) {
		var faults engi.Faults
		if faults.Path("p", p); faults == nil && (!filepath.IsLocal(p) || path.Clean(p) != p || strings.ContainsRune(p, 0) || p == ".") {
			t.Errorf("accepted %q", p)
		}
	})
}

func BenchmarkFaults(b *testing.B) {
	spec := program()
	spec.Program.Env = map[string]string{"A": "1"}
	b.ReportAllocs()
	for b.Loop() {
		if spec.Faults(bounds) != nil {
			b.Fatal("faults")
		}
	}
}
