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

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/guest/guestd/child"
	"github.com/engi-dev/engi/internal/sandbox/guest/guestd/tree"
	"github.com/engi-dev/engi/internal/sandbox/guest/wire"
)

// settings holds the configuration of programs: the setup by the host, and the values
// derived from it.
type settings struct {
	wire.Setup
	requested  wire.Setup  // all setups by the host, merged
	user       *child.User // nil means the server's own user
	owner      tree.Owner
	env        map[string]string // environment of every program; complete; immutable
	networkEnv map[string]string // variables in env for the network; immutable
	relocated  map[string]string // new path of each certificate file whose usual path is read-only
	pids       *os.File          // cgroup.procs of the programs' cgroup; nil if there is none
	configured bool
}

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// defaultSettings returns the settings in force before the first setup.
func (s *Server) defaultSettings() settings {
	cfg := settings{Setup: wire.Setup{User: "root", Home: s.path("/root"), WorkDir: s.path("/workspace"), Shell: "/bin/sh"}, owner: tree.KeepOwner}
	cfg.OutputDir = cfg.WorkDir
	cfg.env = environment(cfg.Setup)
	return cfg
}

// environment returns the environment of every program.
func environment(s wire.Setup) map[string]string {
	env := map[string]string{"PATH": defaultPath, "HOME": s.Home, "USER": s.User, "LOGNAME": s.User, "SHELL": s.Shell}
	maps.Copy(env, s.Env)
	return env
}

func (s *Server) settings() settings {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current
}

func (s *Server) setup(w http.ResponseWriter, r *http.Request) error {
	var in wire.Setup
	if err := readJSON(r, &in); err != nil {
		return err
	}
	s.setupMu.Lock()
	defer s.setupMu.Unlock()
	old := s.settings()
	if old.configured {
		in = mergeSetup(old.requested, in)
	}
	cfg, err := s.newSettings(in, old)
	if err != nil {
		return err
	}
	if cfg.Kernels && !old.Kernels && !s.o.InProcess {
		s.serveKernels()
	}
	s.mu.Lock()
	s.current = cfg
	var stale []*warmInterpreter
	if old.configured && !startsAlike(old, cfg) {
		stale = slices.Collect(maps.Values(s.warm))
		clear(s.warm)
	}
	s.mu.Unlock()
	for _, wt := range stale { // these interpreters were started with other settings
		s.discard(wt)
	}
	return noContent(w)
}

// mergeSetup returns setup old, changed by the later setup in.
func mergeSetup(old, in wire.Setup) wire.Setup {
	if in.User == "" {
		in.User, in.UID, in.GID, in.Groups = old.User, old.UID, old.GID, old.Groups
		in.Home = cmp.Or(in.Home, old.Home)
	}
	if in.Env == nil {
		in.Env = old.Env
	}
	in.WorkDir = cmp.Or(in.WorkDir, old.WorkDir)
	in.Shell = cmp.Or(in.Shell, old.Shell)
	in.Processes = cmp.Or(in.Processes, old.Processes)
	in.OpenFiles = cmp.Or(in.OpenFiles, old.OpenFiles)
	in.OutputDir = cmp.Or(in.OutputDir, old.OutputDir)
	in.Kernels = in.Kernels || old.Kernels
	if in.Network == nil {
		in.Network = old.Network
	}
	return in
}

// startsAlike reports whether processes start in the same way under a and b. Variables
// for the network may differ: waiting interpreters receive them with their program.
func startsAlike(a, b settings) bool {
	return maps.Equal(a.ownEnv(), b.ownEnv()) && a.User == b.User && a.UID == b.UID && a.GID == b.GID && slices.Equal(a.Groups, b.Groups) &&
		a.WorkDir == b.WorkDir && a.Processes == b.Processes && a.OpenFiles == b.OpenFiles
}

// ownEnv returns the environment without the variables for the network.
func (cfg *settings) ownEnv() map[string]string {
	env := maps.Clone(cfg.env)
	for k := range cfg.networkEnv {
		delete(env, k)
	}
	return env
}

