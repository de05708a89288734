package engi

import "context"

// A GitSpec is the repository that a session works on. It is cloned inside the
// session's sandbox; the wall opens the paths that git needs and puts the
// credential into its requests.
type GitSpec struct {
	URL        string // https://HOST[:PORT]/PATH without user and password; http:// if the session's policy allows the host
	Ref        string // branch, tag or full ID of a commit; empty means the repository's default
	Depth      int    // commits of history; 0 means all
	Submodules bool   // those beside the repository are reachable, too
	Secret     string // ID or name of the secret with the password or token; empty for none
	User       string // that goes with the secret; empty means git
	Dir        string // relative to /workspace; empty means the last part of the URL
	Push       *GitPush
}

// A GitPush says how the work of a session is committed and pushed. Empty fields
// mean those of the session's [GitSpec], where a nil one forbids to push.
type GitPush struct {
	OnRelease bool   // of a GitSpec: push when the sandbox is released and when the session ends, too
	Branch    string // empty means engi/ and the session's name or ID
	Author    string // NAME <ADDRESS>; empty means engi
	Message   string // of the commit; empty means that it names the session
}

// GitPushed is where work was pushed to.
type GitPushed struct {
	Branch    string
	Commit    string // full ID
	Conflict  bool   // the branch that was asked for has commits that the session has not, so Branch is a new one
	Unchanged bool   // the branch had the commit already
}

// SessionFiles brings the files of sessions to where they outlive the node.
// Owners see what they see in [Sessions]. It is safe for concurrent use.
type SessionFiles interface {
	// PushGit commits what changed in the session's repository and pushes it.
	// It reports Denied if the session may not push.
	PushGit(ctx context.Context, owner Owner, idOrName string, p GitPush) (GitPushed, error)
	// SaveWorkspace copies the files of a session of persistence workspace to
	// the store of workspaces, whether or not it has a sandbox.
	SaveWorkspace(ctx context.Context, owner Owner, idOrName string) (WorkspaceCopy, error)
}

// A WorkspaceCopy describes the copy of a workspace.
type WorkspaceCopy struct {
	Files    int   // and directories and links
	Bytes    int64 // of the content of all files
	Uploaded int64 // bytes that the store did not have
	Skipped  int   // pipes, sockets and devices, which are not copied
}
