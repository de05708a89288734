package recipe

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/engi-dev/engi/internal/engi"
)

const (
	maxText  = 64 << 10 // bytes; maximum length of a command or a value
	maxSteps = 180      // maximum number of steps; each may be a layer, and the kernel limits the layers of an overlay
)

// rawStep is a map with one key for the kind of step.
type rawStep struct {
	Run     string            `yaml:"run"`
	Copy    *rawCopy          `yaml:"copy"`
	Env     map[string]string `yaml:"env"`
	Workdir string            `yaml:"workdir"`
	User    string            `yaml:"user"` // only for run: user that runs the command
}

type rawCopy struct {
	From   string  `yaml:"from"`
	Source string  `yaml:"source"`
	Dest   string  `yaml:"dest"`
	User   string  `yaml:"user"`
	Mode   rawMode `yaml:"mode"`
}

// step returns the step, or an error unless there is exactly one.
func (r rawStep) step() (Step, error) {
	var all []Step
	if r.Run != "" {
		args := []string{r.Run}
		if r.User != "" {
			args = append(args, r.User)
			r.User = ""
		}
		all = append(all, Step{Type: engi.StepRun, Args: args})
	}
	if c := r.Copy; c != nil {
		all = append(all, Step{Type: engi.StepCopy, Args: []string{c.Source, c.Dest, c.User, string(c.Mode)}, Archive: c.From})
	}
	if r.Env != nil {
		var args []string
		for _, k := range slices.Sorted(maps.Keys(r.Env)) {
			args = append(args, k, r.Env[k])
		}
		all = append(all, Step{Type: engi.StepEnv, Args: args})
	}
	if r.Workdir != "" {
		all = append(all, Step{Type: engi.StepWorkdir, Args: []string{r.Workdir}})
	}
	if r.User != "" {
		all = append(all, Step{Type: engi.StepUser, Args: []string{r.User}})
	}
	if len(all) != 1 {
		return Step{}, invalid("it has %d of the keys run, copy, env, workdir and user", len(all)).WithRemedy("write one step per item; only run may also have a user")
	}
	return all[0], nil
}

func checkSteps(raw []rawStep) ([]Step, error) {
	var steps []Step
	for i, r := range raw {
		s, err := r.step()
		if err != nil {
			return nil, fmt.Errorf("step %d: %w", i+1, err)
		}
		steps = append(steps, s)
	}
	return steps, CheckSteps(steps)
}

// CheckSteps validates steps and fills in missing arguments. It reports Invalid with
// the number of the step.
func CheckSteps(steps []Step) error {
	if len(steps) > maxSteps {
		return invalid("there are %d steps, more than %d", len(steps), maxSteps).WithRemedy("put several commands into one step")
	}
	for i := range steps {
		if err := steps[i].check(); err != nil {
			return fmt.Errorf("step %d: %w", i+1, err)
		}
	}
	return nil
}

func (s *Step) check() error {
	least := map[engi.StepType][2]int{
		engi.StepRun: {1, 2}, engi.StepCopy: {2, 4}, engi.StepEnv: {0, 2 * maxItems}, engi.StepWorkdir: {1, 1}, engi.StepUser: {1, 1},
	}
	n, ok := least[s.Type]
	if !ok {
		return invalid("%.40q is not a kind of step", string(s.Type)).WithRemedy("use run, copy, env, workdir or user")
	}
	if len(s.Args) < n[0] || len(s.Args) > n[1] {
		return invalid("%s takes %d to %d arguments, not %d", s.Type, n[0], n[1], len(s.Args))
	}
	for _, a := range s.Args {
		if len(a) > maxText || strings.ContainsRune(a, 0) {
			return invalid("%s: an argument of %d bytes", s.Type, len(a))
		}
	}
	switch s.Type {
	case engi.StepRun:
		s.Args = append(s.Args, "", "")[:2]
		if strings.TrimSpace(s.Args[0]) == "" {
			return invalid("run has no command")
		}
	case engi.StepCopy:
		s.Args = append(s.Args, "", "", "")[:4]
		if s.Archive == "" {
			return invalid("copy has no archive to copy from")
		}
		if s.Args[0] == "" || s.Args[1] == "" {
			return invalid("copy needs a source and a destination")
		}
		if _, err := path.Match(path.Clean(s.Args[0]), ""); err != nil {
			return invalid("copy: %q is not a pattern", s.Args[0])
		}
		if m := s.Args[3]; m != "" {
			if mode, err := strconv.ParseUint(m, 8, 32); err != nil || mode > 0o7777 {
				return invalid("copy: %q is not an octal mode", m)
			}
		}
	case engi.StepEnv:
		if len(s.Args)%2 != 0 {
			return invalid("env has a key without value")
		}
		for i := 0; i < len(s.Args); i += 2 {
			if !ValidVariable(s.Args[i], s.Args[i+1]) {
				return invalid("%.100q is not an environment variable", s.Args[i])
			}
		}
	case engi.StepWorkdir:
		if s.Args[0] == "" || len(s.Args[0]) > 1024 {
			return invalid("workdir needs a path")
		}
	case engi.StepUser:
		if s.Args[0] == "" {
			return invalid("user needs a name")
		}
	}
	return nil
}

// String returns a name for progress reports.
func (s Step) String() string {
	switch s.Type {
	case engi.StepRun:
		return Command{Run: s.Args[0]}.String()
	case engi.StepEnv:
		var keys []string
		for i := 0; i < len(s.Args); i += 2 {
			keys = append(keys, s.Args[i]) // values may be secret
		}
		return "env " + strings.Join(keys, " ")
	case engi.StepCopy:
		return fmt.Sprintf("copy %.100s to %.100s", s.Args[0], s.Args[1])
	}
	return fmt.Sprintf("%s %.100s", s.Type, s.Args[0])
}
