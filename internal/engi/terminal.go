package engi

import "time"

// A TerminalInfo describes a terminal: a program with a screen in a session or a sandbox, which goes on
// when nobody looks.
type TerminalInfo struct {
	ID      TerminalID
	Owner   Owner
	Session SessionID // empty for one of a sandbox that is no session's
	Sandbox SandboxID // where it runs, and with which it ends
	Args    []string  // only the program while the sandbox sleeps
	Dir     string    // empty while the sandbox sleeps
	Size    TerminalSize
	Created time.Time
	Running bool             // not known to have ended
	Viewers []TerminalViewer // who looks at it now
}

// A TerminalViewer is a client that is attached to a terminal.
type TerminalViewer struct {
	ID       string
	Name     string
	ReadOnly bool
	Link     TerminalLinkID // by which it came; empty for the owner
	Since    time.Time
}

// A TerminalLink opens one terminal to whoever has its secret.
type TerminalLink struct {
	ID       TerminalLinkID
	Terminal TerminalID
	Owner    Owner
	Name     string // of its viewers
	Write    bool   // they may type
	Created  time.Time
	Expires  time.Time
}
