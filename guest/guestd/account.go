package guestd

import (
	"bufio"
	"cmp"
	"maps"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/guest/guestd/child"
	"github.com/engi-dev/engi/guest/guestd/tree"
	"github.com/engi-dev/engi/guest/wire"
)

// account is who programs run as and where, once the host has said so.
type account struct {
	wire.Setup
	said  wire.Setup  // what the host has said, all together
	user  *child.User // nil keeps the server's own
	owner tree.Owner
	env   map[string]string // complete; immutable
	wired map[string]string // those of env that the network brings; immutable
	moved map[string]string // see rewire
	group *os.File          // cgroup.procs of the programs' cgroup; nil without one
	done  bool
}

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// defaultAccount is in force until the host has said more.
func (s *Server) defaultAccount() account {
	a := account{Setup: wire.Setup{User: "root", Home: s.path("/root"), WorkDir: s.path("/workspace"), Shell: "/bin/sh"}, owner: tree.Nobody}
	a.OutputDir = a.WorkDir
	a.env = environment(a.Setup)
	return a
}

// environment is what every program starts from.
func environment(s wire.Setup) map[string]string {
	env := map[string]string{"PATH": defaultPath, "HOME": s.Home, "USER": s.User, "LOGNAME": s.User, "SHELL": s.Shell}
	maps.Copy(env, s.Env)
	return env
}

func (s *Server) account() account {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.setup
}

func (s *Server) doSetup(w http.ResponseWriter, r *http.Request) error {
	var in wire.Setup
	if err := receive(r, &in); err != nil {
		return err
	}
	s.settingUp.Lock()
	defer s.settingUp.Unlock()
	old := s.account()
	if old.done {
		in = later(old.said, in)
	}
	a, err := s.newAccount(in, old)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.setup = a
	var stale []*waiting
	if old.done && !sameStart(old, a) {
		stale = slices.Collect(maps.Values(s.waits))
		clear(s.waits)
	}
	s.mu.Unlock()
	for _, wt := range stale { // they were started as somebody else
		s.giveUp(wt)
	}
	return empty(w)
}

// later adds what in names to what was said before.
func later(said, in wire.Setup) wire.Setup {
	if in.User == "" {
		in.User, in.UID, in.GID, in.Groups = said.User, said.UID, said.GID, said.Groups
		in.Home = cmp.Or(in.Home, said.Home)
	}
	if in.Env == nil {
		in.Env = said.Env
	}
	in.WorkDir = cmp.Or(in.WorkDir, said.WorkDir)
	in.Shell = cmp.Or(in.Shell, said.Shell)
	in.Processes = cmp.Or(in.Processes, said.Processes)
	in.OpenFiles = cmp.Or(in.OpenFiles, said.OpenFiles)
	in.OutputDir = cmp.Or(in.OutputDir, said.OutputDir)
	if in.Wiring == nil {
		in.Wiring = said.Wiring
	}
	return in
}

// sameStart reports whether programs of a and b start alike, but for what the
// network brings, of which those that wait are told when they go on.
func sameStart(a, b account) bool {
	return maps.Equal(a.own(), b.own()) && a.User == b.User && a.UID == b.UID && a.GID == b.GID && slices.Equal(a.Groups, b.Groups) &&
		a.WorkDir == b.WorkDir && a.Processes == b.Processes && a.OpenFiles == b.OpenFiles
}

// own is the environment without what the network brings.
func (a *account) own() map[string]string {
	env := maps.Clone(a.env)
	for k := range a.wired {
		delete(env, k)
	}
	return env
}

func (s *Server) newAccount(in wire.Setup, old account) (a account, err error) {
	defer engi.Annotate(&err, "set up the guest")
	said := in
	if err := wire.CheckEnv(in.Env); err != nil {
		return a, err
	}
	for p, def := range map[*string]string{&in.WorkDir: "/workspace", &in.Shell: "/bin/sh", &in.Home: "/", &in.User: "root"} {
		if *p == "" {
			*p = def
		}
	}
	for _, p := range []string{in.WorkDir, in.Shell, in.Home} {
		if err := wire.CheckAbsolute(p); err != nil {
			return a, err
		}
	}
	if in.OutputDir != "" {
		if err := wire.CheckAbsolute(in.OutputDir); err != nil {
			return a, err
		}
	}
	if in.Wiring != nil {
		if err := checkWiring(in.Wiring); err != nil {
			return a, err
		}
	}
	if in.Processes < 0 || in.OpenFiles < 0 || in.UID < 0 || in.GID < 0 {
		return a, engi.Errorf(engi.Invalid, "a number is negative")
	}
	a = account{Setup: in, said: said, owner: tree.Nobody, done: true}
	if !s.o.Twin {
		if in.Groups == nil {
			in.Groups = s.groupsOf(in.User, in.GID)
		}
		a.user = &child.User{UID: in.UID, GID: in.GID, Groups: in.Groups}
		a.owner = tree.Owner{UID: in.UID, GID: in.GID}
		a.group = processGroup(old.group, in.Processes)
		// No core dumps: they would fill the disk with a copy of the memory.
		if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
			return a, engi.Errorf(engi.Internal, "forbid core dumps: %v", err)
		}
	} else {
		a.Home, a.WorkDir = s.path(in.Home), s.path(in.WorkDir)
		if in.OutputDir != "" {
			a.OutputDir = s.path(in.OutputDir)
		}
		if err := os.MkdirAll(a.Home, 0o755); err != nil {
			return a, tree.Classify(err, "make", in.Home)
		}
	}
	if a.OutputDir == "" {
		a.OutputDir = a.WorkDir
	}
	if err := tree.MakeDirAll(a.WorkDir, a.owner); err != nil {
		return a, err
	}
	if a.user != nil {
		// A template that was built without root could not give these away.
		takeOver(a.WorkDir, a.owner)
		if strings.HasPrefix(a.Home, "/home/") {
			takeOver(a.Home, a.owner)
		}
	}
	a.env = environment(a.Setup)
	a.env["ENGI_OUTPUT_DIR"] = a.OutputDir
	if in.Wiring == nil {
		return a, nil
	}
	if a.wired, a.moved, err = s.rewire(old.said.Wiring, in.Wiring, old.moved); err != nil {
		return a, err
	}
	maps.DeleteFunc(a.wired, func(k, _ string) bool { _, own := a.env[k]; return own })
	maps.Copy(a.env, a.wired)
	return a, nil
}

