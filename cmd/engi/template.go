package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
)

type templateCommand struct {
	Build  templateBuild  `cmd:"" help:"Build a template if it has changed."`
	List   templateList   `cmd:"" help:"List templates."`
	Show   templateShow   `cmd:"" help:"Show a template."`
	Remove templateRemove `cmd:"" help:"Remove templates."`
	Prune  templatePrune  `cmd:"" help:"Delete unused builds."`
}

type templateBuild struct {
	Name   string `arg:"" help:"Built-in template (base, host), a YAML file, or a devcontainer.json." placeholder:"NAME|FILE"`
	As     string `help:"Name of the template (default: the file name, or the directory of a devcontainer.json)." placeholder:"NAME"`
	Detach bool   `short:"d" help:"Build in the background: print the ID of the operation, and do not wait."`
}

func (templateBuild) Help() string {
	return `Examples:
  engi template build base
  engi template build ./python-data.yaml
  engi template build ./python-data.yaml --as data
  engi template build .devcontainer/devcontainer.json
  engi operation watch $(engi template build base --detach)`
}

func (t *templateBuild) Run(ctx context.Context, g *globals) error {
	req := v1.TemplateRequest{Name: t.Name}
	if ext := filepath.Ext(t.Name); ext == ".yaml" || ext == ".yml" || ext == ".json" {
		text, err := os.ReadFile(t.Name)
		if err != nil {
			return engi.Errorf(engi.Invalid, "%v", err)
		}
		req.Name, req.Definition = strings.TrimSuffix(filepath.Base(t.Name), ext), string(text)
		if strings.TrimPrefix(req.Name, ".") == "devcontainer" {
			if req.Name, err = folderName(t.Name); err != nil {
				return err
			}
		}
	}
	if t.As != "" {
		req.Name = t.As
	}
	if t.Detach {
		return create(ctx, g, func(d *connection) (v1.Operation, error) { return d.StartBuild(ctx, req) }, func(x v1.Operation) string { return x.ID })
	}
	d, err := g.connect(ctx, orPrivate)
	if err != nil {
		return err
	}
	defer d.close()
	p := newProgress(g)
	began := time.Now()
	var built *v1.Template
	for e, err := range d.BuildTemplate(ctx, req) {
		if err != nil {
			p.fail()
			return err
		}
		switch e.Type {
		case v1.EventResult:
			built = e.Template
		default:
			p.step(e)
		}
	}
	p.done()
	if built == nil {
		return engi.Errorf(engi.Internal, "the build of %s ended without a result", req.Name)
	}
	if g.JSON {
		return g.printJSON(built)
	}
	took := "was up to date"
	if built.BuiltAt != nil && built.BuiltAt.After(began.Add(-time.Second)) {
		took = "built in " + short(time.Since(began))
	}
	fmt.Fprintf(g.out, "template %s %s (%d MiB)\n", built.Name, took, built.Bytes>>20)
	return nil
}

// folderName returns the name of the folder of a devcontainer.json.
func folderName(file string) (string, error) {
	at, err := filepath.Abs(file)
	if err != nil {
		return "", engi.Errorf(engi.Invalid, "%v", err)
	}
	dir := filepath.Dir(at)
	if filepath.Base(dir) == ".devcontainer" {
		dir = filepath.Dir(dir)
	}
	return strings.ToLower(strings.ReplaceAll(filepath.Base(dir), " ", "-")), nil
}

// A progress shows the progress of a build: bars on terminals, lines elsewhere.
type progress struct {
	g     *globals
	bars  *mpb.Progress // nil without a terminal
	bar   *mpb.Bar
	now   int
	known bool     // the size of the step is known
	lines []string // last lines of the step, shown when it fails
}

func newProgress(g *globals) *progress {
	p := &progress{g: g}
	if width(g.err) >= 60 && !g.JSON && !g.Verbose {
		p.bars = mpb.New(mpb.WithOutput(g.err), mpb.WithWidth(40))
	}
	return p
}

func (p *progress) step(e v1.BuildUpdate) {
	if e.Type == v1.EventWarning {
		p.g.note("%s", e.Log)
		return
	}
	if e.Log != "" {
		p.lines = append(p.lines, e.Log)
		p.lines = p.lines[max(0, len(p.lines)-20):]
		if p.g.Verbose {
			fmt.Fprintln(p.g.err, "  "+e.Log)
		}
		return
	}
	if e.Step != p.now {
		p.end()
		p.now, p.known, p.lines = e.Step, false, nil
		switch {
		case p.g.JSON:
		case p.bars != nil:
			p.bar = p.bars.New(0, mpb.BarStyle().Rbound("]"),
				mpb.PrependDecorators(decor.Name(fmt.Sprintf("%s %-40.40s ", count(e), e.Name))),
				mpb.AppendDecorators(decor.Elapsed(decor.ET_STYLE_MMSS), decor.Any(left(time.Now()))))
		default:
			fmt.Fprintf(p.g.err, "%s %s\n", count(e), e.Name)
		}
	}
	if p.bar != nil && e.Total > 0 {
		p.known = true
		p.bar.SetTotal(e.Total, false)
		p.bar.SetCurrent(e.Done)
	}
}

