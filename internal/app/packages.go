package app

import (
	"context"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/engi-dev/engi/internal/app/output"
	"github.com/engi-dev/engi/internal/app/project"
	"github.com/engi-dev/engi/internal/clock"
	"github.com/engi-dev/engi/internal/engi"
)

const (
	installTime  = 120 * time.Second // maximum time of one attempt to install packages
	installTries = 3
	installPause = time.Second      // pause before the second attempt; doubled before each further one
	networkTime  = 30 * time.Second // maximum time of one answer of a registry
	commandTime  = 120 * time.Second
	maxCommands  = 20
	maxCommand   = 4 << 10 // bytes
)

// clearCaches frees space on a full disk: npm and pip can download their caches again.
func (u *use) clearCaches(ctx context.Context) error {
	_, err := u.run(ctx, commandTime, func(string) {}, u.shell(), "-c", `rm -rf "$HOME/.npm/_cacache" "$HOME/.cache/pip" "$HOME/.cache/node"`)
	return err
}

// failures maps messages of npm and pip to reasons why packages cannot be installed. The first
// that matches counts.
var failures = []struct {
	text   *regexp.Regexp
	kind   engi.Kind
	again  bool // another attempt may succeed
	remedy string
}{
	{regexp.MustCompile(`(?i)\bENOSPC\b|no space left|\bEDQUOT\b`), engi.Exhausted, false,
		"the disk of the sandbox is full: remove there what is not needed, or stop the app and open it again"},
	{regexp.MustCompile(`(?i)\bE404\b|\bETARGET\b|\bENOVERSIONS\b|\bEINVALIDPACKAGENAME\b|\bEINVALIDTAGNAME\b|\bEUSAGE\b|\bEBADENGINE\b|\bEBADPLATFORM\b|No matching distribution|ResolutionImpossible`), engi.Conflict, false,
		"name packages that exist, in versions that fit each other"},
	{regexp.MustCompile(`(?i)\bEJSONPARSE\b|Invalid requirement|Could not open requirements file`), engi.Invalid, false,
		"write a package.json or requirements.txt that is valid"},
	{regexp.MustCompile(`(?i)\bE40[13]\b|HTTP error 40[13]`), engi.Denied, false,
		"the registry refuses it: see 'engi net log', and name a registry that needs a key in the app's network policy"},
	{regexp.MustCompile(`(?i)\bETIMEDOUT\b|\bECONN(RESET|REFUSED|ABORTED)\b|\bEAI_AGAIN\b|\bENOTFOUND\b|\bE5\d\d\b|\bE429\b|\bERR_SOCKET|socket (hang up|timeout)|timed out|Max retries exceeded|Connection(Reset)?Error|NewConnectionError|HTTP error 5|took longer than`), engi.Unavailable, true,
		"the registry does not answer: apply the text again in a moment; the app's network policy must allow 'packages'"},
}

// install installs packages; without any, it installs those of the app's manifest.
func (s *Service) install(ctx context.Context, u *use, packages []string, line func(string)) error {
	_, err := u.g.Stat(ctx, u.dir+"/package.json")
	npm := err == nil
	if err != nil && !engi.Is(err, engi.NotFound) {
		return err
	}
	args := []string{"npm", "install", "--legacy-peer-deps", "--no-audit", "--no-fund", "--no-progress", "--fetch-retries=1", "--fetch-retry-mintimeout=1000",
		fmt.Sprintf("--fetch-timeout=%d", networkTime.Milliseconds())}
	if !npm {
		args = []string{"pip", "install", "--disable-pip-version-check", "--no-input", "--progress-bar=off", "--retries=1", fmt.Sprintf("--timeout=%.0f", networkTime.Seconds())}
		if len(packages) == 0 {
			args = append(args, "--requirement=requirements.txt")
		}
	}
	args = append(append(args, "--"), packages...)
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
		text, kind, again, remedy := strings.Join(printed, "\n"), engi.Conflict, true, "see what it prints; name packages that exist, in versions that fit each other"
		for _, f := range failures {
			if f.text.MatchString(text) {
				kind, again, remedy = f.kind, f.again, f.remedy
				break
			}
		}
		if kind == engi.Exhausted && !cleared {
			line("the disk is full: clear caches and try again")
			if cleared, err = true, u.clearCaches(ctx); err != nil {
				return err
			}
			continue
		}
		if i >= installTries || !again {
			return engi.Errorf(kind, "%s ended with %d:\n%.4000s", strings.Join(args[:2], " "), code, text).WithRemedy("%s", remedy)
		}
		line(fmt.Sprintf("%s failed, trying again in %v", args[0], pause))
		if err := clock.Sleep(ctx, pause); err != nil {
			return err
		}
	}
	if npm || len(packages) == 0 {
		return nil
	}
	return u.require(ctx, packages)
}

