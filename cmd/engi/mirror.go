package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
)

type mirrorCommand struct {
	Warm   mirrorWarm   `cmd:"" help:"Fill the cache with the packages of lock files."`
	Status mirrorStatus `cmd:"" help:"Show the size of the cache and its requests."`
	Clear  mirrorClear  `cmd:"" help:"Delete all packages from the cache."`
}

type mirrorWarm struct {
	Files []string `arg:"" name:"file" help:"package-lock.json, yarn.lock, pnpm-lock.yaml, requirements.txt, go.sum, Cargo.lock, or a list of URLs." placeholder:"FILE"`
}

func (mirrorWarm) Help() string {
	return `Sandboxes whose network policy allows packages can then install them without a network. Exits with 1
if a package cannot be fetched. With --json, prints one event per line.

Examples:
  engi mirror warm package-lock.json requirements.txt
  engi mirror warm go.sum --json`
}

const maxLockFile = 8 << 20

func (m *mirrorWarm) Run(ctx context.Context, g *globals) error {
	var files []v1.MirrorFile
	for _, path := range m.Files {
		info, err := os.Stat(path)
		if err == nil && info.Size() > maxLockFile {
			return engi.Errorf(engi.Invalid, "%s has more than %d bytes", path, maxLockFile)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return engi.Errorf(engi.Invalid, "%v", err).WithRemedy("give files that exist here")
		}
		files = append(files, v1.MirrorFile{Name: filepath.Base(path), Content: string(text)})
	}
	return g.atServer(ctx, func(d *connection) error {
		var bars *mpb.Progress
		var bar *mpb.Bar
		if width(g.err) >= 60 && !g.JSON && !g.Verbose {
			bars = mpb.New(mpb.WithOutput(g.err), mpb.WithWidth(40))
			bar = bars.New(0, mpb.BarStyle().Rbound("]"), mpb.PrependDecorators(decor.Name("packages ")), mpb.AppendDecorators(decor.CountersNoUnit("%d / %d")))
		}
		var last v1.MirrorUpdate
		var failed []v1.MirrorUpdate
		for e, err := range d.WarmMirror(ctx, files) {
			if err != nil {
				if bar != nil {
					bar.Abort(false)
					bars.Wait()
				}
				return err
			}
			last = e
			if e.Problem != nil {
				failed = append(failed, e)
			}
			switch {
			case g.JSON:
				if err := g.printLine(e); err != nil {
					return err
				}
			case bar != nil:
				bar.SetTotal(int64(e.Total), false)
				bar.SetCurrent(int64(e.Done))
			case g.Verbose && e.Package != "":
				fmt.Fprintln(g.err, "  "+e.Package)
			}
		}
		if bar != nil {
			bar.SetTotal(-1, true)
			bars.Wait()
		}
		if !g.JSON {
			for _, e := range failed {
				fmt.Fprintf(g.err, "%s: %s\n", e.Package, e.Problem.Detail)
			}
		}
		g.note("%d of %d packages are there, %s", last.Done-last.Failed, last.Total, last.Bytes)
		if last.Failed > 0 {
			return engi.Errorf(engi.Unavailable, "%d of %d packages are not available", last.Failed, last.Total).WithRemedy("look at the reasons above, and try again")
		}
		return nil
	})
}

type mirrorStatus struct{}

func (mirrorStatus) Help() string { return example("engi mirror status") }

func (mirrorStatus) Run(ctx context.Context, g *globals) error {
	return show(ctx, g, func(d *connection) (v1.Mirror, error) { return d.Mirror(ctx) }, func(x v1.Mirror) {
		rows := make([][]any, len(x.Ecosystems))
		for i, e := range x.Ecosystems {
			rows[i] = []any{e.Name, e.Requests, e.Hits, e.Fetched, e.Refused, e.Bytes.String(), e.Upstream}
		}
		g.columns("ECOSYSTEM\tREQUESTS\tHITS\tFETCHED\tREFUSED\tBYTES\tUPSTREAM", rows)
		offline := ""
		if x.Offline {
			offline = ", offline"
		}
		fmt.Fprintf(g.out, "%d files, %s of %s%s\n", x.Files, x.Bytes, x.Size, offline)
	})
}

type mirrorClear struct{}

func (mirrorClear) Help() string { return example("engi mirror clear") }

func (mirrorClear) Run(ctx context.Context, g *globals) error {
	return g.atServer(ctx, func(d *connection) error {
		if err := d.ClearMirror(ctx); err != nil {
			return err
		}
		g.note("all packages are forgotten")
		return nil
	})
}
