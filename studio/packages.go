package studio

import (
	"context"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/studio/output"
	"github.com/engi-dev/engi/studio/project"
)

const (
	installTime  = 120 * time.Second // that one attempt to install packages may take
	installTries = 3
	installPause = time.Second // before the second attempt; twice as long before each further one
	commandTime  = 120 * time.Second
	maxCommands  = 20
	maxCommand   = 4 << 10 // bytes
)

// forGood matches what npm and pip print if another attempt would fail like the first.
var forGood = regexp.MustCompile(`(?i)\bE404\b|\bETARGET\b|\bENOVERSIONS\b|\bEINVALIDPACKAGENAME\b|\bEUSAGE\b|\bEBADENGINE\b|No matching distribution|Invalid requirement`)

// noSpace matches what they print if the disk is full.
var noSpace = regexp.MustCompile(`ENOSPC|No space left on device`)

// clearCaches makes room on a full disk: what npm and pip keep can be downloaded again.
func (u *use) clearCaches(ctx context.Context) error {
	_, err := u.run(ctx, commandTime, func(string) {}, u.shell(), "-c", `rm -rf "$HOME/.npm/_cacache" "$HOME/.cache/pip" "$HOME/.cache/node"`)
	return err
}

// install installs packages, or without any what the app's manifest asks for.
func (s *Service) install(ctx context.Context, u *use, packages []string, line func(string)) error {
	_, err := u.g.Stat(ctx, u.dir+"/package.json")
	npm := err == nil
	if err != nil && engi.KindOf(err) != engi.NotFound {
		return err
	}
	args := []string{"npm", "install", "--legacy-peer-deps", "--no-audit", "--no-fund", "--no-progress", "--"}
	if !npm {
		if args = []string{"pip", "install", "--disable-pip-version-check", "--no-input", "--progress-bar", "off"}; len(packages) == 0 {
			args = append(args, "-r", "requirements.txt")
		}
	}
	args = append(args, packages...)
	cleared := false
	for pause, i := installPause, 1; ; pause, i = 2*pause, i+1 {
		var printed []string
		code, err := u.run(ctx, installTime, func(text string) {
			line(text)
			if printed = append(printed, text); len(printed) > 20 {
				printed = printed[1:]
			}
		}, args...)
		if err != nil {
			return err
		}
		if code == 0 {
			break
		}
		text := strings.Join(printed, "\n")
		if !cleared && noSpace.MatchString(text) {
			line("the disk is full: clear caches and try again")
			if cleared, err = true, u.clearCaches(ctx); err != nil {
				return err
			}
			continue
		}
		if i >= installTries || cleared || forGood.MatchString(text) {
			return engi.Errorf(engi.Conflict, "%s ended with %d:\n%.4000s", strings.Join(args[:2], " "), code, text).
				WithRemedy("name packages that exist, in versions that fit each other")
		}
		line(args[0] + " failed, trying again")
		if err := sleep(ctx, pause); err != nil {
			return err
		}
	}
	if npm || len(packages) == 0 {
		return nil
	}
	return u.require(ctx, packages)
}

// require adds packages to requirements.txt with the versions that were installed, as npm
// does to package.json.
func (u *use) require(ctx context.Context, packages []string) error {
	text, err := readFile(ctx, u.g, u.dir+"/requirements.txt")
	if err != nil && engi.KindOf(err) != engi.NotFound {
		return err
	}
	installed := map[string]string{}
	if _, err := u.run(ctx, commandTime, func(l string) { installed[pipName(l)] = l }, "pip", "freeze"); err != nil {
		return err
	}
	lines := strings.FieldsFunc(string(text), func(r rune) bool { return r == '\n' })
	for _, p := range packages {
		name := pipName(p)
		if l := installed[name]; l != "" && name == strings.ToLower(p) {
			p = l
		}
		lines = slices.DeleteFunc(lines, func(l string) bool { return pipName(l) == name })
		lines = append(lines, p)
	}
	return u.write(ctx, []content{{"requirements.txt", []byte(strings.Join(lines, "\n") + "\n"), fileMode}}, nil)
}

