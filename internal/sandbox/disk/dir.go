package disk

import (
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

	"github.com/engi-dev/engi/internal/atomicfile"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/disk/recipe"
	"github.com/engi-dev/engi/internal/sandbox/disk/tree"
	"github.com/engi-dev/engi/internal/sandbox/mounts"
)

const digestPrefix = "sha256:"

// A templateDir is the directory of templates. It contains:
//
//	names/NAME.json      a nameEntry: the build that a name refers to
//	builds/HEX/root      a root file system
//	builds/HEX/index.json  a buildEntry
//	builds/HEX/lock      locked shared by users of the build
//	builds/HEX/holds/H   a path; the build is needed as long as the path exists
//	builds/HEX/orphan    no name has referred to the build since this file's mtime
//	layers/HEX/tree      the changes of a step, in the format of the kernel's overlay
//	layers/HEX/index.json  a layerEntry
//	layers/HEX/lock      locked shared by builds; its mtime is the time of the last use
//	steps/HEX.json       the layer of a forced step
//	tmp/X                an unfinished or removed build; locked while in use
//	sources/             files that definitions may read
//
// A build is created by a rename from tmp, complete and synced, and removed by a
// rename to tmp.
type templateDir struct{ dir string }

// nameEntry is the content of the file of a name.
type nameEntry struct {
	Digest     string `json:"digest"`
	Definition string `json:"definition,omitempty"` // YAML text; empty for a built-in definition

	Owner engi.Owner `json:"owner,omitempty"`
	Steps bool       `json:"steps,omitempty"` // the template was built from a spec, which is not stored
}

// buildEntry is the content of the index file of a build.
type buildEntry struct {
	Digest    string                             `json:"digest"`
	Env       map[string]string                  `json:"env,omitempty"`
	User      string                             `json:"user,omitempty"`
	UID       int                                `json:"uid"`
	GID       int                                `json:"gid"`
	Home      string                             `json:"home"`
	WorkDir   string                             `json:"work_dir"`
	Shell     string                             `json:"shell"`
	Ports     []int                              `json:"ports,omitempty"`
	Private   bool                               `json:"private,omitempty"`
	Size      sizeEntry                          `json:"size"`
	Languages map[engi.Language]interpreterEntry `json:"languages"`
	Mounts    []mountEntry                       `json:"mounts,omitempty"`
	Built     time.Time                          `json:"built"`
	Bytes     int64                              `json:"bytes"`
	Inputs    []string                           `json:"inputs"` // inputs covered by the digest, for people
	Start     string                             `json:"start,omitempty"`
	Ready     string                             `json:"ready,omitempty"`
	Kernels   []string                           `json:"kernels,omitempty"`

	Owner  engi.Owner       `json:"owner,omitempty"`  // owner whose build added this one; empty means the node
	Layers map[string]int64 `json:"layers,omitempty"` // bytes added by builds of owners, by the ID of the build or layer
}

type sizeEntry struct {
	VCPUs     float64 `json:"vcpus,omitempty"`
	Memory    int64   `json:"memory,omitempty"`
	Disk      int64   `json:"disk,omitempty"`
	Inodes    int64   `json:"inodes,omitempty"`
	Processes int     `json:"processes,omitempty"`
	OpenFiles int     `json:"open_files,omitempty"`
}

type interpreterEntry struct {
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
		Languages: map[engi.Language]interpreterEntry{}, Built: t.Built, Bytes: t.Bytes, Inputs: inputs,
		Start: t.Start, Ready: t.Ready, Kernels: t.Kernels, Private: t.Private,
	}
	for lang, i := range t.Languages {
		e.Languages[lang] = interpreterEntry(i)
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
		Start: e.Start, Ready: e.Ready, Kernels: e.Kernels, Private: e.Private,
	}
	for lang, i := range e.Languages {
		t.Languages[lang] = engi.Interpreter(i)
	}
	for _, m := range e.Mounts {
		t.Mounts = append(t.Mounts, engi.Mount(m))
	}
	return t
}

