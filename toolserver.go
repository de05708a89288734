package engi

import "time"

// A ToolServer is a server of tools elsewhere that agents may use, and how it
// was when it was asked last. It is a value.
type ToolServer struct {
	Name    string
	Kind    ToolServerKind
	State   ToolServerState
	Tools   []string  // by the names that models see; as of the last time it answered
	Left    []string  // tools it has that cannot be offered, and why
	Error   string    // why it failed
	Checked time.Time // zero if it was never asked
}

// A ToolServerKind says where a server of tools is.
type ToolServerKind string

const (
	ToolServerURL     ToolServerKind = "url"     // on the network
	ToolServerCommand ToolServerKind = "command" // a program in a sandbox
)

// A ToolServerState is what is known about a server of tools.
type ToolServerState string

const (
	ToolServerUnused ToolServerState = "unused" // nobody has asked it yet
	ToolServerReady  ToolServerState = "ready"
	ToolServerFailed ToolServerState = "failed" // Error says why
)

// ToolServers knows the servers of tools that are configured. It is safe for
// concurrent use.
type ToolServers interface {
	// Servers returns them as they were known last, in the order of the
	// configuration.
	Servers() []ToolServer
}
