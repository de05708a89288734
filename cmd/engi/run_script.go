package main

import (
	"context"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
)

// tier checks --tier. Isolation may be stronger than requested, but never weaker. The
// script tier differs from sandboxes and is used only if the flag names it.
func (r *runCommand) tier() error {
	switch engi.Tier(r.Tier) {
	case "", engi.TierGVisor, engi.TierMicroVM:
		return nil
	case engi.TierScript:
	default:
		return engi.Errorf(engi.Invalid, "--tier %.40q is not a tier", r.Tier).WithRemedy("use script, gvisor or microvm")
	}
	for flag, given := range map[string]bool{
		"an argument": len(r.Args) > 0, "--file": len(r.File) > 0, "--entry": r.Entry != "", "--output": r.Output != "", "--env": len(r.Env) > 0,
		"--template": r.Template != "", "--memory": r.Memory != "", "--vcpus": r.VCPUs != 0, "--disk": r.Disk != "", "--processes": r.Pids != 0, "--detach": r.Detach,
		"a flag of the network": r.networkFlags.given(),
	} {
		if given {
			return engi.Errorf(engi.Invalid, "%s cannot be used in the script tier: it has no arguments, files, network or sizes to choose", flag).
				WithRemedy("leave --tier out to run the program in a sandbox")
		}
	}
	return nil
}

// script runs the program in the script tier. Its output and exit code
// are the same as in a sandbox; 'engi script' also prints values.
func (r *runCommand) script(ctx context.Context, g *globals, d *connection, req v1.ExecutionRequest) error {
	lang, code := engi.Language(req.Language), req.Code
	if lang != engi.JavaScript && lang != engi.TypeScript {
		return engi.Errorf(engi.Invalid, "the script tier runs JavaScript and TypeScript, not %s", lang).WithRemedy("leave --tier out to run it in a sandbox")
	}
	switch len(req.Files) {
	case 0:
	case 1:
		code = req.Files[0].Content + string(req.Files[0].ContentBase64)
	default:
		return engi.Errorf(engi.Invalid, "a script is one file, not %d", len(req.Files)).WithRemedy("leave --tier out to run it in a sandbox")
	}
	x, err := d.RunScript(ctx, v1.ScriptRequest{Code: code, Language: req.Language, Timeout: req.Timeout})
	if err != nil {
		return err
	}
	if g.JSON {
		if err := g.printJSON(x); err != nil {
			return err
		}
	} else {
		g.printScript(x, "")
		if g.Verbose {
			g.note("ran %s, tier %s", x.Duration, x.Environment.Tier)
		}
	}
	if x.Error == nil {
		return nil
	}
	switch engi.ScriptErrorKind(x.Error.Kind) {
	case engi.ScriptTimeout:
		return exitCode(exitTimeout)
	case engi.ScriptMemory:
		return exitCode(exitMemory)
	case engi.ScriptLost:
		return exitCode(exitEngi)
	}
	return exitCode(1)
}
