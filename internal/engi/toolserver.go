package engi

import "time"

// A ToolServer is a configured MCP server, as it was when it was last used. It
// is a value.
type ToolServer struct {
	Name    string
	Kind    ToolServerKind
	State   ToolServerState
	Tools   []string  // by the names that models see, as last listed
	Skipped []string  // tools that cannot be offered, each with the reason
	Error   string    // why it failed
	Checked time.Time // zero if it was never used
}

// A ToolServerKind says how an MCP server is reached.
type ToolServerKind string

const (
	ToolServerURL     ToolServerKind = "url"     // over the network
	ToolServerCommand ToolServerKind = "command" // a program in a sandbox
)

// A ToolServerState is what is known about an MCP server.
type ToolServerState string

const (
	ToolServerUnused ToolServerState = "unused" // not used yet
	ToolServerReady  ToolServerState = "ready"
	ToolServerFailed ToolServerState = "failed" // Error says why
)

// ToolServers lists the configured MCP servers. It is safe for concurrent use.
type ToolServers interface {
	// Servers returns them in the order of the configuration. It does not
	// contact them.
	Servers() []ToolServer
}