// pipName returns the name of a requirement in the form in which names are compared.
func pipName(requirement string) string {
	name := strings.TrimSpace(requirement)
	if i := strings.IndexAny(name, "=<>!~;[ @#"); i >= 0 {
		name = name[:i]
	}
	return strings.ToLower(strings.NewReplacer("_", "-", ".", "-").Replace(name))
}

func (u *use) shell() string {
	if u.t.Shell != "" {
		return u.t.Shell
	}
	return "/bin/sh"
}

// run runs a program in the app's directory and returns its exit code, -1 if a signal or
// its time has ended it.
func (u *use) run(ctx context.Context, limit time.Duration, line func(string), args ...string) (code int, err error) {
	p, err := u.g.Start(ctx, engi.Command{Args: args, Dir: u.dir, Env: map[string]string{"CI": "1", "NO_COLOR": "1"}, Timeout: limit})
	if err != nil {
		return 0, err
	}
	err = drain(ctx, p, line)
	if err == nil {
		var exit engi.Exit
		if exit, err = p.Wait(ctx); err == nil {
			if exit.Cause == engi.CauseTimeout {
				line(args[0] + " took longer than " + limit.String())
			}
			return exit.Code, nil
		}
	}
	// Nobody follows it any more.
	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTime)
	defer cancel()
	if e := p.Signal(late, "KILL"); e == nil {
		_, _ = p.Wait(late) // it is about to be restarted or put back anyhow
	}
	return 0, guestError(err)
}

// commands returns the commands of a text that are run.
func (s *Service) commands(out output.Output, say *teller) (all []string) {
	for i, c := range out.Commands {
		switch {
		case i >= maxCommands || len(c) > maxCommand || strings.ContainsRune(c, 0):
			say.warn("", 0, "a command was not run, because there are too many or it is too long: "+firstLine(c))
		default:
			all = append(all, c)
		}
	}
	return all
}

// missing returns the packages that are to be installed: those that the text asks for, and
// those that files import and that neither package.json nor requirements.txt has. now are
// the files as they will be, written the contents of those that change.
func (s *Service) missing(ctx context.Context, u *use, now tree, written map[string]string, asked []string, say *teller) (packages []string, err error) {
	_, npm := now["package.json"]
	if _, pip := now["requirements.txt"]; !npm && !pip {
		if len(asked) > 0 {
			say.warn("", 0, "packages were not installed, because there is neither a package.json nor a requirements.txt: "+strings.Join(asked, ", "))
		}
		return nil, nil
	}
	files := make(map[string]string, len(now))
	for p, f := range now {
		text, ok := written[p]
		if !ok && slices.Contains(sources, path.Ext(p)) { // whether others exist is enough
			data, err := s.content(ctx, u.rec.ID, f.Digest)
			if err != nil {
				return nil, err
			}
			text = string(data)
		}
		files[p] = text
	}
	var found []string
	var problems []project.Problem
	var m project.Package
	name := pipName
	if npm {
		name = npmName
		if m, err = project.ParsePackage(files["package.json"]); err != nil {
			return nil, engi.Errorf(engi.Invalid, "%v", err).WithRemedy("write valid JSON")
		}
		found, problems = project.Missing(files, m)
	} else {
		found, problems = project.MissingPython(files)
	}
	for _, p := range problems {
		if _, ok := written[p.File]; ok {
			say.warn(p.File, p.Line, p.Text)
		}
	}
	for _, p := range slices.Concat(asked, found) { // what comes with a version is first
		_, dep := m.Dependencies[p]
		_, dev := m.DevDependencies[p]
		if !dep && !dev && !slices.ContainsFunc(packages, func(q string) bool { return name(q) == name(p) }) {
			packages = append(packages, p)
		}
	}
	return packages, nil
}

// sources are the extensions of files that import others, or say how.
var sources = []string{".js", ".jsx", ".ts", ".tsx", ".mjs", ".cjs", ".mts", ".cts", ".css", ".scss", ".less", ".json", ".py", ".txt", ".toml"}

// npmName returns the name of a package that may have a version.
func npmName(p string) string {
	if i := strings.LastIndexByte(p, '@'); i > 0 {
		return p[:i]
	}
	return p
}
