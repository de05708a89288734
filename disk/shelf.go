package disk

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/disk/recipe"
	"github.com/engi-dev/engi/disk/tree"
)

const digestPrefix = "sha256:"

// A shelf is the directory of templates. Its parts:
//
//	names/NAME.json      a nameEntry: what a name means
//	builds/HEX/root      a root file system
//	builds/HEX/index.json  a buildEntry
//	builds/HEX/lock      held shared by its users
//	builds/HEX/holds/H   a path; while it exists, somebody needs the build
//	builds/HEX/orphan    no name has meant the build since its time of change
//	layers/HEX/tree      what a step changed, as the kernel's overlay keeps it
//	layers/HEX/index.json  a layerEntry
//	layers/HEX/lock      held shared by builds; its time is that of the last use
//	steps/HEX.json       the layer of a step that was forced
//	tmp/X                a build that is not finished, or a removed one; locked while somebody works on it
//	sources              files that definitions may read
//
// A build appears, complete and synced, by a rename out of tmp, and disappears
// by one back into it.
type shelf struct{ dir string }

// nameEntry is the file of a name.
type nameEntry struct {
	Digest     string `json:"digest"`
	Definition string `json:"definition,omitempty"` // YAML; empty for a built-in

	Owner engi.Owner `json:"owner,omitempty"`
	Steps bool       `json:"steps,omitempty"` // it was built from a spec, which is not kept
}

// buildEntry is the index file of a build.
type buildEntry struct {
	Digest    string                            `json:"digest"`
	Env       map[string]string                 `json:"env,omitempty"`
	User      string                            `json:"user,omitempty"`
	UID       int                               `json:"uid"`
	GID       int                               `json:"gid"`
	Home      string                            `json:"home"`
	WorkDir   string                            `json:"work_dir"`
	Shell     string                            `json:"shell"`
	Ports     []int                             `json:"ports,omitempty"`
	Size      sizeEntry                         `json:"size"`
	Languages map[engi.Language]interpreterPart `json:"languages"`
	Mounts    []mountEntry                      `json:"mounts,omitempty"`
	Built     time.Time                         `json:"built"`
	Bytes     int64                             `json:"bytes"`
	Inputs    []string                          `json:"inputs"` // what the digest covers, for people
	Start     string                            `json:"start,omitempty"`
	Ready     string                            `json:"ready,omitempty"`
	Kernels   []string                          `json:"kernels,omitempty"`
}

type sizeEntry struct {
	VCPUs     float64 `json:"vcpus,omitempty"`
	Memory    int64   `json:"memory,omitempty"`
	Disk      int64   `json:"disk,omitempty"`
	Inodes    int64   `json:"inodes,omitempty"`
	Processes int     `json:"processes,omitempty"`
	OpenFiles int     `json:"open_files,omitempty"`
}

type interpreterPart struct {
	Path string `json:"path"`
	Warm bool   `json:"warm"`
}

type mountEntry struct {
	Source string `json:"source"`
	Target string `json:"target"`
}

func entryOf(t engi.Template, inputs []string) buildEntry {
	e := buildEntry{
		Digest: t.Digest, Env: t.Env, User: t.User, UID: t.UID, GID: t.GID, Home: t.Home,
		WorkDir: t.WorkDir, Shell: t.Shell, Ports: t.Ports, Size: sizeEntry(t.Size),
		Languages: map[engi.Language]interpreterPart{}, Built: t.Built, Bytes: t.Bytes, Inputs: inputs,
		Start: t.Start, Ready: t.Ready, Kernels: t.Kernels,
	}
	for lang, i := range t.Languages {
		e.Languages[lang] = interpreterPart(i)
	}
	for _, m := range t.Mounts {
		e.Mounts = append(e.Mounts, mountEntry(m))
	}
	return e
}

func (e buildEntry) template(root string) engi.Template {
	t := engi.Template{
		Digest: e.Digest, Root: root, Env: e.Env, User: e.User, UID: e.UID, GID: e.GID, Home: e.Home,
		WorkDir: e.WorkDir, Shell: e.Shell, Ports: e.Ports, Size: engi.Size(e.Size),
		Languages: map[engi.Language]engi.Interpreter{}, Built: e.Built, Bytes: e.Bytes,
		Start: e.Start, Ready: e.Ready, Kernels: e.Kernels,
	}
	for lang, i := range e.Languages {
		t.Languages[lang] = engi.Interpreter(i)
	}
	for _, m := range e.Mounts {
		t.Mounts = append(t.Mounts, engi.Mount(m))
	}
	return t
}

