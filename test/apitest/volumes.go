package apitest

import (
	"cmp"
	"context"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

// Volumes is a fake whose volumes are directories of the host. It is safe for
// concurrent use.
type Volumes struct {
	mu  sync.Mutex
	all []volume
}

type volume struct {
	engi.Volume
	dir string
}

var _ engi.Volumes = (*Volumes)(nil)

func (v *Volumes) close() {
	for _, x := range v.all {
		os.RemoveAll(x.dir)
	}
}

func (v *Volumes) at(viewer engi.Viewer, name string) (int, error) {
	for i, x := range v.all {
		if (string(x.ID) == name || x.Name == name) && viewer.Sees(x.Owner) {
			return i, nil
		}
	}
	return 0, engi.Errorf(engi.NotFound, "no volume %q", name)
}

// Create creates a volume.
func (v *Volumes) Create(ctx context.Context, spec engi.VolumeSpec) (engi.Volume, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if spec.Name == "" || strings.ContainsAny(spec.Name, "/ \x00") {
		return engi.Volume{}, engi.Errorf(engi.Invalid, "%.40q cannot be the name of a volume", spec.Name)
	}
	for _, x := range v.all {
		if x.Owner == spec.Owner && x.Name == spec.Name {
			return engi.Volume{}, engi.Errorf(engi.Conflict, "there is a volume %q already", spec.Name)
		}
	}
	dir, err := os.MkdirTemp("", "engi-apitest-")
	if err != nil {
		return engi.Volume{}, engi.Errorf(engi.Internal, "%v", err)
	}
	if spec.Capacity == 0 {
		spec.Capacity = 1 << 30
	}
	x := engi.Volume{ID: cmp.Or(spec.ID, engi.NewVolumeID()), Owner: spec.Owner, Name: spec.Name, Capacity: spec.Capacity, Created: time.Now().UTC()}
	v.all = append(v.all, volume{x, dir})
	return x, nil
}

// Get returns a volume.
func (v *Volumes) Get(ctx context.Context, viewer engi.Viewer, name string) (engi.Volume, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	i, err := v.at(viewer, name)
	if err != nil {
		return engi.Volume{}, err
	}
	return v.all[i].Volume, nil
}

// List returns volumes by name.
func (v *Volumes) List(ctx context.Context, viewer engi.Viewer, p engi.Paging) ([]engi.Volume, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	var list []engi.Volume
	for _, x := range v.all {
		if viewer.Sees(x.Owner) {
			list = append(list, x.Volume)
		}
	}
	slices.SortFunc(list, func(a, b engi.Volume) int { return strings.Compare(a.Name, b.Name) })
	return engi.Cut(p, list, func(x engi.Volume) string { return string(x.ID) })
}

// Remove deletes a volume.
func (v *Volumes) Remove(ctx context.Context, viewer engi.Viewer, name string) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	i, err := v.at(viewer, name)
	if err != nil {
		return err
	}
	os.RemoveAll(v.all[i].dir)
	v.all = slices.Delete(v.all, i, i+1)
	return nil
}

// Files opens the files of a volume.
func (v *Volumes) Files(ctx context.Context, viewer engi.Viewer, name string) (engi.VolumeFiles, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	i, err := v.at(viewer, name)
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(v.all[i].dir)
	if err != nil {
		return nil, engi.Errorf(engi.Internal, "%v", err)
	}
	return files{root}, nil
}

type files struct{ root *os.Root }

func rel(p string) string {
	if p = strings.TrimPrefix(filepath.Clean(p), "/"); p == "" {
		return "."
	}
	return p
}

func classify(err error) error {
	switch {
	case err == nil:
		return nil
	case os.IsNotExist(err):
		return engi.Errorf(engi.NotFound, "%v", err)
	case os.IsExist(err):
		return engi.Errorf(engi.Conflict, "%v", err)
	}
	return engi.Errorf(engi.Invalid, "%v", err)
}

func (f files) Close() error { return f.root.Close() }

func (f files) Open(ctx context.Context, path string) (io.ReadCloser, error) {
	x, err := f.root.Open(rel(path))
	if err != nil {
		return nil, classify(err)
	}
	return x, nil
}

func (f files) Write(ctx context.Context, path string, r io.Reader, a engi.FileAttr) (engi.FileInfo, error) {
	data, err := io.ReadAll(r)
	if err != nil {
		return engi.FileInfo{}, engi.Errorf(engi.Unavailable, "%v", err)
	}
	if err := f.root.MkdirAll(filepath.Dir(rel(path)), 0o755); err != nil {
		return engi.FileInfo{}, classify(err)
	}
	if err := f.root.WriteFile(rel(path), data, 0o644); err != nil {
		return engi.FileInfo{}, classify(err)
	}
	return f.Stat(ctx, path)
}

