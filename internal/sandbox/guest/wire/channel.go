package wire

// The channel is a directory that the host mounts read-only at Dir, so that
// nothing in the sandbox can write to the host. The guest dials; the host
// listens.
const (
	Dir        = "/.engi"
	SocketName = "sock"       // the host listens; the guest keeps one spare connection in its backlog
	ConfigName = "guest.json" // a Config; the host may replace it while the guest is quiesced
	BinaryName = "engi-guest" // the guest program, PID 1
	ResumeName = "resume"     // a change wakes a quiesced guest, which reads Config again and dials
)

// Config is what the guest must know before the first stream.
type Config struct {
	Token    string `json:"token"`    // every request must carry it
	Hostname string `json:"hostname"` // empty leaves it unchanged
	Time     int64  `json:"time"`     // unix nanoseconds at a restore; 0 leaves the clock
	Entropy  []byte `json:"entropy"`  // for the kernel's pool at a restore
}
