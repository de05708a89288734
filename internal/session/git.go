package session

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/engi-dev/engi/internal/clip"
	"github.com/engi-dev/engi/internal/engi"
)

// Git runs in the sandbox, because the content of a repository is not trusted. It asks
// for no password, because egress adds the secret.

const (
	gitTimeout     = 10 * time.Minute // maximum time of one git command
	maxGitOutput   = 64 << 10
	maxGitMessage  = 4096
	maxGitDepth    = 1_000_000
	defaultGitUser = "git"
)

var (
	gitPathForm   = regexp.MustCompile(`^(/[A-Za-z0-9._~@+-]+)+$`)
	gitDirForm    = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)*$`)
	gitRefForm    = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._/+#@-]{0,199}$`)
	gitCommitForm = regexp.MustCompile(`^([0-9a-f]{40}|[0-9a-f]{64})$`)
	gitAuthorForm = regexp.MustCompile(`^([^<>\x00-\x1f\x7f]{1,200}) <([^<>\s\x00-\x1f\x7f]{1,200})>$`)
)

// checkGit validates a repository and returns it with defaults set.
func checkGit(g engi.GitSpec) (*engi.GitSpec, error) {
	u, err := url.Parse(g.URL)
	if err != nil || len(g.URL) > 2048 {
		return nil, engi.Errorf(engi.Invalid, "git.url is not a URL").WithRemedy("write it like https://github.com/owner/repository.git")
	}
	switch {
	case u.Scheme != "https" && u.Scheme != "http":
		return nil, engi.Errorf(engi.Invalid, "git.url %.200q is not for https", u.Redacted()).
			WithRemedy("write it like https://github.com/owner/repository.git; ssh cannot be judged at the egress gateway")
	case u.User != nil:
		return nil, engi.Errorf(engi.Invalid, "git.url has a user or a password, which would be inside of the sandbox").
			WithRemedy("store the password with 'engi secret set NAME --host %s', name it in git.secret, and the user in git.user", u.Hostname())
	case u.Hostname() == "" || u.RawQuery != "" || u.Fragment != "" || u.RawPath != "" || !gitPathForm.MatchString(strings.TrimSuffix(u.Path, "/")) || path.Clean(u.Path) != strings.TrimSuffix(u.Path, "/"):
		return nil, engi.Errorf(engi.Invalid, "git.url %.200q does not name a repository at a host", u.Redacted()).
			WithRemedy("write it like https://github.com/owner/repository.git, without query; a path has letters, digits and ._~@+-")
	}
	u.Path = strings.TrimSuffix(u.Path, "/")
	g.URL = u.String()
	g.Dir = cmp.Or(g.Dir, strings.TrimSuffix(path.Base(u.Path), ".git"))
	if !gitDirForm.MatchString(g.Dir) || len(g.Dir) > 512 {
		return nil, engi.Errorf(engi.Invalid, "git.dir %.200q is not a directory below /workspace", g.Dir).WithRemedy("write a relative path of letters, digits, '.', '_' and '-'")
	}
	if g.Ref != "" && !isRef(g.Ref) {
		return nil, engi.Errorf(engi.Invalid, "git.ref %.200q is not a branch, a tag or a commit", g.Ref).WithRemedy("name one, such as main or v1.2, or a full commit ID")
	}
	if g.Depth < 0 || g.Depth > maxGitDepth {
		return nil, engi.Errorf(engi.Invalid, "a git.depth of %d", g.Depth).WithRemedy("use 1 for the last commit only, or 0 for all")
	}
	if g.User != "" && g.Secret == "" {
		return nil, engi.Errorf(engi.Invalid, "git.user without git.secret").WithRemedy("name the secret that has the password")
	}
	if g.Secret != "" {
		g.User = cmp.Or(g.User, defaultGitUser)
	}
	if g.Push != nil {
		p := *g.Push
		if err := checkPush(p); err != nil {
			return nil, err
		}
		g.Push = &p
	}
	return &g, nil
}

// isRef reports whether name is valid for a branch or a tag, and cannot be taken for
// an option.
func isRef(name string) bool {
	if !gitRefForm.MatchString(name) || strings.Contains(name, "..") || strings.Contains(name, "//") || strings.Contains(name, "@{") {
		return false
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == "" || part[0] == '.' || strings.HasSuffix(part, ".") || strings.HasSuffix(part, ".lock") {
			return false
		}
	}
	return true
}

