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

	"github.com/engi-dev/engi/internal/engi"
)

// An image describes a directory of saved state. The image is written last, so a
// directory without an image is incomplete.
type image struct {
	Kind  imageKind        `json:"kind"`
	Files map[string]int64 `json:"files"` // sizes by name
}

type imageKind string

const (
	imageMemory imageKind = "memory" // a whole machine
	imageDisk   imageKind = "disk"   // differences of the disk from its root
)

const imageName = "image.json"

// imageFiles are the names that runsc expects, in the order in which the sandbox's
// kernel expects the files.
var imageFiles = map[imageKind][]string{
	imageMemory: {"checkpoint.img", "pages_meta.img", "pages.img"},
	imageDisk:   {"fscheckpoint.pb", "multitar.img", "pages_meta.img", "pages.img"},
}

// writeImage creates the files of an image in dir and calls fill to write them. After
// an error it removes the files.
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
			return engi.Errorf(engi.Conflict, "%s has an image already", dir)
		}
		if err != nil {
			return engi.Errorf(engi.Invalid, "create an image: %v", err)
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

// checkImage returns Invalid unless dir has a complete image of the given kind.
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
		return engi.Errorf(engi.Invalid, "no usable image in %s: %v", dir, err)
	}
	return nil
}

// beginSave reserves the machine for a save. A paused machine is refused unless
// stopped is set. The caller must call release.
func (m *machine) beginSave(stopped bool) (release func(), err error) {
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

// writeMemory writes the whole machine to dir. Its programs continue afterwards,
// even after an error.
func (m *machine) writeMemory(ctx context.Context, dir string) error {
	return writeImage(dir, imageMemory, func(files []*os.File) error {
		return m.call(ctx, methodCheckpoint, map[string]any{
			"metadata":                            map[string]string{"compression": "none"},
			"app_mf_exclude_committed_zero_pages": true,
			"have_pages_file":                     true,
			// Without Resume the kernel exits afterwards, even after a failure.
			"Resume": true,
		}, files...)
	})
}

// Checkpoint writes the machine to dir and ends it. After an error the machine
// continues.
func (m *machine) Checkpoint(ctx context.Context, dir string) (err error) {
	defer engi.Annotate(&err, "checkpoint %s", m.id)
	release, err := m.beginSave(false)
	if err != nil {
		return err
	}
	defer release()
	resume, err := m.stopForSave(ctx)
	if err != nil {
		return errors.Join(err, m.wake())
	}
	if err := m.writeMemory(ctx, dir); err != nil {
		if err := resume(); err != nil {
			m.p.log.Error("a machine that was not saved does not continue", "sandbox", m.id, "error", err)
		}
		if err := m.wake(); err != nil {
			m.p.log.Error("a machine that was not saved does not continue", "sandbox", m.id, "error", err)
		}
		return err
	}
	return m.Close()
}

// stopForSave stops the programs of a machine that can write to the host, so that
// nothing is written after the image. Work of other machines until their end has no
// effect.
func (m *machine) stopForSave(ctx context.Context) (resume func() error, err error) {
	if !m.writesHost || !strings.Contains(m.p.features(), "pause") {
		return func() error { return nil }, nil
	}
	// A later owner must know that the machine may be stopped.
	if err := os.WriteFile(m.d.path(stoppedName), nil, 0o600); err != nil {
		return nil, engi.Errorf(engi.Internal, "%v", err)
	}
	if err := m.call(ctx, methodPause, struct{}{}); err != nil {
		return nil, err
	}
	return func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		if err := m.call(ctx, methodResume, struct{}{}); err != nil {
			return err
		}
		return os.Remove(m.d.path(stoppedName))
	}, nil
}

// stoppedName is a file that exists while a machine's kernel may be stopped.
const stoppedName = "still"

// Snapshot writes the machine to dir. The machine continues.
func (m *machine) Snapshot(ctx context.Context, dir string) (err error) {
	defer engi.Annotate(&err, "snapshot %s", m.id)
	release, err := m.beginSave(false)
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

// SaveDisk writes the changes on the machine's disk to dir.
func (m *machine) SaveDisk(ctx context.Context, dir string) (err error) {
	defer engi.Annotate(&err, "save the disk of %s", m.id)
	release, err := m.beginSave(true)
	if err != nil {
		return err
	}
	defer release()
	return writeImage(dir, imageDisk, func(files []*os.File) error {
		return m.call(ctx, methodSaveDisk, map[string]any{
			"paths": []map[string]string{{"path": "/"}},
		}, files...)
	})
}