// prepare creates the directories and removes unfinished builds of dead processes.
func (d templateDir) prepare(ctx context.Context) (left int, err error) {
	for _, name := range []string{"", "names", "builds", "layers", "steps", "tmp", "sources"} {
		if err := os.MkdirAll(filepath.Join(d.dir, name), 0o700); err != nil {
			return 0, fileError(err)
		}
	}
	// Other users of the node must not reach set-ID programs in roots.
	if err := os.Chmod(d.dir, 0o700); err != nil {
		return 0, fileError(err)
	}
	for _, at := range d.leftovers() {
		if err := ctx.Err(); err != nil {
			return left, engi.Errorf(engi.Expired, "%v", err)
		}
		st, err := os.Lstat(at)
		if err != nil || time.Since(st.ModTime()) < time.Minute && !exists(filepath.Join(at, "lock")) {
			continue // the directory is gone, or not locked yet
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
			continue // in use by another process
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

// leftovers returns the paths that a crash may have left.
func (d templateDir) leftovers() []string {
	var all []string
	for _, pattern := range []string{"tmp/*", "names/.write-*", "steps/.write-*"} {
		found, err := filepath.Glob(filepath.Join(d.dir, pattern))
		if err != nil {
			panic(err) // unreachable: the patterns are constant
		}
		all = append(all, found...)
	}
	return all
}

// newBuildDir creates a locked directory for a build. The caller closes the lock.
func (d templateDir) newBuildDir() (dir string, lock *os.File, err error) {
	dir, err = os.MkdirTemp(filepath.Join(d.dir, "tmp"), "build-")
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

// publish makes a finished build in tmp available. It returns the template, which
// may be an equal one that another process published first.
func (d templateDir) publish(tmp string, entry buildEntry) (engi.Template, error) {
	hex := strings.TrimPrefix(entry.Digest, digestPrefix)
	if err := writeJSON(filepath.Join(tmp, "index.json"), entry); err != nil {
		return engi.Template{}, err
	}
	if err := syncAll(tmp); err != nil {
		return engi.Template{}, err
	}
	err := os.Rename(tmp, d.buildDir(hex))
	if err != nil && !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EEXIST) {
		return engi.Template{}, fileError(err)
	}
	if err := syncDir(filepath.Join(d.dir, "builds")); err != nil {
		return engi.Template{}, err
	}
	return d.load(hex)
}

func (d templateDir) buildDir(hex string) string { return filepath.Join(d.dir, "builds", hex) }

var hexPattern = regexp.MustCompile(`^[0-9a-f]{64}$`)

// load reads the entry of a build. It returns fs.ErrNotExist if there is none.
func (d templateDir) load(hex string) (engi.Template, error) {
	e, err := d.entry(hex)
	if err != nil {
		return engi.Template{}, err
	}
	return e.template(filepath.Join(d.buildDir(hex), "root")), nil
}

func (d templateDir) entry(hex string) (e buildEntry, err error) {
	if !hexPattern.MatchString(hex) {
		return e, fs.ErrNotExist
	}
	return e, readJSON(filepath.Join(d.buildDir(hex), "index.json"), &e)
}

// lockShared takes the shared lock of a build, so that it is not removed. It
// returns nil if there is no such build.
func (d templateDir) lockShared(hex string) (*os.File, error) {
	return d.lockDirShared(d.buildDir(hex))
}

// lockDirShared takes the shared lock of the directory of a build or layer.
func (d templateDir) lockDirShared(dir string) (*os.File, error) {
	path := filepath.Join(dir, "lock")
	lock, err := tryLock(path, unix.LOCK_SH)
	if lock == nil || err != nil {
		return nil, err
	}
	// The directory may have been removed between open and lock.
	var here, there unix.Stat_t
	if unix.Fstat(int(lock.Fd()), &here) != nil || unix.Stat(path, &there) != nil || here.Ino != there.Ino || here.Dev != there.Dev {
		lock.Close()
		return nil, nil
	}
	return lock, nil
}

// remove deletes a build unless it is in use or held.
func (d templateDir) remove(hex string) (freed int64, gone bool, err error) {
	lock, err := tryLock(filepath.Join(d.buildDir(hex), "lock"), unix.LOCK_EX)
	if err != nil {
		return 0, false, err
	}
	if lock == nil {
		return 0, !exists(d.buildDir(hex)), nil
	}
	defer lock.Close()
	tmpl, err := d.load(hex)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, false, err
	}
	if held, err := d.held(hex); err != nil || held {
		return 0, false, err
	}
	away := filepath.Join(d.dir, "tmp", "gone-"+rand.Text())
	if err := os.Rename(d.buildDir(hex), away); err != nil {
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

// addHold records that a build is needed as long as path exists. The caller has
// its shared lock, and ensures that there is only one call at a time.
func (d templateDir) addHold(hex, path string) error {
	dir := filepath.Join(d.buildDir(hex), "holds")
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fileError(err)
	}
	// The name is unique, so that the removal of an older hold for the path, which may not
	// have existed for a while, does not remove this one.
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
		panic(err) // unreachable: the pattern is hexadecimal
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

// held reports whether a build is held, and drops holds whose paths are gone.
func (d templateDir) held(hex string) (bool, error) {
	notes, err := filepath.Glob(filepath.Join(d.buildDir(hex), "holds", "*.json"))
	if err != nil {
		panic(err) // unreachable: the pattern is constant
	}
	held := false
	for _, note := range notes {
		var path string
		if err := readJSON(note, &path); errors.Is(err, fs.ErrNotExist) {
			continue // replaced by a newer hold, which is listed, too
		} else if err != nil {
			return false, err
		}
		_, err := os.Lstat(path)
		switch {
		case err == nil:
			held = true
		case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTDIR):
			return false, fileError(err) // the state is unknown, so keep the build
		default:
			if err := os.Remove(note); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return false, fileError(err)
			}
		}
	}
	return held, nil
}

// orphaned reports whether no name refers to a build, and the time since which this is
// known.
func (d templateDir) orphaned(hex string) (since time.Time, orphan bool, err error) {
	users, err := d.namesOf(digestPrefix + hex)
	if err != nil {
		return since, false, err
	}
	mark := filepath.Join(d.buildDir(hex), "orphan")
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
func (d templateDir) builds() ([]string, error) {
	list, err := os.ReadDir(filepath.Join(d.dir, "builds"))
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

// readName returns the entry of a name. It returns fs.ErrNotExist if the name is
// unknown.
func (d templateDir) readName(name string) (nameEntry, error) {
	var e nameEntry
	return e, readJSON(d.nameFile(name), &e)
}

func (d templateDir) nameFile(name string) string { return filepath.Join(d.dir, "names", name+".json") }

// setName makes a name refer to a build. It reports whether the build changed.
func (d templateDir) setName(name string, e nameEntry) (bool, error) {
	old, err := d.readName(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	if old == e {
		return false, nil
	}
	if err := writeJSON(d.nameFile(name), e); err != nil {
		return false, err
	}
	return old.Digest != e.Digest, syncDir(filepath.Join(d.dir, "names"))
}

// removeName deletes a name. It reports NotFound if the name does not exist.
func (d templateDir) removeName(name string) error {
	if err := os.Remove(d.nameFile(name)); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return engi.Errorf(engi.NotFound, "there is no such name")
		}
		return fileError(err)
	}
	return syncDir(filepath.Join(d.dir, "names"))
}

// names returns all names, sorted.
func (d templateDir) names() ([]string, error) {
	list, err := os.ReadDir(filepath.Join(d.dir, "names"))
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

// namesOf returns the names that refer to a build.
func (d templateDir) namesOf(digest string) ([]string, error) {
	var users []string
	err := d.eachName(digest, func(name string, _ nameEntry) { users = append(users, name) })
	return users, err
}

// ownersOf returns the owners of the names that refer to a build.
func (d templateDir) ownersOf(digest string) ([]engi.Owner, error) {
	var owners []engi.Owner
	err := d.eachName(digest, func(_ string, e nameEntry) {
		if !slices.Contains(owners, e.Owner) {
			owners = append(owners, e.Owner)
		}
	})
	return owners, err
}

// eachName calls f for each name that refers to a build.
func (d templateDir) eachName(digest string, f func(name string, e nameEntry)) error {
	names, err := d.names()
	if err != nil {
		return err
	}
	for _, name := range names {
		e, err := d.readName(name)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if e.Digest == digest {
			f(name, e)
		}
	}
	return nil
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

// removeTree deletes a directory with its content. It first unmounts file systems that a killed
// build left mounted there, so that it does not delete other files.
func removeTree(path string) error {
	points, err := mounts.In(path)
	if err != nil {
		return fileError(err)
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

// writeJSON atomically replaces a file.
func writeJSON(path string, v any) error {
	data, err := json.MarshalIndent(v, "", "\t")
	if err != nil {
		return engi.Errorf(engi.Internal, "write %s: %v", path, err)
	}
	return fileError(atomicfile.Write(path, append(data, '\n'), 0o600))
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return fileError(err)
	}
	defer d.Close()
	return fileError(d.Sync())
}

// syncAll syncs the file system of path.
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

// fileError classifies an error of files in the data directory.
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