func checkPush(p engi.GitPush) error {
	switch {
	case p.Branch != "" && !isRef(p.Branch):
		return engi.Errorf(engi.Invalid, "branch %.200q is not a name of a branch", p.Branch).WithRemedy("use letters, digits, '.', '_', '-' and '/'")
	case p.Author != "" && !gitAuthorForm.MatchString(p.Author):
		return engi.Errorf(engi.Invalid, "author %.200q is not a name with an address", p.Author).WithRemedy("write it like 'Ann <ann@example.com>'")
	case len(p.Message) > maxGitMessage || strings.ContainsRune(p.Message, 0):
		return engi.Errorf(engi.Invalid, "the message has %d bytes, or a NUL", len(p.Message)).WithRemedy("write %d bytes at most", maxGitMessage)
	}
	return nil
}

// openGit returns p with the access that git needs for a repository, and no more: the paths
// of git's protocol, with the secret.
func openGit(p engi.NetworkPolicy, g engi.GitSpec) (engi.NetworkPolicy, error) {
	u, err := url.Parse(g.URL)
	if err != nil {
		return p, engi.Errorf(engi.Invalid, "git.url: %v", err)
	}
	port := cmp.Or(u.Port(), map[string]string{"https": "443", "http": "80"}[u.Scheme])
	host := u.Hostname() + ":" + port
	switch p.Mode {
	case engi.NetworkRestricted, engi.NetworkOpen:
	case "":
		p.Mode = engi.NetworkRestricted
	default:
		return p, engi.Errorf(engi.Invalid, "a session with network mode %s cannot reach %s", p.Mode, host).
			WithRemedy("leave the mode out, or use restricted: only the repository is added to what it allows")
	}
	named := slices.ContainsFunc(p.Allow, func(rule string) bool {
		rule = strings.TrimPrefix(strings.ToLower(rule), "tcp://")
		return rule == strings.ToLower(host) || rule == strings.ToLower(u.Hostname())
	})
	if u.Scheme == "http" {
		if !named {
			return p, engi.Errorf(engi.Denied, "git.url is plain HTTP, which others on the way can read and change").
				WithRemedy("use https, or add %s to the session's network.allow", host)
		}
		host = "http://" + host
	}
	base := strings.TrimSuffix(u.Path, ".git")
	repositories := []string{base, base + ".git"}
	if g.Submodules {
		repositories = []string{path.Join(path.Dir(base), "*")}
	}
	var rules []engi.RequestRule
	for _, r := range repositories {
		rules = append(rules, engi.RequestRule{Methods: []string{"GET"}, Path: r + "/info/refs"}, engi.RequestRule{Methods: []string{"POST"}, Path: r + "/git-upload-pack"})
		if g.Push != nil {
			rules = append(rules, engi.RequestRule{Methods: []string{"POST"}, Path: r + "/git-receive-pack"})
		}
	}
	if g.Secret != "" {
		p.Grants = append(slices.Clone(p.Grants), engi.Grant{Secret: g.Secret, Hosts: []string{host}, As: engi.GrantBasic, Name: g.User, Requests: rules})
		return p, nil
	}
	if named || p.Mode == engi.NetworkOpen && u.Scheme == "https" {
		return p, nil // rules would close hosts that are open
	}
	p.Requests = slices.Clone(p.Requests)
	for _, r := range rules {
		r.Host = host
		p.Requests = append(p.Requests, r)
	}
	return p, nil
}

// ensureRepository clones a session's repository unless its directory exists. The
// directory appears when the clone is complete.
func (m *Manager) ensureRepository(ctx context.Context, live *liveSession, guest engi.Guest, sandbox engi.SandboxID) (err error) {
	live.mu.Lock()
	r, seen := live.rec, live.cloned == sandbox
	live.mu.Unlock()
	if r.Git == nil || seen {
		return nil
	}
	defer func() {
		if err == nil {
			live.mu.Lock()
			live.cloned = sandbox
			live.mu.Unlock()
		}
	}()
	dir := path.Join(WorkDir, r.Git.Dir)
	if _, err := guest.Stat(ctx, dir); !engi.Is(err, engi.NotFound) {
		return err
	}
	defer engi.Annotate(&err, "clone %s", r.Git.URL)
	git := gitIn{guest, WorkDir}
	half := path.Join(WorkDir, ".engi-clone")
	if err := guest.Remove(ctx, half); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			late, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
			defer cancel()
			_ = guest.Remove(late, half) // if this fails, the next attempt removes it
		}
	}()
	var depth []string
	if r.Git.Depth > 0 {
		depth = []string{"--depth", strconv.Itoa(r.Git.Depth)}
	}
	commit := gitCommitForm.MatchString(r.Git.Ref)
	args := append([]string{"clone", "--quiet"}, depth...)
	switch {
	case commit:
		args = append(args, "--no-checkout")
	case r.Git.Ref != "":
		args = append(args, "--branch", r.Git.Ref)
	}
	if _, err := git.run(ctx, append(args, "--", r.Git.URL, half)...); err != nil {
		return err
	}
	git.dir = half
	if commit {
		if _, err := git.run(ctx, slices.Concat([]string{"fetch", "--quiet"}, depth, []string{"origin", r.Git.Ref})...); err != nil {
			return err
		}
		if _, err := git.run(ctx, "checkout", "--quiet", "--detach", r.Git.Ref); err != nil {
			return err
		}
	}
	if r.Git.Submodules {
		if _, err := git.run(ctx, append([]string{"submodule", "--quiet", "update", "--init", "--recursive"}, depth...)...); err != nil {
			return err
		}
	}
	head, err := git.head(ctx)
	if err != nil {
		return err
	}
	if err := guest.Move(ctx, half, dir); err != nil {
		return err
	}
	return m.note(ctx, live, engi.EventSessionGitCloned, map[string]any{"url": r.Git.URL, "commit": head})
}