// takeOver gives a directory of root's to its user. If that fails, the program
// that needs it says so.
func takeOver(dir string, o tree.Owner) {
	var st unix.Stat_t
	if o.UID > 0 && unix.Lstat(dir, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR && st.Uid == 0 {
		_ = unix.Lchown(dir, o.UID, o.GID)
	}
}

// limits returns those of a process of this account.
func (a *account) limits(u *child.User) child.Limits {
	l := child.Limits{Processes: a.Processes, OpenFiles: a.OpenFiles}
	if u == nil {
		return child.Limits{OpenFiles: a.OpenFiles}
	}
	if l.Processes > 0 && u.UID == 0 {
		l.Processes += ownThreads // ours count as root's
	}
	if a.group != nil {
		l.Group = int(a.group.Fd())
	}
	return l
}

// ownThreads is more than this program ever has.
const ownThreads = 32

// processGroup makes a cgroup for programs where one is mounted writable, so
// that the limit also holds for processes that change their user. There is one
// per sandbox: group is the one made before, if any.
func processGroup(group *os.File, limit int) *os.File {
	if limit <= 0 {
		return nil
	}
	if group != nil && os.WriteFile(group.Name()+"/pids.max", []byte(strconv.Itoa(limit)), 0o644) == nil {
		return group
	}
	for _, dir := range []string{"/sys/fs/cgroup/pids/engi", "/sys/fs/cgroup/engi"} {
		if err := os.Mkdir(dir, 0o755); err != nil && !os.IsExist(err) {
			continue
		}
		if os.WriteFile(dir+"/pids.max", []byte(strconv.Itoa(limit)), 0o644) != nil {
			continue
		}
		fd, err := syscall.Open(dir+"/cgroup.procs", syscall.O_WRONLY|syscall.O_CLOEXEC, 0)
		if err == nil {
			return os.NewFile(uintptr(fd), dir)
		}
	}
	return nil
}

// lookUp returns who name is inside, with its home.
func (s *Server) lookUp(name string) (u *child.User, home string, err error) {
	unknown := engi.Errorf(engi.Anonymous, "invalid username: '%s'", name)
	for line := range s.lines("/etc/passwd") {
		f := strings.Split(line, ":")
		if len(f) < 6 || f[0] != name {
			continue
		}
		uid, err1 := strconv.Atoi(f[2])
		gid, err2 := strconv.Atoi(f[3])
		if err1 != nil || err2 != nil {
			break
		}
		return &child.User{UID: uid, GID: gid, Groups: s.groupsOf(name, gid)}, f[5], nil
	}
	if name == "root" {
		return &child.User{Groups: []int{0}}, "/root", nil
	}
	return nil, "", unknown
}

// nameOf returns the name of a number in /etc/passwd or /etc/group, or the
// number itself.
func (s *Server) nameOf(file string, id int) string {
	number := strconv.Itoa(id)
	for line := range s.lines(file) {
		if f := strings.Split(line, ":"); len(f) > 2 && f[2] == number {
			return f[0]
		}
	}
	return number
}

// groupsOf returns the groups a user is a member of, the primary one first.
func (s *Server) groupsOf(name string, gid int) []int {
	groups := []int{gid}
	for line := range s.lines("/etc/group") {
		f := strings.Split(line, ":")
		if len(f) < 4 || !slices.Contains(strings.Split(f[3], ","), name) {
			continue
		}
		if g, err := strconv.Atoi(f[2]); err == nil && !slices.Contains(groups, g) && len(groups) < 64 {
			groups = append(groups, g)
		}
	}
	return groups
}

// lines yields the lines of a small file of the sandbox; none if it is not
// there.
func (s *Server) lines(path string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		f, err := tree.OpenRegular(s.path(path))
		if err != nil {
			return
		}
		defer f.Close()
		sc := bufio.NewScanner(f)
		for n := 0; n < 10_000 && sc.Scan(); n++ {
			if !yield(sc.Text()) {
				return
			}
		}
	}
}
