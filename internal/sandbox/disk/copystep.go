package disk

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/disk/recipe"
	"github.com/engi-dev/engi/internal/sandbox/disk/tree"
)

// copyStep copies the files of an archive that match a pattern to the root, like COPY in
// image builds: files into or onto the destination, and the content of directories
// into the destination.
func (j *job) copyStep(ctx context.Context, st recipe.Step, state *stepState, s *stepBuild) error {
	source, dest, user, mode := st.Args[0], st.Args[1], st.Args[2], st.Args[3]
	if user == "" {
		user = state.user
	}
	owner, err := j.owner(user)
	if err != nil {
		return err
	}
	var bits *fs.FileMode
	if mode != "" {
		n, err := strconv.ParseUint(mode, 8, 32)
		if err != nil {
			return invalid("%q is not an octal mode", mode)
		}
		m := fileMode(uint32(n))
		bits = &m
	}
	from, err := j.unpackContext(ctx, st.Archive, s)
	if err != nil {
		return err
	}
	defer from.Close()
	found, err := glob(from, source)
	if err != nil {
		return err
	}
	if len(found) == 0 {
		return invalid("copy: nothing in the archive matches %s", source).WithRemedy("paths in the archive are relative to its root")
	}
	into := strings.HasSuffix(dest, "/") || path.Base(dest) == "." || len(found) > 1
	dest = joinWorkDir(state.workDir, dest)
	if st, err := j.tree.Stat(dest); err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
		into = true
	}
	c := copier{ctx: ctx, to: j.tree, from: from, owner: owner, mode: bits}
	for _, f := range found {
		st, err := from.Lstat(f)
		if err != nil {
			return err
		}
		target := dest
		if st.Mode&unix.S_IFMT != unix.S_IFDIR && into {
			target = path.Join(dest, path.Base(f))
		}
		above := path.Dir(target)
		if st.Mode&unix.S_IFMT == unix.S_IFDIR {
			above = target
		}
		if err := j.makeDirs(above, owner); err != nil {
			return err
		}
		if err := c.copyEntry(f, target, st); err != nil {
			return err
		}
	}
	return nil
}

// unpackContext unpacks the archive of a step next to the root.
func (j *job) unpackContext(ctx context.Context, archive string, s *stepBuild) (_ *tree.Tree, err error) {
	f, err := s.open(archive)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	dir := filepath.Join(j.dir, "context")
	if err := removeTree(dir); err != nil {
		return nil, err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, fileError(err)
	}
	t, err := tree.Open(dir)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			t.Close()
		}
	}()
	check := sha256.New()
	in := io.TeeReader(f, check)
	plain, err := decompress(in)
	if err != nil {
		return nil, err
	}
	defer plain.Close()
	skipped, err := t.Extract(ctx, plain, tree.ExtractOptions{Budget: j.room.budget()})
	if err != nil {
		return nil, err
	}
	if _, err := io.Copy(io.Discard, in); err != nil {
		return nil, fileError(err)
	}
	logSkipped(j.report, skipped)
	if !slices.Contains(s.hashes, hex.EncodeToString(check.Sum(nil))) {
		return nil, engi.Errorf(engi.Conflict, "%s changed while it was read", archive).WithRemedy("build again once it is complete")
	}
	return t, nil
}

const maxMatches = 10_000

// glob returns the paths in a tree that match a pattern, sorted.
func glob(t *tree.Tree, pattern string) ([]string, error) {
	found := []string{"."}
	for part := range strings.SplitSeq(path.Clean("/" + pattern)[1:], "/") {
		if part == "" {
			continue
		}
		var next []string
		for _, dir := range found {
			if st, err := t.Lstat(dir); err != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
				continue
			}
			names, err := t.ReadDir(dir)
			if err != nil {
				return nil, err
			}
			for _, name := range names {
				if ok, err := path.Match(part, name); err != nil {
					return nil, invalid("copy: %q is not a pattern", pattern)
				} else if ok || name == part {
					next = append(next, path.Join(dir, name))
				}
			}
		}
		if len(next) > maxMatches {
			return nil, invalid("copy: %s matches more than %d files", pattern, maxMatches).WithRemedy("copy their directory")
		}
		found = next
	}
	slices.Sort(found)
	return found, nil
}