// open makes the directories and removes what nobody works on any more.
func (s shelf) open(ctx context.Context) (left int, err error) {
	for _, d := range []string{"", "names", "builds", "layers", "steps", "tmp", "sources"} {
		if err := os.MkdirAll(filepath.Join(s.dir, d), 0o700); err != nil {
			return 0, fileError(err)
		}
	}
	// Roots hold set-ID programs and device-like files of others: nobody else
	// on the node may reach them.
	if err := os.Chmod(s.dir, 0o700); err != nil {
		return 0, fileError(err)
	}
	for _, at := range s.scraps() {
		if err := ctx.Err(); err != nil {
			return left, engi.Errorf(engi.Expired, "%v", err)
		}
		st, err := os.Lstat(at)
		if err != nil || time.Since(st.ModTime()) < time.Minute && !exists(filepath.Join(at, "lock")) {
			continue // gone, or in the moment between its making and its lock
		}
		if !st.IsDir() {
			if err := os.Remove(at); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return left, fileError(err)
			}
			continue
		}
		lock, err := tryLock(filepath.Join(at, "lock"), unix.LOCK_EX)
		if err != nil {
			return left, err
		}
		if lock == nil && exists(filepath.Join(at, "lock")) {
			continue // another process builds there
		}
		err = removeTree(at)
		if lock != nil {
			lock.Close()
		}
		if err != nil {
			return left, err
		}
		left++
	}
	return left, nil
}

// scraps returns what a crash may have left.
func (s shelf) scraps() []string {
	var all []string
	for _, pattern := range []string{"tmp/*", "names/.write-*", "steps/.write-*"} {
		found, err := filepath.Glob(filepath.Join(s.dir, pattern))
		if err != nil {
			panic(err) // the patterns are constant
		}
		all = append(all, found...)
	}
	return all
}

// temp makes a locked directory for a build. The caller closes the lock.
func (s shelf) temp() (dir string, lock *os.File, err error) {
	dir, err = os.MkdirTemp(filepath.Join(s.dir, "tmp"), "build-")
	if err != nil {
		return "", nil, fileError(err)
	}
	lock, err = lockFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, unix.LOCK_EX|unix.LOCK_NB)
	if err != nil {
		os.RemoveAll(dir)
		return "", nil, fileError(err)
	}
	return dir, lock, nil
}

// publish turns a finished build in tmp into a build. It returns the
// template, which may be somebody else's equal one.
func (s shelf) publish(tmp string, entry buildEntry) (engi.Template, error) {
	hex := strings.TrimPrefix(entry.Digest, digestPrefix)
	if err := writeJSON(filepath.Join(tmp, "index.json"), entry); err != nil {
		return engi.Template{}, err
	}
	if err := syncAll(tmp); err != nil {
		return engi.Template{}, err
	}
	err := os.Rename(tmp, s.build(hex))
	if err != nil && !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EEXIST) {
		return engi.Template{}, fileError(err)
	}
	if err := syncDir(filepath.Join(s.dir, "builds")); err != nil {
		return engi.Template{}, err
	}
	return s.load(hex)
}

func (s shelf) build(hex string) string { return filepath.Join(s.dir, "builds", hex) }

var hexPattern = regexp.MustCompile(`^[0-9a-f]{64}$`)

// load reads a build; fs.ErrNotExist if there is none.
func (s shelf) load(hex string) (engi.Template, error) {
	if !hexPattern.MatchString(hex) {
		return engi.Template{}, fs.ErrNotExist
	}
	var e buildEntry
	if err := readJSON(filepath.Join(s.build(hex), "index.json"), &e); err != nil {
		return engi.Template{}, err
	}
	return e.template(filepath.Join(s.build(hex), "root")), nil
}

// share takes a share in a build, so that it is not removed. It returns nil if
// there is no such build any more.
func (s shelf) share(hex string) (*os.File, error) { return s.shareAt(s.build(hex)) }

// shareAt takes a share in a build or a layer.
func (s shelf) shareAt(dir string) (*os.File, error) {
	path := filepath.Join(dir, "lock")
	lock, err := tryLock(path, unix.LOCK_SH)
	if lock == nil || err != nil {
		return nil, err
	}
	// It may have been moved away between open and lock.
	var here, there unix.Stat_t
	if unix.Fstat(int(lock.Fd()), &here) != nil || unix.Stat(path, &there) != nil || here.Ino != there.Ino || here.Dev != there.Dev {
		lock.Close()
		return nil, nil
	}
	return lock, nil
}

