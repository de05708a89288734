//go:build release

package bundle

import (
	"embed"
	"io/fs"
)

// "make release" creates the files; they are not in the repository.
//
//go:embed payload/manifest.json payload/*.zst
var payload embed.FS

// Packs returns the packed programs of this build.
func Packs() fs.FS {
	sub, err := fs.Sub(payload, "payload")
	if err != nil {
		panic(err) // unreachable: a constant, valid path
	}
	return sub
}
