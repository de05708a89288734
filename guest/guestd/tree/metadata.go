package tree

import (
	"strings"

	"golang.org/x/sys/unix"
)

// metadataPrefix begins the extended attributes in which E2B's envd keeps
// callers' metadata of a file.
const metadataPrefix = "user.e2b."

// SetMetadata stores metadata of a file as extended attributes. It reports
// Unsupported if the file system has none.
func SetMetadata(path string, meta map[string]string) error {
	for k, v := range meta {
		if err := unix.Setxattr(path, metadataPrefix+k, []byte(v), 0); err != nil {
			return Classify(err, "store metadata of", path)
		}
	}
	return nil
}

// Metadata returns the metadata of a file, nil if there is none.
func Metadata(path string) map[string]string {
	names := make([]byte, 8<<10)
	n, err := unix.Llistxattr(path, names)
	if err != nil || n <= 0 {
		return nil
	}
	var meta map[string]string
	for name := range strings.SplitSeq(string(names[:n]), "\x00") {
		key, ok := strings.CutPrefix(name, metadataPrefix)
		if !ok {
			continue
		}
		value := make([]byte, 4<<10)
		n, err := unix.Lgetxattr(path, name, value)
		if err != nil {
			continue // gone by now
		}
		if meta == nil {
			meta = map[string]string{}
		}
		meta[key] = string(value[:n])
	}
	return meta
}
