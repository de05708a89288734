package tree

import (
	"strings"

	"golang.org/x/sys/unix"
)

// metadataPrefix is the beginning of the names of extended attributes in which E2B's envd keeps
// metadata of callers about a file.
const metadataPrefix = "user.e2b."

// SetMetadata replaces the metadata of a file, which is kept in extended attributes. It
// reports Unsupported if meta is not empty and the file system has no extended attributes.
func SetMetadata(path string, meta map[string]string) error {
	for k := range Metadata(path) {
		if _, stays := meta[k]; stays {
			continue
		}
		if err := unix.Removexattr(path, metadataPrefix+k); err != nil {
			return Classify(err, "remove metadata of", path)
		}
	}
	for k, v := range meta {
		if err := unix.Setxattr(path, metadataPrefix+k, []byte(v), 0); err != nil {
			return Classify(err, "store metadata of", path)
		}
	}
	return nil
}

// Metadata returns the metadata of the file that path leads to, nil if there is none.
func Metadata(path string) map[string]string {
	names := make([]byte, 8<<10)
	n, err := unix.Listxattr(path, names)
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
		n, err := unix.Getxattr(path, name, value)
		if err != nil {
			continue // the attribute is gone by now
		}
		if meta == nil {
			meta = map[string]string{}
		}
		meta[key] = string(value[:n])
	}
	return meta
}
