package app

import (
	"context"
	"io"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/engi-dev/engi/internal/app/project"
	"github.com/engi-dev/engi/internal/clock"
	"github.com/engi-dev/engi/internal/engi"
)

// An app with a Directory is in a workspace: its files are below that directory of the workspace,
// and its server runs in the workspace's sandbox. Other programs use both. The app therefore
// writes nothing but its own files there, finds its processes by tags that have its ID, and never
// destroys the sandbox. The history of the workspace takes the place of the app's git repository.

const (
	workspaceDir = "/workspace"           // directory of a workspace's files in its sandbox
	sharedStage  = "/var/tmp/engi-stage-" // prefix of the staging directory of an app in a workspace, where git and the workspace do not see it
	markVariable = "ENGI_APP"             // environment variable by which the processes of a server are found
	maxStart     = 4 << 10                // maximum bytes of the command that starts a server
	freeTime     = 2 * time.Second        // time until the port of a server that has ended is free
	endTime      = 20 * time.Second       // maximum time until the processes of a server have ended
)

var errNoWorkspaces = engi.Errorf(engi.Unsupported, "this node has no workspaces").WithRemedy("leave the workspace out")

// checkPlace reports Invalid unless the fields of spec that say where an app is fit together.
func checkPlace(spec engi.AppSpec) error {
	invalid := func(remedy, format string, args ...any) error {
		return engi.Errorf(engi.Invalid, format, args...).WithRemedy("%s", remedy)
	}
	switch p := spec.Network; {
	case spec.Directory == "" && (spec.Start != "" || spec.Port != 0):
		return invalid("name the directory with the app's files, or leave out start and port", "only an app in a directory of a workspace has a start command and a port of its own")
	case spec.Directory == "":
		return nil
	case spec.Workspace == "":
		return invalid("name the workspace, or leave out the directory", "a directory without a workspace")
	case spec.Start == "" || spec.Port == 0:
		return invalid("give start, like 'npm start', and port, like 3000", "an app in a directory needs a start command and a port")
	case spec.Template != "":
		return invalid("leave out the template", "an app in a directory runs in the sandbox of the workspace, which has a template")
	case p.Mode != "" || len(p.Allow)+len(p.Deny)+len(p.Grants)+len(p.Headers)+len(p.Requests)+len(p.Detail) > 0 || p.Proxy != nil || p.Group != "" || p.Limits != engi.NetworkLimits{}:
		return invalid("leave out the network policy", "an app in a directory runs in the sandbox of the workspace, which has a network policy")
	case spec.Port < 1 || spec.Port > 65535:
		return invalid("use a number from 1 to 65535", "%d is not a port", spec.Port)
	case len(spec.Start) > maxStart || strings.ContainsRune(spec.Start, 0):
		return invalid("start a script that is one of the files", "the start command is too long, or has a zero byte")
	case slices.ContainsFunc(strings.Split(spec.Directory, "/"), func(name string) bool { return strings.EqualFold(name, ".git") }):
		return invalid("name another directory", "the directory %.100q is of git itself", spec.Directory)
	}
	return CheckPath(spec.Directory)
}

// checkNeighbours reports Conflict if another app in the workspace has the port or the directory of a new app,
// or a directory above or below it. The caller holds the workspace's lock in joining.
func checkNeighbours(all []Record, id engi.WorkspaceID, spec engi.AppSpec) error {
	below := func(a, b string) bool { return strings.HasPrefix(a+"/", b+"/") }
	for _, r := range all {
		switch {
		case spec.Directory == "" || r.Workspace != id || r.Directory == "":
		case below(r.Directory, spec.Directory) || below(spec.Directory, r.Directory):
			return engi.Errorf(engi.Conflict, "the directory %s overlaps with %s of app %s", spec.Directory, r.Directory, r.ID).WithRemedy("use another directory, or remove that app")
		case r.Port == spec.Port:
			return engi.Errorf(engi.Conflict, "port %d belongs to app %s in the same workspace", r.Port, r.ID).WithRemedy("use another port, or remove that app")
		}
	}
	return nil
}

// alone reports Unsupported for an app in a workspace, which cannot have what needs a sandbox of its own.
func (r Record) alone(what string) error {
	if r.Directory == "" {
		return nil
	}
	return engi.Errorf(engi.Unsupported, "app %s is in the sandbox of its workspace, and has no %s", r.ID, what).
		WithRemedy("create an app without a directory for them, or use the history of the app or of workspace %s", r.Workspace)
}

// tag returns the name of a process or a directory of an app, which is unique in a sandbox that others use.
func (r Record) tag(name string) string {
	if r.Directory == "" {
		return name
	}
	return name + "-" + string(r.ID)
}

// templateOf returns the template of an app. That of an app in a workspace has the app's own directory and server.
func (s *Service) templateOf(ctx context.Context, r Record) (engi.Template, error) {
	if r.Directory == "" {
		return s.opt.Templates.Get(ctx, r.Template)
	}
	return engi.Template{Name: r.Template, WorkDir: workspaceDir + "/" + r.Directory, Start: r.Start, Ports: []int{r.Port}}, nil
}

