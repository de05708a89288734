package app

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"image/png"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/engi-dev/engi/internal/app/problems"
	"github.com/engi-dev/engi/internal/engi"
)

const (
	maxPages      = 5 // maximum number of checked pages
	forwards      = 3 // time limit for Vite to print an error that a page reports, as a multiple of Options.Look
	defaultWidth  = 1280
	defaultHeight = 800
	maxSide       = 2560 // maximum width and height of a screenshot, in pixels
)

// Check implements [engi.Apps].
func (s *Service) Check(ctx context.Context, viewer engi.Viewer, idOrName string) (c engi.AppCheck, err error) {
	defer engi.Annotate(&err, "check app %.70s", idOrName)
	err = s.visit(ctx, viewer, idOrName, func(u *use) (err error) {
		// The files to check must be known; after a start of the node, none are.
		if u.rec, err = s.capture(ctx, u.app, u.rec, u.g, u.dir); err != nil {
			return err
		}
		c.Revision = u.rec.Revision
		if u.down {
			c.Problems = []engi.AppFault{{Source: "server", Text: cmp.Or(u.rec.Error, engi.Errorf(engi.Unavailable, "the app's server does not start")).Error()}}
			return nil
		}
		faults, err := u.check(ctx)
		if err != nil {
			return err
		}
		source := "server"
		if u.vite() {
			source = "vite"
		}
		for _, f := range faults {
			c.Problems = append(c.Problems, engi.AppFault{Source: source, Path: f.path, Line: f.line, Text: f.text})
		}
		_, from, err := s.logSince(ctx, u.rec, mark{}, 0)
		if err != nil {
			return err
		}
		found, blind, err := s.inspectUse(ctx, u, from)
		c.Warning = blind
		for _, p := range found[:min(len(found), maxWrong)] {
			c.Problems = append(c.Problems, engi.AppFault{Source: p.Source, Path: p.File, Line: p.Line, Text: p.Text})
		}
		return err
	})
	return c, err
}

// Screenshot implements [engi.Apps].
func (s *Service) Screenshot(ctx context.Context, spec engi.ScreenshotSpec) (image []byte, err error) {
	defer engi.Annotate(&err, "screenshot of app %.70s", spec.App)
	spec.Path, spec.Width, spec.Height = cmp.Or(spec.Path, "/"), cmp.Or(spec.Width, defaultWidth), cmp.Or(spec.Height, defaultHeight)
	to, err := url.ParseRequestURI(spec.Path)
	switch {
	case err != nil || !strings.HasPrefix(spec.Path, "/") || strings.HasPrefix(spec.Path, "//") || len(spec.Path) > maxPath:
		return nil, engi.Errorf(engi.Invalid, "%.80q is not the path of a page", spec.Path).WithRemedy("write it like /cart")
	case min(spec.Width, spec.Height) < 1 || max(spec.Width, spec.Height) > maxSide:
		return nil, engi.Errorf(engi.Invalid, "a picture of %d times %d is not possible", spec.Width, spec.Height).WithRemedy("each side is 1 to %d", maxSide)
	}
	err = s.visit(ctx, spec.Viewer, spec.App, func(u *use) error {
		if u.down {
			return cmp.Or(u.rec.Error, engi.Errorf(engi.Unavailable, "the app's server does not start"))
		}
		return s.browse(ctx, u, spec.Width, spec.Height, func(ctx context.Context, b *browser) error {
			if up, err := b.show(ctx, to.RequestURI()); err != nil || !up {
				return cmp.Or(err, error(engi.Errorf(engi.Unavailable, "the page does not come up").WithRemedy("check the app: one of its scripts may not end")))
			}
			if image, err = b.picture(ctx); err != nil {
				return err
			}
			if c, err := png.DecodeConfig(bytes.NewReader(image)); err != nil || c.Width != spec.Width || c.Height != spec.Height {
				return errBrowser
			}
			return nil
		})
	})
	if err != nil {
		return nil, err
	}
	return image, nil
}

// visit calls f with an app while no change is running, even if its server does not start.
func (s *Service) visit(ctx context.Context, viewer engi.Viewer, idOrName string, f func(u *use) error) error {
	u, err := s.open(ctx, viewer, idOrName, how{repair: true, idle: true})
	if err != nil {
		return err
	}
	defer u.close()
	return f(u)
}

// browse starts a browser in the sandbox for f, and ends it with all its child processes.
func (s *Service) browse(ctx context.Context, u *use, width, height int, f func(ctx context.Context, b *browser) error) error {
	if err := u.end(ctx, u.rec.tag(browserTag)); err != nil { // a browser of a node that was killed
		return err
	}
	bounded, cancel := context.WithTimeoutCause(ctx, browserTime, engi.Errorf(engi.Expired, "it took longer than %v", browserTime))
	defer cancel()
	b, err := u.openBrowser(bounded, width, height)
	if err == nil {
		err = f(bounded, b)
	}
	cancel()
	if b != nil {
		for range b.says { // until the browser has ended
		}
	}
	late, stop := s.late(ctx)
	defer stop()
	if e := u.end(late, u.rec.tag(browserTag)); e != nil {
		return errors.Join(err, e)
	}
	return errors.Join(err, u.g.Remove(late, u.rec.tag(browserDir)))
}

