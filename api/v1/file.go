package v1

import "time"

// HashHeader is the SHA-256 of a file's content, in hex. Uploads may send it as
// a header or trailer, which the server verifies; downloads have it as a
// trailer if the request says "TE: trailers".
const HashHeader = "Engi-Sha256"

// CRCHeader is the CRC-32C of a file's content, eight hex digits, as a trailer
// of downloads whose request says "Engi-Want-Hash: crc32c". It detects accidental damage
// at a fraction of the cost of SHA-256.
const CRCHeader = "Engi-Crc32c"

// WantHeader selects the hash in a download's trailer.
const WantHeader = "Engi-Want-Hash"

// SizeHeader is a file's size in bytes, for responses without Content-Length.
const SizeHeader = "Engi-Size"

// A FileInfo describes a file in a sandbox or a volume.
type FileInfo struct {
	Path       string    `json:"path" doc:"Absolute path, with slashes" example:"/workspace/data.csv"`
	PathBase64 []byte    `json:"path_base64,omitempty" doc:"Exact bytes in base64; only if they are not UTF-8"`
	Type       string    `json:"type" enum:"file,directory,symlink,other"`
	Size       Bytes     `json:"size"`
	Mode       Mode      `json:"mode" doc:"Permission bits"`
	UID        int       `json:"uid"`
	GID        int       `json:"gid"`
	Owner      string    `json:"owner,omitempty" doc:"Name of the owner, or its number if it has no name"`
	Group      string    `json:"group,omitempty"`
	ModifiedAt time.Time `json:"modified_at"`
	Target     string    `json:"target,omitempty" doc:"Target of a symbolic link"`
}

// A Written describes the file that an upload wrote.
type Written struct {
	Path   string `json:"path" example:"/workspace/data.csv"`
	Size   Bytes  `json:"size"`
	SHA256 string `json:"sha256" doc:"SHA-256, in hex"`
}

// A PathRequest names a path.
type PathRequest struct {
	Path string `json:"path" minLength:"1" doc:"Absolute path" example:"/workspace/out"`
}

// A MoveRequest renames a file or directory.
type MoveRequest struct {
	From string `json:"from" minLength:"1" doc:"Absolute path" example:"/workspace/a"`
	To   string `json:"to" minLength:"1" doc:"Absolute path; missing parent directories are created" example:"/workspace/b"`
}

// A FileChange is a change below a watched directory, or one of the types
// started (the watch is in place), heartbeat and error (the last).
type FileChange struct {
	Type       string   `json:"type" enum:"started,create,write,remove,rename,chmod,error,heartbeat"`
	Path       string   `json:"path,omitempty" doc:"Absolute path"`
	PathBase64 []byte   `json:"path_base64,omitempty" doc:"Exact bytes in base64; only if they are not UTF-8"`
	Error      *Problem `json:"error,omitempty" doc:"Error; only with type error"`
}
