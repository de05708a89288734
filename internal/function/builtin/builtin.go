// Package builtin provides the durable functions of engi itself, which create and
// stop sandboxes and run agents in them, and those that a configuration
// declares. Package function runs them.
package builtin

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/function"
)

// Names of the functions, which are also the types of the events that start them.
const (
	SandboxCreate = "engi/sandbox/create"
	SandboxStop   = "engi/sandbox/stop"
	AgentsExplore = "engi/agents/explore"
	AgentsCode    = "engi/agents/code"
	DebugEcho     = "engi/debug/echo"
)

// DefaultRuntime is the runtime of sandboxes that specify none.
const DefaultRuntime = "node24"

// Runtimes returns the template of each runtime.
func Runtimes() map[string]string {
	return map[string]string{"node24": "base", "node22": "node22", "python3.13": "python3.13"}
}

// Services holds the services that the functions use. Functions whose service is nil are left
// out.
type Services struct {
	Sandboxes  engi.Sandboxes
	Templates  engi.Templates
	Agents     engi.Agents
	Executions engi.Executions
	Runtimes   map[string]string // template of each; nil means Runtimes()
}

// Functions returns the functions of engi itself.
func Functions(r Services) []function.Function {
	if r.Runtimes == nil {
		r.Runtimes = Runtimes()
	}
	all := []function.Function{{
		Function: engi.Function{Name: DebugEcho, Event: DebugEcho, Description: "Logs the event's data and returns it."},
		Run:      echo,
	}}
	if r.Sandboxes != nil && r.Templates != nil {
		all = append(all, function.Function{
			Function: engi.Function{
				Name: SandboxCreate, Event: SandboxCreate, Scopes: []engi.Scope{engi.ScopeSandboxes}, Retries: 4, Timeout: 15 * time.Minute,
				Description: "Creates a sandbox, describes it in " + DebugEcho + ", and returns its ID.",
				Input:       createInput(r.Runtimes),
			},
			Run: r.create,
		}, function.Function{
			Function: engi.Function{
				Name: SandboxStop, Event: SandboxStop, Scopes: []engi.Scope{engi.ScopeSandboxes}, Retries: 4, Timeout: 15 * time.Minute,
				Description: "Stops a sandbox and describes its last state in " + DebugEcho + ".",
				Input:       json.RawMessage(`{"type":"object","required":["sandbox_id"],"properties":{"sandbox_id":{"type":"string","minLength":1,"maxLength":100,"description":"sandbox to stop"}},"additionalProperties":false}`),
			},
			Run: r.stop,
		})
	}
	if r.Sandboxes != nil && r.Agents != nil {
		for _, f := range []struct{ name, agent, does string }{
			{AgentsExplore, "explore", "Runs the agent explore, which only reads, in a sandbox."},
			{AgentsCode, "code", "Runs the agent code, which reads, writes and runs commands, in a sandbox."},
		} {
			all = append(all, function.Function{
				Function: engi.Function{
					Name: f.name, Event: f.name, Scopes: agentScopes(), Retries: 4, Description: f.does,
					Input: json.RawMessage(`{"type":"object","required":["prompt","sandbox_id"],"properties":{"prompt":{"type":"string","minLength":1,"description":"what the agent is to do"},"sandbox_id":{"type":"string","minLength":1,"maxLength":100,"description":"an existing sandbox"}},"additionalProperties":false}`),
				},
				Run: r.agent(f.agent),
			})
		}
	}
	return all
}

// agentScopes are the permissions of the agents of these functions. A key that starts
// them needs the same permissions.
func agentScopes() []engi.Scope { return []engi.Scope{engi.ScopeAgents, engi.ScopeSandboxes} }

func createInput(runtimes map[string]string) json.RawMessage {
	names, err := json.Marshal(slices.Sorted(maps.Keys(runtimes)))
	if err != nil { // unreachable: strings can be encoded
		names = []byte("[]")
	}
	return json.RawMessage(fmt.Sprintf(`{"type":"object","properties":{
		"runtime":{"type":"string","enum":%s,"default":%q,"description":"runtime of the sandbox"},
		"timeout_seconds":{"type":"integer","minimum":1,"maximum":2592000,"description":"until it ends; default: the node's"},
		"metadata":{"type":"object","maxProperties":64,"additionalProperties":{"type":"string"},"description":"labels to find it by"}
		},"additionalProperties":false}`, names, DefaultRuntime))
}

func echo(_ context.Context, r *function.Run) (any, error) {
	shown := r.Event.Data
	if len(shown) > 4<<10 {
		shown = shown[:4<<10]
	}
	r.Log.Info("echo", "data", string(shown), "owner", r.Owner)
	return r.Event.Data, nil
}

// sandboxInfo is the shown part of a sandbox. Values of its environment may be
// secret, so only their names are shown.
type sandboxInfo struct {
	ID         engi.SandboxID    `json:"id"`
	Template   string            `json:"template"`
	Digest     string            `json:"digest"`
	Tier       engi.Tier         `json:"tier"`
	State      engi.State        `json:"state"`
	End        engi.Cause        `json:"end,omitempty"`
	VCPUs      float64           `json:"vcpus"`
	Memory     int64             `json:"memory_bytes"`
	Disk       int64             `json:"disk_bytes"`
	Inodes     int64             `json:"inodes"`
	Processes  int               `json:"processes"`
	OpenFiles  int               `json:"open_files"`
	Network    engi.Network      `json:"network"`
	Created    time.Time         `json:"created"`
	Started    *time.Time        `json:"started,omitempty"`
	Active     *time.Time        `json:"active,omitempty"`
	Deadline   *time.Time        `json:"deadline,omitempty"`
	Stopped    *time.Time        `json:"stopped,omitempty"`
	OnTimeout  engi.EndPolicy    `json:"on_timeout,omitempty"`
	Timeout    float64           `json:"timeout_seconds,omitempty"`
	Idle       float64           `json:"idle_seconds,omitempty"`
	AutoResume bool              `json:"auto_resume"`
	Snapshot   engi.SnapshotID   `json:"snapshot,omitempty"`
	Metadata   map[string]string `json:"metadata,omitempty"`
	Env        []string          `json:"env,omitempty"` // names of the variables
	Volumes    []string          `json:"volumes,omitempty"`
	Private    bool              `json:"private_ports"`
}