// remove deletes a build unless somebody has a share in it.
func (s shelf) remove(hex string) (freed int64, gone bool, err error) {
	lock, err := tryLock(filepath.Join(s.build(hex), "lock"), unix.LOCK_EX)
	if err != nil {
		return 0, false, err
	}
	if lock == nil {
		return 0, !exists(s.build(hex)), nil
	}
	defer lock.Close()
	tmpl, err := s.load(hex)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, false, err
	}
	if held, err := s.held(hex); err != nil || held {
		return 0, false, err
	}
	away := filepath.Join(s.dir, "tmp", "gone-"+rand.Text())
	if err := os.Rename(s.build(hex), away); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return 0, true, nil
		}
		return 0, false, fileError(err)
	}
	if err := removeTree(away); err != nil {
		return 0, true, err
	}
	return tmpl.Bytes, true, nil
}

// hold notes that a build is needed while path exists. The caller has a share
// in it, and no other holds it for the same path at the same time.
func (s shelf) hold(hex, path string) error {
	dir := filepath.Join(s.build(hex), "holds")
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fileError(err)
	}
	// A name of its own, so that who forgets an older note of the path, which
	// did not exist for a while, does not forget this one.
	sum := sha256.Sum256([]byte(path))
	prefix := fmt.Sprintf("%x-", sum[:12])
	fresh := filepath.Join(dir, prefix+rand.Text()[:12]+".json")
	if err := writeJSON(fresh, path); err != nil {
		return err
	}
	if err := syncDir(dir); err != nil {
		return err
	}
	older, err := filepath.Glob(filepath.Join(dir, prefix+"*.json"))
	if err != nil {
		panic(err) // the pattern is hexadecimal
	}
	for _, note := range older {
		if note == fresh {
			continue
		}
		if err := os.Remove(note); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fileError(err)
		}
	}
	return nil
}

// held reports whether somebody needs a build, and forgets those who are gone.
func (s shelf) held(hex string) (bool, error) {
	notes, err := filepath.Glob(filepath.Join(s.build(hex), "holds", "*.json"))
	if err != nil {
		panic(err) // the pattern is constant
	}
	held := false
	for _, note := range notes {
		var path string
		if err := readJSON(note, &path); errors.Is(err, fs.ErrNotExist) {
			continue // a newer one took its place, and is listed, or there is none
		} else if err != nil {
			return false, err
		}
		_, err := os.Lstat(path)
		switch {
		case err == nil:
			held = true
		case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTDIR):
			return false, fileError(err) // we do not know
		default:
			if err := os.Remove(note); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return false, fileError(err)
			}
		}
	}
	return held, nil
}

// orphaned returns since when no name has meant a build, which is now if nobody
// has noticed before; a build that a name means is none.
func (s shelf) orphaned(hex string) (since time.Time, orphan bool, err error) {
	users, err := s.users(digestPrefix + hex)
	if err != nil {
		return since, false, err
	}
	mark := filepath.Join(s.build(hex), "orphan")
	if len(users) > 0 {
		if err := os.Remove(mark); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return since, false, fileError(err)
		}
		return since, false, nil
	}
	f, err := os.OpenFile(mark, os.O_CREATE|os.O_RDONLY|unix.O_NOFOLLOW, 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		return since, false, nil // removed meanwhile
	}
	if err != nil {
		return since, false, fileError(err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return since, false, fileError(err)
	}
	return st.ModTime(), true, nil
}

// builds returns the digests of all builds, without prefix.
func (s shelf) builds() ([]string, error) {
	list, err := os.ReadDir(filepath.Join(s.dir, "builds"))
	if err != nil {
		return nil, fileError(err)
	}
	var hexes []string
	for _, e := range list {
		if hexPattern.MatchString(e.Name()) {
			hexes = append(hexes, e.Name())
		}
	}
	return hexes, nil
}

// name reads what a name means; fs.ErrNotExist if nothing.
func (s shelf) name(name string) (nameEntry, error) {
	var e nameEntry
	return e, readJSON(s.nameFile(name), &e)
}

func (s shelf) nameFile(name string) string { return filepath.Join(s.dir, "names", name+".json") }

