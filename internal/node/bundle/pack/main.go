// Command pack compresses programs for a release build of engi, with a
// manifest that names their digests: pack -out DIR PROGRAM...
package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/klauspost/compress/zstd"

	"github.com/engi-dev/engi/internal/node/bundle"
)

func main() {
	out := flag.String("out", "", "directory to write to")
	flag.Parse()
	if *out == "" || flag.NArg() == 0 {
		fmt.Fprintln(os.Stderr, "usage: pack -out DIR PROGRAM...")
		os.Exit(2)
	}
	if err := run(*out, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "pack:", err)
		os.Exit(1)
	}
}

func run(out string, programs []string) error {
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	var m bundle.Manifest
	for _, path := range programs {
		p, err := pack(out, path)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		m.Programs = append(m.Programs, p)
	}
	text, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	// The manifest comes last, because a set without manifest is ignored.
	return os.WriteFile(filepath.Join(out, bundle.ManifestName), append(text, '\n'), 0o644)
}

func pack(out, path string) (bundle.Packed, error) {
	src, err := os.Open(path)
	if err != nil {
		return bundle.Packed{}, err
	}
	defer src.Close()
	name := filepath.Base(path)
	dst, err := os.Create(filepath.Join(out, name+".zst"))
	if err != nil {
		return bundle.Packed{}, err
	}
	defer dst.Close()
	z, err := zstd.NewWriter(dst, zstd.WithEncoderLevel(zstd.SpeedBestCompression))
	if err != nil {
		return bundle.Packed{}, err
	}
	h := sha256.New()
	n, err := io.Copy(io.MultiWriter(z, h), src)
	if err != nil {
		return bundle.Packed{}, err
	}
	if err := z.Close(); err != nil {
		return bundle.Packed{}, err
	}
	return bundle.Packed{Name: name, File: name + ".zst", SHA256: hex.EncodeToString(h.Sum(nil)), Size: n}, dst.Close()
}
