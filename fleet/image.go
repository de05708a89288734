package fleet

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/engi-dev/engi"
)

func (f files) box(id engi.SandboxID) string { return filepath.Join(f.dir, "boxes", string(id)) }

// image is where a sleeping sandbox is kept.
func (f files) image(id engi.SandboxID) string { return filepath.Join(f.box(id), "image") }

// hasImage reports whether a sandbox was written to disk as a whole.
func (f files) hasImage(id engi.SandboxID) bool {
	fi, err := os.Stat(f.image(id))
	return err == nil && fi.IsDir()
}

// newImage makes an empty directory for a sandbox to be written to.
func (f files) newImage(id engi.SandboxID) (string, error) {
	dir := filepath.Join(f.box(id), "new")
	if err := os.RemoveAll(dir); err != nil {
		return "", engi.Errorf(engi.Internal, "remove an old image: %v", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", full("make a directory for an image", err)
	}
	return dir, nil
}

// syncImage makes a sleeping sandbox survive a power cut, too. One that was
// woken meanwhile has no image, which is no error.
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

// keepImage declares what newImage made complete: it is that from the moment
// it has its name.
func (f files) keepImage(id engi.SandboxID) error {
	if err := os.RemoveAll(f.image(id)); err != nil {
		return engi.Errorf(engi.Internal, "remove an old image: %v", err)
	}
	if err := os.Rename(filepath.Join(f.box(id), "new"), f.image(id)); err != nil {
		return engi.Errorf(engi.Internal, "keep an image: %v", err)
	}
	return nil
}

// dropBox removes all files of a sandbox.
func (f files) dropBox(id engi.SandboxID) error {
	if err := os.RemoveAll(f.box(id)); err != nil {
		return engi.Errorf(engi.Internal, "remove files of %s: %v", id, err)
	}
	return nil
}

// carryOff moves the files of a sandbox, if it has any, to where they belong
// to nobody.
func (f files) carryOff(id engi.SandboxID) (away string, err error) {
	if _, err := os.Lstat(f.box(id)); errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if away, err = f.newFork(); err != nil {
		return "", err
	}
	if err := os.Rename(f.box(id), filepath.Join(away, "box")); err != nil {
		return away, engi.Errorf(engi.Internal, "remove an image: %v", err)
	}
	return away, nil
}

// strayBoxes lists the sandboxes that have files.
func (f files) strayBoxes() (ids []engi.SandboxID, err error) {
	entries, err := os.ReadDir(filepath.Join(f.dir, "boxes"))
	if err != nil {
		return nil, engi.Errorf(engi.Internal, "list files: %v", err)
	}
	for _, e := range entries {
		ids = append(ids, engi.SandboxID(e.Name()))
	}
	return ids, nil
}

// newFork makes an empty directory to copy a sandbox through.
func (f files) newFork() (string, error) {
	dir, err := os.MkdirTemp(filepath.Join(f.dir, "forks"), "")
	if err != nil {
		return "", full("make a directory for copies", err)
	}
	return dir, nil
}

// dropForks removes what copies left behind when the node died.
func (f files) dropForks() error {
	dir := filepath.Join(f.dir, "forks")
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