// left returns a decorator for the remaining time of a step, if it is
// known.
func left(began time.Time) decor.DecorFunc {
	return func(s decor.Statistics) string {
		took := time.Since(began)
		if s.Completed || s.Total <= 0 || s.Current <= 0 || took < 2*time.Second {
			return ""
		}
		return " " + short(time.Duration(float64(took)*float64(s.Total-s.Current)/float64(s.Current))) + " left"
	}
}

func count(e v1.BuildUpdate) string {
	if e.Steps > 0 {
		return fmt.Sprintf("[%d/%d]", e.Step, e.Steps)
	}
	return fmt.Sprintf("[%d]", e.Step)
}

// end shows the step as done, even if its size was unknown.
func (p *progress) end() {
	if p.bar != nil {
		if !p.known {
			p.bar.SetTotal(1, false)
			p.bar.SetCurrent(1)
		}
		p.bar.SetTotal(-1, true)
		p.bar = nil
	}
}

func (p *progress) done() {
	p.end()
	if p.bars != nil {
		p.bars.Wait()
	}
}

func (p *progress) fail() {
	if p.bar != nil {
		p.bar.Abort(false)
		p.bar = nil
	}
	p.done()
	if !p.g.JSON && !p.g.Verbose {
		for _, l := range p.lines {
			fmt.Fprintln(p.g.err, "  "+l)
		}
	}
}

type templateList struct{}

func (templateList) Help() string { return example("engi template list") }

func (templateList) Run(ctx context.Context, g *globals) error {
	templates := table[v1.Template]{"NAME\tBUILT\tSIZE\tLANGUAGES", func(t v1.Template) []any {
		built, size := "not built", ""
		if t.Built && t.BuiltAt != nil {
			built = ago(*t.BuiltAt)
		}
		if t.Bytes > 0 {
			size = fmt.Sprintf("%d MiB", t.Bytes>>20)
		}
		return []any{t.Name, built, size, strings.Join(slices.Sorted(maps.Keys(t.Languages)), " ")}
	}, nil}
	return templates.listAt(ctx, g, orPrivate, false, func(d *connection) ([]v1.Template, error) { return d.Templates(ctx) })
}

type templateShow struct {
	Name string `arg:"" help:"Template." placeholder:"NAME"`
}

func (templateShow) Help() string { return example("engi template show base --json") }

func (s *templateShow) Run(ctx context.Context, g *globals) error {
	return g.at(ctx, orPrivate, func(d *connection) error {
		t, err := d.Template(ctx, s.Name)
		if err != nil {
			return err
		}
		if g.JSON {
			return g.printJSON(t)
		}
		showTemplate(g, t)
		return nil
	})
}

func showTemplate(g *globals, t v1.Template) {
	var f facts
	f.add("name", "%s", t.Name)
	f.add("digest", "%s", orDash(t.Digest))
	f.add("user", "%s (home %s)", cmp.Or(t.User, "root"), orDash(t.Home))
	f.add("work dir", "%s", orDash(t.WorkDir))
	f.add("shell", "%s", orDash(t.Shell))
	f.add("size", "%d MiB", t.Bytes>>20)
	if t.BuiltAt != nil {
		f.add("built", "%s (%s)", t.BuiltAt.Format(time.RFC3339), ago(*t.BuiltAt))
	}
	for _, l := range slices.Sorted(maps.Keys(t.Languages)) {
		warm := ""
		if t.Languages[l].Warm {
			warm = ", can wait started"
		}
		f.add("language", "%s: %s%s", l, t.Languages[l].Path, warm)
	}
	for _, k := range slices.Sorted(maps.Keys(t.Env)) {
		f.add("env", "%s=%s", k, t.Env[k])
	}
	if len(t.Ports) > 0 {
		private := ""
		if t.Private {
			private = ", private"
		}
		f.add("ports", "%v%s", t.Ports, private)
	}
	f.print(g)
}

type templateRemove struct {
	Names []string `arg:"" help:"Templates." placeholder:"NAME"`
}

func (templateRemove) Help() string {
	return example("engi template remove python-data && engi template prune")
}

func (r *templateRemove) Run(ctx context.Context, g *globals) error {
	return g.at(ctx, orPrivate, func(d *connection) error {
		for _, name := range r.Names {
			if err := d.RemoveTemplate(ctx, name); err != nil {
				return err
			}
		}
		if g.JSON {
			return g.printJSON(map[string]any{"removed": r.Names})
		}
		return nil
	})
}

type templatePrune struct{}

func (templatePrune) Help() string { return example("engi template prune") }

func (templatePrune) Run(ctx context.Context, g *globals) error {
	return g.at(ctx, orPrivate, func(d *connection) error {
		freed, err := d.PruneTemplates(ctx)
		if err != nil {
			return err
		}
		if g.JSON {
			return g.printJSON(v1.Pruned{Freed: freed})
		}
		fmt.Fprintf(g.out, "freed %d MiB\n", freed>>20)
		return nil
	})
}
