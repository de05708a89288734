package fleet

import (
	"context"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/idempotency"
	"github.com/engi-dev/engi/internal/sandbox/fleet/pool"
	"github.com/engi-dev/engi/internal/sandbox/guest/wire"
)

// A job is the spec of an execution, checked and complete.
type job struct {
	owner       engi.Owner
	template    engi.Template
	key         pool.Key
	size        engi.Size // size to which the instance is resized
	limits      engi.Limits
	program     wire.Run // program without an ID
	onEmpty     engi.EmptyPool
	patience    time.Duration
	idempotency string
	fingerprint string // hash of the spec; empty without an idempotency key
	outputDir   string
	network     engi.NetworkPolicy
	booking     *booking // quota booking; nil once a run has taken it over
}

// job completes a valid spec for a sandbox of template t, or returns the reason why
// this node does not accept it.
func (e *executions) job(ctx context.Context, spec engi.ExecutionSpec, t engi.Template) (*job, error) {
	p := spec.Program
	interp, ok := t.Languages[p.Language]
	if !ok && t.Partial {
		return nil, e.incomplete(t)
	}
	if !ok {
		return nil, engi.Errorf(engi.Unsupported, "template %s cannot run %s", t.Name, p.Language).
			WithRemedy("choose another template; 'engi template list' shows what each can run")
	}
	tier, err := e.chooseTier(spec.MinTier)
	if err != nil {
		return nil, err
	}
	if err := e.checkNetwork(ctx, spec.Owner, spec.Network); err != nil {
		return nil, err
	}
	limits := spec.Limits
	limits.Size = limits.Size.Or(e.size(t))
	limits = limits.Or(e.opt.Defaults)
	if err := limits.Faults(e.bounds.Limits).Err(); err != nil { // the limits of the template may exceed the bounds
		return nil, err
	}
	j := &job{
		owner:       spec.Owner,
		template:    t,
		key:         pool.Key{Tier: tier, Template: spec.Template, Language: p.Language},
		size:        limits.Size,
		limits:      limits,
		onEmpty:     spec.OnEmpty,
		patience:    spec.ClaimTimeout,
		idempotency: spec.Idempotency,
		outputDir:   spec.OutputDir,
		network:     spec.Network,
		program: wire.Run{
			Language:      p.Language,
			Interpreter:   interp.Path,
			Entry:         p.Main(),
			Args:          p.Args,
			Env:           p.Env,
			Stdin:         p.Stdin,
			Timeout:       limits.Timeout,
			Output:        limits.Output,
			ArtifactBytes: limits.ArtifactBytes,
			ArtifactCount: limits.ArtifactCount,
			OutputDir:     spec.OutputDir,
		},
	}
	for _, f := range p.Files {
		j.program.Files = append(j.program.Files, wire.File{Path: f.Path, Mode: f.Mode, Data: f.Data})
	}
	if fixed(limits.Size) != fixed(e.size(t)) {
		j.key.Size = fixed(limits.Size)
	}
	j.network.Detail = nil // the detail is never shown again
	if j.idempotency != "" {
		j.fingerprint = idempotency.Fingerprint(spec)
	}
	return j, nil
}

// fixed is the part of a size that is set when a machine boots; processor time
// and memory can change later.
func fixed(s engi.Size) engi.Size {
	s.VCPUs, s.Memory = 0, 0
	return s
}

// strength orders tiers by isolation. Tests run on the weakest tier.
var strength = map[engi.Tier]int{engi.TierMemory: 0, engi.TierScript: 1, engi.TierGVisor: 2, engi.TierMicroVM: 3}

// chooseTier returns the tier of the first provider with at least the isolation of least.
func (h *shared) chooseTier(least engi.Tier) (engi.Tier, error) {
	if least == "" {
		return h.opt.Providers[0].Tier(), nil
	}
	for _, p := range h.opt.Providers {
		if strength[p.Tier()] >= strength[least] {
			return p.Tier(), nil
		}
	}
	return "", engi.Errorf(engi.Unsupported, "this node has no isolation as strong as tier %s", least)
}

// incomplete returns the error for a caller that needs more of a template than its first
// part.
func (h *shared) incomplete(t engi.Template) error {
	err := error(engi.Errorf(engi.Unavailable, "only its first part is built"))
	if i, ok := h.opt.Templates.(interface{ Incomplete(name string) error }); ok {
		err = i.Incomplete(t.Name)
	}
	engi.Annotate(&err, "template %s", t.Name)
	return err
}
