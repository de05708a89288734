package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/priority"
)

// A Rival is another way to run the same program.
type Rival struct {
	Name  string  `json:"name"`
	N     int     `json:"n"`
	Ms    Millis  `json:"ms"`
	Ratio float64 `json:"ratio"` // ratio of its median to the median of the first rival

	PerSecond float64 `json:"per_second,omitempty"` // only for scripts

	Skipped string `json:"skipped,omitempty"`
	Failure string `json:"failure,omitempty"`
}

// A Comparison is the result of a comparison.
type Comparison struct {
	Bench    string  `json:"bench"`
	Lang     string  `json:"lang"`
	Template string  `json:"template,omitempty"`
	Rivals   []Rival `json:"rivals"`
	Bursts   []Rival `json:"bursts,omitempty"` // the same, with all runs started at the same moment
	Host     Host    `json:"host"`
}

// Compare sets the ratios to the first rival's median.
func (c *Comparison) Compare() {
	for _, rivals := range [][]Rival{c.Rivals, c.Bursts} {
		for i := range rivals {
			base := rivals[0].Ms.P50
			if r := &rivals[i]; base > 0 && r.Ms.P50 > 0 {
				r.Ratio = math.Round(r.Ms.P50/base*100) / 100
			}
		}
	}
}

// FromTiming converts one of engi's own timings to a rival.
func FromTiming(name string, t Timing) Rival {
	return Rival{Name: name, N: t.N - t.Failures, Ms: t.Ms, Failure: t.Failure}
}

// commands holds the command lines of interpreters that run code.
var commands = map[engi.Language][]string{
	engi.Python: {"-c"}, engi.JavaScript: {"-e"}, engi.Bash: {"-c"}, engi.TypeScript: {"eval", "--ext=ts"},
}

// Args returns the command line of the program with an interpreter, or
// Unsupported for a language that needs a file.
func Args(lang engi.Language, interpreter string) ([]string, error) {
	flags, ok := commands[lang]
	if !ok {
		return nil, engi.Errorf(engi.Unsupported, "%s programs cannot be compared: they need more than a command line", lang)
	}
	return append(append([]string{interpreter}, flags...), Programs[lang]), nil
}

// Command times n runs of a command that prints the answer.
func Command(ctx context.Context, name string, n int, make func(ctx context.Context) *exec.Cmd) Rival {
	return command(ctx, name, n, answer, make)
}

func command(ctx context.Context, name string, n int, answer string, make func(ctx context.Context) *exec.Cmd) Rival {
	r := Rival{Name: name}
	var all []time.Duration
	for range n {
		took, err := runCommand(ctx, answer, make)
		if err != nil {
			r.Failure = err.Error()
			break
		}
		all = append(all, took)
	}
	r.N, r.Ms = len(all), Summarize(all)
	return r
}

// BurstCommand times n runs of a command that start at the same moment.
func BurstCommand(ctx context.Context, name string, n int, make func(ctx context.Context) *exec.Cmd) Rival {
	r := Rival{Name: name}
	var mu sync.Mutex
	var all []time.Duration
	var runs sync.WaitGroup
	for range n {
		runs.Go(func() {
			took, err := runCommand(ctx, answer, make)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				all = append(all, took)
			} else if r.Failure == "" {
				r.Failure = err.Error()
			}
		})
	}
	runs.Wait()
	r.N, r.Ms = len(all), Summarize(all)
	return r
}

func runCommand(ctx context.Context, answer string, make func(ctx context.Context) *exec.Cmd) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	cmd := make(ctx)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	began := time.Now()
	err := priority.Start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	took := time.Since(began)
	if err != nil || out.String() != answer {
		return 0, fmt.Errorf("%v: %.300s%.300s", err, out.String(), errs.String())
	}
	return took, nil
}

// Skip returns a rival that is not available.
func Skip(name, why string) Rival { return Rival{Name: name, Skipped: why} }

// Bundle writes an OCI bundle in dir that runs args on root, read only, for a
// bare runsc.
func Bundle(dir, root string, args []string) error {
	spec := map[string]any{
		"ociVersion": "1.2.1",
		"process": map[string]any{
			"args": args, "cwd": "/", "env": []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/tmp"},
			"user": map[string]int{"uid": 0, "gid": 0},
		},
		"root": map[string]any{"path": root, "readonly": true},
		"mounts": []map[string]any{
			{"destination": "/proc", "type": "proc", "source": "proc"},
			{"destination": "/tmp", "type": "tmpfs", "source": "tmpfs"},
		},
		"linux": map[string]any{"namespaces": []map[string]string{{"type": "pid"}, {"type": "ipc"}, {"type": "uts"}, {"type": "mount"}, {"type": "network"}}},
	}
	text, err := json.Marshal(spec)
	if err != nil {
		return engi.Errorf(engi.Internal, "%v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), text, 0o600); err != nil {
		return engi.Errorf(engi.Unavailable, "%v", err)
	}
	return nil
}
