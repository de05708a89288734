package gvisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/engi-dev/engi"
)

// An image is what a directory of saved state says of itself. It is written
// last: a directory without one is not complete.
type image struct {
	Kind  imageKind        `json:"kind"`
	Files map[string]int64 `json:"files"` // and their sizes
}

type imageKind string

const (
	imageMemory imageKind = "memory" // all of a machine
	imageDisk   imageKind = "disk"   // what differs from its root
)

const imageName = "image.json"

// imageFiles are the names that runsc looks for, in the order in which the
// sandbox's kernel takes the files.
var imageFiles = map[imageKind][]string{
	imageMemory: {"checkpoint.img", "pages_meta.img", "pages.img"},
	imageDisk:   {"fscheckpoint.pb", "multitar.img", "pages_meta.img", "pages.img"},
}

// writeImage makes the files of an image in dir, lets fill write them, and
// leaves all or nothing.
func writeImage(dir string, kind imageKind, fill func(files []*os.File) error) (err error) {
	img := image{Kind: kind, Files: map[string]int64{}}
	var files []*os.File
	defer func() {
		for _, f := range files {
			if closeErr := f.Close(); err == nil && closeErr != nil {
				err = engi.Errorf(engi.Internal, "%v", closeErr)
			}
			if err != nil {
				os.Remove(f.Name())
			}
		}
		if err != nil {
			os.Remove(filepath.Join(dir, imageName))
		}
	}()
	for _, name := range imageFiles[kind] {
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
		if errors.Is(err, fs.ErrExist) {
			return engi.Errorf(engi.Conflict, "there is an image in %s", dir)
		}
		if err != nil {
			return engi.Errorf(engi.Invalid, "make an image: %v", err)
		}
		files = append(files, f)
	}
	if err := fill(files); err != nil {
		return err
	}
	for _, f := range files {
		fi, err := f.Stat()
		if err != nil {
			return engi.Errorf(engi.Internal, "%v", err)
		}
		img.Files[filepath.Base(f.Name())] = fi.Size()
	}
	raw, err := json.Marshal(img)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, imageName), raw, 0o600)
	}
	if err != nil {
		return engi.Errorf(engi.Internal, "%v", err)
	}
	return nil
}

// checkImage reports Invalid if there is no whole image of that kind in dir.
func checkImage(dir string, kind imageKind) error {
	var img image
	raw, err := os.ReadFile(filepath.Join(dir, imageName))
	if err == nil {
		err = json.Unmarshal(raw, &img)
	}
	if err == nil && img.Kind != kind {
		err = fmt.Errorf("it is of kind %q, not %q", img.Kind, kind)
	}
	for _, name := range imageFiles[kind] {
		if err != nil {
			break
		}
		var fi fs.FileInfo
		if fi, err = os.Stat(filepath.Join(dir, name)); err == nil && fi.Size() != img.Files[name] {
			err = fmt.Errorf("%s has %d bytes, not %d", name, fi.Size(), img.Files[name])
		}
	}
	if err != nil {
		return engi.Errorf(engi.Invalid, "no image to start from in %s: %v", dir, err)
	}
	return nil
}

// save reserves the machine for one who saves it, while programs run unless
// stopped is fine, too. The caller calls release.
func (m *machine) save(stopped bool) (release func(), err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.saving {
		return nil, engi.Errorf(engi.Conflict, "it is being saved already")
	}
	if m.paused && !stopped {
		return nil, engi.Errorf(engi.Conflict, "it is paused").WithRemedy("resume it first")
	}
	m.saving = true
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.saving = false
	}, nil
}

// writeMemory writes all of the machine to dir. Its programs go on when that
// is done, whatever came of it.
func (m *machine) writeMemory(ctx context.Context, dir string) error {
	return writeImage(dir, imageMemory, func(files []*os.File) error {
		return m.ask(ctx, methodCheckpoint, map[string]any{
			"metadata":                            map[string]string{"compression": "none"},
			"app_mf_exclude_committed_zero_pages": true,
			"have_pages_file":                     true,
			// A kernel that is told to end after it has saved itself does so
			// even if it could not.
			"Resume": true,
		}, files...)
	})
}

// Checkpoint writes the machine to dir and ends it. If that fails, the machine
// goes on.
func (m *machine) Checkpoint(ctx context.Context, dir string) (err error) {
	defer engi.Annotate(&err, "checkpoint %s", m.id)
	release, err := m.save(false)
	if err != nil {
		return err
	}
	defer release()
	resume, err := m.still(ctx)
	if err != nil {
		return errors.Join(err, m.wake())
	}
	if err := m.writeMemory(ctx, dir); err != nil {
		if err := resume(); err != nil {
			m.p.log.Error("a machine that was not saved does not go on", "sandbox", m.id, "error", err)
		}
		if err := m.wake(); err != nil {
			m.p.log.Error("a machine that was not saved does not go on", "sandbox", m.id, "error", err)
		}
		return err
	}
	return m.Close()
}

// still stops the programs of a machine that writes to the host, so that
// nothing is written after the image was made. The others may do what they
// like until they are gone: nobody sees it.
func (m *machine) still(ctx context.Context) (resume func() error, err error) {
	if !m.shares || !strings.Contains(m.p.features(), "pause") {
		return func() error { return nil }, nil
	}
	// Whoever adopts the machine must know that it may be stopped.
	if err := os.WriteFile(m.d.path(stillName), nil, 0o600); err != nil {
		return nil, engi.Errorf(engi.Internal, "%v", err)
	}
	if err := m.ask(ctx, methodPause, struct{}{}); err != nil {
		return nil, err
	}
	return func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		if err := m.ask(ctx, methodResume, struct{}{}); err != nil {
			return err
		}
		return os.Remove(m.d.path(stillName))
	}, nil
}

// stillName is a file that is there while a machine's kernel may be stopped.
const stillName = "still"

// Snapshot writes the machine to dir and lets it go on.
func (m *machine) Snapshot(ctx context.Context, dir string) (err error) {
	defer engi.Annotate(&err, "snapshot %s", m.id)
	release, err := m.save(false)
	if err != nil {
		return err
	}
	defer release()
	err = m.writeMemory(ctx, dir)
	if wakeErr := m.wake(); err == nil {
		err = wakeErr
	}
	return err
}

// SaveDisk writes what the machine changed on its disk to dir.
func (m *machine) SaveDisk(ctx context.Context, dir string) (err error) {
	defer engi.Annotate(&err, "save the disk of %s", m.id)
	release, err := m.save(true)
	if err != nil {
		return err
	}
	defer release()
	return writeImage(dir, imageDisk, func(files []*os.File) error {
		return m.ask(ctx, methodSaveDisk, map[string]any{
			"paths": []map[string]string{{"path": "/"}},
		}, files...)
	})
}