// A sight is the result of viewing an app in a browser.
type sight struct {
	wrong []seen
	doubt []seen // errors that the app may not have caused
	blind string // reason why a part was skipped; may be empty
}

// view opens the pages of an app in a browser in its sandbox. A missing browser is no error.
func (s *Service) view(ctx context.Context, u *use, from mark) (v sight, err error) {
	c := u.client()
	_, page, err := u.get(ctx, c, "/", "text/html")
	c.CloseIdleConnections()
	if err != nil || !bytes.HasPrefix(bytes.TrimSpace(page), []byte("<")) {
		return v, nil // the app has no pages for a browser
	}
	m, err := s.Manifest(ctx, engi.Everyone, string(u.rec.ID), u.rec.Revision)
	if err != nil {
		return v, err
	}
	err = s.browse(ctx, u, defaultWidth, defaultHeight, func(ctx context.Context, b *browser) error {
		err := s.viewPages(ctx, u, b, m, from, &v)
		if v.wrong = append(v.wrong, b.seen...); len(b.scripts) > 0 {
			v.wrong, v.doubt = nil, v.wrong
			v.blind = "errors of the page do not count, since it wants scripts of " + strings.Join(slices.Sorted(maps.Keys(b.scripts)), ", ") + ", which its sandbox does not reach"
		}
		return err
	})
	switch {
	case ctx.Err() != nil:
		return v, engi.Errorf(engi.Expired, "look at the page: %v", context.Cause(ctx))
	case err != nil:
		v.blind = "the page was not looked at: " + firstLine(err.Error())
	}
	return v, nil
}

// viewPages opens the pages of an app one after the other.
func (s *Service) viewPages(ctx context.Context, u *use, b *browser, m engi.AppManifest, from mark, v *sight) error {
	for _, path := range pages(m) {
		up, err := b.show(ctx, path)
		empty := false
		if err == nil && up && len(b.seen) == b.before && !b.left {
			empty, err = b.blank(ctx)
		}
		if err != nil {
			return err
		}
		p := problems.Problem{Source: "browser", File: m.Entry}
		switch {
		case !up:
			p.Text = "the page does not come up, because something in it never ends"
		case empty:
			p.Text = "the page is empty: nothing is rendered into its root"
		default:
			continue
		}
		if v.wrong = append(v.wrong, seen{p, path}); !up {
			return nil
		}
	}
	if !u.vite() {
		return nil
	}
	_, err := within(ctx, forwards*s.opt.Look, func(ctx context.Context) error { return s.forwarded(ctx, u, b, from) })
	return err
}

// forwarded waits until Vite has printed the errors that the page has reported to it,
// with their positions in the files.
func (s *Service) forwarded(ctx context.Context, u *use, b *browser, from mark) error {
	for len(b.seen) > 0 {
		log, _, err := s.logSince(ctx, u.rec, from, 0)
		if err != nil {
			return err
		}
		printed := problems.Parse(log, u.dir)
		if !slices.ContainsFunc(b.seen, func(x seen) bool { return !slices.ContainsFunc(printed, x.is) }) {
			return nil
		}
		if _, err := within(ctx, startEvery, func(ctx context.Context) error { return b.until(ctx, func() bool { return false }) }); err != nil {
			return err
		}
	}
	return nil
}

// pages returns the paths of the pages of an app, as far as its code shows them.
func pages(m engi.AppManifest) []string {
	all := []string{"/"}
	for _, r := range m.Routes {
		path := (&url.URL{Path: r.Path}).EscapedPath()
		if r.Method == "" && strings.HasPrefix(path, "/") && !strings.HasPrefix(path, "//") && !strings.ContainsAny(r.Path, ":*") && len(path) <= maxPath && !slices.Contains(all, path) && len(all) < maxPages {
			all = append(all, path)
		}
	}
	return all
}

// is reports whether a problem is this error as Vite prints it.
func (x seen) is(p problems.Problem) bool {
	if p.Source != "browser" {
		return false
	}
	a, b := firstLine(x.Text), firstLine(p.Text)
	if path, ok := strings.CutPrefix(a, failedRequest); ok {
		path, _, _ = strings.Cut(path, ": ")
		return strings.HasPrefix(b, failedRequest) && strings.Contains(b, path)
	}
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return strings.Contains(b, a) || strings.Contains(a, b) || 2*n >= min(len(a), len(b)) // values are formatted differently
}

// with adds the problems that the browser found to the known problems, without duplicates.
func (v sight) with(all []problems.Problem) []problems.Problem {
	for _, x := range v.doubt {
		all = slices.DeleteFunc(all, x.is)
	}
	told := map[int]bool{}
	for _, x := range v.wrong {
		i := slices.IndexFunc(all, x.is)
		if i < 0 {
			i = len(all)
			all = append(all, x.Problem)
		}
		if x.page != "/" && !told[i] {
			told[i] = true
			all[i].Text += "\non the page " + x.page
		}
	}
	return all
}
