package fleet

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/engi-dev/engi/internal/engi"
)

func (f files) sandbox(id engi.SandboxID) string {
	return filepath.Join(f.dir, "sandboxes", string(id))
}

// image returns the directory of a hibernated sandbox.
func (f files) image(id engi.SandboxID) string { return filepath.Join(f.sandbox(id), "image") }

// hasImage reports whether a sandbox was written to disk completely.
func (f files) hasImage(id engi.SandboxID) bool {
	fi, err := os.Stat(f.image(id))
	return err == nil && fi.IsDir()
}

// newImage makes an empty directory to write a sandbox to.
func (f files) newImage(id engi.SandboxID) (string, error) {
	dir := filepath.Join(f.sandbox(id), "new")
	if err := os.RemoveAll(dir); err != nil {
		return "", engi.Errorf(engi.Internal, "remove an old image: %v", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", full("make a directory for an image", err)
	}
	return dir, nil
}

// syncImage makes an image survive a power cut. It returns no error if the
// image has been removed in the meantime.
func (f files) syncImage(id engi.SandboxID) error {
	err := filepath.WalkDir(f.image(id), func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() && !d.IsDir() {
			return err
		}
		file, err := os.Open(path)
		if err != nil {
			return err
		}
		defer file.Close()
		return file.Sync()
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return full("write an image to disk", err)
	}
	return nil
}

// keepImage marks the image in the directory of newImage as complete, by
// renaming it to its final name.
func (f files) keepImage(id engi.SandboxID) error {
	if err := os.RemoveAll(f.image(id)); err != nil {
		return engi.Errorf(engi.Internal, "remove an old image: %v", err)
	}
	if err := os.Rename(filepath.Join(f.sandbox(id), "new"), f.image(id)); err != nil {
		return engi.Errorf(engi.Internal, "keep an image: %v", err)
	}
	return nil
}

// dropSandbox removes all files of a sandbox.
func (f files) dropSandbox(id engi.SandboxID) error {
	if err := os.RemoveAll(f.sandbox(id)); err != nil {
		return engi.Errorf(engi.Internal, "remove files of %s: %v", id, err)
	}
	return nil
}

// moveAway moves the files of a sandbox, if it has any, to a temporary
// directory.
func (f files) moveAway(id engi.SandboxID) (trash string, err error) {
	if _, err := os.Lstat(f.sandbox(id)); errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if trash, err = f.newTemp(); err != nil {
		return "", err
	}
	if err := os.Rename(f.sandbox(id), filepath.Join(trash, "sandbox")); err != nil {
		return trash, engi.Errorf(engi.Internal, "remove an image: %v", err)
	}
	return trash, nil
}

// sandboxes returns the IDs of sandboxes that have files.
func (f files) sandboxes() (ids []engi.SandboxID, err error) {
	entries, err := os.ReadDir(filepath.Join(f.dir, "sandboxes"))
	if err != nil {
		return nil, engi.Errorf(engi.Internal, "list files: %v", err)
	}
	for _, e := range entries {
		ids = append(ids, engi.SandboxID(e.Name()))
	}
	return ids, nil
}

// newTemp makes an empty temporary directory.
func (f files) newTemp() (string, error) {
	dir, err := os.MkdirTemp(filepath.Join(f.dir, "temp"), "")
	if err != nil {
		return "", full("make a temporary directory", err)
	}
	return dir, nil
}

// dropTemps removes all temporary directories.
func (f files) dropTemps() error {
	dir := filepath.Join(f.dir, "temp")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return engi.Errorf(engi.Internal, "list files: %v", err)
	}
	for _, e := range entries {
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			return engi.Errorf(engi.Internal, "remove files: %v", err)
		}
	}
	return nil
}