// env returns more, with the environment of an app in a workspace. Sandboxes of other apps have theirs.
func (u *use) env(more map[string]string) map[string]string {
	if u.rec.Directory == "" {
		return more
	}
	all := map[string]string{}
	maps.Copy(all, u.rec.Env)
	maps.Copy(all, more)
	return all
}

// serverEnv returns the environment that an app's server has besides that of its sandbox.
func (u *use) serverEnv() map[string]string {
	if u.rec.Directory == "" {
		return nil
	}
	return u.env(map[string]string{"PORT": strconv.Itoa(u.rec.Port), "HOST": "0.0.0.0", markVariable: string(u.rec.ID)})
}

// join enters the sandbox of an app's workspace, which it starts if it is not running. joined is true if the app
// was not in that sandbox before. Everything to undo there is recorded together with the sandbox.
func (s *Service) join(ctx context.Context, u *use) (joined bool, err error) {
	if s.opt.Workspaces == nil {
		return false, errNoWorkspaces
	}
	viewer, id := u.rec.Owner.Viewer(), string(u.rec.Workspace)
	w, err := s.opt.Workspaces.Get(ctx, viewer, id)
	if engi.Is(err, engi.NotFound) {
		return false, engi.Errorf(engi.NotFound, "the workspace of the app was removed").WithRemedy("remove the app; its history can be read until then")
	}
	if err != nil {
		return false, err
	}
	if err = engi.Errorf(engi.NotFound, "workspace %s has no sandbox", w.ID); w.State == engi.WorkspaceRunning && w.Sandbox != "" {
		u.g, u.leave, err = s.sandboxes.Reconnect(ctx, w.Sandbox)
	}
	if engi.Is(err, engi.NotFound) {
		if w, err = s.opt.Workspaces.Start(ctx, viewer, id); err == nil {
			u.g, u.leave, err = s.sandboxes.Reconnect(ctx, w.Sandbox)
		}
	}
	if err != nil {
		return false, err
	}
	if err := u.makeDirectory(ctx); err != nil || u.rec.Sandbox == w.Sandbox {
		return false, err
	}
	u.app.copy.forget()
	lacks, err := u.lacksPackages(ctx)
	if err != nil {
		return false, err
	}
	r, err := s.opt.Store.Change(ctx, u.rec.ID, func(r *Record, tx Tx) error {
		r.Sandbox = w.Sandbox
		if r.Ahead || lacks || r.Undo != nil {
			undo := Undo{}
			if r.Undo != nil {
				undo = *r.Undo
			}
			// The workspace's files may be older than the app's last revision only if the workspace did not record that.
			undo.All, undo.Packages = undo.All || r.Ahead, undo.Packages || lacks
			r.Undo = &undo
		}
		return become(r, tx, engi.AppStarting, nil)
	})
	if err == nil {
		u.rec = r
	}
	return true, err
}

// makeDirectory creates the directory of an app unless it exists. It reports Conflict if there is a file or a
// link on the way, which might lead out of the workspace.
func (u *use) makeDirectory(ctx context.Context) error {
	parts := strings.Split(u.rec.Directory, "/")
	for i := range parts {
		p := path.Join(parts[:i+1]...)
		fi, err := u.g.Stat(ctx, workspaceDir+"/"+p)
		if engi.Is(err, engi.NotFound) {
			_, err = answer(ctx, guestTime, func(ctx context.Context) (none, error) { return none{}, u.g.MakeDir(ctx, u.dir) })
			return err
		}
		if err != nil {
			return err
		}
		if !fi.Mode.IsDir() {
			return engi.Errorf(engi.Conflict, "%s in workspace %s is a file or a link, not a directory", p, u.rec.Workspace).WithRemedy("use another directory, or move the file away")
		}
	}
	return nil
}

// lacksPackages reports whether packages that the app's manifest names may have to be installed: the history of
// a workspace has none.
func (u *use) lacksPackages(ctx context.Context) (bool, error) {
	text, err := readFile(ctx, u.g, u.dir+"/package.json")
	if engi.Is(err, engi.NotFound) {
		text, err = readFile(ctx, u.g, u.dir+"/requirements.txt")
		return strings.TrimSpace(string(text)) != "", engi.Ignore(err, engi.NotFound)
	}
	if err != nil {
		return false, err
	}
	p, err := project.ParsePackage(string(text))
	if err != nil || len(p.Dependencies)+len(p.DevDependencies) == 0 {
		return false, nil // the output of the server shows what is wrong with the manifest
	}
	_, err = u.g.Stat(ctx, u.dir+"/node_modules")
	return engi.Is(err, engi.NotFound), engi.Ignore(err, engi.NotFound)
}

