package fleet_test

import (
	"strings"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/fleet"
)

func TestBadSpecsAreRefused(t *testing.T) {
	fx := newFixture(t)
	n := fx.start(func(o *fleet.Options) {
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
		"upwards":            {func(s *engi.ExecutionSpec) { s.Program.Files = file("../x") }, engi.Invalid, "leads out"},
		"code too big":       {func(s *engi.ExecutionSpec) { s.Program.Files[0].Data = make([]byte, 1001) }, engi.Invalid, "1001"},
		"input too big":      {func(s *engi.ExecutionSpec) { s.Program.Stdin = make([]byte, 1501) }, engi.Invalid, "1500"},
		"timeout too long":   {func(s *engi.ExecutionSpec) { s.Limits.Timeout = time.Hour }, engi.Invalid, "1h0m0s is more than this node allows, which is 1m0s"},
		"memory too big":     {func(s *engi.ExecutionSpec) { s.Limits.Size.Memory = 1 << 50 }, engi.Invalid, "memory: 1024TiB is more"},
		"isolated":           {func(s *engi.ExecutionSpec) { s.Network.Mode = engi.NetworkIsolated }, engi.Unsupported, "isolated"},
		"restricted":         {func(s *engi.ExecutionSpec) { s.Network.Mode = engi.NetworkRestricted }, engi.Unsupported, "restricted"},
		"unknown network":    {func(s *engi.ExecutionSpec) { s.Network.Mode = "all" }, engi.Invalid, "all"},
		"stronger tier":      {func(s *engi.ExecutionSpec) { s.MinTier = engi.TierGVisor }, engi.Unsupported, "gvisor"},
		"unknown tier":       {func(s *engi.ExecutionSpec) { s.MinTier = "steel" }, engi.Invalid, "steel"},
		"endless patience":   {func(s *engi.ExecutionSpec) { s.ClaimTimeout = 100 * time.Hour }, engi.Invalid, "claim_timeout"},
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
	list, err := n.x.List(t.Context(), engi.Everyone, engi.ExecutionFilter{})
	if err != nil || len(list) != 0 || len(fx.machines()) != 0 || len(fx.files()) != 0 {
		t.Errorf("left: executions %v, %v, machines %v, files %v", list, err, fx.machines(), fx.files())
	}
}

func TestEntryIsFound(t *testing.T) {
	fx := newFixture(t)
	n := fx.start(pools(warmBash)).warm()
	files := []engi.SourceFile{
		{Path: "lib/said.sh", Data: []byte("echo lib")},
		{Path: "main.sh", Data: []byte(". lib/said.sh; echo main")},
		{Path: "other.sh", Data: []byte("echo other; test -x other.sh && echo executable"), Mode: 0o755},
	}
	spec := script("")
	spec.Program.Files = files
	wantAnswer(t, n.execute(spec), 0, engi.CauseExited, "lib\nmain\n")
	spec.Program.Entry = "other.sh"
	wantAnswer(t, n.execute(spec), 0, engi.CauseExited, "other\nexecutable\n")
}
