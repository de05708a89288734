package tree

import (
	"strings"

	"golang.org/x/sys/unix"
)

// metadataPrefix is where E2B's agent keeps what callers say about a file.
const metadataPrefix = "user.e2b."

// SetMetadata stores notes about a file as extended attributes. It reports
// Unsupported where the file system has none.
func SetMetadata(path string, meta map[string]string) error {
	for k, v := range meta {
		if err := unix.Setxattr(path, metadataPrefix+k, []byte(v), 0); err != nil {
			return classify(err, "store metadata of", path)
		}
	}
	return nil
}

// Metadata returns the notes about a file; nil if there are none.
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
			continue // gone meanwhile
		}
		if meta == nil {
			meta = map[string]string{}
		}
		meta[key] = string(value[:n])
	}
	return meta
}