func (s *Server) newSettings(in wire.Setup, old settings) (cfg settings, err error) {
	defer engi.Annotate(&err, "set up the guest")
	requested := in
	if err := wire.CheckEnv(in.Env); err != nil {
		return cfg, err
	}
	in.WorkDir, in.Shell = cmp.Or(in.WorkDir, "/workspace"), cmp.Or(in.Shell, "/bin/sh")
	in.Home, in.User = cmp.Or(in.Home, "/"), cmp.Or(in.User, "root")
	in.OutputDir = cmp.Or(in.OutputDir, in.WorkDir)
	for _, p := range []string{in.WorkDir, in.Shell, in.Home, in.OutputDir} {
		if err := wire.CheckAbsolute(p); err != nil {
			return cfg, err
		}
	}
	if in.Network != nil {
		if err := checkNetwork(in.Network); err != nil {
			return cfg, err
		}
	}
	if in.Processes < 0 || in.OpenFiles < 0 || in.UID < 0 || in.GID < 0 {
		return cfg, engi.Errorf(engi.Invalid, "limits and IDs must not be negative")
	}
	cfg = settings{Setup: in, requested: requested, owner: tree.KeepOwner, configured: true}
	if !s.o.InProcess {
		if in.Groups == nil {
			in.Groups = s.groupsOf(in.User, in.GID)
		}
		cfg.user = &child.User{UID: in.UID, GID: in.GID, Groups: in.Groups}
		cfg.owner = tree.Owner{UID: in.UID, GID: in.GID}
		cfg.pids = pidsCgroup(old.pids, in.Processes)
		// Core dumps would fill the disk with a copy of the memory.
		if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
			return cfg, engi.Errorf(engi.Internal, "forbid core dumps: %v", err)
		}
	} else {
		cfg.Home, cfg.WorkDir, cfg.OutputDir = s.path(in.Home), s.path(in.WorkDir), s.path(in.OutputDir)
		if err := os.MkdirAll(cfg.Home, 0o755); err != nil {
			return cfg, tree.Classify(err, "make", in.Home)
		}
	}
	if err := tree.MakeDirAll(cfg.WorkDir, cfg.owner); err != nil {
		return cfg, err
	}
	if cfg.user != nil {
		// A template that was built without root could not set this owner.
		chownFromRoot(cfg.WorkDir, cfg.owner)
		if strings.HasPrefix(cfg.Home, "/home/") {
			chownFromRoot(cfg.Home, cfg.owner)
		}
	}
	cfg.env = environment(cfg.Setup)
	cfg.env["ENGI_OUTPUT_DIR"] = cfg.OutputDir
	if in.Network == nil {
		return cfg, nil
	}
	if cfg.networkEnv, cfg.relocated, err = s.applyNetwork(old.requested.Network, in.Network, old.relocated); err != nil {
		return cfg, err
	}
	maps.DeleteFunc(cfg.networkEnv, func(k, _ string) bool { _, own := cfg.env[k]; return own })
	maps.Copy(cfg.env, cfg.networkEnv)
	return cfg, nil
}

// chownFromRoot changes the owner of a directory from root to o. If this fails, programs
// that need the directory will report it.
func chownFromRoot(dir string, o tree.Owner) {
	var st unix.Stat_t
	if o.UID > 0 && unix.Lstat(dir, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR && st.Uid == 0 {
		_ = unix.Lchown(dir, o.UID, o.GID)
	}
}

// limits returns the limits of a process that runs as u.
func (cfg *settings) limits(u *child.User) child.Limits {
	l := child.Limits{Processes: cfg.Processes, OpenFiles: cfg.OpenFiles}
	if u == nil {
		return child.Limits{OpenFiles: cfg.OpenFiles}
	}
	if l.Processes > 0 && u.UID == 0 {
		l.Processes += guestThreads // the guest's own threads count among root's
	}
	if cfg.pids != nil {
		l.Cgroup = int(cfg.pids.Fd())
	}
	return l
}

// guestThreads is an upper bound of this program's number of threads.
const guestThreads = 32

// pidsCgroup creates a cgroup for programs if a writable one is mounted, so that
// the limit also holds for processes that change their user. There is one per
// sandbox: group is the cgroup created before; nil if there is none.
func pidsCgroup(group *os.File, limit int) *os.File {
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

// home returns the resolved home of a user and the owner of its new files. The
// empty name means the user of the settings. It reports Anonymous for unknown users.
func (s *Server) home(name string) (string, tree.Owner, error) {
	cfg := s.settings()
	if name == "" || name == cfg.User || s.o.InProcess {
		return cfg.Home, cfg.owner, nil
	}
	u, home, err := s.lookupUser(name)
	if err != nil {
		return "", tree.Owner{}, err
	}
	return s.path(home), tree.Owner{UID: u.UID, GID: u.GID}, nil
}

// lookupUser returns the user called name, and its home. It reports Anonymous if
// there is none.
func (s *Server) lookupUser(name string) (u *child.User, home string, err error) {
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
	return nil, "", engi.Errorf(engi.Anonymous, "invalid username: '%s'", name)
}

// lookupName returns the name of an ID in /etc/passwd or /etc/group, or the ID
// itself if it has none.
func (s *Server) lookupName(file string, id int) string {
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

// lines yields the lines of a small file of the sandbox; none if it does not
// exist.
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
