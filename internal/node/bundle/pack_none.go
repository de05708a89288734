//go:build !release

package bundle

import (
	"embed"
	"io/fs"
)

// Packs returns the packed programs of this build: none, because it was not
// built with the tag "release".
func Packs() fs.FS { return embed.FS{} }