// alive reports Unavailable unless the process that started the app's server is running.
func (u *use) alive(ctx context.Context) error {
	all, err := answer(ctx, guestTime, u.g.Processes)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(all, func(p engi.ProcessInfo) bool { return p.Tag == u.rec.tag(serviceTag) && !p.Ended }) {
		return engi.Errorf(engi.Unavailable, "the app's server has ended, and another program answers at port %d", u.rec.Port)
	}
	return nil
}

// portFree reports Conflict while a program listens at the port of an app whose server has ended.
func (u *use) portFree(ctx context.Context) error {
	for end := time.Now().Add(freeTime); ; {
		c, err := answer(ctx, guestTime, func(ctx context.Context) (io.Closer, error) { return u.g.Dial(ctx, u.rec.Port) })
		if engi.Is(err, engi.Unavailable) {
			return nil // if the sandbox does not answer, the start fails
		}
		if err != nil {
			return err
		}
		c.Close()
		if time.Now().After(end) {
			return engi.Errorf(engi.Conflict, "port %d in the sandbox of workspace %s is in use by another program", u.rec.Port, u.rec.Workspace).
				WithRemedy("end that program, or create the app with another port")
		}
		if err := clock.Sleep(ctx, startEvery); err != nil {
			return err
		}
	}
}

// endScript ends the processes whose environment has a text: at first with TERM, after three seconds with KILL. Each
// process gets its signal by its ID, also if it has left the group of the process that started it. The script runs as the user of
// the processes: in gVisor, others cannot read their environment.
const endScript = `left() { grep -lsF "$1" /proc/[0-9]*/environ | tr -dc '0-9\n'; }
send() { for p in $(left "$2"); do kill -"$1" "$p"; done 2>/dev/null; }
send TERM "$1"
i=0
while [ -n "$(left "$1")" ]; do
	[ $i -lt 30 ] || send KILL "$1"
	[ $i -lt 100 ] || exit 1
	i=$((i+1)); sleep 0.1
done`

// endServer ends the app's server in the sandbox of a workspace, with all processes that it has started.
func (u *use) endServer(ctx context.Context) error {
	p, err := u.g.Start(ctx, engi.Command{Args: []string{"/bin/sh", "-c", endScript, "end", markVariable + "=" + string(u.rec.ID)}, Dir: "/", Timeout: endTime})
	if err != nil {
		return err
	}
	exit, err := answer(ctx, endTime+graceTime, p.Wait)
	if err == nil && exit.Code != 0 {
		err = engi.Errorf(engi.Unavailable, "the app's server does not end").WithRemedy("stop workspace %s and open the app again", u.rec.Workspace)
	}
	if err != nil {
		return err
	}
	return u.end(ctx, u.rec.tag(serviceTag)) // unless it had the variable removed, it has ended
}

// vacate ends the processes of an app in the sandbox of its workspace, and leaves the sandbox and the files as they are. The
// caller holds the app's lock.
func (s *Service) vacate(ctx context.Context, a *app, r Record) error {
	if r.Sandbox == "" {
		return nil
	}
	g, leave, err := s.sandboxes.Reconnect(ctx, r.Sandbox)
	if err != nil {
		return engi.Ignore(err, engi.NotFound)
	}
	defer leave()
	u := &use{app: a, rec: r, g: g, dir: workspaceDir + "/" + r.Directory}
	for _, tag := range []string{commandTag, browserTag} {
		if err := u.end(ctx, r.tag(tag)); err != nil {
			return err
		}
	}
	if err := u.endServer(ctx); err != nil {
		return err
	}
	_, err = u.clearStage(ctx)
	return err
}

// handOver has the workspace record the files of an app's last revision. Then a later sandbox of the workspace has them,
// and files that differ there were changed by somebody.
func (s *Service) handOver(ctx context.Context, r Record) error {
	if !r.Ahead || s.opt.Workspaces == nil {
		return nil
	}
	files, err := s.opt.Store.Files(ctx, r.ID, r.Revision)
	if err != nil {
		return err
	}
	all, err := s.opt.Workspaces.Files(ctx, r.Owner.Viewer(), string(r.Workspace), 0)
	if err != nil {
		return err
	}
	there := map[string]string{}
	for _, f := range all {
		if p, ok := strings.CutPrefix(f.Path, r.Directory+"/"); ok && CheckPath(p) == nil {
			there[p] = f.Digest
		}
	}
	if len(there) != len(files) || slices.ContainsFunc(files, func(f File) bool { return there[f.Path] != f.Blob }) {
		return nil // the files are being changed, and the next revision tries again
	}
	_, err = s.opt.Store.Change(ctx, r.ID, func(now *Record, _ Tx) error {
		now.Ahead = now.Ahead && now.Revision != r.Revision
		return nil
	})
	return err
}

// leftAt returns the time at which a health check last left a sandbox, which is not a use of it.
func (s *Service) leftAt(id engi.SandboxID) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.left[id]
}

// keepLeft forgets the times of sandboxes that none of the apps has.
func (s *Service) keepLeft(all []Record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.left, func(id engi.SandboxID, _ time.Time) bool {
		return !slices.ContainsFunc(all, func(r Record) bool { return r.Sandbox == id })
	})
}