// A copier copies from one tree to another and changes the owner.
type copier struct {
	ctx      context.Context
	to, from *tree.Tree
	owner    tree.Owner
	mode     *fs.FileMode // mode of files; directories are also executable for users with read permission
}

func (c *copier) copyEntry(from, to string, st unix.Stat_t) error {
	if c.ctx.Err() != nil {
		return engi.Errorf(engi.Expired, "%v", context.Cause(c.ctx))
	}
	mode := fileMode(st.Mode)
	if c.mode != nil {
		mode = *c.mode
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		in, err := c.from.OpenFile(from)
		if err != nil {
			return err
		}
		defer in.Close()
		_, err = c.to.Create(to, in, tree.File{Mode: mode, Owner: c.owner, Modified: time.Unix(st.Mtim.Sec, st.Mtim.Nsec)})
		return err
	case unix.S_IFLNK:
		target, err := c.from.Readlink(from)
		if err != nil {
			return err
		}
		return c.to.Symlink(target, to, c.owner)
	case unix.S_IFDIR:
		if c.mode != nil {
			mode |= mode & 0o444 >> 2
		}
		there, err := c.to.Stat(to)
		if err == nil && there.Mode&unix.S_IFMT != unix.S_IFDIR {
			if err := c.to.RemoveAll(to); err != nil {
				return err
			}
		}
		if err := c.to.MkdirAll(to, mode, c.owner); err != nil { // does not change an existing directory
			return err
		}
		names, err := c.from.ReadDir(from)
		if err != nil {
			return err
		}
		slices.Sort(names)
		for _, name := range names {
			at := path.Join(from, name)
			st, err := c.from.Lstat(at)
			if err != nil {
				return err
			}
			if err := c.copyEntry(at, path.Join(to, name), st); err != nil {
				return err
			}
		}
	}
	return nil // pipes and the like are not copied
}

// owner parses the owner of a step's files: a name, a number, or USER:GROUP.
func (j *job) owner(who string) (tree.Owner, error) {
	if who == "" {
		return tree.Owner{}, nil
	}
	name, group, both := strings.Cut(who, ":")
	a, ok, err := j.knownUser(name)
	if err != nil {
		return tree.Owner{}, err
	}
	if !ok {
		n, err := strconv.Atoi(name)
		if err != nil || n < 0 || n >= 1<<31 {
			return tree.Owner{}, invalid("unauthenticated: invalid username: '%s'", name).WithRemedy("name a user that is in /etc/passwd, or create it in an earlier step")
		}
		a.uid, a.gid = n, n
	}
	if !both {
		return tree.Owner{UID: a.uid, GID: a.gid}, nil
	}
	gid, err := j.group(group)
	return tree.Owner{UID: a.uid, GID: gid}, err
}

// group finds a group by name or number.
func (j *job) group(who string) (int, error) {
	data, err := j.tree.ReadFile("/etc/group", maxAccounts)
	if err != nil && !engi.Is(err, engi.NotFound) {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		f := strings.Split(strings.TrimRight(line, "\n"), ":")
		if len(f) >= 3 && f[0] == who {
			if gid, err := strconv.Atoi(f[2]); err == nil && gid >= 0 {
				return gid, nil
			}
		}
	}
	if n, err := strconv.Atoi(who); err == nil && n >= 0 && n < 1<<31 {
		return n, nil
	}
	return 0, invalid("there is no group '%s'", who).WithRemedy("name a group that is in /etc/group")
}

// makeDirs creates a directory and its missing parents for an owner.
func (j *job) makeDirs(dir string, o tree.Owner) error {
	if _, err := j.tree.Stat(dir); err == nil || dir == "/" || dir == "." {
		return nil
	}
	if err := j.makeDirs(path.Dir(dir), o); err != nil {
		return err
	}
	return j.tree.MkdirAll(dir, 0o755, o)
}
