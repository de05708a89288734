package memory

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/provider"
)

// copyTree copies the directory from to the directory to: directories, regular files and links,
// with modes and times, and with owners if this process is root. It skips other
// files, such as sockets.
func copyTree(from, to string) error {
	type dirTimes struct {
		path string
		info fs.FileInfo
	}
	var dirs []dirTimes // times are set last, since creating files changes them
	err := filepath.WalkDir(from, func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) && path != from {
			return nil // removed concurrently
		}
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		dest := filepath.Join(to, rel)
		info, err := e.Info()
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return err
		}
		switch info.Mode().Type() {
		case fs.ModeDir:
			if err := os.MkdirAll(dest, 0o700); err != nil {
				return err
			}
			dirs = append(dirs, dirTimes{dest, info})
			return nil
		case fs.ModeSymlink:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			return os.Symlink(target, dest)
		case 0:
			if err := copyFile(path, dest); err != nil {
				return err
			}
			return setAttributes(dest, info)
		}
		return nil
	})
	for i := len(dirs) - 1; i >= 0 && err == nil; i-- {
		err = setAttributes(dirs[i].path, dirs[i].info)
	}
	return err
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if errors.Is(err, fs.ErrNotExist) {
		return os.WriteFile(to, nil, 0o600)
	}
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// setAttributes sets owner, mode and time of path to the values of info.
func setAttributes(path string, info fs.FileInfo) error {
	if st, ok := info.Sys().(*syscall.Stat_t); ok && os.Geteuid() == 0 {
		if err := os.Lchown(path, int(st.Uid), int(st.Gid)); err != nil {
			return err
		}
	}
	if err := os.Chmod(path, info.Mode()); err != nil {
		return err
	}
	return os.Chtimes(path, info.ModTime(), info.ModTime())
}

// Names in the directory of a saved machine. savedMark is created last.
const (
	savedRoot = "root"
	savedMark = "saved"
)

// saveTree copies a machine's root to dir, an empty directory.
func saveTree(root, dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return engi.Errorf(engi.Invalid, "%v", err)
	}
	if len(entries) > 0 {
		return engi.Errorf(engi.Conflict, "%s has an image already", dir)
	}
	err = copyTree(root, filepath.Join(dir, savedRoot))
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, savedMark), nil, 0o600)
	}
	if err != nil {
		os.RemoveAll(filepath.Join(dir, savedRoot))
		return engi.Errorf(engi.Internal, "copy the root: %v", err)
	}
	return nil
}

// savedTree returns the root in the directory of a saved machine.
func savedTree(dir string) (string, error) {
	if _, err := os.Stat(filepath.Join(dir, savedMark)); err != nil {
		return "", engi.Errorf(engi.Invalid, "no usable image in %s: %v", dir, err)
	}
	return filepath.Join(dir, savedRoot), nil
}

// mount creates links to host paths below root.
func mount(root string, mounts []provider.Mount) error {
	for _, m := range mounts {
		at := filepath.Join(root, m.Target)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			return err
		}
		if err := os.Remove(at); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := os.Symlink(m.Source, at); err != nil {
			return err
		}
	}
	return nil
}
