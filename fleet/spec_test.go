package fleet_test

import (
	"math"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/fleet"
)

func TestBadSpecsAreRefused(t *testing.T) {
	w := newWorld(t)
	n := w.start(func(o *fleet.Options) {
		o.MaxCode, o.MaxInput = 1000, 1500
		o.Max.Timeout = time.Minute
	})
	file := func(name string) []engi.SourceFile { return []engi.SourceFile{{Path: name}} }
	for name, c := range map[string]struct {
		edit func(*engi.ExecutionSpec)
		want engi.Kind
		text string
	}{
		"no language":        {func(s *engi.ExecutionSpec) { s.Program.Language = "" }, engi.Invalid, "language"},
		"unknown language":   {func(s *engi.ExecutionSpec) { s.Program.Language = "cobol" }, engi.Invalid, "cobol"},
		"language not there": {func(s *engi.ExecutionSpec) { s.Program.Language = engi.Go }, engi.Unsupported, "template base cannot run go"},
		"unknown template":   {func(s *engi.ExecutionSpec) { s.Template = "nope" }, engi.NotFound, "nope"},
		"no files":           {func(s *engi.ExecutionSpec) { s.Program.Files = nil }, engi.Invalid, "no files"},
		"upwards":            {func(s *engi.ExecutionSpec) { s.Program.Files = file("../x") }, engi.Invalid, "upwards"},
		"upwards inside":     {func(s *engi.ExecutionSpec) { s.Program.Files = file("a/../../x") }, engi.Invalid, "upwards"},
		"dots at the end":    {func(s *engi.ExecutionSpec) { s.Program.Files = file("a/..") }, engi.Invalid, "upwards"},
		"absolute":           {func(s *engi.ExecutionSpec) { s.Program.Files = file("/etc/passwd") }, engi.Invalid, "absolute"},
		"NUL":                {func(s *engi.ExecutionSpec) { s.Program.Files = file("a\x00b") }, engi.Invalid, "NUL"},
		"not clean":          {func(s *engi.ExecutionSpec) { s.Program.Files = file("a//b") }, engi.Invalid, "clean"},
		"dot":                {func(s *engi.ExecutionSpec) { s.Program.Files = file(".") }, engi.Invalid, "clean"},
		"empty name":         {func(s *engi.ExecutionSpec) { s.Program.Files = file("") }, engi.Invalid, "empty"},
		"not UTF-8":          {func(s *engi.ExecutionSpec) { s.Program.Files = file("\xff") }, engi.Invalid, "UTF-8"},
		"long name":          {func(s *engi.ExecutionSpec) { s.Program.Files = file(strings.Repeat("a", 256)) }, engi.Invalid, "too long"},
		"long path":          {func(s *engi.ExecutionSpec) { s.Program.Files = file(strings.Repeat("a/", 3000) + "a") }, engi.Invalid, "too long"},
		"set-uid":            {func(s *engi.ExecutionSpec) { s.Program.Files[0].Mode = 0o4755 }, engi.Invalid, "mode"},
		"twice":              {func(s *engi.ExecutionSpec) { s.Program.Files = append(s.Program.Files, s.Program.Files[0]) }, engi.Invalid, "twice"},
		"file and directory": {func(s *engi.ExecutionSpec) { s.Program.Files = append(file("a"), file("a/b/c")...) }, engi.Invalid, "both"},
		"which entry":        {func(s *engi.ExecutionSpec) { s.Program.Files = append(file("a"), file("b")...) }, engi.Invalid, "entry"},
		"no such entry":      {func(s *engi.ExecutionSpec) { s.Program.Entry = "x" }, engi.Invalid, "entry"},
		"code too big":       {func(s *engi.ExecutionSpec) { s.Program.Files[0].Data = make([]byte, 1001) }, engi.Invalid, "1001"},
		"input too big":      {func(s *engi.ExecutionSpec) { s.Program.Stdin = make([]byte, 1501) }, engi.Invalid, "1500"},
		"NUL in argument":    {func(s *engi.ExecutionSpec) { s.Program.Args = []string{"a\x00"} }, engi.Invalid, "NUL"},
		"huge argument":      {func(s *engi.ExecutionSpec) { s.Program.Args = []string{strings.Repeat("a", 1<<17)} }, engi.Invalid, "argument"},
		"NUL in env":         {func(s *engi.ExecutionSpec) { s.Program.Env = map[string]string{"A": "\x00"} }, engi.Invalid, "NUL"},
		"bad env name":       {func(s *engi.ExecutionSpec) { s.Program.Env = map[string]string{"A=B": "c"} }, engi.Invalid, "A=B"},
		"no env name":        {func(s *engi.ExecutionSpec) { s.Program.Env = map[string]string{"": "c"} }, engi.Invalid, "name"},
		"negative limit":     {func(s *engi.ExecutionSpec) { s.Limits.Size.Memory = -1 }, engi.Invalid, "negative"},
		"negative timeout":   {func(s *engi.ExecutionSpec) { s.Limits.Timeout = -1 }, engi.Invalid, "negative"},
		"timeout too long":   {func(s *engi.ExecutionSpec) { s.Limits.Timeout = time.Hour }, engi.Invalid, "timeout is 1h0m0s, this node allows 1m0s"},
		"memory too big":     {func(s *engi.ExecutionSpec) { s.Limits.Size.Memory = 1 << 50 }, engi.Invalid, "memory"},
		"memory too small":   {func(s *engi.ExecutionSpec) { s.Limits.Size.Memory = 1 }, engi.Invalid, "at least"},
		"not a number":       {func(s *engi.ExecutionSpec) { s.Limits.Size.VCPUs = math.NaN() }, engi.Invalid, "vcpus"},
		"infinite":           {func(s *engi.ExecutionSpec) { s.Limits.Size.VCPUs = math.Inf(1) }, engi.Invalid, "vcpus"},
		"isolated":           {func(s *engi.ExecutionSpec) { s.Network.Mode = engi.NetworkIsolated }, engi.Unsupported, "isolated"},
		"restricted":         {func(s *engi.ExecutionSpec) { s.Network.Mode = engi.NetworkRestricted }, engi.Unsupported, "restricted"},
		"unknown network":    {func(s *engi.ExecutionSpec) { s.Network.Mode = "all" }, engi.Invalid, "all"},
		"stronger tier":      {func(s *engi.ExecutionSpec) { s.MinTier = engi.TierGVisor }, engi.Unsupported, "gvisor"},
		"unknown tier":       {func(s *engi.ExecutionSpec) { s.MinTier = "steel" }, engi.Invalid, "steel"},
		"unknown policy":     {func(s *engi.ExecutionSpec) { s.OnEmpty = "hope" }, engi.Invalid, "hope"},
		"negative patience":  {func(s *engi.ExecutionSpec) { s.ClaimTimeout = -1 }, engi.Invalid, "claim timeout"},
		"endless patience":   {func(s *engi.ExecutionSpec) { s.ClaimTimeout = 100 * time.Hour }, engi.Invalid, "claim timeout"},
		"output upwards":     {func(s *engi.ExecutionSpec) { s.OutputDir = "/a/../../b" }, engi.Invalid, "output directory"},
		"output everywhere":  {func(s *engi.ExecutionSpec) { s.OutputDir = "/" }, engi.Invalid, "output directory"},
		"endless key":        {func(s *engi.ExecutionSpec) { s.Idempotency = strings.Repeat("k", 256) }, engi.Invalid, "idempotency"},
	} {
		t.Run(name, func(t *testing.T) {
			spec := script("true")
			c.edit(&spec)
			_, err := n.x.Start(t.Context(), spec)
			wantKind(t, "Start", err, c.want)
			if err != nil && !strings.Contains(err.Error(), c.text) {
				t.Errorf("error %q does not mention %q", err, c.text)
			}
			if engi.RemedyOf(err) == "" {
				t.Error("no remedy")
			}
		})
	}
	list, err := n.x.List(t.Context(), "", engi.ExecutionFilter{})
	if err != nil || len(list) != 0 || len(w.machines()) != 0 || len(w.files()) != 0 {
		t.Errorf("left: executions %v, %v, machines %v, files %v", list, err, w.machines(), w.files())
	}
}

