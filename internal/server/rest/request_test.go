package rest

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/server/strict"
)

func TestRequestsBecomeSpecs(t *testing.T) {
	body := `{
		"language": "go", "files": [{"path": "main.go", "content": "x"}, {"path": "b/c", "content_base64": "/w==", "mode": "0755"}], "entry": "main.go",
		"args": ["a"], "env": {"A": "b"}, "stdin": "in", "template": "base", "network": "none", "min_tier": "gvisor", "vcpus": 0.5, "memory": "1GiB", "disk": 5,
		"inodes": 6, "processes": 7, "open_files": 8, "timeout": "1m", "output": "2kB", "output_dir": "/out", "artifacts": {"max_bytes": 9, "max_count": 10},
		"on_empty": "reject", "claim_timeout": "3s"}`
	var q v1.ExecutionRequest
	if err := strict.Unmarshal([]byte(body), &q); err != nil {
		t.Fatal(err)
	}
	got, err := specOf("ann", "k1", q)
	if err != nil {
		t.Fatal(err)
	}
	want := engi.ExecutionSpec{
		Owner: "ann", Idempotency: "k1", Template: "base", Network: engi.NetworkPolicy{Mode: engi.NetworkNone}, MinTier: engi.TierGVisor, OnEmpty: engi.PoolReject,
		ClaimTimeout: 3e9, OutputDir: "/out",
		Program: engi.Program{
			Language: engi.Go, Entry: "main.go", Args: []string{"a"}, Env: map[string]string{"A": "b"}, Stdin: []byte("in"),
			Files: []engi.SourceFile{{Path: "main.go", Data: []byte("x")}, {Path: "b/c", Data: []byte{0xff}, Mode: 0o755}},
		},
		Limits: engi.Limits{
			Size:    engi.Size{VCPUs: 0.5, Memory: 1 << 30, Disk: 5, Inodes: 6, Processes: 7, OpenFiles: 8},
			Timeout: 60e9, Output: 2000, ArtifactBytes: 9, ArtifactCount: 10,
		},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestLoneCodeHasAName(t *testing.T) {
	for _, l := range engi.Languages() {
		got, err := specOf("", "", v1.ExecutionRequest{Language: string(l), Code: "x", Files: []v1.File{{Path: "data.csv"}}})
		if err != nil || got.Program.Entry == "" || got.Program.Files[1].Path != got.Program.Entry || len(got.Program.Files) != 2 {
			t.Errorf("%s: %+v, %v", l, got.Program, err)
		}
	}
	got, err := specOf("", "", v1.ExecutionRequest{Language: "python", Files: []v1.File{{Path: "x.py", Content: "x"}}})
	if err != nil || got.Program.Main() != "x.py" {
		t.Errorf("one file: %+v, %v", got.Program, err)
	}
}