func describe(s engi.Sandbox) sandboxInfo {
	d := sandboxInfo{
		ID: s.ID, Template: s.Template, Digest: s.Digest, Tier: s.Tier, State: s.State, End: s.End,
		VCPUs: s.Size.VCPUs, Memory: s.Size.Memory, Disk: s.Size.Disk, Inodes: s.Size.Inodes, Processes: s.Size.Processes, OpenFiles: s.Size.OpenFiles,
		Network: s.Network.Mode, Created: s.Created, Started: optionalTime(s.Started), Active: optionalTime(s.Active), Deadline: optionalTime(s.Deadline), Stopped: optionalTime(s.Stopped),
		OnTimeout: s.Lifetime.OnTimeout, Timeout: s.Lifetime.Timeout.Seconds(), Idle: s.Lifetime.Idle.Seconds(), AutoResume: s.Lifetime.AutoResume,
		Snapshot: s.Snapshot, Metadata: s.Metadata, Env: slices.Sorted(maps.Keys(s.Env)), Private: s.Ports.Private,
	}
	for _, v := range s.Volumes {
		d.Volumes = append(d.Volumes, v.Volume+":"+v.Path)
	}
	return d
}

func optionalTime(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// maxCreates is the maximum number of sandboxes that a run tries to create: a sandbox that was being
// created during a crash may have ended.
const maxCreates = 20

func (s Services) create(ctx context.Context, r *function.Run) (any, error) {
	var data struct {
		Runtime  string            `json:"runtime"`
		Timeout  int64             `json:"timeout_seconds"`
		Metadata map[string]string `json:"metadata"`
	}
	if err := r.Data(&data); err != nil {
		return nil, err
	}
	if data.Runtime == "" {
		data.Runtime = DefaultRuntime
	}
	template, ok := s.Runtimes[data.Runtime]
	if !ok {
		return nil, engi.Errorf(engi.Invalid, "unknown runtime %.80q", data.Runtime).WithRemedy("use one of %v", slices.Sorted(maps.Keys(s.Runtimes)))
	}
	made, err := function.Step(ctx, r, "create", func(ctx context.Context) (sandboxInfo, error) {
		if _, err := s.Templates.Get(ctx, template); engi.Is(err, engi.Unavailable) {
			// A retry does not build the template.
			return sandboxInfo{}, function.Final(engi.Errorf(engi.Conflict, "runtime %s: %w", data.Runtime, err).WithRemedy("run 'engi template build %s'", template))
		}
		for i := range maxCreates {
			sandbox, err := s.Sandboxes.Create(ctx, engi.SandboxSpec{
				Owner: r.Owner, Template: template, Metadata: data.Metadata, Lifetime: engi.Lifetime{Timeout: time.Duration(data.Timeout) * time.Second},
				Idempotency: fmt.Sprintf("%s/create/%d", r.ID, i),
			})
			if err != nil || sandbox.State != engi.Stopped {
				return describe(sandbox), err
			}
		}
		return sandboxInfo{}, engi.Errorf(engi.Unavailable, "the sandbox ended while it was created")
	})
	if err != nil {
		return nil, err
	}
	if _, err := r.Send(ctx, "echo", DebugEcho, map[string]any{"event": SandboxCreate, "sandbox": made}); err != nil {
		return nil, err
	}
	return map[string]any{"sandbox_id": made.ID}, nil
}

// target returns the sandbox with an ID that is part of an event.
func (s Services) target(ctx context.Context, viewer engi.Viewer, id string) (engi.Sandbox, error) {
	parsed, err := engi.ParseSandboxID(id)
	if err != nil {
		return engi.Sandbox{}, err
	}
	return s.Sandboxes.Get(ctx, viewer, parsed)
}

func (s Services) stop(ctx context.Context, r *function.Run) (any, error) {
	var data struct {
		Sandbox string `json:"sandbox_id"`
	}
	if err := r.Data(&data); err != nil {
		return nil, err
	}
	last, err := function.Step(ctx, r, "stop", func(ctx context.Context) (sandboxInfo, error) {
		sandbox, err := s.target(ctx, r.Owner.Reach(), data.Sandbox)
		if err != nil {
			return sandboxInfo{}, err
		}
		if sandbox.State != engi.Stopped {
			if err := s.Sandboxes.Stop(ctx, r.Owner.Reach(), sandbox.ID); err != nil {
				return sandboxInfo{}, err
			}
			if sandbox, err = s.Sandboxes.Get(ctx, r.Owner.Reach(), sandbox.ID); err != nil {
				return sandboxInfo{}, err
			}
		}
		return describe(sandbox), nil
	})
	if err != nil {
		return nil, err
	}
	if _, err := r.Send(ctx, "echo", DebugEcho, map[string]any{"event": SandboxStop, "sandbox": last}); err != nil {
		return nil, err
	}
	return map[string]any{"sandbox_id": last.ID, "state": last.State, "end": last.End}, nil
}
