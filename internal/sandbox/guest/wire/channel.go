package wire

// Paths of the channel. The channel is a directory that the host mounts read-only at Dir, so that
// nothing in the sandbox can write to the host. The guest dials; the host
// listens.
const (
	Dir        = "/.engi"
	SocketName = "sock"       // the host listens; the guest keeps one spare connection in its backlog
	ConfigName = "guest.json" // holds a Config; the host may replace it while the guest is quiesced
	BinaryName = "engi-guest" // the guest program, PID 1
	ResumeName = "resume"     // holds the resume token; a change wakes a quiesced guest, which reads Config again and dials
)

// Config is the configuration that the guest needs before the first stream.
type Config struct {
	Token    string `json:"token"`    // token required in every request
	Hostname string `json:"hostname"` // host name of the sandbox; empty leaves it unchanged
	Time     int64  `json:"time"`     // clock at a restore in Unix nanoseconds; 0 leaves the clock unchanged
	Entropy  []byte `json:"entropy"`  // seed for the kernel's entropy pool at a restore
}
