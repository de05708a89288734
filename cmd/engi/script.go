package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
)

type scriptCommand struct {
	File    string            `arg:"" optional:"" help:"Program to run; - reads it from standard input. Files that end in .ts are TypeScript." placeholder:"FILE"`
	Code    string            `short:"c" help:"Run CODE instead of a file." placeholder:"CODE"`
	TS      bool              `name:"ts" help:"Treat CODE as TypeScript."`
	Timeout string            `help:"Maximum run time, like 500ms; the node allows 250ms to 5s by default." placeholder:"D"`
	Hint    map[string]string `help:"Default for arguments of api functions, like latitude=48.2." placeholder:"NAME=VALUE"`
	Session string            `help:"Session, by ID or name, whose sandbox the script gets as api.sandbox." placeholder:"SESSION"`
	APIs    bool              `name:"apis" help:"Print the api functions as TypeScript declarations, and run nothing."`
}

func (scriptCommand) Help() string {
	return `The program runs in the script tier and takes about a millisecond. It has no files, no modules and
no network except the functions of the object api. The value of its last expression, or its return
value, is printed as JSON. For all other programs, use 'engi run'.

Examples:
  engi script -c '[1, 2, 3].map(n => n * 2)'
  engi script --ts -c 'const n: number = await api.kv.get("n") ?? 0; await api.kv.set("n", n + 1); n'
  engi script report.ts --timeout 2s
  engi script --apis > api.d.ts`
}

// maxScript is the maximum number of bytes read, far above the limit of any node.
const maxScript = 8 << 20

func (j *scriptCommand) Run(ctx context.Context, g *globals) error {
	timeout, err := duration("--timeout", j.Timeout)
	if err != nil {
		return err
	}
	code, err := j.program()
	if err != nil {
		return err
	}
	d, err := g.connect(ctx, orPrivate)
	if err != nil {
		return err
	}
	defer d.close()
	if j.APIs {
		apis, err := d.ScriptAPIs(ctx)
		switch {
		case err != nil:
			return err
		case g.JSON:
			return g.printJSON(apis)
		}
		_, err = fmt.Fprint(g.out, apis.Declarations)
		return err
	}
	q := v1.ScriptRequest{Code: code, Language: string(engi.JavaScript), Timeout: timeout, Hints: j.Hint, Session: j.Session}
	if j.TS || strings.HasSuffix(j.File, ".ts") {
		q.Language = string(engi.TypeScript)
	}
	x, err := d.RunScript(ctx, q)
	if err != nil {
		return err
	}
	if g.JSON {
		if err := g.printJSON(x); err != nil {
			return err
		}
	} else {
		j.print(g, x)
	}
	if !x.Success {
		return exitCode(1)
	}
	return nil
}

func (j *scriptCommand) print(g *globals, x v1.ScriptResult) {
	at := ""
	if e := x.Error; e != nil && e.Line > 0 {
		at = fmt.Sprintf(" (line %d, column %d)", e.Line, e.Column)
	}
	if g.printScript(x, at); x.Error != nil {
		return
	}
	if len(x.Result) > 0 {
		fmt.Fprintln(g.out, string(x.Result))
	}
}

// printScript prints the output of a script, and its error with the place where it happened.
func (g *globals) printScript(x v1.ScriptResult, at string) {
	for _, line := range x.Stdout {
		fmt.Fprintln(g.out, line)
	}
	for _, line := range x.Stderr {
		fmt.Fprintln(g.err, line)
	}
	for _, w := range x.Warnings {
		g.note("%s", w)
	}
	if e := x.Error; e != nil {
		fmt.Fprintf(g.err, "%s: %s%s\n", cmp.Or(e.Name, "Error"), e.Message, at)
		if e.Stack != "" {
			fmt.Fprintln(g.err, "    "+strings.ReplaceAll(e.Stack, "\n", "\n    "))
		}
	}
}

// program reads the script.
func (j *scriptCommand) program() (string, error) {
	switch {
	case j.APIs:
		return "", nil
	case j.Code != "" && j.File != "":
		return "", engi.Errorf(engi.Invalid, "both a file and -c are given").WithRemedy("give only one of them")
	case j.Code != "":
		return j.Code, nil
	case j.File == "":
		return "", engi.Errorf(engi.Invalid, "no program is given").WithRemedy("name a file, or give the program with -c")
	}
	in := os.Stdin
	if j.File != "-" {
		f, err := os.Open(j.File)
		if err != nil {
			return "", engi.Errorf(engi.Invalid, "%v", err).WithRemedy("give code with -c, or - to read it from standard input")
		}
		defer f.Close()
		in = f
	}
	b, err := io.ReadAll(io.LimitReader(in, maxScript+1))
	if err != nil {
		return "", engi.Errorf(engi.Unavailable, "read %s: %v", filepath.Base(j.File), err)
	}
	if len(b) > maxScript {
		return "", engi.Errorf(engi.Invalid, "%s has more than %d bytes", j.File, maxScript)
	}
	return string(b), nil
}
