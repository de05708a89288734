package gvisor

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/mounts"
	"github.com/engi-dev/engi/internal/sandbox/provider"
)

// Leaks returns traces of machines that are not in live.
func (p *Provider) Leaks(ctx context.Context, live []engi.SandboxID) ([]provider.Leak, error) {
	alive := func(id engi.SandboxID) bool { return slices.Contains(live, id) }
	var leaks []provider.Leak

	procs, _, err := p.scan()
	if err != nil {
		return nil, engi.Errorf(engi.Internal, "look for processes: %v", err)
	}
	for id, refs := range procs {
		for _, ref := range refs {
			if !alive(id) {
				leaks = append(leaks, provider.Leak{Kind: "process", Name: fmt.Sprintf("%d (%s)", ref.PID, id)})
			}
		}
	}

	points, err := mounts.In(p.opt.Dir)
	if err != nil {
		return nil, engi.Errorf(engi.Internal, "look for mounts: %v", err)
	}
	for _, point := range points {
		rest, _ := strings.CutPrefix(point, filepath.Join(p.opt.Dir, "m")+"/")
		name, _, _ := strings.Cut(rest, "/")
		if !alive(engi.SandboxID(name)) {
			leaks = append(leaks, provider.Leak{Kind: "mount", Name: point})
		}
	}

	if p.groups != nil {
		groups, err := p.groups.List()
		if err != nil {
			return nil, engi.Errorf(engi.Internal, "look for control groups: %v", err)
		}
		for _, name := range groups {
			if name != probeGroup && !alive(engi.SandboxID(name)) {
				leaks = append(leaks, provider.Leak{Kind: "cgroup", Name: p.groupName() + "/" + name})
			}
		}
	}

	dirs, err := os.ReadDir(filepath.Join(p.opt.Dir, "m"))
	if err != nil {
		return nil, engi.Errorf(engi.Internal, "look for directories: %v", err)
	}
	for _, d := range dirs {
		if !alive(engi.SandboxID(d.Name())) {
			leaks = append(leaks, provider.Leak{Kind: "directory", Name: filepath.Join(p.opt.Dir, "m", d.Name())})
		}
	}
	slices.SortFunc(leaks, func(a, b provider.Leak) int { return strings.Compare(a.Kind+a.Name, b.Kind+b.Name) })
	return leaks, nil
}

// Builds returns the machines with a writable root, which are builds of templates
// and not sandboxes. Only the node that runs the builds knows which of them it needs.
func (p *Provider) Builds() ([]engi.SandboxID, error) {
	dirs, err := os.ReadDir(filepath.Join(p.opt.Dir, "m"))
	if err != nil {
		return nil, engi.Errorf(engi.Internal, "look for builds: %v", err)
	}
	var ids []engi.SandboxID
	for _, d := range dirs {
		id, err := engi.ParseSandboxID(d.Name())
		if err != nil {
			continue
		}
		var rec record
		if p.dir(id).load("machine.json", &rec) == nil && rec.Writable {
			ids = append(ids, id)
		}
	}
	return ids, nil
}