func (f files) Stat(ctx context.Context, path string) (engi.FileInfo, error) {
	fi, err := f.root.Lstat(rel(path))
	if err != nil {
		return engi.FileInfo{}, classify(err)
	}
	return engi.FileInfo{Path: filepath.Clean(path), Size: fi.Size(), Mode: fi.Mode(), Modified: fi.ModTime()}, nil
}

func (f files) List(ctx context.Context, dir string, depth int) ([]engi.FileInfo, error) {
	var list []engi.FileInfo
	err := fs.WalkDir(f.root.FS(), rel(dir), func(p string, d fs.DirEntry, err error) error {
		if err != nil || p == rel(dir) {
			return err
		}
		fi, err := f.Stat(ctx, "/"+p)
		list = append(list, fi)
		if d.IsDir() && strings.Count(p, "/") >= depth-1 {
			return fs.SkipDir
		}
		return err
	})
	return list, classify(err)
}

func (f files) MakeDir(ctx context.Context, path string, a engi.FileAttr) (engi.FileInfo, error) {
	if _, err := f.root.Lstat(rel(path)); err == nil {
		return engi.FileInfo{}, engi.Errorf(engi.Conflict, "%s is there already", path)
	}
	if err := f.root.MkdirAll(rel(path), 0o755); err != nil {
		return engi.FileInfo{}, classify(err)
	}
	return f.Stat(ctx, path)
}

func (f files) Change(ctx context.Context, path string, a engi.FileAttr) (engi.FileInfo, error) {
	return f.Stat(ctx, path)
}

func (f files) Remove(ctx context.Context, path string) error {
	if _, err := f.root.Lstat(rel(path)); err != nil {
		return classify(err)
	}
	return classify(f.root.RemoveAll(rel(path)))
}

// Secrets is a fake that keeps no values. It is safe for concurrent use.
type Secrets struct {
	mu  sync.Mutex
	all []engi.Secret
}

var _ engi.Secrets = (*Secrets)(nil)

func (s *Secrets) at(viewer engi.Viewer, name string) (int, error) {
	for i, x := range s.all {
		if (string(x.ID) == name || x.Name == name) && viewer.Sees(x.Owner) {
			return i, nil
		}
	}
	return 0, engi.Errorf(engi.NotFound, "no secret %q", name)
}

// Create stores a secret.
func (s *Secrets) Create(ctx context.Context, x engi.Secret, value string) (engi.Secret, error) {
	var f engi.Faults
	if f.Secret(value); len(f) > 0 {
		return engi.Secret{}, f.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, y := range s.all {
		if y.Owner == x.Owner && y.Name == x.Name {
			return x, engi.Errorf(engi.Conflict, "there is a secret %q already", x.Name)
		}
	}
	x.ID, x.Version, x.Created = cmp.Or(x.ID, engi.NewSecretID()), 1, time.Now().UTC()
	x.Updated = x.Created
	s.all = append(s.all, x)
	return x, nil
}

// Get returns a secret.
func (s *Secrets) Get(ctx context.Context, viewer engi.Viewer, name string) (engi.Secret, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i, err := s.at(viewer, name)
	if err != nil {
		return engi.Secret{}, err
	}
	return s.all[i], nil
}

// List returns secrets.
func (s *Secrets) List(ctx context.Context, viewer engi.Viewer, p engi.Paging) ([]engi.Secret, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []engi.Secret
	for _, x := range s.all {
		if viewer.Sees(x.Owner) {
			list = append(list, x)
		}
	}
	return engi.Cut(p, list, func(x engi.Secret) string { return string(x.ID) })
}

// Update increments the version.
func (s *Secrets) Update(ctx context.Context, viewer engi.Viewer, name, value string, metadata map[string]string, hosts *[]string) (engi.Secret, error) {
	var f engi.Faults
	if f.Secret(value); len(f) > 0 {
		return engi.Secret{}, f.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	i, err := s.at(viewer, name)
	if err != nil {
		return engi.Secret{}, err
	}
	s.all[i].Version++
	s.all[i].Updated = time.Now().UTC()
	if metadata != nil {
		s.all[i].Metadata = metadata
	}
	if hosts != nil {
		s.all[i].Hosts = *hosts
	}
	return s.all[i], nil
}

// Remove deletes a secret.
func (s *Secrets) Remove(ctx context.Context, viewer engi.Viewer, name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	i, err := s.at(viewer, name)
	if err == nil {
		s.all = slices.Delete(s.all, i, i+1)
	}
	return err
}

// Reveal is not used by the API.
func (s *Secrets) Reveal(ctx context.Context, viewer engi.Viewer, name string) (string, error) {
	panic("apitest: a surface asks for the value of a secret")
}