// note appends an event about a session.
func (m *Manager) note(ctx context.Context, live *liveSession, kind string, data map[string]any) error {
	return m.update(ctx, live, func(r *Record) { r.Note = &Note{Type: kind, Data: data} })
}

// PushGit implements [engi.SessionFiles].
func (m *Manager) PushGit(ctx context.Context, viewer engi.Viewer, idOrName string, p engi.GitPush) (_ engi.GitPushed, err error) {
	defer engi.Annotate(&err, "push the repository of session %.140s", idOrName)
	live, err := m.find(ctx, viewer, idOrName)
	if err != nil {
		return engi.GitPushed{}, err
	}
	r := live.record()
	switch {
	case r.Git == nil:
		return engi.GitPushed{}, engi.Errorf(engi.Conflict, "the session has no repository").WithRemedy("create the branch with git, and push it")
	case r.Git.Push == nil:
		return engi.GitPushed{}, engi.Errorf(engi.Denied, "the session may not push").WithRemedy("create one whose git has push")
	}
	if err := checkPush(p); err != nil {
		return engi.GitPushed{}, err
	}
	l, err := m.enter(ctx, live)
	if err != nil {
		return engi.GitPushed{}, err
	}
	defer l.release()
	return m.push(ctx, live, l.guest, p)
}

// push commits the changes and pushes them. If others have pushed to the requested branch,
// it pushes to a new branch.
func (m *Manager) push(ctx context.Context, live *liveSession, guest engi.Guest, p engi.GitPush) (done engi.GitPushed, err error) {
	unlock, err := live.gitLock.Acquire(ctx, "session")
	if err != nil {
		return done, err
	}
	defer unlock()
	r := live.record()
	d := *r.Git.Push
	name := cmp.Or(r.Name, string(r.ID))
	done.Branch = cmp.Or(p.Branch, d.Branch, "engi/"+name)
	author := gitAuthorForm.FindStringSubmatch(cmp.Or(p.Author, d.Author, "engi <engi@localhost>"))
	git := gitIn{guest, path.Join(WorkDir, r.Git.Dir)}
	if _, err := git.run(ctx, "add", "--all"); err != nil {
		return done, err
	}
	changed, err := git.run(ctx, "status", "--porcelain", "--untracked-files=no")
	if err != nil {
		return done, err
	}
	if changed != "" {
		message := cmp.Or(p.Message, d.Message, "Work of session "+name)
		_, err := git.run(ctx, "-c", "user.name="+author[1], "-c", "user.email="+author[2], "commit", "--quiet", "--message", message)
		if err != nil {
			return done, err
		}
	}
	if done.Commit, err = git.head(ctx); err != nil {
		return done, err
	}
	done.Unchanged, err = git.push(ctx, r.Git.URL, done.Branch)
	if engi.Is(err, engi.Conflict) {
		wanted := done.Branch
		done.Conflict, done.Branch = true, fmt.Sprintf("%s-conflict-%.12s", wanted, done.Commit)
		if done.Unchanged, err = git.push(ctx, r.Git.URL, done.Branch); err == nil && !done.Unchanged {
			return done, m.note(ctx, live, engi.EventSessionGitConflict, map[string]any{"wanted": wanted, "branch": done.Branch, "commit": done.Commit})
		}
	}
	if err != nil || done.Unchanged {
		return done, err
	}
	return done, m.note(ctx, live, engi.EventSessionGitPushed, map[string]any{"branch": done.Branch, "commit": done.Commit})
}

// pushesOnRelease reports whether the work must be pushed before the sandbox is released.
func (r Record) pushesOnRelease() bool {
	return r.Git != nil && r.Git.Push != nil && r.Git.Push.OnRelease
}