func TestTheEntryIsFound(t *testing.T) {
	w := newWorld(t)
	n := w.start(pools(warmBash)).warm()
	files := []engi.SourceFile{
		{Path: "lib/said.sh", Data: []byte("echo lib")},
		{Path: "main.sh", Data: []byte(". lib/said.sh; echo main")},
		{Path: "other.sh", Data: []byte("echo other; test -x other.sh && echo executable"), Mode: 0o755},
	}
	spec := script("")
	spec.Program.Files = files
	wantAnswer(t, n.do(spec), 0, engi.CauseExited, "lib\nmain\n")
	spec.Program.Entry = "other.sh"
	wantAnswer(t, n.do(spec), 0, engi.CauseExited, "other\nexecutable\n")
}

// FuzzPath makes sure that no accepted path leads out of its directory.
func FuzzPath(f *testing.F) {
	for _, p := range []string{"a", "a/b", "../a", "a/../..", "/a", ".", "", "a\x00", "a//b", "...", "..a/b..", "a/./b", "\xff"} {
		f.Add(p)
	}
	f.Fuzz(func(t *testing.T, p string) {
		if fleet.CheckPath(p) == nil && (!filepath.IsLocal(p) || path.Clean(p) != p || strings.ContainsRune(p, 0) || p == ".") {
			t.Errorf("accepted %q", p)
		}
	})
}
