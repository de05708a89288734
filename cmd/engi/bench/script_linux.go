package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os/exec"
	"strconv"
	"time"
)

// nodeProgram runs a program in Node's vm, each time in a fresh context with a
// console, and prints the nanoseconds of each run.
const nodeProgram = `
const vm = require("vm"), [code, n] = [process.argv[1], Number(process.argv[2])], all = [];
for (let i = 0; i < n; i++) {
  const began = process.hrtime.bigint(), lines = [];
  const answer = JSON.stringify(vm.runInNewContext(code, { console: { log: (line) => lines.push(line) } }, { timeout: 3000 }));
  all.push(Number(process.hrtime.bigint() - began));
  if (answer !== "2") throw new Error("the program answered " + answer);
}
console.log(JSON.stringify(all));`

// FromScripts converts engi's own timing of scripts to a rival.
func FromScripts(name string, t ScriptTiming) Rival {
	return Rival{Name: name, N: t.N - t.Failures, Ms: t.Ms, PerSecond: t.PerSecond, Failure: t.Failure}
}

// NodeVM times the program in Node's vm, in one process.
func NodeVM(ctx context.Context, name, node string, n int) Rival {
	return timed(ctx, name, n, node, "-e", nodeProgram, "--", ScriptProgram)
}

// Goja times the program in goja; path is the path of test/bench/goja.
func Goja(ctx context.Context, name, path string, n int) Rival {
	return timed(ctx, name, n, path, ScriptProgram)
}

// DenoProcess times the program in a process of Deno for each run.
func DenoProcess(ctx context.Context, name, deno, dir string, n int) Rival {
	return command(ctx, name, n, "2\n", func(ctx context.Context) *exec.Cmd {
		cmd := exec.CommandContext(ctx, deno, "eval", "--no-lock", "console.log("+ScriptProgram+")")
		cmd.Dir = dir
		cmd.Env = append(cmd.Environ(), "DENO_DIR="+dir, "NO_COLOR=1", "DENO_NO_UPDATE_CHECK=1")
		return cmd
	})
}

// timed runs a command that does n runs, after n/10 runs to warm up,
// and prints the time of each.
func timed(ctx context.Context, name string, n int, args ...string) Rival {
	r := Rival{Name: name}
	warm := max(n/10, 1)
	cmd := exec.CommandContext(ctx, args[0], append(args[1:], strconv.Itoa(n+warm))...)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	var all []time.Duration
	if err == nil {
		err = json.Unmarshal(out, &all)
	}
	if err != nil || len(all) != n+warm {
		r.Failure = fmt.Sprintf("%v: %.300s%.300s", err, out, errs.String())
		return r
	}
	all = all[warm:]
	var total time.Duration
	for _, d := range all {
		total += d
	}
	r.N, r.Ms = n, Summarize(all)
	r.PerSecond = math.Round(float64(n) / total.Seconds())
	return r
}