// pushBefore pushes the work of a session before its sandbox is released. It only records a
// failure, because the volume keeps the work for the next time. The caller holds
// sandboxLock.
func (m *Manager) pushBefore(ctx context.Context, live *liveSession, sandbox engi.SandboxID) {
	ctx, cancel := context.WithTimeout(ctx, gitTimeout)
	defer cancel()
	err := func() error {
		if s, err := m.opt.Sandboxes.Get(ctx, engi.Everyone, sandbox); err != nil || s.State != engi.Running && s.State != engi.Paused {
			return ignoreNotFound(err) // it was pushed before it hibernated
		}
		g, leave, err := m.opt.Sandboxes.Enter(ctx, engi.Everyone, sandbox)
		if err != nil {
			return ignoreNotFound(err)
		}
		defer leave()
		git := gitIn{g, path.Join(WorkDir, live.record().Git.Dir)}
		changed, err := git.run(ctx, "status", "--porcelain")
		if err != nil {
			return err
		}
		if changed == "" {
			if known, err := git.run(ctx, "branch", "--remotes", "--contains", "HEAD"); err == nil && known != "" {
				return nil
			}
		}
		_, err = m.push(ctx, live, g, engi.GitPush{})
		return err
	}()
	if err == nil {
		return
	}
	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	if e := m.note(late, live, engi.EventSessionGitFailed, map[string]any{"error": err.Error(), "remedy": engi.RemedyOf(err)}); e != nil {
		m.opt.Log.WarnContext(ctx, "record that nothing was pushed", "session", live.id, "error", e)
	}
}

// A gitIn runs git in a directory of a guest.
type gitIn struct {
	guest engi.Guest
	dir   string
}

func (g gitIn) head(ctx context.Context) (string, error) {
	head, err := g.run(ctx, "rev-parse", "--verify", "HEAD")
	if err == nil && !gitCommitForm.MatchString(head) {
		err = engi.Errorf(engi.Conflict, "the repository has no commit").WithRemedy("create the branch, or clone another one")
	}
	return head, err
}

// push pushes HEAD to a branch. It reports Conflict if the branch has commits that are not in
// HEAD.
func (g gitIn) push(ctx context.Context, to, branch string) (unchanged bool, err error) {
	out, err := g.run(ctx, "push", "--porcelain", to, "HEAD:refs/heads/"+branch)
	for line := range strings.Lines(out) {
		switch flag, rest, _ := strings.Cut(line, "\t"); {
		case flag == "=":
			unchanged = true
		case flag == "!" && strings.Contains(rest, "[rejected]"):
			return false, engi.Errorf(engi.Conflict, "branch %s has other commits", branch)
		}
	}
	return unchanged, err
}

// run runs git and returns its standard output, even if git fails.
func (g gitIn) run(ctx context.Context, args ...string) (string, error) {
	what := "git " + args[slices.IndexFunc(args, func(a string) bool { return a[0] != '-' && !strings.Contains(a, "=") })]
	p, err := g.guest.Start(ctx, engi.Command{
		Args: append([]string{"git"}, args...), Dir: g.dir, Timeout: gitTimeout, Tag: "engi-git",
		Env: map[string]string{"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C", "GIT_EDITOR": "true"},
	})
	if err != nil {
		if engi.Is(err, engi.NotFound) {
			if _, e := g.guest.Stat(ctx, g.dir); e == nil {
				return "", engi.Errorf(engi.Unsupported, "the session's template has no git").WithRemedy("use the template base, or add the package git to its definition")
			}
		}
		return "", engi.Errorf(engi.KindOf(err), "%s: %w", what, err)
	}
	defer func() {
		if ctx.Err() != nil {
			late, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
			defer cancel()
			_ = p.Signal(late, "KILL") // git has a time limit of its own
		}
	}()
	var out, said []byte
	for c, err := range p.Output(ctx, 0) {
		if err != nil {
			return "", engi.Errorf(engi.KindOf(err), "%s: %w", what, err)
		}
		to := &out
		if c.Stream == engi.Stderr {
			to = &said
		}
		*to = append(*to, c.Data[:min(len(c.Data), maxGitOutput-len(*to))]...)
	}
	exit, err := p.Wait(ctx)
	switch text := strings.TrimSpace(string(out)); {
	case err != nil:
		return text, engi.Errorf(engi.KindOf(err), "%s: %w", what, err)
	case exit.Code == 0 && exit.Cause == engi.CauseExited:
		return text, nil
	case exit.Cause == engi.CauseTimeout:
		return text, engi.Errorf(engi.Expired, "%s did not end in %v", what, gitTimeout).WithRemedy("give git.depth 1, or see why in the session")
	default:
		return text, engi.Errorf(engi.Conflict, "%s failed: %s", what, printable(string(said))).
			WithRemedy("'engi net log SANDBOX' shows the refused connections; a refused password is changed with 'engi secret set'")
	}
}

// printable returns the end of a program's output, in one line.
func printable(text string) string {
	text = strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, strings.ToValidUTF8(text, "?"))
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > 500 {
		text = "…" + clip.Tail(text, 500)
	}
	return text
}