// setName lets a name mean a build. It reports whether that is new.
func (s shelf) setName(name string, e nameEntry) (bool, error) {
	old, err := s.name(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	if old == e {
		return false, nil
	}
	if err := writeJSON(s.nameFile(name), e); err != nil {
		return false, err
	}
	return old.Digest != e.Digest, syncDir(filepath.Join(s.dir, "names"))
}

// forget deletes a name; NotFound if there is none.
func (s shelf) forget(name string) error {
	if err := os.Remove(s.nameFile(name)); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return engi.Errorf(engi.NotFound, "there is no such name")
		}
		return fileError(err)
	}
	return syncDir(filepath.Join(s.dir, "names"))
}

// names returns all names, sorted.
func (s shelf) names() ([]string, error) {
	list, err := os.ReadDir(filepath.Join(s.dir, "names"))
	if err != nil {
		return nil, fileError(err)
	}
	var names []string
	for _, e := range list {
		if name, ok := strings.CutSuffix(e.Name(), ".json"); ok && recipe.ValidName(name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, nil
}

// users returns the names that mean a build.
func (s shelf) users(digest string) ([]string, error) {
	names, err := s.names()
	if err != nil {
		return nil, err
	}
	var users []string
	for _, name := range names {
		e, err := s.name(name)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		if e.Digest == digest {
			users = append(users, name)
		}
	}
	return users, nil
}

// tryLock locks an existing file without waiting. It returns nil if the file
// is missing or the lock is taken.
func tryLock(path string, how int) (*os.File, error) {
	f, err := lockFile(path, os.O_RDWR, how|unix.LOCK_NB)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EWOULDBLOCK) {
		return nil, nil
	}
	if err != nil {
		return nil, fileError(err)
	}
	return f, nil
}

func lockFile(path string, flags, how int) (*os.File, error) {
	f, err := os.OpenFile(path, flags|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		err := unix.Flock(int(f.Fd()), how)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, unix.EINTR) {
			f.Close()
			return nil, err
		}
	}
}

// removeTree deletes a directory of ours and all below it. What a killed build
// left mounted there is unmounted first, or we would delete somebody else's
// files.
func removeTree(path string) error {
	points, err := mountsBelow(path)
	if err != nil {
		return err
	}
	for _, at := range slices.Backward(points) {
		if err := unix.Unmount(at, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return engi.Errorf(engi.Internal, "unmount %s: %v", at, err)
		}
	}
	parent, err := tree.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer parent.Close()
	return parent.RemoveAll(filepath.Base(path))
}

// mountsBelow returns the mount points in a directory, in the order they were
// made.
func mountsBelow(path string) ([]string, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, fileError(err)
	}
	defer f.Close()
	var points []string
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 5 {
			continue
		}
		at := mountEscapes.Replace(fields[4])
		if at == path || strings.HasPrefix(at, path+"/") {
			points = append(points, at)
		}
	}
	return points, fileError(lines.Err())
}

var mountEscapes = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func readJSON(path string, v any) error {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return fs.ErrNotExist
	}
	if err != nil {
		return fileError(err)
	}
	if err := json.Unmarshal(data, v); err != nil {
		return engi.Errorf(engi.Internal, "read %s: %v", path, err)
	}
	return nil
}

// writeJSON replaces a file, or leaves it as it was.
func writeJSON(path string, v any) (err error) {
	data, err := json.MarshalIndent(v, "", "\t")
	if err != nil {
		return engi.Errorf(engi.Internal, "write %s: %v", path, err)
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".write-")
	if err != nil {
		return fileError(err)
	}
	defer func() {
		if err != nil {
			os.Remove(f.Name())
		}
	}()
	_, err = f.Write(append(data, '\n'))
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	return fileError(err)
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return fileError(err)
	}
	defer d.Close()
	return fileError(d.Sync())
}

// syncAll writes everything in the file system of path to disk.
func syncAll(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return fileError(err)
	}
	defer d.Close()
	if err := unix.Syncfs(int(d.Fd())); err != nil {
		return fileError(err)
	}
	return nil
}

// fileError classifies an error of our own files.
func fileError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return engi.Errorf(engi.Exhausted, "the disk of the data directory is full: %v", err).WithRemedy("free space; 'engi template prune' helps")
	case errors.Is(err, fs.ErrPermission):
		return engi.Errorf(engi.Denied, "%v", err).WithRemedy("run as the user who owns the data directory")
	}
	return engi.Errorf(engi.Internal, "%v", err)
}
