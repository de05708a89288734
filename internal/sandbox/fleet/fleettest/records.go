// Package fleettest makes records of the fleet for tests.
package fleettest

import (
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/fleet"
)

// Record returns a complete execution record with a fresh ID, for tests.
func Record(owner engi.Owner, state engi.ExecutionState) fleet.Record {
	r := fleet.Record{
		Execution: engi.Execution{
			ID:       engi.NewExecutionID(),
			Owner:    owner,
			State:    state,
			Language: engi.Python,
			Template: "base",
			Created:  time.Unix(1_700_000_000, 123456789).UTC(),
		},
		Limits: engi.Limits{
			Size:          engi.Size{VCPUs: 0.5, Memory: 1 << 28, Disk: 1 << 29, Inodes: 1000, Processes: 64, OpenFiles: 256},
			Timeout:       1500 * time.Millisecond,
			Output:        1 << 20,
			ArtifactBytes: 1 << 21,
			ArtifactCount: 7,
		},
		OutputDir: "out",
	}
	if state != engi.ExecutionQueued {
		r.Sandbox = engi.NewSandboxID()
		r.Started = r.Created.Add(time.Second)
	}
	switch state {
	case engi.ExecutionDone:
		r.Ended = r.Started.Add(time.Second)
		r.Output = []byte{6, 'a', 0, 0xff}
		r.Result = &engi.Result{
			Exit:            engi.Exit{Code: -1, Signal: "KILL", Cause: engi.CauseTimeout},
			StdoutTruncated: true,
			Artifacts:       []engi.Artifact{{Path: "a/ü.png", Size: 3, Mode: 0o640, SHA256: "00ff"}},
			ArtifactsLeft:   2,
			Duration:        time.Second,
			Queued:          time.Millisecond,
			Claim:           time.Microsecond,
			Warm:            true,
			Tier:            engi.TierGVisor,
			NotEnforced:     []string{"memory"},
			Error:           "why",
		}
	case engi.ExecutionRefused:
		r.Started, r.Sandbox = time.Time{}, ""
		r.Ended = r.Created.Add(time.Second)
		r.Refusal = engi.Errorf(engi.Exhausted, "full").WithRemedy("wait").WithRetry(engi.Retry{AfterMillis: 12, Position: 3})
	}
	return r
}

// Sandbox returns a complete sandbox record with a fresh ID, for tests.
func Sandbox(owner engi.Owner, state engi.State) fleet.SandboxRecord {
	s := fleet.SandboxRecord{
		Sandbox: engi.Sandbox{
			ID:       engi.NewSandboxID(),
			Owner:    owner,
			Template: "base",
			Digest:   "sha256:1",
			Pool:     "base/python",
			Tier:     engi.TierGVisor,
			Size:     engi.Size{VCPUs: 1, Memory: 1 << 29, Disk: 1, Inodes: 2, Processes: 3, OpenFiles: 4},
			State:    state,
			Created:  time.Unix(1_700_000_000, 5).UTC(),
		},
		Token:    "secret",
		Language: engi.Python,
		Fixed:    engi.Size{Disk: 1},
	}
	if state == engi.Stopped {
		s.End, s.Stopped = engi.CauseExited, s.Created.Add(time.Hour)
	}
	return s
}

// Owned returns a complete record of a sandbox that its owner created, with
// a fresh ID, for tests.
func Owned(owner engi.Owner, state engi.State) fleet.SandboxRecord {
	s := Sandbox(owner, state)
	s.Made, s.Fingerprint = true, "f"
	s.Lifetime = engi.Lifetime{Timeout: time.Minute, Idle: time.Second, Max: time.Hour, OnTimeout: engi.EndHibernate, DiskOnly: true, AutoResume: true}
	s.Deadline, s.Started, s.Active = s.Created.Add(time.Minute), s.Created.Add(1), s.Created.Add(2)
	s.Snapshot = engi.NewSnapshotID()
	s.Metadata = map[string]string{"purpose": "ü"}
	s.Env = map[string]string{"KEY": "value"}
	s.Volumes = []engi.VolumeMount{{Volume: "data", Path: "/data"}}
	s.Network = engi.NetworkPolicy{Mode: engi.NetworkRestricted, Allow: []string{"a"}, Deny: []string{"0.0.0.0/0"}, Detail: map[string]any{"x": "y"},
		Grants: []engi.Grant{{Secret: "s", Hosts: []string{"a"}, As: engi.GrantHeader, Name: "X", Format: "k {}", Env: "S", Strip: true,
			Requests: []engi.RequestRule{{Methods: []string{"GET"}, Path: "/a"}}}},
		Requests: []engi.RequestRule{{Host: "a", Methods: []string{"POST"}, Path: "/b", Body: []string{"c absent"}, MaxBody: 7, Action: engi.RequestAsk, Reason: "r"}},
		Headers:  []engi.HeaderRule{{Host: "a", Headers: map[string]string{"k": "v"}}}, Proxy: &engi.UpstreamProxy{Address: "a:1", User: "u", Password: "p"},
		Group: "g", Name: "n", Limits: engi.NetworkLimits{Up: 1, Down: 2, Connections: 3, NewConnections: 4, Lookups: 5, Total: 6}}
	s.Ports = engi.PortPolicy{Private: true, Host: "h"}
	s.Disk = true
	s.CPUQuota, s.Throttled = engi.CPUQuota{VCPUs: 0.5, Window: time.Minute, Credit: time.Second}, true
	s.Notes = map[string]string{"n": "1"}
	return s
}
