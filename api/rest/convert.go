package rest

import (
	"strings"
	"time"
	"unicode/utf8"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/api/httpio"
	v1 "github.com/engi-dev/engi/api/v1"
)

// executionOf translates a record whole, but for the contents of artifacts.
func executionOf(x engi.Execution) v1.Execution {
	e := v1.Execution{
		ID:        string(x.ID),
		Owner:     string(x.Owner),
		State:     string(x.State),
		Language:  string(x.Language),
		Template:  x.Template,
		SandboxID: string(x.Sandbox),
		CreatedAt: x.Created.UTC(),
		StartedAt: moment(x.Started),
		EndedAt:   moment(x.Ended),
		Refusal:   refusalOf(x.Refusal),
	}
	if x.Result != nil {
		r := resultOf(x.ID, *x.Result)
		e.Result = &r
	}
	return e
}

func summaryOf(x engi.Execution) v1.ExecutionSummary {
	e := v1.ExecutionSummary{
		ID:        string(x.ID),
		Owner:     string(x.Owner),
		State:     string(x.State),
		Language:  string(x.Language),
		Template:  x.Template,
		SandboxID: string(x.Sandbox),
		CreatedAt: x.Created.UTC(),
		StartedAt: moment(x.Started),
		EndedAt:   moment(x.Ended),
		Refusal:   refusalOf(x.Refusal),
	}
	if x.Result != nil {
		code := x.Result.Exit.Code
		e.ExitCode, e.Cause, e.Duration = &code, string(x.Result.Exit.Cause), length(x.Result.Duration)
	}
	return e
}

func refusalOf(err *engi.Error) *v1.Problem {
	if err == nil {
		return nil
	}
	p := httpio.Describe(err, "")
	return &p
}

func resultOf(id engi.ExecutionID, x engi.Result) v1.Result {
	r := v1.Result{
		ExitCode:        x.Exit.Code,
		Signal:          x.Exit.Signal,
		Cause:           string(x.Exit.Cause),
		Remedy:          x.Exit.Cause.Remedy(),
		Error:           x.Error,
		StdoutTruncated: x.StdoutTruncated,
		StderrTruncated: x.StderrTruncated,
		Artifacts:       []v1.Artifact{},
		ArtifactsLeft:   x.ArtifactsLeft,
		Duration:        length(x.Duration),
		QueueTime:       length(x.Queued),
		ClaimTime:       length(x.Claim),
		Warm:            x.Warm,
		Tier:            string(x.Tier),
		NotEnforced:     append([]string{}, x.NotEnforced...),
	}
	r.Stdout, r.StdoutBase64 = textOf(x.Stdout)
	r.Stderr, r.StderrBase64 = textOf(x.Stderr)
	for _, a := range x.Artifacts {
		r.Artifacts = append(r.Artifacts, v1.Artifact{
			Path: a.Path, Size: v1.Bytes(a.Size), Mode: v1.Mode(a.Mode), SHA256: a.SHA256, URL: artifactURL(id, a.Path),
		})
	}
	return r
}

// textOf returns output as text, and the bytes too if the text cannot hold
// them.
func textOf(b []byte) (string, []byte) {
	if utf8.Valid(b) {
		return string(b), nil
	}
	return strings.ToValidUTF8(string(b), "\uFFFD"), b
}

func sandboxOf(x engi.Sandbox) v1.Sandbox {
	b := v1.Sandbox{
		ID:          string(x.ID),
		Owner:       string(x.Owner),
		State:       string(x.State),
		Template:    x.Template,
		Digest:      x.Digest,
		SnapshotID:  string(x.Snapshot),
		Pool:        x.Pool,
		Tier:        string(x.Tier),
		Size:        sizeOf(x.Size),
		ExecutionID: string(x.Execution),
		Cause:       string(x.End),
		CreatedAt:   x.Created.UTC(),
		StartedAt:   moment(x.Started),
		ActiveAt:    moment(x.Active),
		DeadlineAt:  moment(x.Deadline),
		StoppedAt:   moment(x.Stopped),
		Metadata:    x.Metadata,
		DiskOnly:    x.Disk,
	}
	if l := x.Lifetime; l != (engi.Lifetime{}) {
		b.Lifetime = &v1.Lifetime{
			Timeout: length(l.Timeout), IdleTimeout: length(l.Idle), MaxDuration: length(l.Max),
			OnTimeout: string(l.OnTimeout), DiskOnly: l.DiskOnly, AutoResume: l.AutoResume,
		}
	}
	for _, m := range x.Volumes {
		b.Volumes = append(b.Volumes, v1.VolumeMount{Volume: m.Volume, Path: m.Path})
	}
	if !emptyNetwork(x.Network) {
		b.Network = new(policyOf(x.Network))
	}
	if x.Ports != (engi.PortPolicy{}) {
		b.Ports = &v1.PortPolicy{Private: x.Ports.Private, Host: x.Ports.Host}
	}
	return b
}

