package e2b

import (
	"archive/tar"
	"bytes"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// pushImage serves a registry in this process during the test,
// pushes a small Linux with this machine's shell to it, and returns the
// image's reference.
func pushImage(t *testing.T) string {
	t.Helper()
	srv := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(srv.Close)
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(smallLinux(t))), nil })
	if err != nil {
		t.Fatal(err)
	}
	img, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		t.Fatal(err)
	}
	cf, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	cf = cf.DeepCopy()
	cf.OS, cf.Architecture = "linux", runtime.GOARCH
	cf.Config.Env = []string{"PATH=/usr/bin:/bin", "FROM_IMAGE=yes"}
	if img, err = mutate.ConfigFile(img, cf); err != nil {
		t.Fatal(err)
	}
	ref, err := name.ParseReference(strings.TrimPrefix(srv.URL, "http://") + "/small/linux:1")
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref, img); err != nil {
		t.Fatal(err)
	}
	return ref.String()
}

// registryOf returns the registry of an image as HOST:PORT.
func registryOf(t *testing.T, image string) string {
	t.Helper()
	ref, err := name.ParseReference(image)
	if err != nil {
		t.Fatal(err)
	}
	return ref.Context().RegistryStr()
}

// smallLinux returns a root file system as a tar archive: a shell, a few tools, and the
// libraries that they need.
func smallLinux(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	put := func(h *tar.Header, data []byte) {
		h.Size = int64(len(data))
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(data); err != nil {
			t.Fatal(err)
		}
	}
	for _, d := range []string{"usr", "usr/bin", "usr/lib", "usr/lib64", "usr/sbin", "etc", "tmp", "root", "srv"} {
		put(&tar.Header{Name: d + "/", Typeflag: tar.TypeDir, Mode: 0o755}, nil)
	}
	for _, d := range []string{"bin", "lib", "lib64", "sbin"} {
		put(&tar.Header{Name: d, Typeflag: tar.TypeSymlink, Linkname: "usr/" + d, Mode: 0o777}, nil)
	}
	put(&tar.Header{Name: "etc/passwd", Typeflag: tar.TypeReg, Mode: 0o644}, []byte("root:x:0:0:root:/root:/bin/bash\n"))
	put(&tar.Header{Name: "etc/group", Typeflag: tar.TypeReg, Mode: 0o644}, []byte("root:x:0:\n"))
	put(&tar.Header{Name: "image", Typeflag: tar.TypeReg, Mode: 0o644}, []byte("an image\n"))
	var files []string
	for _, tool := range []string{"bash", "cat", "ls", "id", "mkdir", "chown", "stat", "sleep", "true"} {
		path, err := exec.LookPath(tool)
		if err != nil {
			t.Skipf("needs %s", tool)
		}
		files = append(files, path)
		out, err := exec.Command("ldd", path).Output()
		if err != nil {
			continue // the program is static
		}
		for word := range strings.FieldsSeq(string(out)) {
			if strings.HasPrefix(word, "/") {
				files = append(files, word)
			}
		}
	}
	slices.Sort(files)
	for _, f := range slices.Compact(files) {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		to := strings.TrimPrefix(filepath.Clean(f), "/")
		if !strings.HasPrefix(to, "usr/") {
			to = "usr/" + to
		}
		put(&tar.Header{Name: to, Typeflag: tar.TypeReg, Mode: 0o755}, data)
	}
	put(&tar.Header{Name: "usr/bin/sh", Typeflag: tar.TypeSymlink, Linkname: "bash", Mode: 0o777}, nil)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}