// require adds packages with their installed versions to requirements.txt, as npm
// adds them to package.json.
func (u *use) require(ctx context.Context, packages []string) error {
	text, err := readFile(ctx, u.g, u.dir+"/requirements.txt")
	if err != nil && !engi.Is(err, engi.NotFound) {
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

// pipName returns the normalized name of a requirement, for comparisons.
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

// commandTag is the tag of an apply's command. The command continues if the node is killed,
// so the next node must find it.
const commandTag = "apply"

// run runs a program in the app's directory and returns its exit code, or -1 if a signal or
// the time limit has ended it.
func (u *use) run(ctx context.Context, limit time.Duration, line func(string), args ...string) (code int, err error) {
	p, err := u.g.Start(ctx, engi.Command{Args: args, Dir: u.dir, Env: u.env(map[string]string{"CI": "1", "NO_COLOR": "1"}), Timeout: limit, Tag: u.rec.tag(commandTag)})
	if err != nil {
		return 0, err
	}
	exit, err := answer(ctx, limit+graceTime, func(ctx context.Context) (engi.Exit, error) {
		if err := drain(ctx, p, line); err != nil {
			return engi.Exit{}, guestError(err)
		}
		return p.Wait(ctx)
	})
	if err != nil {
		return 0, err // restore ends the program
	}
	if exit.Cause == engi.CauseTimeout {
		line(args[0] + " took longer than " + limit.String())
	}
	return exit.Code, nil
}

// end ends the program with a tag, if there is one, and its child processes, so that the
// command of an apply writes nothing after the files are restored.
func (u *use) end(ctx context.Context, tag string) error {
	p, err := u.g.Attach(ctx, tag)
	if err == nil {
		// A stopped process keeps its process ID.
		_, err = answer(ctx, guestTime, func(ctx context.Context) (none, error) { return none{}, p.Signal(ctx, "STOP") })
	}
	if err != nil {
		return engi.Ignore(err, engi.NotFound)
	}
	// dash knows -- after -s KILL only, and not after -KILL. The process itself is named, too, because in gVisor a stopped
	// one may survive a signal to its group.
	killer, err := u.g.Start(ctx, engi.Command{Args: []string{u.shell(), "-c", fmt.Sprintf("kill -s KILL -- -%d %[1]d", p.PID())}, Timeout: guestTime})
	if err != nil {
		return err
	}
	for _, p := range []engi.Process{killer, p} {
		if _, err := answer(ctx, guestTime, p.Wait); err != nil {
			return err
		}
	}
	return nil
}

// commands returns the commands of a text that are to be run.
func (s *Service) commands(out output.Output, say *reporter) (all []string) {
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

// missing returns the packages to install: those that the text requests, and
// those that files import and that neither package.json nor requirements.txt has. now has
// the files after the change; written has the contents of changed files.
func (s *Service) missing(ctx context.Context, u *use, now tree, written map[string]string, asked []string, say *reporter) (packages []string, err error) {
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
		if !ok && slices.Contains(sources, path.Ext(p)) { // of other files, only the path matters
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
	have, name := map[string]string{}, npmName
	if npm {
		m, err := project.ParsePackage(files["package.json"])
		if err != nil {
			return nil, engi.Errorf(engi.Invalid, "%v", err).WithRemedy("write valid JSON")
		}
		found, problems = project.Missing(files, m)
		maps.Copy(have, m.DevDependencies)
		maps.Copy(have, m.Dependencies)
	} else {
		name = pipName
		found, problems = project.MissingPython(files)
		for l := range strings.SplitSeq(files["requirements.txt"], "\n") {
			have[pipName(l)] = l
		}
		for i, p := range asked { // models write versions with @, like npm
			if p, version, ok := strings.Cut(p, "@"); ok && strings.Trim(version, "0123456789.") == "" {
				asked[i] = p + "==" + version
			} else if ok && version == "latest" {
				asked[i] = p
			}
		}
	}
	for _, p := range problems {
		if _, ok := written[p.File]; ok {
			say.warn(p.File, p.Line, p.Text)
		}
	}
	for _, p := range slices.Concat(asked, found) { // packages with a version come first
		plain := p
		if !npm && !strings.ContainsAny(p, "=<>!~;[ @") {
			plain = name(p)
		}
		if _, ok := have[plain]; !ok && !slices.ContainsFunc(packages, func(q string) bool { return name(q) == name(p) }) {
			packages = append(packages, p)
		}
	}
	return packages, nil
}

// sources are the extensions of files that contain or configure imports.
var sources = []string{".js", ".jsx", ".ts", ".tsx", ".mjs", ".cjs", ".mts", ".cts", ".css", ".scss", ".less", ".json", ".py", ".txt", ".toml"}

// npmName returns the name of a package without its version.
func npmName(p string) string {
	if i := strings.LastIndexByte(p, '@'); i > 0 {
		return p[:i]
	}
	return p
}