func snapshotOf(x engi.Snapshot) v1.Snapshot {
	return v1.Snapshot{
		ID: string(x.ID), Owner: string(x.Owner), Name: x.Name, SandboxID: string(x.Sandbox), Template: x.Template, Digest: x.Digest,
		Tier: string(x.Tier), Size: sizeOf(x.Size), DiskOnly: x.Disk, Bytes: v1.Bytes(max(0, x.Bytes)),
		CreatedAt: x.Created.UTC(), UsedAt: moment(x.Used), ExpiresAt: moment(x.Expires),
	}
}

func volumeOf(x engi.Volume) v1.Volume {
	return v1.Volume{
		ID: string(x.ID), Owner: string(x.Owner), Name: x.Name, Capacity: v1.Bytes(max(0, x.Capacity)), Used: v1.Bytes(max(0, x.Used)),
		SandboxID: string(x.Holder), CreatedAt: x.Created.UTC(), AccessedAt: moment(x.Accessed), ExpiresAt: moment(x.Expires),
	}
}

func secretOfRecord(x engi.Secret) v1.Secret {
	return v1.Secret{
		ID: string(x.ID), Owner: string(x.Owner), Name: x.Name, Version: x.Version, Metadata: x.Metadata,
		CreatedAt: x.Created.UTC(), UpdatedAt: x.Updated.UTC(),
	}
}

func sampleOf(x engi.Sample) v1.Sample {
	size := func(n int64) v1.Bytes { return v1.Bytes(max(0, n)) }
	return v1.Sample{
		Time: x.Time.UTC(), VCPUs: x.VCPUs, CPUPercent: x.CPUPercent, Memory: size(x.Memory), MemoryLimit: size(x.MemoryLimit), MemoryCache: size(x.MemoryCache),
		DiskUsed: size(x.DiskUsed), DiskCapacity: size(x.DiskCapacity), Processes: x.Processes,
	}
}

func quotaOf(x engi.Quota) v1.Quota {
	return v1.Quota{
		Sandboxes: x.Sandboxes, PerDay: x.PerDay, VCPUs: x.VCPUs, Memory: v1.Bytes(x.Memory), Disk: v1.Bytes(x.Disk), Volumes: x.Volumes, Snapshots: x.Snapshots,
	}
}

func sizeOf(x engi.Size) v1.Size {
	return v1.Size{
		VCPUs: x.VCPUs, Memory: v1.Bytes(x.Memory), Disk: v1.Bytes(x.Disk), Inodes: x.Inodes,
		Processes: x.Processes, OpenFiles: x.OpenFiles,
	}
}

// templateOf leaves out where the template lies on the host.
func templateOf(x engi.Template) v1.Template {
	t := v1.Template{
		Name:    x.Name,
		Built:   x.Digest != "",
		Digest:  x.Digest,
		User:    x.User,
		Home:    x.Home,
		WorkDir: x.WorkDir,
		Shell:   x.Shell,
		Env:     x.Env,
		Ports:   x.Ports,
		Size:    sizeOf(x.Size),
		Bytes:   v1.Bytes(x.Bytes),
		BuiltAt: moment(x.Built),
	}
	for l, i := range x.Languages {
		if t.Languages == nil {
			t.Languages = map[string]v1.Interpreter{}
		}
		t.Languages[string(l)] = v1.Interpreter{Path: i.Path, Warm: i.Warm}
	}
	return t
}

func poolOf(x engi.PoolStatus) v1.Pool {
	return v1.Pool{
		Template: x.Template, Digest: x.Digest, Language: string(x.Language),
		Target: x.Target, Max: x.Max, Ready: x.Ready, Booting: x.Booting, Used: x.Used, Waiting: x.Waiting,
	}
}

func keyOf(x engi.Key) v1.Key {
	var scopes []string
	for _, s := range x.Scopes {
		scopes = append(scopes, string(s))
	}
	return v1.Key{
		Scopes: scopes,
		ID:     x.ID, Name: x.Name, Owner: string(x.Owner), Admin: x.Admin,
		CreatedAt: x.Created.UTC(), ExpiresAt: moment(x.Expires), RevokedAt: moment(x.Revoked),
	}
}

func buildEventOf(x engi.BuildEvent) v1.BuildEvent {
	e := v1.BuildEvent{Type: "progress", Step: x.Step, Steps: x.Steps, Name: x.Name, Done: x.Done, Total: x.Total}
	if x.Log != "" {
		e.Type, e.Log = "log", strings.ToValidUTF8(x.Log, "\uFFFD")
	}
	return e
}

// moment returns nil for what has not happened.
func moment(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

// length returns d for the wire, where durations are never negative; clocks
// of guests are not ours.
func length(d time.Duration) v1.Duration { return v1.Duration(max(0, d)) }

// listOf translates one by one. A list without items is [] on the wire.
func listOf[X, T any](xs []X, f func(X) T) v1.List[T] {
	list := v1.List[T]{Items: make([]T, 0, len(xs))}
	for _, x := range xs {
		list.Items = append(list.Items, f(x))
	}
	return list
}
