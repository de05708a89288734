package engi

import "time"

// A TerminalInfo describes a terminal: a program with a screen in a session or a sandbox, which
// continues without viewers.
type TerminalInfo struct {
	ID      TerminalID
	Owner   Owner
	Session SessionID // empty for a terminal of a sandbox that belongs to no session
	Sandbox SandboxID // sandbox of the terminal, with which it ends
	Args    []string  // program and arguments; only the program while the sandbox sleeps
	Dir     string    // empty while the sandbox sleeps
	Size    TerminalSize
	Created time.Time
	Running bool             // the program has not ended, as far as is known
	Viewers []TerminalViewer // current viewers
}

// A TerminalViewer is a client that is attached to a terminal.
type TerminalViewer struct {
	ID       string
	Name     string
	ReadOnly bool
	Link     TerminalLinkID // link that the viewer used; empty for the owner
	Since    time.Time
}

// A TerminalLink opens one terminal to the holders of its secret.
type TerminalLink struct {
	ID       TerminalLinkID
	Terminal TerminalID
	Owner    Owner
	Name     string // name of its viewers
	Write    bool   // viewers may type
	Created  time.Time
	Expires  time.Time
}
