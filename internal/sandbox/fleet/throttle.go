package fleet

import (
	"context"
	"sync"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/provider"
)

// A cpuBudget is the processor time that a sandbox with a quota may use before it is throttled. It grows
// at the rate of the quota, up to the quota's amount for its window, and shrinks by the time used.
type cpuBudget struct {
	mu   sync.Mutex
	left time.Duration // remaining time; negative if too much was used; guarded by mu, like all fields below
	used time.Duration // processor time used by inst until at
	at   time.Time     // time of the last measurement; zero before the first
	inst *instance     // instance whose processor time was set last
}

// spend counts the time that inst has used, and reports whether to throttle it. A throttled
// instance stays throttled until a tenth of the budget is available.
func (b *cpuBudget) spend(q engi.CPUQuota, inst *instance, used time.Duration, now time.Time, throttled bool) bool {
	most := time.Duration(q.VCPUs * float64(q.Window))
	switch {
	case b.at.IsZero() && throttled: // this process does not know the remaining budget
		b.left = 0
	case b.at.IsZero():
		b.left = min(most, q.Credit)
	default:
		if inst != b.inst {
			b.used = 0 // a machine counts its time from its start
		}
		b.left = min(most, b.left+time.Duration(q.VCPUs*float64(now.Sub(b.at)))-max(0, used-b.used))
	}
	b.used, b.at = used, now
	if throttled {
		return b.left < most/10
	}
	return b.left <= 0
}

// throttle enforces a sandbox's quota, after used was measured. The throttle is recorded first, and
// the next measurement after a crash completes it.
func (s *sandboxes) throttle(ctx context.Context, sb *sandbox, inst *instance, used time.Duration) {
	rec := sb.record()
	if rec.CPUQuota.VCPUs <= 0 || rec.CPUQuota.VCPUs >= rec.Size.VCPUs {
		return
	}
	b := &sb.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	is := b.spend(rec.CPUQuota, inst, used, time.Now(), rec.Throttled)
	if is == rec.Throttled && inst == b.inst {
		return
	}
	if is != rec.Throttled {
		_, err := s.edit(ctx, sb, func(r *SandboxRecord) error { r.Throttled = is; return nil })
		if err != nil {
			s.log.Warn("record whether a sandbox has used up its processor time; trying again", "sandbox", sb.id, "error", err)
			return
		}
	}
	size := engi.Size{VCPUs: rec.Size.VCPUs}
	if is {
		size.VCPUs = rec.CPUQuota.VCPUs
	}
	if err := provider.Resize(ctx, inst.machine, size); err != nil {
		if !engi.Is(err, engi.Unsupported) {
			s.log.Warn("change a sandbox's processor time; trying again", "sandbox", sb.id, "error", err)
			return
		}
	}
	b.inst = inst
}
